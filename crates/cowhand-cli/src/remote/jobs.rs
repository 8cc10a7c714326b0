//! A job of a running server, watched to its end: progress, Ctrl-C, what became of it.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tool::failure::{Failure, warn};

use super::Remote;
use crate::copying::watch::Watch;

/// Often enough for a person who pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

/// What the commands for jobs share.
#[derive(Clone, Debug, clap::Args)]
pub struct LiveArgs {
    /// The disk, by its node's name [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub disk: Option<String>,

    /// Show how far it is, on a terminal (SIGUSR1 shows it anywhere)
    #[arg(short = 'p')]
    pub progress: bool,

    /// Say nothing but errors
    #[arg(short = 'q')]
    pub quiet: bool,
}

impl LiveArgs {
    /// Begins to catch signals.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn watch(&self) -> Result<Watch, Failure> {
        Watch::begin(self.progress && !self.quiet)
    }
}

/// How far a job is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// It is in step with its source.
    Ready,
    /// It has ended.
    Ended,
}

impl Remote {
    /// Whether there is a job of this name.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn has_job(&mut self, id: &str) -> Result<bool, Failure> {
        Ok(self.job(id)?.is_some())
    }

    /// Jobs whose ids are `prefix` and the number of the process that began them: ids and numbers.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn jobs_of_processes(&mut self, prefix: &str) -> Result<Vec<(String, i32)>, Failure> {
        let jobs = self.ask("query-jobs", json!({}))?;
        let ids = jobs.as_array().into_iter().flatten().filter_map(|job| job["id"].as_str());
        let of_process = |id: &str| Some((id.to_owned(), id.strip_prefix(prefix)?.parse().ok()?));
        Ok(ids.filter_map(of_process).collect())
    }

    /// Begins a job of `disk`, or finds the one that a command began which was killed, and watches it to its end. One that becomes ready is
    /// completed. Gives what the command answered, if it was this one's.
    ///
    /// # Errors
    /// When the server refuses it; as [`Remote::watch_job`].
    pub fn run_job(
        &mut self,
        kind: &str,
        disk: &str,
        (command, mut arguments): (&str, Value),
        watch: &Watch,
    ) -> Result<Value, Failure> {
        let job = format!("{kind}-{}", disk.replace('#', ""));
        let mut answer = Value::Null;
        if !self.has_job(&job)? {
            (arguments["job-id"], arguments["auto-dismiss"]) = (json!(job), json!(false));
            answer = self.ask(command, arguments)?;
        }
        if self.watch_job(&job, watch, Until::Ready)? == Until::Ready {
            self.ask("job-complete", json!({ "id": job }))?;
            self.watch_job(&job, watch, Until::Ended)?;
        }
        Ok(answer)
    }

    /// Bytes of a disk.
    ///
    /// # Errors
    /// When there is no such disk, or the server does not answer.
    pub fn disk_bytes(&mut self, node: &str) -> Result<u64, Failure> {
        let size = self.node(node)?["image"]["virtual-size"].as_u64();
        size.ok_or_else(|| Failure::new(format!("the server has no disk {node:?}, or reports no size of it")))
    }

    /// The name of the image directly below a disk's uppermost one; none where it has no backing file.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn backing_file(&mut self, node: &str) -> Result<Option<String>, Failure> {
        Ok(self.node(node)?["backing_file"].as_str().map(str::to_owned))
    }

    /// What the server says of a node; null where it has none of that name.
    fn node(&mut self, name: &str) -> Result<Value, Failure> {
        let nodes = self.ask("query-named-block-nodes", json!({}))?;
        let found = nodes.as_array().into_iter().flatten().find(|found| found["node-name"] == name);
        Ok(found.cloned().unwrap_or_default())
    }

    /// Shows how far the job is until it reaches `until`, or ends; returns which. A signal cancels it. A job
    /// that has ended is dismissed at the server; it was begun with `auto-dismiss` off.
    ///
    /// # Errors
    /// When it fails, when a signal or another client cancels it, when the server does not answer.
    pub fn watch_job(&mut self, id: &str, watch: &Watch, until: Until) -> Result<Until, Failure> {
        Ok(self.watched_job(id, watch, until)?.0)
    }

    /// As [`Remote::watch_job`] to the end; gives what the job has to say of what it did.
    ///
    /// # Errors
    /// As there.
    pub fn outcome_of_job(&mut self, id: &str, watch: &Watch) -> Result<Value, Failure> {
        let (_, mut job) = self.watched_job(id, watch, Until::Ended)?;
        Ok(job["x-outcome"].take())
    }

    /// The state of the job, and its entry in `query-jobs`.
    fn watched_job(&mut self, id: &str, watch: &Watch, until: Until) -> Result<(Until, Value), Failure> {
        let mut progress = watch.progress(0);
        let mut is_ended_by_us = false;
        let watched = loop {
            let Some(job) = self.job(id)? else {
                break Err(Failure::new(format!("job {id} is gone: another client ended it")));
            };
            let number = |name: &str| job[name].as_u64().unwrap_or(0);
            progress.set_total(number("total-progress"));
            match job["status"].as_str() {
                Some("concluded") => {
                    self.ask("job-dismiss", json!({ "id": id }))?;
                    break ended(id, &job, is_ended_by_us).map(|()| (Until::Ended, job));
                }
                Some("ready" | "standby") if until == Until::Ready && !is_ended_by_us => {
                    break Ok((Until::Ready, job));
                }
                _ => {}
            }
            if watch.look(&mut progress, number("current-progress")).is_break() && !is_ended_by_us {
                is_ended_by_us = true;
                // One that ends at this moment refuses, and is found to have ended.
                let _ = self.ask("block-job-cancel", json!({ "device": id, "force": true }));
            }
            thread::sleep(LOOK);
        };
        progress.end();
        watched
    }

    /// Cancels the job of a run that was killed: what it did is of no use. `what` it is, in messages.
    ///
    /// # Errors
    /// When the server does not answer, or a signal ends this one.
    pub fn end_left_job(&mut self, id: &str, what: &str, watch: &Watch) -> Result<(), Failure> {
        if self.has_job(id)? {
            warn(&format!("a {what} that did not end is still at work; it is cancelled"));
            // It reports that it was cancelled, which is no failure here.
            self.cancel_job(id, watch);
            watch.check()?;
        }
        Ok(())
    }

    /// Cancels a job whose command has failed, and waits for its end; why the command failed is what its user has to know.
    pub fn cancel_job(&mut self, id: &str, watch: &Watch) {
        let _ = self.ask("block-job-cancel", json!({ "device": id, "force": true }));
        let _ = self.watch_job(id, watch, Until::Ended);
    }

    fn job(&mut self, id: &str) -> Result<Option<Value>, Failure> {
        let jobs = self.ask("query-jobs", json!({}))?;
        Ok(jobs.as_array().into_iter().flatten().find(|job| job["id"] == id).cloned())
    }
}

fn ended(id: &str, job: &Value, by_us: bool) -> Result<(), Failure> {
    match (job["error"].as_str(), by_us) {
        (None, _) => Ok(()),
        (Some(_), true) => Err(Failure::new("interrupted; the job was cancelled")),
        (Some(error), false) => Err(Failure::explained(format!("job {id} failed"), error)),
    }
}
