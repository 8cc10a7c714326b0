//! A job: what it works on, and what queries and events report of it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use control::Events;
use graph::{Hold, JobFilter};
use job::{IoStatus, Life, Notice, Side, Status, Terms, Verdict};
use serde_json::{Value, json};

use super::group::Group;
use super::own_target::OwnTarget;
use super::work::Work;
use crate::inventory::nodes::Nodes;

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
    pub(super) filter: RefCell<Option<JobFilter>>,
    /// Layers that it has for itself while it has work.
    pub(super) layers: Vec<Claim>,
    /// A target that came with it.
    pub(super) target: RefCell<Option<OwnTarget>>,
    pub(super) work: RefCell<Option<Rc<Work>>>,
    /// What its work had to say.
    pub(super) outcome: RefCell<Option<Value>>,
    /// It is reported as cancelled rather than as failed.
    pub(super) cancelled: Cell<bool>,
    /// It does not begin.
    pub(super) withdrawn: Cell<bool>,
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

impl Job {
    /// One that has not begun. `holds` keep what it works on.
    pub(super) fn of(new: NewJob, work: Work, holds: Vec<Hold>, events: &Rc<Events>) -> Rc<Self> {
        let NewJob { kind, terms, speed, layers, target, filter, .. } = new;
        let is_of_disk = work.is_of_disk();
        Rc::new_cyclic(|job: &Weak<Self>| {
            let (job, events) = (Weak::clone(job), Rc::clone(events));
            let id = terms.id.clone();
            let life = Life::new(terms, speed, move |notice| tell(&events, &id, kind, &job, notice));
            Self {
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
        })
    }

    /// Begins. Clients that expect QEMU's events hear that the disk of a backup is drained at that moment.
    pub(super) fn begin(&self, nodes: &Nodes) {
        match nodes.as_qemu && self.kind == "backup" {
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
    pub(super) fn leave_target(&self) {
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
    pub(super) fn event_data(&self) -> Value {
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
