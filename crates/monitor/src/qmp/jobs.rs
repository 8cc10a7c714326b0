//! query-jobs, query-block-jobs, and what is asked of a job: `job-*` and their older twins `block-job-*`.

use std::rc::Rc;

use control::{Arguments, Class, QmpError};
use job::{End, Status, VerbError};
use serde_json::{Value, json};

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

/// Does `command`, which is one about a job. As in QEMU a job that is finalized has concluded, and one that is dismissed is gone, before the answer:
/// the next command may use its nodes and its id.
pub async fn act(inventory: &Inventory, command: &str, arguments: Arguments<'_>) -> Result<Value, QmpError> {
    let older = command.strip_prefix("block-job-");
    let verb = older.or_else(|| command.strip_prefix("job-")).unwrap_or(command);
    let job = asked(inventory, verb, older.is_some(), arguments)?;
    match verb {
        "finalize" => job.life.concluded().await,
        "dismiss" => job.life.over().await,
        _ => {}
    }
    Ok(json!({}))
}

fn asked(
    inventory: &Inventory,
    verb: &str,
    is_older: bool,
    arguments: Arguments<'_>,
) -> Result<Rc<Job>, QmpError> {
    let name = if is_older && arguments.has("device") { "device" } else { "id" };
    let job = find(inventory, arguments.text(name)?, is_older)?;
    let done = match verb {
        "pause" => job.life.pause(),
        "resume" => job.life.resume(),
        "cancel" => cancel(&job, is_older, arguments.is_on("force")),
        "complete" => return complete(&job).map(|()| job),
        "finalize" => job.life.finalize(),
        "dismiss" => job.life.dismiss(),
        "set-speed" => job.life.set_speed(arguments.whole("speed")?),
        "change" => return change(&job, arguments).map(|()| job),
        _ => return Err(QmpError::not_found(format!("there is no verb {verb} for jobs"))),
    };
    done.map(|()| job).map_err(refused)
}

fn find(inventory: &Inventory, id: &str, is_older: bool) -> Result<Rc<Job>, QmpError> {
    // What makes images is of no disk: the older commands do not see it.
    let found = inventory.jobs.find(id).filter(|job| job.is_of_disk || !is_older);
    found.ok_or_else(|| match is_older {
        true => QmpError {
            class: Class::DeviceNotActive,
            ..QmpError::generic(format!("there is no block job {id:?}"))
        },
        false => QmpError::generic(format!("there is no job {id:?}")),
    })
}

/// `job-cancel` is by force unless the job is ready to be left with a whole copy; `block-job-cancel` says it.
fn cancel(job: &Job, is_older: bool, force: bool) -> Result<(), VerbError> {
    let by_force = if is_older { force } else { job.life.is_paused() };
    // What is pending or waits has nothing to leave any more.
    let is_late = matches!(job.life.status(), Status::Waiting | Status::Pending);
    job.life.ask_to_end(if by_force || is_late { End::Force } else { End::Cancel })
}

fn complete(job: &Job) -> Result<(), QmpError> {
    let id = &job.life.terms().id;
    if job.work().is_some_and(|work| work.tracked().is_none()) {
        return Err(QmpError::generic(format!("job {id:?} completes by itself")));
    }
    job.life.ask_to_end(End::Complete).map_err(refused)
}

/// A mirror in the background may begin to write through; the way back is refused, as in QEMU.
fn change(job: &Job, arguments: Arguments<'_>) -> Result<(), QmpError> {
    job.life.check_change().map_err(refused)?;
    let (kind, mode) = (arguments.text("type")?, arguments.maybe_text("copy-mode"));
    let id = &job.life.terms().id;
    let work = job.work();
    let tracked = work.as_ref().and_then(|work| work.tracked());
    match (tracked, mode) {
        (Some(tracked), Some("write-blocking")) if kind == job.kind => tracked.be_synchronous(),
        (Some(tracked), Some("background")) if kind == job.kind && !tracked.is_synchronous() => {}
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
