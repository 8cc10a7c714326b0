//! `--trace`: what is asked of the disks goes into a file, beside the requests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use graph::trace::{Recorder, Recording};
use reactor::{Reactor, Task};
use tool::failure::Failure;

/// A trace that is being written. Its task belongs to the loop that it was started on.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    recording: Recording,
    task: Task<()>,
}

impl Trace {
    /// Makes the file, and starts to write what `recorder` takes in. The file system is not needed any more then.
    ///
    /// # Errors
    /// When there is such a file already, or none can be made.
    pub fn start(path: &Path, recorder: Arc<Recorder>, reactor: &Reactor) -> Result<Self, Failure> {
        let recording = Recording::create(path, recorder).map_err(|error| {
            let failure = Failure::because(format!("cannot record a trace in {}", path.display()), &error);
            match error.kind() {
                std::io::ErrorKind::AlreadyExists => {
                    failure.with_hint("a trace never overwrites a file: give another name, or remove it")
                }
                _ => failure,
            }
        })?;
        let writing = recording.clone().keep_writing();
        let path = path.to_owned();
        Ok(reactor.run(async { Self { path, recording, task: reactor::spawn(writing) } }))
    }

    /// Removes the file, which would be in the way of the next start: nothing has been served.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn discard(self) -> Result<(), Failure> {
        drop(self.task);
        std::fs::remove_file(&self.path).map_err(|error| {
            Failure::because(format!("cannot remove the empty trace {}", self.path.display()), &error)
        })
    }

    /// Writes the rest. The disks are closed.
    ///
    /// # Errors
    /// When that fails.
    pub fn end(self) -> Result<(), Failure> {
        let Self { path, recording, task } = self;
        drop(task);
        let path = path.display();
        let summary = recording
            .finish()
            .map_err(|error| Failure::because(format!("cannot write the end of trace {path}"), &error))?;
        tracing::info!("trace {path}: {} requests", summary.requests);
        if summary.lost > 0 {
            tracing::warn!("trace {path}: {} requests came too fast and are missing in it", summary.lost);
        }
        Ok(())
    }
}
