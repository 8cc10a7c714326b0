//! A disk as it was when its push began, while clients write to it.
//!
//! Chunks that the upload has read, or need not read, are the clients' from then on. A request that is about to overwrite another one has it read first, and
//! waits until there is room for it in memory ([`SAVED_BYTES_MAX`]): the upload sends it from there. Nothing is put into a file, so a crash leaves none.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use block::{Blame, Block, BlockFuture, Capabilities, Error, ZeroOptions};
use filter::{CopyBeforeWrite, OnError, Policy, Snapshot, SnapshotAccess};
use job::Dirty;
use memory::{IoBytes, IoVec};
use remote::chunked::{ChunkName, Manifest};
use storage::Hints;
use sync::{Event, Mutex};

/// Bytes of chunks that were about to be overwritten and are not sent yet, in memory. One request more is kept than fits.
const SAVED_BYTES_MAX: u64 = 32 << 20;
/// How long a request waits for that room at most; then it is done and the push fails. Drivers of guests give requests up after 30 s.
const CLIENTS_WAIT_MAX: Duration = Duration::from_secs(20);

/// What a disk read as at one moment.
pub struct Moment {
    /// It, for as long as a chunk was not given up.
    pub view: SnapshotAccess,
    /// Chunks that were about to be overwritten.
    pub saved: Arc<Saved>,
    snapshot: Arc<Snapshot>,
}

impl Moment {
    /// Of `disk`, which gets a filter over it: the moment is the one at which requests go through that. Chunks have `chunk_bytes` and go to `image`.
    ///
    /// # Errors
    /// When the filter cannot be made.
    pub fn new(
        disk: Arc<dyn Block>,
        image: String,
        chunk_bytes: u64,
    ) -> Result<(Self, Arc<dyn Block>), Error> {
        let saved = Arc::new(Saved {
            image,
            size: disk.size(),
            chunk_bytes,
            state: Mutex::default(),
            changed: Event::new(),
        });
        let (on_error, timeout) = (OnError::BreakSnapshot, Some(CLIENTS_WAIT_MAX));
        let policy = Policy { on_error, timeout, unit_bytes_min: chunk_bytes };
        let target = Arc::clone(&saved) as Arc<dyn Block>;
        let filter = CopyBeforeWrite::new(disk, target, policy, None)?;
        let snapshot = Arc::clone(filter.snapshot());
        let filter = Arc::new(filter) as Arc<dyn Block>;
        let view = SnapshotAccess::new(&filter)?;
        debug_assert_eq!(snapshot.unit_bytes(), chunk_bytes, "a chunk is copied as a whole, and no more");
        Ok((Self { view, saved, snapshot }, filter))
    }

    /// Reads a chunk, unless a request was about to overwrite it before: then it is among [`Moment::saved`].
    ///
    /// # Errors
    /// When it cannot be read, or one could not be saved.
    pub async fn take(&self, range: Range<u64>) -> Result<Option<IoBytes>, Error> {
        self.snapshot.take(range).await
    }

    /// Gives whole chunks up that need not be read.
    ///
    /// # Errors
    /// When one could not be saved before.
    pub async fn give_up(&self, range: Range<u64>) -> Result<(), Error> {
        self.view.discard(range.start, range.end - range.start).await
    }

    /// Gives chunks of `manifest` up that `old` has and that did not change since.
    ///
    /// # Errors
    /// As [`Moment::give_up`].
    pub async fn give_up_unchanged(
        &self,
        manifest: &Manifest,
        old: &Manifest,
        changed: &Dirty,
    ) -> Result<(), Error> {
        let (mut at, end) = (0, manifest.size().min(old.size()));
        while at < end {
            let (is_changed, stop) = changed.run(at..end);
            let chunks = at.div_ceil(self.saved.chunk_bytes)..stop / self.saved.chunk_bytes;
            if !is_changed && chunks.start < chunks.end {
                self.give_up(manifest.range(chunks.start).start..manifest.range(chunks.end - 1).end).await?;
            }
            at = stop;
        }
        Ok(())
    }
}

/// Chunks that were about to be overwritten, on their way to the store.
#[derive(Debug)]
pub struct Saved {
    image: String,
    size: u64,
    chunk_bytes: u64,
    state: Mutex<State>,
    /// There is another chunk, room, or a name.
    changed: Event,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(u64, IoBytes)>,
    /// Bytes of the chunks that wait or are being sent.
    bytes: u64,
    /// Names of chunks at the store, until their table is made; `None` of zeroes.
    names: BTreeMap<u64, Option<ChunkName>>,
    has_ended: bool,
}

impl Saved {
    /// Waits for the next chunk. It counts until [`Saved::sent`].
    pub async fn next(&self) -> (u64, IoBytes) {
        loop {
            let changed = self.changed.listen();
            let next = self.state.lock().waiting.pop_front();
            match next {
                Some(next) => return next,
                None => changed.await,
            }
        }
    }

    /// A chunk of `bytes` is at the store.
    pub fn sent(&self, chunk: u64, bytes: u64, name: Option<ChunkName>) {
        let mut state = self.state.lock();
        state.bytes -= bytes;
        state.names.insert(chunk, name);
        drop(state);
        self.changed.notify(usize::MAX);
    }

    /// Waits until a chunk that was saved is at the store.
    pub async fn name(&self, chunk: u64) -> Option<ChunkName> {
        loop {
            let changed = self.changed.listen();
            let name = self.state.lock().names.get(&chunk).copied();
            match name {
                Some(name) => return name,
                None => changed.await,
            }
        }
    }

    /// The tables of all chunks before this one are made.
    pub fn forget_before(&self, chunk: u64) {
        let mut state = self.state.lock();
        state.names = state.names.split_off(&chunk);
    }

    /// Nothing is sent any more: requests that wait are let through.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        state.waiting.clear();
        drop(state);
        self.changed.notify(usize::MAX);
    }

    async fn save(&self, chunk: u64, bytes: IoBytes) -> Result<(), Error> {
        let len = bytes.len() as u64;
        loop {
            let changed = self.changed.listen();
            {
                let mut state = self.state.lock();
                if state.has_ended {
                    return Err(Blame::new(&self.image).refused("the push has ended"));
                }
                if state.bytes < SAVED_BYTES_MAX {
                    state.bytes += len;
                    state.waiting.push_back((chunk, bytes));
                    break;
                }
            }
            changed.await;
        }
        self.changed.notify(usize::MAX);
        Ok(())
    }
}

/// The target of the filter: it is given whole chunks, and never read.
impl Block for Saved {
    fn driver(&self) -> &'static str {
        "push"
    }

    fn name(&self) -> &str {
        &self.image
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        let cluster_bytes = Some(self.chunk_bytes);
        Capabilities { read_only: false, alignment: 1, cached: false, cluster_bytes }
    }

    fn write(&self, offset: u64, data: IoVec, _: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let (data, mut at) = (data.to_bytes(), 0);
            while at < data.len() {
                let from = offset + at as u64;
                debug_assert_eq!(from % self.chunk_bytes, 0, "whole chunks");
                let len = usize::try_from(self.chunk_bytes).unwrap_or(data.len()).min(data.len() - at);
                self.save(from / self.chunk_bytes, data.slice(at, at + len)).await?;
                at += len;
            }
            Ok(())
        })
    }

    fn zero(&self, offset: u64, len: u64, _: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        let chunks = offset / self.chunk_bytes..(offset + len).div_ceil(self.chunk_bytes);
        self.state.lock().names.extend(chunks.map(|chunk| (chunk, None)));
        self.changed.notify(usize::MAX);
        Box::pin(async { Ok(()) })
    }
}
