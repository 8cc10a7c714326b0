//! What all reads of a cache, its fetches and its filler share.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use event_listener::Event;
use memory::IoBuf;
use parking_lot::Mutex;
use qcow2::{Files, Host, Options, Qcow2};
use storage::{Hints, Storage};

use crate::cache::ahead::{For, Precedence, Unused};
use crate::cache::figures::{Counts, Figures};
use crate::cache::flight::Flight;
use crate::cache::identity::Identity;
use crate::cache::image::{CLUSTER_BYTES, CacheError, SECTOR_BYTES};

/// Clusters of one fetch: a request for them takes about as long as one for a few bytes.
const FLIGHT_CLUSTERS_MAX: u64 = 64;
/// Fetched bytes that wait for the image; what comes beyond is not kept.
const QUEUED_BYTES_MAX: usize = 32 << 20;
/// The lowest ceiling: some fetches, and what is given up at a time.
pub const BYTES_MAX_LEAST: u64 = 16 << 20;

/// The image of a cache: open, locked, recognised by [`crate::cache::look`] or made by [`crate::cache::create`].
pub struct CacheFile {
    /// The file.
    pub storage: Arc<dyn Storage>,
    /// Its lock, or what else must stay as long as it is used.
    pub held: Box<dyn Any + Send + Sync>,
    /// Bytes of clusters that it may have; 0: any number. At least [`BYTES_MAX_LEAST`] otherwise. The image's metadata comes to that:
    /// less than a thousandth of the remote file's length, and 1 MiB.
    pub bytes_max: u64,
}

impl fmt::Debug for CacheFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { storage, bytes_max, held: _ } = self;
        f.debug_struct("CacheFile")
            .field("storage", storage)
            .field("bytes_max", bytes_max)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) remote: Arc<dyn Storage>,
    pub(crate) identity: Identity,
    pub(crate) image: Qcow2,
    pub(crate) file: CacheFile,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) counts: Counts,
    pub(crate) state: Mutex<State>,
    /// Who goes before what is read ahead.
    pub(crate) precedence: Arc<Precedence>,
    /// The filler has come to rest.
    pub(crate) settled: Event,
}

/// A cluster is in `clusters`, or part of one of `flights`, or neither, and then the server has it alone.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) clusters: Clusters,
    unused: Unused,
    /// By each of their clusters, until they are in the image or given up.
    flights: BTreeMap<u64, Arc<Flight>>,
    /// Those that the filler is to write.
    queue: VecDeque<Arc<Flight>>,
    queued_bytes: usize,
    /// There is a filler: one at a time, because what it gives up must be gone before it is written again.
    pub(crate) filling: bool,
    /// The image is not changed any more.
    stopped: bool,
}

/// Clusters that stay in the image as long as this lives.
#[derive(Debug)]
pub(crate) struct Pinned {
    shared: Arc<Shared>,
    clusters: Range<u64>,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.shared.state.lock().clusters.unpin(self.clusters.clone());
    }
}

/// Where a part of a read comes from.
#[derive(Debug)]
pub(crate) enum Piece {
    Cached(Range<u64>, Pinned),
    Fetched(Range<u64>, Arc<Flight>),
}

impl Shared {
    pub(crate) async fn open(
        remote: Arc<dyn Storage>,
        identity: Identity,
        file: CacheFile,
        host: Arc<dyn Host>,
    ) -> Result<Self, CacheError> {
        let files = Files { file: Arc::clone(&file.storage), data: None, backing: None };
        let options = Options {
            writable: true,
            // An entry then waits for its data, also where a guest's disk need not.
            allocation_reserve: Some(0),
            discard: true,
            pass_discard_request: true,
            pass_discard_other: true,
            ..Options::default()
        };
        let image = Qcow2::open(files, options, Arc::clone(&host)).await?;
        let clusters = cached_clusters(&image).await?;
        let state = Mutex::new(State { clusters, ..State::default() });
        let (counts, precedence, settled) = (Counts::default(), Arc::default(), Event::new());
        Ok(Self { remote, identity, image, file, host, counts, state, precedence, settled })
    }

    pub(crate) fn figures(&self) -> Figures {
        let cached = self.state.lock().clusters.count();
        self.counts.figures(cached * CLUSTER_BYTES)
    }

    /// Keeps the clusters of `range` in the image if they are all there.
    pub(crate) fn pin(self: &Arc<Self>, range: &Range<u64>, reader: For) -> Option<Pinned> {
        let clusters = clusters_of(range);
        let mut state = self.state.lock();
        let pinned = state.clusters.pin(clusters.clone());
        if pinned {
            self.note_use(&mut state, clusters.clone(), reader);
        }
        drop(state);
        pinned.then(|| Pinned { shared: Arc::clone(self), clusters })
    }

    /// Says where each part of `range` comes from, in order, and starts to fetch what is neither cached nor on its way.
    pub(crate) fn plan(self: &Arc<Self>, range: Range<u64>, reader: For) -> Vec<Piece> {
        let (mut pieces, mut started) = (Vec::new(), Vec::new());
        let wanted = clusters_of(&range);
        let mut state = self.state.lock();
        self.note_use(&mut state, wanted.clone(), reader);
        let mut cluster = wanted.start;
        while cluster < wanted.end {
            let first = cluster;
            let flight = state.flights.get(&cluster).cloned();
            cluster = match &flight {
                Some(flight) => flight.clusters.end.min(wanted.end),
                None => state.run_from(first, wanted.end),
            };
            let part = (first * CLUSTER_BYTES).max(range.start)..(cluster * CLUSTER_BYTES).min(range.end);
            pieces.push(match flight {
                Some(flight) => Piece::Fetched(part, flight),
                None if state.clusters.pin(first..cluster) => {
                    Piece::Cached(part, Pinned { shared: Arc::clone(self), clusters: first..cluster })
                }
                None => {
                    let flight = state.start(first..cluster, reader);
                    started.push(Arc::clone(&flight));
                    Piece::Fetched(part, flight)
                }
            });
        }
        drop(state);
        for flight in started {
            self.host.spawn(Box::pin(Arc::clone(self).fetch(flight)));
        }
        pieces
    }

    /// What was fetched ahead has been of use when a guest asks for it.
    fn note_use(&self, state: &mut State, clusters: Range<u64>, reader: For) {
        if reader == For::Guest {
            let used = state.unused.take(clusters);
            self.counts.prefetched_used_bytes.add(used * CLUSTER_BYTES);
        }
    }

    async fn fetch(self: Arc<Self>, flight: Arc<Flight>) {
        let arrival = Arrival { shared: &self, flight: &flight };
        let end =
            (flight.clusters.end * CLUSTER_BYTES).min(self.identity.length.next_multiple_of(SECTOR_BYTES));
        let len = usize::try_from(end - flight.start()).unwrap_or(usize::MAX);
        let fetched = match IoBuf::try_uninit(len) {
            Some(buf) => {
                let (result, buf) = self.remote.read(flight.start(), buf, Hints::NONE).await;
                result.map(|()| buf.freeze())
            }
            None => Err(io::ErrorKind::OutOfMemory.into()),
        };
        if fetched.is_ok() {
            self.counts.fetched_bytes.add(len as u64);
            if flight.started_for == For::Later {
                self.counts.prefetched_bytes.add(len as u64);
            }
        }
        flight.land(fetched);
        drop(arrival);
    }

    /// What was fetched goes to the filler, if it takes more; otherwise the next read fetches it again.
    fn arrived(self: &Arc<Self>, flight: &Arc<Flight>) {
        let len = flight.bytes().map(|bytes| bytes.len());
        let mut state = self.state.lock();
        match len {
            Some(len) if !state.stopped && state.queued_bytes + len <= QUEUED_BYTES_MAX => {
                state.queued_bytes += len;
                state.queue.push_back(Arc::clone(flight));
                let starts = !std::mem::replace(&mut state.filling, true);
                drop(state);
                if starts {
                    self.host.spawn(Box::pin(Arc::clone(self).fill()));
                }
            }
            _ => {
                state.give_up(flight);
                drop(state);
                self.counts.not_kept.add(flight.count());
            }
        }
    }

    /// The image failed: it is read no more, and not changed any more. Said once.
    pub(crate) fn failed(&self, doing: &str, error: &dyn fmt::Display) {
        self.counts.failures.add(1);
        let (first, given_up) = self.state.lock().stop(true);
        self.counts.not_kept.add(given_up);
        if first {
            let (cache, name) = (self.file.storage.name(), &self.identity.name);
            tracing::warn!("{cache}: {doing}: {error}; the cache of {name} is not used any more");
        }
    }

    /// The image takes no more: what is in it is read on. Said once.
    pub(crate) fn full(&self, error: &dyn fmt::Display) {
        self.counts.failures.add(1);
        let (first, given_up) = self.state.lock().stop(false);
        self.counts.not_kept.add(given_up);
        if first {
            let (cache, name) = (self.file.storage.name(), &self.identity.name);
            tracing::warn!("{cache}: {error}; nothing more of {name} is cached");
        }
    }
}

impl State {
    /// Where the run that begins with `first`, which is not on its way, ends: clusters that are all cached, or are all to be fetched at once.
    fn run_from(&self, first: u64, end: u64) -> u64 {
        let cached = self.clusters.contains(first);
        let end = if cached { end } else { end.min(first + FLIGHT_CLUSTERS_MAX) };
        let goes_on =
            |cluster: &u64| !self.flights.contains_key(cluster) && self.clusters.contains(*cluster) == cached;
        first + (first..end).take_while(goes_on).count() as u64
    }

    fn start(&mut self, clusters: Range<u64>, reader: For) -> Arc<Flight> {
        let flight = Arc::new(Flight::of(clusters.clone(), reader));
        if reader == For::Later {
            self.unused.add(clusters.clone());
        }
        self.flights.extend(clusters.map(|cluster| (cluster, Arc::clone(&flight))));
        flight
    }

    /// What the filler writes next.
    pub(crate) fn next(&mut self) -> Option<Arc<Flight>> {
        let flight = self.queue.pop_front()?;
        self.queued_bytes -= flight.bytes().map_or(0, |bytes| bytes.len());
        Some(flight)
    }

    /// Its bytes are in the image.
    pub(crate) fn end(&mut self, flight: &Flight) {
        flight.clusters.clone().for_each(|cluster| drop(self.flights.remove(&cluster)));
    }

    /// Its bytes are not kept.
    pub(crate) fn give_up(&mut self, flight: &Flight) {
        self.end(flight);
        self.unused.take(flight.clusters.clone());
    }

    /// Takes out up to `wanted` clusters that were not used for the longest.
    pub(crate) fn evict(&mut self, wanted: usize) -> Vec<u64> {
        let victims = self.clusters.evict(wanted);
        for &cluster in &victims {
            self.unused.take(cluster..cluster + 1);
        }
        victims
    }

    /// No change from now on, and with `forget` no read either. Says whether that is new, and how many clusters are given up.
    pub(crate) fn stop(&mut self, forget: bool) -> (bool, u64) {
        if forget {
            self.clusters.forget();
            self.unused = Unused::default();
        }
        let mut given_up = 0;
        while let Some(flight) = self.next() {
            self.give_up(&flight);
            given_up += flight.count();
        }
        (!std::mem::replace(&mut self.stopped, true), given_up)
    }

    pub(crate) fn queue_is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }
}

/// A fetch under way. However it ends, no task awaits it afterwards.
struct Arrival<'a> {
    shared: &'a Arc<Shared>,
    flight: &'a Arc<Flight>,
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.flight.land(Err(io::Error::other("the fetch ended with the loop that it was on")));
        self.shared.arrived(self.flight);
    }
}

/// The clusters that `range`, which is not empty, touches.
fn clusters_of(range: &Range<u64>) -> Range<u64> {
    range.start / CLUSTER_BYTES..range.end.div_ceil(CLUSTER_BYTES)
}

/// The clusters that `image` has.
async fn cached_clusters(image: &Qcow2) -> Result<Clusters, qcow2::Error> {
    let (mut clusters, mut at) = (Clusters::default(), 0);
    while at < image.size() {
        let status = image.block_status(at, image.size() - at).await?;
        if status.data {
            clusters_of(&(at..at + status.len)).for_each(|cluster| clusters.insert(cluster));
        }
        at += status.len;
    }
    Ok(clusters)
}

/// The clusters that are cached. Memory grows with them, not with the file.
#[derive(Debug, Default)]
pub(crate) struct Clusters {
    cached: BTreeMap<u64, Cached>,
    /// Where the sweep goes on.
    hand: u64,
}

#[derive(Debug, Default)]
struct Cached {
    /// Read since the sweep last passed.
    used: bool,
    /// Reads under way. The sweep passes by.
    pins: u32,
}

impl Clusters {
    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.cached.len() as u64
    }

    pub(crate) fn contains(&self, cluster: u64) -> bool {
        self.cached.contains_key(&cluster)
    }

    /// A cluster that was filled: what has just been read counts as used.
    pub(crate) fn insert(&mut self, cluster: u64) {
        self.cached.insert(cluster, Cached { used: true, pins: 0 });
    }

    /// Keeps those in `range` where they are until [`Clusters::unpin`], if all of it is cached.
    pub(crate) fn pin(&mut self, range: Range<u64>) -> bool {
        let wanted = range.end - range.start;
        if self.cached.range(range.clone()).count() as u64 != wanted {
            return false;
        }
        for (_, cached) in self.cached.range_mut(range) {
            cached.used = true;
            cached.pins += 1;
        }
        true
    }

    /// Ends a pin. Clusters that were forgotten meanwhile are passed over.
    fn unpin(&mut self, range: Range<u64>) {
        for (_, cached) in self.cached.range_mut(range) {
            cached.pins = cached.pins.saturating_sub(1);
        }
    }

    /// Takes out up to `wanted` clusters that were not used for the longest: each use saves one from one pass of the sweep. Two rounds at
    /// most; those that are being read stay.
    pub(crate) fn evict(&mut self, wanted: usize) -> Vec<u64> {
        let mut evicted = Vec::new();
        // Two rounds begin anywhere, so they pass the end three times at most.
        for _ in 0..self.cached.len().saturating_mul(2).saturating_add(3) {
            if evicted.len() == wanted {
                break;
            }
            let next = self.cached.range_mut(self.hand..).next();
            let Some((&cluster, cached)) = next else {
                self.hand = 0;
                continue;
            };
            self.hand = cluster + 1;
            if cached.pins > 0 {
                continue;
            }
            if !std::mem::take(&mut cached.used) {
                self.cached.remove(&cluster);
                evicted.push(cluster);
            }
        }
        evicted
    }

    /// None is cached any more.
    fn forget(&mut self) {
        self.cached.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_was_used_stays_a_round_longer_and_one_that_is_read_stays() {
        let mut clusters = Clusters::default();
        (0..4).for_each(|cluster| clusters.insert(cluster));
        assert!(clusters.pin(0..1));
        // The first round takes the marks away.
        assert_eq!(clusters.evict(1), [1]);
        assert!(clusters.pin(2..3));
        clusters.unpin(2..3);
        assert_eq!(clusters.evict(1), [3]);
        assert_eq!(clusters.evict(9), [2]);
        assert!(clusters.evict(9).is_empty() && clusters.count() == 1);
        clusters.unpin(0..1);
        assert_eq!(clusters.evict(1), [0]);
    }

    #[test]
    fn a_range_is_pinned_as_a_whole_or_not_at_all() {
        let mut clusters = Clusters::default();
        clusters.insert(5);
        assert!(!clusters.pin(5..7));
        clusters.insert(6);
        assert!(clusters.pin(5..7));
        assert!(clusters.evict(2).is_empty());
    }
}
