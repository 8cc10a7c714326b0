//! A job from its beginning to its end.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use job::{End, Ended, Life, Status};
use serde_json::json;

use super::entry::Job;
use super::failed::Failed;
use super::group::Group;
use super::work::Work;
use crate::inventory::nodes::Nodes;

/// How long requests in flight of a job that ends by force are waited for.
const FORCED_PATIENCE: Duration = Duration::from_secs(1);

/// Lives a job's life.
pub async fn live(nodes: &Nodes, job: &Job, group: Option<Rc<Group>>) {
    let Some(work) = job.work() else { return };
    let group = match group {
        Some(group) => group.begun().await,
        None => None,
    };
    let result = match job.withdrawn.get() {
        true => Err(Failed::Cancelled),
        false => {
            if job.life.status() == Status::Created {
                job.begin(nodes);
            }
            done(nodes, job, &work, group.as_deref()).await
        }
    };
    if let Err(failed) = &result {
        if let Some(group) = &group {
            group.fail();
        }
        job.cancelled.set(matches!(failed, Failed::Cancelled));
        job.life.abort();
        work.abort(nodes, job).await;
    }
    job.let_go();
    *job.outcome.borrow_mut() = work.outcome();
    *job.work.borrow_mut() = None;
    drop(work);
    let target = job.target.borrow_mut().take();
    if let Some(target) = target {
        // Before the end is reported: a client may use the file then.
        let change = nodes.graph.change().await;
        target.close(nodes, &change, !job.withdrawn.get()).await;
    }
    conclude(nodes, job, result);
    job.life.dismissed().await;
}

async fn done(nodes: &Nodes, job: &Job, work: &Work, group: Option<&Group>) -> Result<(), Failed> {
    let ended = worked(nodes, &job.life, work, group).await?;
    let others = async {
        match group {
            Some(group) => group.done().await,
            None => true,
        }
    };
    job.life.settle(others).await?;
    work.finish(nodes, job, ended).await.map_err(|error| Failed::of(&error))
}

/// Works to the end, or until another job of the group has failed.
async fn worked(nodes: &Nodes, life: &Life, work: &Work, group: Option<&Group>) -> Result<Ended, Failed> {
    let Some(group) = group else { return run(nodes, life, work).await };
    let working = pin!(run(nodes, life, work));
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
async fn run(nodes: &Nodes, life: &Life, work: &Work) -> Result<Ended, Failed> {
    if !work.is_of_disk() {
        return work.run(nodes, life).await;
    }
    let forced = async {
        life.forced().await;
        reactor::sleep(FORCED_PATIENCE).await;
    };
    match select(pin!(work.run(nodes, life)), pin!(forced)).await {
        Either::Left((ended, _)) => ended,
        // They are dropped with the work.
        Either::Right(_) => {
            tracing::warn!(job = life.terms().id, "requests of a job that ends by force are not waited for");
            Err(Failed::Cancelled)
        }
    }
}

fn conclude(nodes: &Nodes, job: &Job, result: Result<(), Failed>) {
    let mut data = job.event_data();
    let result = result.map_err(|failed| match failed {
        Failed::OfSystem { by_system, said } if nodes.as_qemu => {
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
        nodes.events.emit(event, &data);
    }
    job.life.conclude(error);
}
