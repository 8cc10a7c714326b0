//! The push of a disk that a server has open: a job of the server, over its control socket.

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};
use serde::Deserialize;
use serde_json::json;
use tool::failure::Failure;

use super::{Args, Outcome, Report};
use crate::copying::watch::Watch;
use crate::lineages::args::Served;
use crate::remote::Remote;

/// Has the server push its disk, and watches the job. A signal cancels it.
///
/// # Errors
/// When another command pushes the disk, when the server refuses or fails, or a signal ends it: then the image that was there is there.
pub fn push(args: &Args, served: Served, watch: &Watch) -> Result<Report, Failure> {
    if args.cache.is_some() || args.drive.is_opened_in_some_way() {
        let what = "the server has the disk open: -f, -T, -U, --image-opts, --allow-path and --allow-name have no use";
        return Err(Failure::new(what));
    }
    let Served { mut remote, node } = served;
    // Names of nodes that the server made begin with #.
    let jobs = format!("push-{}-", node.replace('#', ""));
    end_left_jobs(&mut remote, &jobs, (&node, watch))?;
    let job = format!("{jobs}{}", getpid());
    let mut arguments = args.target.arguments();
    for (name, value) in [
        ("node-name", json!(node)),
        ("bitmap", json!(args.bitmap)),
        ("speed", json!(args.rate)),
        ("job-id", json!(job)),
        ("auto-dismiss", json!(false)),
    ] {
        arguments[name] = value;
    }
    if let Some(arguments) = arguments.as_object_mut() {
        arguments.retain(|_, value| !value.is_null());
    }
    remote.ask("cowhand-push", arguments)?;
    let outcome = remote.outcome_of_job(&job, watch)?;
    let outcome = Outcome::deserialize(&outcome)
        .map_err(|error| Failure::because("the server does not say what it pushed", &error))?;
    let filename = args.drive.drive.to_string_lossy().into_owned();
    Ok(Report { filename, target: args.target.target.clone(), outcome })
}

/// Cancels the job of a push that was killed.
///
/// # Errors
/// When the process that began one is alive: it waits for its end.
fn end_left_jobs(remote: &mut Remote, prefix: &str, (node, watch): (&str, &Watch)) -> Result<(), Failure> {
    for (job, process) in remote.jobs_of_processes(prefix)? {
        if is_alive(process) {
            return Err(Failure::new(format!("process {process} is pushing node {node:?} (job {job})"))
                .with_hint("push when that has ended; block-job-cancel of its server ends the job"));
        }
        remote.end_left_job(&job, "push", watch)?;
    }
    Ok(())
}

/// Whether there is a process of this number, another user's included.
fn is_alive(process: i32) -> bool {
    let found = Pid::from_raw(process).map(test_kill_process);
    matches!(found, Some(Ok(()) | Err(Errno::PERM)))
}
