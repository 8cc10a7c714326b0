//! Chunks of a table that are sent as patches of what the old image has at their places.

use std::cell::Cell;
use std::ops::Range;

use futures_util::stream::{self, Stream, TryStreamExt};
use job::Dirty;
use memory::IoBytes;
use remote::chunked::{
    CHUNK_BYTES_MIN, ChunkName, Compression, DELTA_TABLES_MAX, Delta, DeltaObject, DeltaTable, DeltasOf,
    Manifest, NewDelta, ObjectKind, Published,
};
use sync::Event;

use super::follow::Follow;
use super::upload::{Upload, UploadError, add};

/// Bytes of delta objects on their way above which no further chunk is begun. The last one may exceed it.
const SENDING_BYTES_MAX: u64 = 8 << 20;

/// What of a disk is marked as changed together: the smallest unit of images that is common.
const UNIT_BYTES: u64 = 4 << 10;
/// Units of a disk at most, for which larger ones are taken: 16 MiB of bits.
const UNITS_MAX: u64 = 1 << 27;

/// Marks for what of a disk of `size` bytes may have changed, as fine as memory allows: patches have whole units. No unit is larger than the smallest chunk.
pub fn marks(size: u64) -> Dirty {
    let mut unit_bytes = UNIT_BYTES;
    while unit_bytes < CHUNK_BYTES_MIN && size.div_ceil(unit_bytes) > UNITS_MAX {
        unit_bytes *= 2;
    }
    Dirty::new(size, unit_bytes)
}

/// The deltas of a table, while it is uploaded.
#[derive(Debug)]
pub struct Deltas<'a> {
    /// The deltas of the old image.
    pub old: &'a DeltaTable,
    /// Bytes that their table has room for; `None`: there are to be no others.
    room: Option<Cell<u64>>,
    /// Bytes of delta objects on their way.
    sending_bytes: Cell<u64>,
    /// There are fewer.
    sent: Event,
}

/// A chunk that was read.
pub struct SentChunk {
    /// Its number.
    pub chunk: u64,
    /// `None` of zeroes. It is at the store, or a delta.
    pub name: Option<ChunkName>,
    /// The patch that is to be sent.
    pub delta: Option<NewDelta>,
}

/// Chunks whose patches go to one object.
#[derive(Debug, Default)]
pub struct Batch {
    /// All of them.
    pub names: Vec<(u64, Option<ChunkName>)>,
    /// Their patches.
    pub object: DeltaObject,
}

impl<'a> Deltas<'a> {
    /// Beside the `old` ones others may be made if `is_possible` says so.
    pub fn new(old: &'a DeltaTable, is_possible: bool) -> Self {
        let room = is_possible.then(|| Cell::new(old.room_bytes()));
        Self { old, room, sending_bytes: Cell::new(0), sent: Event::new() }
    }

    /// Whether others may be made.
    pub fn are_possible(&self) -> bool {
        self.room.is_some()
    }

    /// Takes room for a delta; without room its chunk is sent as a whole.
    pub fn take_room(&self, delta: NewDelta) -> Option<NewDelta> {
        let (room, bytes) = (self.room.as_ref()?, delta.table_bytes());
        room.set(room.get().checked_sub(bytes)?);
        Some(delta)
    }

    /// Waits until so few patches are on their way that memory has room for more.
    pub async fn wait(&self) {
        loop {
            let sent = self.sent.listen();
            if self.sending_bytes.get() < SENDING_BYTES_MAX {
                return;
            }
            sent.await;
        }
    }

    /// Does `send` while these bytes are on their way.
    pub async fn while_sending<T>(&self, bytes: u64, send: impl Future<Output = T>) -> T {
        self.sending_bytes.set(self.sending_bytes.get() + bytes);
        let done = send.await;
        self.sending_bytes.set(self.sending_bytes.get() - bytes);
        self.sent.notify(usize::MAX);
        done
    }
}

/// Names of chunks by their numbers, and how those are stored that are deltas.
pub(super) type SentBatch = (Vec<(u64, Option<ChunkName>)>, Vec<(ChunkName, Delta)>);

/// Chunks in the order in which they come, so many together that their patches fill an object.
pub fn batches(
    sent: impl Stream<Item = Result<SentChunk, UploadError>>,
) -> impl Stream<Item = Result<Batch, UploadError>> {
    stream::try_unfold(Box::pin(sent), async |mut sent| {
        let mut batch = Batch::default();
        while let Some(SentChunk { chunk, name, delta }) = sent.try_next().await? {
            batch.names.push((chunk, name));
            if let Some(delta) = delta {
                batch.object.add(delta);
            }
            if batch.object.is_full() {
                break;
            }
        }
        Ok((!batch.names.is_empty()).then_some((batch, sent)))
    })
}

impl<F: Follow> Upload<'_, F> {
    /// The chunks of a table of the old image that are deltas.
    pub(super) async fn old_deltas(&self, table: u64) -> Result<DeltaTable, UploadError> {
        match self.old {
            Some(old) => Ok(self.place.deltas(&old.manifest, table).await?),
            None => Ok(DeltaTable::default()),
        }
    }

    /// Whether chunks of a table may become deltas of what the old image has there. Readers of images that are not compressed know none.
    pub(super) fn may_have_deltas(&self, manifest: &Manifest, table: u64) -> bool {
        let Some(Published { manifest: old, .. }) = self.old.filter(|_| self.changed.is_some()) else {
            return false;
        };
        let has_room = manifest.delta_tables_from(0) + old.delta_tables_from(table) < DELTA_TABLES_MAX;
        self.how.compression == Compression::Zstd && (has_room || old.deltas(table).is_some())
    }

    /// Adds a chunk unless the old image has it, or gives the patch that is to be added in its place. Its name; `None` of zeroes.
    pub(super) async fn send(
        &self,
        bytes: IoBytes,
        range: &Range<u64>,
        known: Option<ChunkName>,
        deltas: &Deltas<'_>,
    ) -> Result<(Option<ChunkName>, Option<NewDelta>), UploadError> {
        let Some(name) = self.name_of(&bytes).await else { return Ok((None, None)) };
        // A chunk may be again what it was: the base of what it became.
        let base = known.and_then(|there| deltas.old.of(there)).map(|delta| delta.base);
        if [known, base].contains(&Some(name)) || deltas.old.of(name).is_some() {
            return Ok((Some(name), None));
        }
        if let (Some(there), Some(changed), true) = (known, self.changed, deltas.are_possible()) {
            let (changed, old) = (changed_in(changed, range), deltas.old.of(there));
            let delta = self.place.delta(name, &bytes, changed, there, old).await?;
            if let Some(delta) = delta.and_then(|delta| deltas.take_room(delta)) {
                return Ok((Some(name), Some(delta)));
            }
        }
        self.add(ObjectKind::Chunk, name, bytes).await?;
        Ok((Some(name), None))
    }

    pub(super) async fn add_deltas(&self, table: u64, deltas: &DeltaTable) -> Result<DeltasOf, UploadError> {
        let bytes = deltas.encode();
        let named = DeltasOf { name: ChunkName::of(&bytes), bytes: bytes.len() as u64 };
        if self.old.and_then(|old| old.manifest.deltas(table)) != Some(named) {
            self.add(ObjectKind::Deltas, named.name, IoBytes::copy_from(&bytes)).await?;
        }
        Ok(named)
    }

    /// Sends the patches of a batch.
    pub(super) async fn add_batch(
        &self,
        batch: Batch,
        deltas: &Deltas<'_>,
    ) -> Result<SentBatch, UploadError> {
        let Batch { names, object } = batch;
        if object.is_empty() {
            return Ok((names, Vec::new()));
        }
        let bytes = object.bytes();
        let (made, sent) = deltas.while_sending(bytes, self.place.add_deltas(object, self.how)).await?;
        if let Some(sent) = sent {
            add(&self.figures.uploaded, 1);
            add(&self.figures.uploaded_bytes, sent);
        }
        add(&self.figures.deltas, made.len() as u64);
        Ok((names, made))
    }
}

/// Where a chunk of the disk may have changed, as places in it.
fn changed_in(changed: &Dirty, range: &Range<u64>) -> Vec<Range<usize>> {
    let place = |at: u64| usize::try_from(at - range.start).unwrap_or(usize::MAX);
    let (mut found, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let (is_changed, end) = changed.run(at..range.end);
        found.extend(is_changed.then(|| place(at)..place(end)));
        at = end;
    }
    found
}
