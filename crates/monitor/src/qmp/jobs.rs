//! query-jobs, query-block-jobs, and what is asked of a job: `job-*` and their older twins `block-job-*`.

use std::rc::Rc;

use control::{Class, QmpError, arguments, choice, events, variants};
use job::{End, Life, Status, VerbError};
use serde_json::Value;

use self::Whose::{Newer, Older};
use crate::inventory::Inventory;
use crate::jobs::Job;

/// All jobs.
pub fn query(inventory: &Inventory) -> Value {
    inventory.jobs.all().iter().map(|job| job.info()).collect()
}

/// The jobs of disks, as `query-block-jobs` has them.
pub fn query_block(inventory: &Inventory) -> Value {
    let jobs = inventory.jobs.all();
    jobs.iter().filter(|job| job.is_of_disk).map(|job| job.block_info()).collect()
}

arguments! {
    /// Which job is meant.
    pub struct ById { id: String }

    /// Likewise, as the older commands have it.
    pub struct ByDevice { device: String }

    /// A job that is to end.
    pub struct Cancel { device: String, force: Option<bool> }

    /// Bytes a second.
    pub struct SetSpeed { device: String, speed: u64 }

    /// A job whose options change.
    pub struct Change { id: String } with r#type: Changes

    /// Options of a mirror.
    pub struct OfMirror { copy_mode: CopyMode }
}

variants! {
    /// What changes, by the kind of the job.
    pub enum Changes by "type" { Mirror(OfMirror) }
}

choice! {
    /// When guests wait for the target.
    pub enum CopyMode { Background, WriteBlocking }
}

/// The job that a command is about: older commands see those of disks alone.
#[derive(Clone, Copy)]
pub enum Whose<'a> {
    /// `job-*`
    Newer(&'a str),
    /// `block-job-*`
    Older(&'a str),
}

/// Asks something of a job.
pub fn act(
    inventory: &Inventory,
    whose: Whose<'_>,
    verb: impl FnOnce(&Life) -> Result<(), VerbError>,
) -> Result<(), QmpError> {
    verb(&find(inventory, whose)?.life).map_err(refused)
}

/// As in QEMU a job that is finalized has concluded before the answer.
pub async fn finalize(inventory: &Inventory, whose: Whose<'_>) -> Result<(), QmpError> {
    let job = find(inventory, whose)?;
    job.life.finalize().map_err(refused)?;
    job.life.concluded().await;
    Ok(())
}

/// Likewise one that is dismissed is gone: the next command may use its nodes and its id.
pub async fn dismiss(inventory: &Inventory, whose: Whose<'_>) -> Result<(), QmpError> {
    let job = find(inventory, whose)?;
    job.life.dismiss().map_err(refused)?;
    job.life.over().await;
    Ok(())
}

fn find(inventory: &Inventory, whose: Whose<'_>) -> Result<Rc<Job>, QmpError> {
    let (Newer(id) | Older(id)) = whose;
    // What makes images is of no disk: the older commands do not see it.
    let found = inventory.jobs.find(id).filter(|job| job.is_of_disk || matches!(whose, Newer(_)));
    found.ok_or_else(|| match whose {
        Older(id) => QmpError {
            class: Class::DeviceNotActive,
            ..QmpError::generic(format!("there is no block job {id:?}"))
        },
        Newer(id) => QmpError::generic(format!("there is no job {id:?}")),
    })
}

/// `job-cancel` is by force unless the job is ready to be left with a whole copy; `block-job-cancel` says it.
pub fn cancel(inventory: &Inventory, whose: Whose<'_>, force: bool) -> Result<(), QmpError> {
    act(inventory, whose, |life| {
        let by_force = if matches!(whose, Older(_)) { force } else { life.is_paused() };
        // What is pending or waits has nothing to leave any more.
        let is_late = matches!(life.status(), Status::Waiting | Status::Pending);
        life.ask_to_end(if by_force || is_late { End::Force } else { End::Cancel })
    })
}

/// Ends a job that is ready.
pub fn complete(inventory: &Inventory, whose: Whose<'_>) -> Result<(), QmpError> {
    let job = find(inventory, whose)?;
    let id = &job.life.terms().id;
    if job.work().is_some_and(|work| work.tracked().is_none()) {
        return Err(QmpError::generic(format!("job {id:?} completes by itself")));
    }
    job.life.ask_to_end(End::Complete).map_err(refused)
}

/// A mirror in the background may begin to write through; the way back is refused, as in QEMU.
pub fn change(inventory: &Inventory, arguments: &Change) -> Result<(), QmpError> {
    let job = find(inventory, Older(&arguments.id))?;
    job.life.check_change().map_err(refused)?;
    let Changes::Mirror(OfMirror { copy_mode }) = arguments.r#type;
    let kind = "mirror";
    let id = &job.life.terms().id;
    let work = job.work();
    let tracked = work.as_ref().and_then(|work| work.tracked());
    match (tracked, copy_mode) {
        (Some(tracked), CopyMode::WriteBlocking) if kind == job.kind => tracked.be_synchronous(),
        (Some(tracked), CopyMode::Background) if kind == job.kind && !tracked.is_synchronous() => {}
        (Some(_), _) if kind == job.kind => {
            return Err(QmpError::generic(format!(
                "copy-mode of job {id:?} can change from background to write-blocking only"
            )));
        }
        _ => return Err(QmpError::generic(format!("job {id:?} is no {kind} whose options can change"))),
    }
    Ok(())
}

fn refused(error: VerbError) -> QmpError {
    QmpError::generic(error.to_string())
}

choice! {
    /// Jobs that older commands see.
    pub enum JobKind { Commit, Stream, Mirror, Backup }

    /// Where a job is in its life.
    pub enum JobStatus {
        Undefined, Created, Running, Paused, Ready, Standby, Waiting, Pending, Aborting, Concluded, Null
    }

    /// Which side of a job failed.
    pub enum Operation { Read, Write }

    /// What a job does about it.
    pub enum FailureAction { Ignore, Report, Stop }
}

events! {
    /// It is in another part of its life.
    pub STATUS_CHANGE = "JOB_STATUS_CHANGE" { "id": String, "status": JobStatus }

    /// A copy is whole.
    pub READY = "BLOCK_JOB_READY" {
        "type": JobKind, "device": String, "len": u64, "offset": u64, "speed": u64,
    }

    /// It was cancelled.
    pub CANCELLED = "BLOCK_JOB_CANCELLED" {
        "type": JobKind, "device": String, "len": u64, "offset": u64, "speed": u64,
    }

    /// It is over.
    pub COMPLETED = "BLOCK_JOB_COMPLETED" {
        "type": JobKind, "device": String, "len": u64, "offset": u64, "speed": u64, "error": Option<String>,
    }

    /// A request of it failed.
    pub ERROR = "BLOCK_JOB_ERROR" { "device": String, "operation": Operation, "action": FailureAction }

    /// It waits to be finalized.
    pub PENDING = "BLOCK_JOB_PENDING" { "type": JobKind, "id": String }
}
