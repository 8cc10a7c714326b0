//! The jobs of the process: their list, their events, and their end.
//!
//! A job is a task of the main loop. It changes the graph as a command does, with a [`graph::Change`].

mod amend;
mod bitmap_sync;
mod create;
mod group;
mod host;
mod own_target;
mod task;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use block::Block;
use control::{Events, QmpError};
use graph::{Hold, JobFilter};
use job::{End, IoStatus, Life, Notice, OnError, Side, Status, Task, Terms, Verdict};
use serde_json::{Value, json};

pub use self::amend::Amendment;
pub use self::bitmap_sync::{BitmapMode, BitmapSync};
pub use self::create::Creation;
pub use self::group::Group;
pub use self::own_target::OwnTarget;
pub use self::work::Work;
use super::inventory::Inventory;

/// Jobs at a time at most, those included that wait to be dismissed.
const JOBS_MAX: usize = 256;
/// How often the end of jobs is looked for when the program ends.
const LOOK: Duration = Duration::from_millis(5);
/// How often the end of one job is looked for that another one is to follow.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// All jobs.
#[derive(Default)]
pub struct Jobs {
    list: RefCell<Vec<Rc<Job>>>,
    /// Ids of jobs whose end is waited for.
    awaited: RefCell<BTreeSet<String>>,
}

/// A job, and what queries and events report of it.
pub struct Job {
    /// Its kind, under QEMU's name.
    pub kind: &'static str,
    /// What it does and asks.
    pub life: Life,
    /// It is one of `query-block-jobs`.
    pub is_of_disk: bool,
    /// Keep what it works on from being removed.
    holds: RefCell<Vec<Hold>>,
    /// Keeps the name of its filter.
    filter: RefCell<Option<JobFilter>>,
    /// Layers that it has for itself while it has work.
    layers: Vec<Claim>,
    /// A target that came with it.
    target: RefCell<Option<OwnTarget>>,
    work: RefCell<Option<Rc<Work>>>,
    /// What its work had to say.
    outcome: RefCell<Option<Value>>,
    /// It is reported as cancelled rather than as failed.
    cancelled: Cell<bool>,
    /// It does not begin.
    withdrawn: Cell<bool>,
    /// Clients were notified that it is ready. After a pause it is so again, without a second notice.
    notified_ready: Cell<bool>,
}

/// A layer that a job has for itself.
pub struct Claim {
    /// The file that it is made of.
    pub file: String,
    /// The disk has it no more when the job is done.
    pub is_taken_out: bool,
}

/// A job to be.
pub struct NewJob {
    /// Its kind.
    pub kind: &'static str,
    /// What stays the same.
    pub terms: Terms,
    /// Bytes a second at most; 0 is no limit.
    pub speed: u64,
    /// Others that it succeeds or fails with.
    pub group: Option<Rc<Group>>,
    /// Layers that it has for itself.
    pub layers: Vec<Claim>,
    /// A target that comes and goes with it.
    pub target: Option<OwnTarget>,
    /// The node name of its filter, if a user gave one.
    pub filter: Option<JobFilter>,
}

impl Jobs {
    /// All, in the order of their making.
    pub fn all(&self) -> Vec<Rc<Job>> {
        self.list.borrow().clone()
    }

    /// The one called `id`.
    pub fn find(&self, id: &str) -> Option<Rc<Job>> {
        self.list.borrow().iter().find(|job| job.life.terms().id == id).cloned()
    }

    /// The running job that has a layer made of `file`, and whether it takes the layer out.
    pub fn user_of(&self, file: &str) -> Option<(String, bool)> {
        let jobs = self.list.borrow();
        let mut at_work = jobs.iter().filter(|job| job.work().is_some());
        at_work.find_map(|job| {
            let claim = job.layers.iter().find(|claim| claim.file == file)?;
            Some((job.life.terms().id.clone(), claim.is_taken_out))
        })
    }

    /// What the commit at work whose filter is called `name` takes out: its uppermost layer, over which that filter is.
    pub fn below_commit_filter(&self, name: &str) -> Option<Arc<dyn Block>> {
        let jobs = self.list.borrow();
        let is_its =
            |job: &&Rc<Job>| job.filter.borrow().as_ref().is_some_and(|filter| filter.is_called(name));
        let work = jobs.iter().find(is_its)?.work()?;
        match &*work {
            Work::Disk { task: Task::Commit(merge), .. } => Some(Arc::clone(&merge.top)),
            _ => None,
        }
    }

    /// Refuses an id that is in use or cannot be one, and one job too many.
    ///
    /// # Errors
    /// Says which.
    pub fn check_new(&self, id: &str) -> Result<(), QmpError> {
        let begins = id.starts_with(|c: char| c.is_ascii_alphabetic() || c == '#');
        if !begins || !id.chars().all(|c| c.is_ascii_alphanumeric() || "-._#".contains(c)) {
            return Err(QmpError::generic(format!(
                "{id:?} is no id of a job: a letter, then letters, digits, '-', '.', '_'; give job-id"
            )));
        }
        if self.find(id).is_some() {
            return Err(QmpError::generic(format!("there is a job with id {id:?} already")));
        }
        if self.list.borrow().len() >= JOBS_MAX {
            return Err(QmpError::generic(format!(
                "there are {JOBS_MAX} jobs; dismiss some that have ended"
            )));
        }
        Ok(())
    }

    /// Reports a job that could not begin to clients that expect QEMU's events: there a job exists before its
    /// nodes are checked.
    pub fn tell_not_begun(inventory: &Inventory, id: &str) {
        if inventory.as_qemu {
            for status in [Status::Created, Status::Null] {
                let data = json!({ "status": status.name(), "id": id });
                inventory.events.emit("JOB_STATUS_CHANGE", &data);
            }
        }
    }

    /// Starts a job. `holds` keep what it works on.
    pub fn start(inventory: &Rc<Inventory>, new: NewJob, work: Work, holds: Vec<Hold>) {
        let NewJob { kind, terms, speed, group, layers, target, filter } = new;
        let is_of_disk = work.is_of_disk();
        let job = Rc::new_cyclic(|job: &Weak<Job>| {
            let (job, events) = (Weak::clone(job), Rc::clone(&inventory.events));
            let id = terms.id.clone();
            let life = Life::new(terms, speed, move |notice| tell(&events, &id, kind, &job, notice));
            Job {
                kind,
                life,
                is_of_disk,
                holds: RefCell::new(holds),
                filter: RefCell::new(filter),
                layers,
                target: RefCell::new(target),
                work: RefCell::new(Some(Rc::new(work))),
                outcome: RefCell::default(),
                cancelled: Cell::new(false),
                withdrawn: Cell::new(false),
                notified_ready: Cell::new(false),
            }
        });
        inventory.jobs.list.borrow_mut().push(Rc::clone(&job));
        if group.is_none() {
            // The client that began it gets the event before the answer, as from QEMU.
            job.begin(inventory);
        }
        let inventory = Rc::clone(inventory);
        reactor::spawn(async move {
            task::live(&inventory, &job, group).await;
            inventory.jobs.list.borrow_mut().retain(|other| !Rc::ptr_eq(other, &job));
        })
        .detach();
    }

    /// Waits until no job is called `id`. `false` at once if another caller waits for the same.
    pub async fn wait_for(&self, id: &str) -> bool {
        if !self.awaited.borrow_mut().insert(id.to_owned()) {
            return false;
        }
        while self.find(id).is_some() {
            reactor::sleep(LOOK_AGAIN).await;
        }
        self.awaited.borrow_mut().remove(id)
    }

    /// Ends all of them, by force, and waits until they have cleaned up: the program ends.
    pub async fn end_all(&self) {
        let is_over = |job: &Rc<Job>| matches!(job.life.status(), Status::Concluded | Status::Null);
        for job in self.all() {
            // One that has ended refuses.
            let _ = job.life.ask_to_end(End::Force);
        }
        while !self.all().iter().all(is_over) {
            reactor::sleep(LOOK).await;
        }
    }
}

impl Job {
    /// Begins. Clients that expect QEMU's events hear that the disk of a backup is drained at that moment.
    fn begin(&self, inventory: &Inventory) {
        match inventory.as_qemu && self.kind == "backup" {
            true => self.life.begin_drained(),
            false => self.life.begin(),
        }
    }

    /// The names of its nodes: the disk's, and the target's if there is one.
    pub fn nodes(&self) -> Vec<String> {
        self.holds.borrow().iter().map(Hold::node_name).collect()
    }

    /// Takes back a job that has not begun: it cleans up and is dismissed, whatever its options say. The
    /// event of its creation is the only one that is sent.
    pub fn withdraw(&self) {
        self.withdrawn.set(true);
        self.life.withdraw();
    }

    /// Releases the nodes that it works on. The name of its filter is free afterwards.
    pub fn let_go(&self) {
        self.filter.borrow_mut().take();
        self.holds.borrow_mut().clear();
    }

    /// Its target has become the disk's: it stays.
    fn leave_target(&self) {
        self.target.borrow_mut().take();
    }

    /// As `query-jobs` has it.
    pub fn info(&self) -> Value {
        let (done, total) = self.life.progress();
        let mut value = json!({
            "id": self.life.terms().id,
            "type": self.kind,
            "status": self.life.status().name(),
            "current-progress": done,
            "total-progress": total,
        });
        if let Some(error) = self.life.error() {
            value["error"] = json!(error);
        }
        if let Some(outcome) = &*self.outcome.borrow() {
            value["x-outcome"] = outcome.clone();
        }
        value
    }

    /// As `query-block-jobs` has it.
    pub fn block_info(&self) -> Value {
        let (done, total) = self.life.progress();
        let status = self.life.status();
        let is_at_rest = match status {
            Status::Paused | Status::Standby | Status::Concluded | Status::Pending => true,
            // It waits for what guests write.
            Status::Ready => done >= total,
            _ => false,
        };
        let mut value = json!({
            "device": self.life.terms().id,
            "type": self.kind,
            "len": total,
            "offset": done,
            "busy": !is_at_rest,
            "paused": self.life.is_paused(),
            "speed": self.life.speed(),
            "io-status": match self.life.io_status() {
                IoStatus::Ok => "ok",
                IoStatus::Failed => "failed",
                IoStatus::NoSpace => "nospace",
            },
            "ready": matches!(status, Status::Ready | Status::Standby),
            "status": status.name(),
            "auto-finalize": !self.life.terms().waits_for_finalize,
            "auto-dismiss": !self.life.terms().waits_for_dismiss,
        });
        if let Some(error) = self.life.error() {
            value["error"] = json!(error);
        }
        if let Some(tracked) = self.work.borrow().as_ref().and_then(|work| work.tracked().cloned()) {
            value["actively-synced"] = json!(tracked.is_synchronous() && tracked.dirty().is_empty());
            value["x-written-through"] = json!(tracked.written_through());
            value["x-write-wait-ns"] = json!(tracked.waited_ns());
        }
        value
    }

    /// The work, until it is done.
    pub fn work(&self) -> Option<Rc<Work>> {
        self.work.borrow().clone()
    }

    /// What every event of its end has.
    fn event_data(&self) -> Value {
        let (done, total) = self.life.progress();
        json!({
            "device": self.life.terms().id,
            "len": total,
            "offset": done,
            "speed": self.life.speed(),
            "type": self.kind,
        })
    }
}

/// What `text` means for a failed request; it is one of the schema's.
pub fn on_error(text: Option<&str>) -> OnError {
    match text {
        Some("ignore") => OnError::Ignore,
        Some("stop") => OnError::Stop,
        Some("enospc" | "auto") => OnError::Enospc,
        _ => OnError::Report,
    }
}

fn tell(events: &Events, id: &str, kind: &str, job: &Weak<Job>, notice: Notice) {
    match notice {
        Notice::Status(status) => {
            events.emit("JOB_STATUS_CHANGE", &json!({ "status": status.name(), "id": id }));
            let Some(job) = job.upgrade().filter(|job| job.is_of_disk) else { return };
            match status {
                Status::Ready if !job.life.is_paused() && !job.notified_ready.replace(true) => {
                    events.emit("BLOCK_JOB_READY", &job.event_data());
                }
                Status::Pending if job.life.terms().waits_for_finalize => {
                    events.emit("BLOCK_JOB_PENDING", &json!({ "type": kind, "id": id }));
                }
                _ => {}
            }
        }
        Notice::Failed(side, verdict) => {
            let operation = match side {
                Side::Source => "read",
                Side::Target => "write",
            };
            let action = match verdict {
                Verdict::Report => "report",
                Verdict::Ignore => "ignore",
                Verdict::Stop => "stop",
            };
            let data = json!({ "device": id, "operation": operation, "action": action });
            events.emit("BLOCK_JOB_ERROR", &data);
        }
    }
}
