//! What of a disk is read and uploaded: chunks first, then the tables that name them.

use std::cell::Cell;
use std::collections::HashSet;
use std::convert::Infallible;
use std::ops::Range;
use std::pin::pin;

use block::{Block, Hints};
use futures_util::future::{Either, select};
use futures_util::{StreamExt, TryStreamExt, stream};
use job::Dirty;
use memory::{IoBuf, IoBytes};
use remote::chunked::{ChunkName, DeltaTable, Error, Manifest, ObjectKind, Place, Published, Table, Writing};

use super::deltas::{Deltas, SentChunk, batches};
use super::follow::Follow;
use super::moment::Moment;

/// Bytes of chunks that are read, hashed or sent at a time.
const IN_FLIGHT_BYTES: u64 = 32 << 20;
/// Chunks at a time, of any size: a store limits what one client may ask for.
const IN_FLIGHT_MAX: u64 = 8;

/// Why it failed.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The disk.
    #[error(transparent)]
    Disk(#[from] block::Error),
    /// The store, or the image that is there.
    #[error(transparent)]
    Image(#[from] Error),
    /// It was ended.
    #[error("cancelled")]
    Ended,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Figures {
    /// Bytes of the disk that are done with.
    pub done_bytes: Cell<u64>,
    /// Bytes of the disk that were read.
    pub read_bytes: Cell<u64>,
    /// Chunks of the image that are no zeroes.
    pub chunks: Cell<u64>,
    /// Chunks of which only what has changed was sent.
    pub deltas: Cell<u64>,
    /// Objects that were made: chunks, delta objects, and tables of them.
    pub uploaded: Cell<u64>,
    /// Their bytes.
    pub uploaded_bytes: Cell<u64>,
}

pub(super) fn add(to: &Cell<u64>, more: u64) {
    to.set(to.get() + more);
}

/// An upload.
pub struct Upload<'a, F> {
    /// The disk.
    pub disk: &'a dyn Block,
    /// Of what the disk is a view, if clients write to that meanwhile.
    pub moment: Option<&'a Moment>,
    /// Where the image is.
    pub place: &'a Place,
    /// The image that is there, if its chunks have the same size and are compressed as `how` allows: what it names is not asked for again.
    pub old: Option<&'a Published>,
    /// What may differ from it; `None`: everything.
    pub changed: Option<&'a Dirty>,
    /// What was done.
    pub figures: &'a Figures,
    /// How objects are made.
    pub how: Writing,
    /// How fast the disk is read.
    pub follow: &'a F,
}

impl<F: Follow> Upload<'_, F> {
    /// Uploads what `manifest`, of a disk of zeroes, needs to name the disk, and names it there. What is at the store at any moment is
    /// the old image and chunks that nothing leads to.
    ///
    /// # Errors
    /// When the disk cannot be read, the store does not take a chunk, or the old image is damaged.
    pub async fn run(&self, manifest: &mut Manifest) -> Result<(), UploadError> {
        let in_flight = in_flight(manifest);
        let Some(moment) = self.moment else { return self.add_tables(manifest).await };
        match select(pin!(self.add_tables(manifest)), pin!(self.send_saved(moment, in_flight))).await {
            Either::Left((done, _)) => done,
            Either::Right((Err(error), _)) => Err(error),
        }
    }

    /// Sends what clients are about to overwrite, as it comes.
    async fn send_saved(&self, moment: &Moment, in_flight: usize) -> Result<Infallible, UploadError> {
        let saved = stream::unfold((), |()| async { Some((moment.saved.next().await, ())) });
        let sent = saved.map(async |(chunk, bytes)| {
            let len = bytes.len() as u64;
            add(&self.figures.read_bytes, len);
            let name = self.name_of(&bytes).await;
            if let Some(name) = name {
                self.add(ObjectKind::Chunk, name, bytes).await?;
            }
            moment.saved.sent(chunk, len, name);
            Ok::<_, UploadError>(())
        });
        let mut sent = pin!(sent.buffer_unordered(in_flight));
        loop {
            sent.try_next().await?;
        }
    }

    async fn add_tables(&self, manifest: &mut Manifest) -> Result<(), UploadError> {
        for table in 0..manifest.tables() {
            let known = self.known(manifest, table).await?;
            let old = self.old_deltas(table).await?;
            let (new, deltas) = self.table(manifest, table, &known, &old).await?;
            add(&self.figures.chunks, new.chunks.iter().flatten().count() as u64);
            let name = if new.is_zero() { None } else { Some(self.add_table(table, &new).await?) };
            manifest.set_table(table, name);
            let named = if deltas.is_empty() { None } else { Some(self.add_deltas(table, &deltas).await?) };
            manifest.set_deltas(table, named);
            if let Some(moment) = self.moment {
                moment.saved.forget_before(manifest.chunks_of(table).end);
            }
        }
        Ok(())
    }

    async fn add_table(&self, table: u64, new: &Table) -> Result<ChunkName, UploadError> {
        let bytes = new.encode();
        let name = ChunkName::of(&bytes);
        if self.old.and_then(|old| old.manifest.table(table)) != Some(name) {
            self.add(ObjectKind::Table, name, IoBytes::copy_from(&bytes)).await?;
        }
        Ok(name)
    }

    pub(super) async fn add(
        &self,
        kind: ObjectKind,
        name: ChunkName,
        bytes: IoBytes,
    ) -> Result<(), UploadError> {
        if let Some(sent) = self.place.add(kind, name, bytes, self.how).await? {
            add(&self.figures.uploaded, 1);
            add(&self.figures.uploaded_bytes, sent);
        }
        Ok(())
    }

    /// What the old image has of a table's chunks; `None` for those that it has not, or with other bytes of the disk.
    async fn known(
        &self,
        manifest: &Manifest,
        table: u64,
    ) -> Result<Vec<Option<Option<ChunkName>>>, UploadError> {
        let chunks = manifest.chunks_of(table);
        let Some(Published { manifest: old, .. }) = self.old.filter(|old| table < old.manifest.tables())
        else {
            return Ok(chunks.map(|_| None).collect());
        };
        let names = self.place.table(old, table).await?.chunks;
        let known = |(place, chunk): (usize, u64)| match old.range(chunk) == manifest.range(chunk) {
            true => names.get(place).copied(),
            false => None,
        };
        Ok(chunks.enumerate().map(known).collect())
    }

    /// Counts what [`Upload::run`] would read, and reads nothing but maps.
    ///
    /// # Errors
    /// When the disk's map cannot be read, or the old image is damaged.
    pub async fn measure(&self, manifest: &Manifest) -> Result<(), UploadError> {
        for table in 0..manifest.tables() {
            let known = self.known(manifest, table).await?;
            let (kept, with_data) = self.plan(manifest, table, &known).await?;
            add(&self.figures.chunks, (kept.chunks.iter().flatten().count() + with_data.len()) as u64);
            add(&self.figures.read_bytes, bytes_of(manifest, &with_data));
        }
        Ok(())
    }

    /// What of a table stays as the old image has it, and the chunks with data that do not.
    async fn plan(
        &self,
        manifest: &Manifest,
        table: u64,
        known: &[Option<Option<ChunkName>>],
    ) -> Result<(Table, Vec<u64>), UploadError> {
        let chunks = manifest.chunks_of(table);
        let place = |chunk: u64| usize::try_from(chunk - chunks.start).unwrap_or(usize::MAX);
        let known_of = |chunk: u64| known.get(place(chunk)).copied().flatten();
        let is_kept = |chunk: u64| {
            known_of(chunk).is_some()
                && self.changed.is_some_and(|changed| !changed.touches(manifest.range(chunk)))
        };
        let mut kept = Table { chunks: chunks.clone().map(|chunk| known_of(chunk).flatten()).collect() };
        let mut with_data = Vec::new();
        let mut rest = chunks.clone();
        while let Some(first) = rest.find(|chunk| !is_kept(*chunk)) {
            let end = rest.clone().find(|chunk| is_kept(*chunk)).unwrap_or(chunks.end);
            if let Some(unknown) = kept.chunks.get_mut(place(first)..place(end)) {
                unknown.fill(None);
            }
            self.find_data(manifest, first..end, &mut with_data).await?;
            rest.start = end;
        }
        Ok((kept, with_data))
    }

    /// The table of the disk as it is, and those of its chunks that are deltas. All are at the store then.
    async fn table(
        &self,
        manifest: &Manifest,
        table: u64,
        known: &[Option<Option<ChunkName>>],
        old: &DeltaTable,
    ) -> Result<(Table, DeltaTable), UploadError> {
        let chunks = manifest.chunks_of(table);
        let place = |chunk: u64| usize::try_from(chunk - chunks.start).unwrap_or(usize::MAX);
        let known_of = |chunk: u64| known.get(place(chunk)).copied().flatten().flatten();
        let (mut new, with_data) = self.plan(manifest, table, known).await?;
        self.give_up_all_but(manifest, chunks.clone(), &with_data).await?;
        let all = manifest.range(chunks.start).start..manifest.range(chunks.end).start;
        add(&self.figures.done_bytes, len(&all) - bytes_of(manifest, &with_data));
        let deltas = &Deltas::new(old, self.may_have_deltas(manifest, table));
        // The map was asked before: while chunks are on their way nothing else is awaited of the disk.
        let sent = stream::iter(with_data).map(async |chunk| {
            deltas.wait().await;
            self.chunk(chunk, manifest.range(chunk), known_of(chunk), deltas).await
        });
        // In order where there are patches: a publication that continues makes the same objects of them, and finds those that are there.
        let sent = match deltas.are_possible() {
            true => sent.buffered(in_flight(manifest)).left_stream(),
            false => sent.buffer_unordered(in_flight(manifest)).right_stream(),
        };
        // As many as come: fewer chunks are begun while their patches are sent.
        let made = batches(sent).map(async |batch| self.add_batch(batch?, deltas).await);
        let (mut made, mut made_deltas) = (pin!(made.buffer_unordered(usize::MAX)), Vec::new());
        while let Some((names, deltas)) = made.try_next().await? {
            for (chunk, name) in names {
                if let Some(entry) = new.chunks.get_mut(place(chunk)) {
                    *entry = name;
                }
            }
            made_deltas.extend(deltas);
        }
        let named: HashSet<ChunkName> = new.chunks.iter().flatten().copied().collect();
        let mut deltas = old.of_those(|chunk| named.contains(&chunk));
        made_deltas.into_iter().for_each(|(chunk, delta)| deltas.insert(chunk, delta));
        Ok((new, deltas))
    }

    /// Adds those of `chunks` that have data, by the disk's map.
    async fn find_data(
        &self,
        manifest: &Manifest,
        chunks: Range<u64>,
        with_data: &mut Vec<u64>,
    ) -> Result<(), UploadError> {
        let chunk_bytes = manifest.chunk_size().bytes();
        let (mut at, end) = (manifest.range(chunks.start).start, manifest.range(chunks.end - 1).end);
        while at < end {
            let status = self.disk.block_status(at, end - at).await?;
            let stop = at + status.len;
            if status.zero {
                at = stop;
                continue;
            }
            let found = at / chunk_bytes..stop.div_ceil(chunk_bytes);
            // The rest of the last one is read with it.
            at = found.end * chunk_bytes;
            with_data.extend(found);
        }
        Ok(())
    }

    /// What of a table is not read is the clients' from here on.
    async fn give_up_all_but(
        &self,
        manifest: &Manifest,
        chunks: Range<u64>,
        with_data: &[u64],
    ) -> Result<(), UploadError> {
        let Some(moment) = self.moment else { return Ok(()) };
        let mut at = chunks.start;
        for next in with_data.iter().copied().chain([chunks.end]) {
            if at < next {
                moment.give_up(manifest.range(at).start..manifest.range(next - 1).end).await?;
            }
            at = next + 1;
        }
        Ok(())
    }

    /// A chunk of the disk, which is at the store then, or its patch. `known` is what the old image has there.
    async fn chunk(
        &self,
        chunk: u64,
        range: Range<u64>,
        known: Option<ChunkName>,
        deltas: &Deltas<'_>,
    ) -> Result<SentChunk, UploadError> {
        if self.follow.take(len(&range)).await.is_break() {
            return Err(UploadError::Ended);
        }
        let bytes = match self.moment {
            None => Some(self.read(&range).await?),
            Some(moment) => moment.take(range.clone()).await?,
        };
        let (name, delta) = match (bytes, self.moment) {
            (Some(bytes), _) => {
                add(&self.figures.read_bytes, len(&range));
                self.send(bytes, &range, known, deltas).await?
            }
            (None, Some(moment)) => (moment.saved.name(chunk).await, None),
            (None, None) => (None, None),
        };
        add(&self.figures.done_bytes, len(&range));
        Ok(SentChunk { chunk, name, delta })
    }

    async fn read(&self, range: &Range<u64>) -> Result<IoBytes, UploadError> {
        let bytes = IoBuf::uninit(usize::try_from(len(range)).unwrap_or_default());
        let (result, bytes) = self.disk.read(range.start, bytes, Hints::MORE_WAITING).await;
        result?;
        Ok(bytes.freeze())
    }

    /// The name of a chunk with these bytes; `None` of zeroes.
    pub(super) async fn name_of(&self, bytes: &IoBytes) -> Option<ChunkName> {
        let (hashed, key) = (bytes.clone(), self.place.key());
        reactor::blocking(move || (!hashed.is_zero()).then(|| ChunkName::of_chunk(&hashed, key.as_deref())))
            .await
    }
}

/// Chunks of the disk that are on their way at a time.
fn in_flight(manifest: &Manifest) -> usize {
    let chunks = (IN_FLIGHT_BYTES / manifest.chunk_size().bytes()).clamp(1, IN_FLIGHT_MAX);
    usize::try_from(chunks).unwrap_or(1)
}

fn bytes_of(manifest: &Manifest, chunks: &[u64]) -> u64 {
    chunks.iter().map(|chunk| len(&manifest.range(*chunk))).sum()
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}
