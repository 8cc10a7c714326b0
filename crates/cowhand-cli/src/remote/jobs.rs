//! A job of a running server, watched to its end: progress, Ctrl-C, what became of it.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::Remote;
use crate::copying::watch::Watch;
use crate::failure::Failure;

/// Often enough for a person who pressed Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

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

    /// Shows how far the job is until it is there. A signal cancels it. One that has ended is forgotten by the server; it was begun with
    /// `auto-dismiss` off.
    ///
    /// # Errors
    /// When it fails, when it is cancelled by a signal or by somebody else, when the server does not answer.
    pub fn watch_job(&mut self, id: &str, watch: &Watch, until: Until) -> Result<(), Failure> {
        let mut progress = watch.progress(0);
        let mut is_ended_by_us = false;
        let watched = loop {
            let Some(job) = self.job(id)? else {
                break Err(Failure::new(format!("job {id} is gone: somebody else ended it")));
            };
            let number = |name: &str| job[name].as_u64().unwrap_or(0);
            progress.set_total(number("total-progress"));
            match job["status"].as_str() {
                Some("concluded") => {
                    self.ask("job-dismiss", json!({ "id": id }))?;
                    break ended(id, &job, is_ended_by_us);
                }
                Some("ready" | "standby") if until == Until::Ready && !is_ended_by_us => break Ok(()),
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
