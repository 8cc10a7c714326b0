//! A run of clusters on its way from the server, for everybody who waits for one of them.

use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use event_listener::Event;
use memory::IoBytes;

use crate::cache::ahead::For;
use crate::cache::image::CLUSTER_BYTES;

/// Clusters that are fetched with one read, and what became of it. Its bytes are there until they are in the image.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) clusters: Range<u64>,
    /// For whom it was started; others may wait for it too.
    pub(crate) started_for: For,
    landed: OnceLock<Result<IoBytes, Arc<io::Error>>>,
    event: Event,
}

impl Flight {
    pub(crate) fn of(clusters: Range<u64>, started_for: For) -> Self {
        Self { clusters, started_for, landed: OnceLock::new(), event: Event::new() }
    }

    /// The first byte of the file that it fetches.
    pub(crate) fn start(&self) -> u64 {
        self.clusters.start * CLUSTER_BYTES
    }

    /// How many clusters it fetches.
    pub(crate) fn count(&self) -> u64 {
        self.clusters.end - self.clusters.start
    }

    /// Says how it ended. Only the first time counts.
    pub(crate) fn land(&self, result: io::Result<IoBytes>) {
        // It has ended: what is said now is that its task is gone.
        let _ = self.landed.set(result.map_err(Arc::new));
        self.event.notify(usize::MAX);
    }

    /// Its bytes, if it has ended well.
    pub(crate) fn bytes(&self) -> Option<&IoBytes> {
        self.landed.get()?.as_ref().ok()
    }

    /// Waits for its end, and gives its bytes. A task of its own fetches, so no waiting task holds it up.
    pub(crate) async fn wait(&self) -> io::Result<&IoBytes> {
        loop {
            let event = self.event.listen();
            match self.landed.get() {
                Some(Ok(bytes)) => return Ok(bytes),
                Some(Err(error)) => return Err(io::Error::new(error.kind(), Arc::clone(error))),
                None => event.await,
            }
        }
    }
}
