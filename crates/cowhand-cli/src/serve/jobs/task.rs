//! A job from its beginning to its end.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use graph::NodeError;
use job::{End, Ended, Error, Life, Status};
use serde_json::json;

use super::{Group, Job, Work};
use crate::serve::inventory::Inventory;

/// How long requests in flight of a job that ends by force are waited for.
const FORCED_PATIENCE: Duration = Duration::from_secs(1);

/// Why a job ended early.
#[derive(Debug)]
pub(super) enum Failed {
    Cancelled,
    Because(String),
    /// A request failed of what the system said.
    OfSystem {
        said: String,
        by_system: String,
    },
}

impl Failed {
    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        match said_by_system(error) {
            Some(by_system) => Self::OfSystem { said: said(error), by_system },
            None => Self::Because(said(error)),
        }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error {
            Error::Cancelled => Self::Cancelled,
            error => Self::of(&error),
        }
    }
}

impl From<checkpoints::Error> for Failed {
    fn from(error: checkpoints::Error) -> Self {
        match error {
            checkpoints::Error::Cancelled => Self::Cancelled,
            error => Self::Because(said(&error)),
        }
    }
}

/// What the system said, where it was the system, or would say of a node that others use: QEMU's jobs tell no more.
fn said_by_system(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let number = causes.filter_map(|error| {
        let block = error.downcast_ref::<block::Error>().and_then(block::Error::raw_os_error);
        let of_system = block.or_else(|| error.downcast_ref::<std::io::Error>()?.raw_os_error());
        let in_use = matches!(error.downcast_ref(), Some(NodeError::InUse { .. }));
        of_system.or_else(|| in_use.then_some(libc::EPERM))
    });
    let text = std::io::Error::from_raw_os_error(number.last()?).to_string();
    Some(text.split(" (os error").next().unwrap_or_default().to_owned())
}

/// An error with its causes in one line.
fn said(error: &(dyn std::error::Error + 'static)) -> String {
    control::QmpError::because(String::new(), error).desc.trim_start_matches(": ").to_owned()
}

/// Lives a job's life.
pub async fn live(inventory: &Rc<Inventory>, job: &Rc<Job>, group: Option<Rc<Group>>) {
    let Some(work) = job.work() else { return };
    let group = match group {
        Some(group) => group.begun().await,
        None => None,
    };
    let result = match job.withdrawn.get() {
        true => Err(Failed::Cancelled),
        false => {
            if job.life.status() == Status::Created {
                job.begin(inventory);
            }
            done(inventory, job, &work, group.as_deref()).await
        }
    };
    if let Err(failed) = &result {
        if let Some(group) = &group {
            group.fail();
        }
        job.cancelled.set(matches!(failed, Failed::Cancelled));
        job.life.abort();
        work.abort(inventory, job).await;
    }
    job.let_go();
    *job.outcome.borrow_mut() = work.outcome();
    *job.work.borrow_mut() = None;
    drop(work);
    let target = job.target.borrow_mut().take();
    if let Some(target) = target {
        // Before the end is reported: a client may use the file then.
        let change = inventory.graph.change().await;
        target.close(inventory, &change, !job.withdrawn.get()).await;
    }
    conclude(inventory, job, result);
    job.life.dismissed().await;
}

async fn done(
    inventory: &Rc<Inventory>,
    job: &Rc<Job>,
    work: &Work,
    group: Option<&Group>,
) -> Result<(), Failed> {
    let ended = worked(inventory, &job.life, work, group).await?;
    let others = async {
        match group {
            Some(group) => group.done().await,
            None => true,
        }
    };
    job.life.settle(others).await?;
    work.finish(inventory, job, ended).await.map_err(|error| Failed::of(&error))
}

/// Works to the end, or until another job of the group has failed.
async fn worked(
    inventory: &Inventory,
    life: &Life,
    work: &Work,
    group: Option<&Group>,
) -> Result<Ended, Failed> {
    let Some(group) = group else { return run(inventory, life, work).await };
    let working = pin!(run(inventory, life, work));
    match select(working, pin!(group.failed())).await {
        Either::Left((ended, _)) => ended,
        Either::Right(((), working)) => {
            // What it has under way ends in order.
            let _ = life.ask_to_end(End::Force);
            working.await?;
            Err(Failed::Cancelled)
        }
    }
}

/// Runs it. Where it is to end by force, what is in flight has a moment to end in order; requests to a server that does not answer are left then.
async fn run(inventory: &Inventory, life: &Life, work: &Work) -> Result<Ended, Failed> {
    if !work.is_of_disk() {
        return work.run(inventory, life).await;
    }
    let forced = async {
        life.forced().await;
        reactor::sleep(FORCED_PATIENCE).await;
    };
    match select(pin!(work.run(inventory, life)), pin!(forced)).await {
        Either::Left((ended, _)) => ended,
        // They are dropped with the work.
        Either::Right(_) => {
            tracing::warn!(job = life.terms().id, "requests of a job that ends by force are not waited for");
            Err(Failed::Cancelled)
        }
    }
}

fn conclude(inventory: &Inventory, job: &Job, result: Result<(), Failed>) {
    let mut data = job.event_data();
    let result = result.map_err(|failed| match failed {
        Failed::OfSystem { by_system, said } if inventory.as_qemu => {
            tracing::warn!(job = job.life.terms().id, said, "a request of a job failed");
            Failed::Because(by_system)
        }
        Failed::OfSystem { said, .. } => Failed::Because(said),
        other => other,
    });
    let (event, error) = match result {
        Ok(()) => ("BLOCK_JOB_COMPLETED", None),
        Err(Failed::Cancelled) => ("BLOCK_JOB_CANCELLED", Some("it was cancelled".to_owned())),
        Err(Failed::Because(error) | Failed::OfSystem { said: error, .. }) => {
            data["error"] = json!(error);
            ("BLOCK_JOB_COMPLETED", Some(error))
        }
    };
    match &error {
        None => tracing::info!(job = job.life.terms().id, "a job has done its work"),
        Some(_) if job.withdrawn.get() => {}
        Some(_) if job.cancelled.get() => tracing::info!(job = job.life.terms().id, "a job was cancelled"),
        Some(error) => tracing::warn!(job = job.life.terms().id, error, "a job has ended early"),
    }
    if job.is_of_disk && !job.withdrawn.get() {
        inventory.events.emit(event, &data);
    }
    job.life.conclude(error);
}
