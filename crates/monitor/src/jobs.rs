//! The jobs of the process: their list, their events, and their end.
//!
//! A job is a task of the main loop. It changes the graph as a command does, with a [`graph::Change`].

mod amend;
mod bitmap_sync;
mod create;
mod entry;
mod failed;
mod group;
mod host;
mod own_target;
mod task;
mod work;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block::Block;
use control::QmpError;
use graph::Hold;
use job::{End, OnError, Status, Task};
use serde_json::json;

pub use self::amend::{Amendment, Keys};
pub use self::bitmap_sync::{BitmapMode, BitmapSync};
pub use self::create::Creation;
pub use self::entry::{Claim, Job, NewJob};
pub use self::group::Group;
pub use self::own_target::OwnTarget;
pub use self::work::Work;
use super::inventory::nodes::Nodes;

/// Jobs at a time at most, those included that wait to be dismissed.
const JOBS_MAX: usize = 256;
/// How often the end of jobs is looked for when the program ends.
const LOOK: Duration = Duration::from_millis(5);
/// How often the end of one job is looked for that another one is to follow.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// All jobs.
pub struct Jobs {
    nodes: Rc<Nodes>,
    list: Rc<RefCell<Vec<Rc<Job>>>>,
    /// Ids of jobs whose end is waited for.
    awaited: RefCell<BTreeSet<String>>,
}

impl Jobs {
    /// None yet.
    pub fn of(nodes: Rc<Nodes>) -> Self {
        Self { nodes, list: Rc::default(), awaited: RefCell::default() }
    }

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
    pub fn tell_not_begun(&self, id: &str) {
        if self.nodes.as_qemu {
            for status in [Status::Created, Status::Null] {
                let data = json!({ "status": status.name(), "id": id });
                self.nodes.events.emit("JOB_STATUS_CHANGE", &data);
            }
        }
    }

    /// Starts a job. `holds` keep what it works on.
    pub fn start(&self, mut new: NewJob, work: Work, holds: Vec<Hold>) {
        let (group, job) = (new.group.take(), Job::of(new, work, holds, &self.nodes.events));
        self.list.borrow_mut().push(Rc::clone(&job));
        if group.is_none() {
            // The client that began it gets the event before the answer, as from QEMU.
            job.begin(&self.nodes);
        }
        let (nodes, list) = (Rc::clone(&self.nodes), Rc::clone(&self.list));
        reactor::spawn(async move {
            task::live(&nodes, &job, group).await;
            list.borrow_mut().retain(|other| !Rc::ptr_eq(other, &job));
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

/// What `text` means for a failed request; it is one of the schema's.
pub fn on_error(text: Option<&str>) -> OnError {
    match text {
        Some("ignore") => OnError::Ignore,
        Some("stop") => OnError::Stop,
        Some("enospc" | "auto") => OnError::Enospc,
        _ => OnError::Report,
    }
}
