//! The contract, kept by chunks that are fetched.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use buffer::IoBuf;
use futures_util::StreamExt;
use futures_util::stream;
use storage::{Extent, ExtentKind, Hints, IoFuture, Storage};

use crate::chunk_name::ChunkName;
use crate::error::Error;
use crate::kept::RecentlyUsed;
use crate::manifest::{Manifest, TABLE_CHUNKS};
use crate::place::{Place, Published};
use crate::table::Table;

/// Memory for chunks by default.
pub const MEMORY_BYTES_DEFAULT: u64 = 32 << 20;
/// Memory for chunks at most: what is kept is looked through one by one.
pub const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// Tables that are kept: of 512 KiB each.
const TABLES_KEPT: usize = 8;
/// Chunks that one read fetches at a time.
const FETCHED_AT_A_TIME: usize = 4;

/// How an image is opened.
#[derive(Debug)]
pub struct Options {
    /// What messages call it.
    pub name: String,
    /// Where its objects lie.
    pub place: Place,
    /// What was found there.
    pub published: Published,
    /// Bytes of chunks that are kept in memory, one chunk at least and [`MEMORY_BYTES_MAX`] at most.
    pub memory_bytes: u64,
    /// It will be written: that is refused.
    pub writable: bool,
}

/// The disk of a chunked image as storage. It is only read, and stays what it was when it was opened, whatever is published later.
///
/// Memory: the chunks that are kept, eight tables, and up to four chunks for each read that is under way.
#[derive(Debug)]
pub struct ChunkedStorage {
    name: String,
    place: Place,
    manifest: Manifest,
    version: ChunkName,
    tables: RecentlyUsed<u64, Arc<Table>>,
    chunks: RecentlyUsed<ChunkName, Arc<Vec<u8>>>,
}

impl ChunkedStorage {
    /// Asks no store.
    ///
    /// # Errors
    /// When it is to be written.
    pub fn new(options: Options) -> Result<Self, Error> {
        let Options { name, place, published, memory_bytes, writable } = options;
        if writable {
            return Err(Error::ReadOnly { image: name });
        }
        let Published { manifest, version, .. } = published;
        let chunks = memory_bytes.min(MEMORY_BYTES_MAX) / manifest.chunk_size().bytes();
        let chunks = RecentlyUsed::new(usize::try_from(chunks).unwrap_or_default());
        Ok(Self { name, place, manifest, version, tables: RecentlyUsed::new(TABLES_KEPT), chunks })
    }

    /// The hash of the manifest: two that are equal are of the same disk.
    pub fn version(&self) -> ChunkName {
        self.version
    }

    /// Bytes of a chunk: what a read fetches at least.
    pub fn chunk_bytes(&self) -> u64 {
        self.manifest.chunk_size().bytes()
    }

    async fn table(&self, table: u64) -> Result<Arc<Table>, Error> {
        let fetch = async || self.place.table(&self.manifest, table).await.map(Arc::new);
        self.tables.get(table, fetch).await
    }

    /// The bytes of a chunk; `None` if they are zeroes.
    async fn chunk(&self, chunk: u64) -> Result<Option<Arc<Vec<u8>>>, Error> {
        let table = chunk / TABLE_CHUNKS;
        if self.manifest.table(table).is_none() {
            return Ok(None);
        }
        let table = self.table(table).await?;
        let Some(name) = place_in(&table, chunk) else { return Ok(None) };
        let Range { start, end } = self.manifest.range(chunk);
        let fetch = async || self.place.chunk(name, end - start).await;
        self.chunks.get(name, fetch).await.map(Some)
    }

    /// Fills `buf`, which lies inside the disk.
    async fn fill(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let end = offset + buf.len() as u64;
        let chunk_bytes = self.manifest.chunk_size().bytes();
        let chunks = offset / chunk_bytes..end.div_ceil(chunk_bytes);
        let fetches = stream::iter(chunks).map(async |chunk| (chunk, self.chunk(chunk).await));
        let mut fetched = pin!(fetches.buffered(FETCHED_AT_A_TIME));
        let mut rest = buf;
        while let Some((chunk, bytes)) = fetched.next().await {
            let whole = self.manifest.range(chunk);
            let (from, to) = (offset.max(whole.start), end.min(whole.end));
            let (part, behind) = rest.split_at_mut(place(to - from).min(rest.len()));
            let bytes = bytes?;
            match bytes
                .as_ref()
                .and_then(|bytes| bytes.get(place(from - whole.start)..place(to - whole.start)))
            {
                Some(bytes) => part.copy_from_slice(bytes),
                None => part.fill(0),
            }
            rest = behind;
        }
        Ok(())
    }

    async fn extent_at(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        let chunk_bytes = self.manifest.chunk_size().bytes();
        let chunk = offset / chunk_bytes;
        let chunks = self.manifest.chunks_of(chunk / TABLE_CHUNKS);
        let (kind, end) = match self.manifest.table(chunk / TABLE_CHUNKS) {
            None => (ExtentKind::Hole, chunks.end),
            Some(_) => {
                let table = self.table(chunk / TABLE_CHUNKS).await?;
                let is_hole = |chunk: u64| place_in(&table, chunk).is_none();
                let first = is_hole(chunk);
                let end = (chunk..chunks.end).find(|other| is_hole(*other) != first).unwrap_or(chunks.end);
                (if first { ExtentKind::Hole } else { ExtentKind::Data }, end)
            }
        };
        let end = end.saturating_mul(chunk_bytes).min(offset.saturating_add(len));
        Ok(Extent { len: end.saturating_sub(offset).max(1), kind })
    }
}

/// What a table says of a chunk of the disk.
fn place_in(table: &Table, chunk: u64) -> Option<ChunkName> {
    *table.chunks.get(place(chunk % TABLE_CHUNKS))?
}

/// A place in memory.
fn place(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Storage for ChunkedStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn length(&self) -> u64 {
        self.manifest.size()
    }

    fn read(&self, offset: u64, mut buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            let inside = place(self.length().saturating_sub(offset)).min(buf.len());
            let (inside, beyond) = buf.split_at_mut(inside);
            beyond.fill(0);
            let filled = if inside.is_empty() { Ok(()) } else { self.fill(offset, inside).await };
            (filled.map_err(Into::into), buf)
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(async move { Ok(self.extent_at(offset, len).await?) })
    }

    fn refusal(&self) -> io::Error {
        Error::ReadOnly { image: self.name.clone() }.into()
    }
}
