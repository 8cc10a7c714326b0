//! What was fetched goes into the image, and what was not used for the longest goes out of it.

use std::ops::Range;
use std::sync::Arc;

use storage::Hints;

use crate::cache::flight::Flight;
use crate::cache::image::CLUSTER_BYTES;
use crate::cache::shared::Shared;

/// Clusters that are given up at a time, at least: each time costs a flush.
const EVICTED_CLUSTERS: u64 = 256;

impl Shared {
    /// Writes what waits, and flushes when nothing waits any more: an image at rest is complete.
    pub(crate) async fn fill(self: Arc<Self>) {
        let _end = End(&self);
        loop {
            let next = self.state.lock().next();
            match next {
                Some(flight) => self.keep(&flight).await,
                None => {
                    self.flush().await;
                    let mut state = self.state.lock();
                    if state.queue_is_empty() {
                        state.filling = false;
                        return;
                    }
                }
            }
        }
    }

    pub(crate) async fn flush(&self) {
        if let Err(error) = self.image.flush().await {
            self.full(&error);
        }
    }

    async fn keep(&self, flight: &Arc<Flight>) {
        let kept = match (flight.bytes(), self.make_room(flight.count()).await) {
            (Some(bytes), Ok(true)) => {
                self.image.write(flight.start(), bytes.clone().into(), Hints::NONE).await.map(|()| true)
            }
            (_, room) => room.map(|_| false),
        };
        let mut state = self.state.lock();
        if let Ok(true) = kept {
            state.end(flight);
            flight.clusters.clone().for_each(|cluster| state.clusters.insert(cluster));
            return;
        }
        state.give_up(flight);
        drop(state);
        self.counts.not_kept.add(flight.count());
        if let Err(error) = kept {
            self.full(&error);
        }
    }

    /// Makes room for `count` clusters under the ceiling, and says whether there is. Space that is given up is back before this ends, so that
    /// the file does not grow for want of it.
    pub(crate) async fn make_room(&self, count: u64) -> Result<bool, qcow2::Error> {
        let clusters_max = match self.file.bytes_max {
            0 => u64::MAX,
            bytes_max => bytes_max / CLUSTER_BYTES,
        };
        let victims = {
            let mut state = self.state.lock();
            if state.is_stopped() {
                return Ok(false);
            }
            let excess = (state.clusters.count() + count).saturating_sub(clusters_max);
            if excess == 0 {
                return Ok(true);
            }
            let wanted = excess.max(EVICTED_CLUSTERS.min(clusters_max / 4));
            state.evict(usize::try_from(wanted).unwrap_or(usize::MAX))
        };
        self.counts.evictions.add(victims.len() as u64);
        for run in runs(victims) {
            let end = (run.end * CLUSTER_BYTES).min(self.image.size());
            let start = run.start * CLUSTER_BYTES;
            self.image.discard(start, end - start).await?;
        }
        self.image.flush().await?;
        self.image.reclaimed().await;
        Ok(self.state.lock().clusters.count() + count <= clusters_max)
    }

    /// Waits until nothing waits for the image, and what is in it is on disk.
    pub(crate) async fn settle(&self) {
        let _precedes = self.precedence.take();
        loop {
            let settled = self.settled.listen();
            if !self.state.lock().filling {
                return;
            }
            settled.await;
        }
    }
}

/// The end of the filler. One that ends with its loop, in the middle of a change, is the last: what it began may still happen.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if std::mem::take(&mut state.filling) {
            let (_, given_up) = state.stop(false);
            drop(state);
            self.0.counts.not_kept.add(given_up);
        }
        self.0.settled.notify(usize::MAX);
    }
}

/// Neighbours together.
fn runs(mut clusters: Vec<u64>) -> Vec<Range<u64>> {
    clusters.sort_unstable();
    let mut runs: Vec<Range<u64>> = Vec::new();
    for cluster in clusters {
        match runs.last_mut() {
            Some(run) if run.end == cluster => run.end += 1,
            _ => runs.push(cluster..cluster + 1),
        }
    }
    runs
}
