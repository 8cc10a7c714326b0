//! The contract, kept by chunks that are fetched.

use std::io;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use memory::IoBuf;
use storage::{Extent, ExtentKind, Hints, IoFuture, Storage};

use crate::chunked::ahead::Ahead;
use crate::chunked::chunk_name::ChunkName;
use crate::chunked::deltas::{Delta, DeltaTable};
use crate::chunked::error::Error;
use crate::chunked::kept::RecentlyUsed;
use crate::chunked::manifest::{Manifest, TABLE_CHUNKS};
use crate::chunked::place::{Place, Published};
use crate::chunked::table::Table;

/// Memory for chunks by default.
pub const MEMORY_BYTES_DEFAULT: u64 = 32 << 20;
/// Memory for chunks at most: what is kept is looked through one by one.
pub const MEMORY_BYTES_MAX: u64 = 1 << 30;
/// Tables that are kept: of 512 KiB each, and as many of deltas, of 8 MiB at most each and a few KiB as a rule.
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
/// Memory: the chunks that are kept, eight tables with their deltas, and up to four chunks with their bases for each read that is under way; half as many chunks again and two packs, while a start is fetched ahead.
#[derive(Debug)]
pub struct ChunkedStorage {
    name: String,
    version: ChunkName,
    image: Arc<Image>,
}

/// The image that is read, and what of it is in memory.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) place: Place,
    pub(crate) manifest: Manifest,
    tables: RecentlyUsed<u64, Arc<Table>>,
    deltas: RecentlyUsed<u64, Arc<DeltaTable>>,
    pub(crate) chunks: RecentlyUsed<ChunkOrBase, Arc<Vec<u8>>>,
    pub(crate) ahead: Ahead,
}

/// What is in memory. A chunk waits for its base, and a base for nothing: whatever a table says, none waits for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkOrBase {
    /// A chunk that the disk has.
    Chunk(ChunkName),
    /// One that others are deltas of, as it is at the store.
    Base(ChunkName),
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
        let (tables, deltas) = (RecentlyUsed::new(TABLES_KEPT), RecentlyUsed::new(TABLES_KEPT));
        let image = Image { place, manifest, tables, deltas, chunks, ahead: Ahead::default() };
        Ok(Self { name, version, image: Arc::new(image) })
    }

    /// A guest is going to read the disk: what the image's start list names is fetched ahead of it, from the first chunk on that it reads of those. A tool that reads
    /// the whole disk gains nothing by that, and finds chunks that are missing only if it asks for each.
    pub fn expect_guest(&self) {
        self.image.ahead.begin();
    }

    /// The hash of the manifest: two that are equal are of the same disk.
    pub fn version(&self) -> ChunkName {
        self.version
    }

    /// Bytes of a chunk: what a read fetches at least.
    pub fn chunk_bytes(&self) -> u64 {
        self.image.manifest.chunk_size().bytes()
    }
}

impl Image {
    pub(crate) async fn table(&self, table: u64) -> Result<Arc<Table>, Error> {
        let fetch = async || self.place.table(&self.manifest, table).await.map(Arc::new);
        self.tables.get(table, fetch).await
    }

    /// The bytes of a chunk; `None` if they are zeroes.
    async fn chunk(self: &Arc<Self>, chunk: u64) -> Result<Option<Arc<Vec<u8>>>, Error> {
        let Some(name) = self.name_of(chunk).await? else { return Ok(None) };
        let Range { start, end } = self.manifest.range(chunk);
        let fetch = async || {
            self.read_on_from(chunk);
            match self.delta(chunk, name).await? {
                None => self.place.chunk(name, end - start).await,
                Some(delta) => {
                    let base = self.base(delta.base, end - start);
                    self.place.composed(name, delta, base).await
                }
            }
        };
        self.chunks.get(ChunkOrBase::Chunk(name), fetch).await.map(Some)
    }

    /// How the chunk, which has this name, is stored; `None`: as a whole.
    pub(crate) async fn delta(&self, chunk: u64, name: ChunkName) -> Result<Option<Delta>, Error> {
        let table = chunk / TABLE_CHUNKS;
        if self.manifest.deltas(table).is_none() {
            return Ok(None);
        }
        let fetch = async || self.place.deltas(&self.manifest, table).await.map(Arc::new);
        Ok(self.deltas.get(table, fetch).await?.of(name).cloned())
    }

    /// The bytes of a chunk that others are deltas of. It is kept only where a pack had it: what is made of it is kept.
    async fn base(&self, name: ChunkName, len: u64) -> Result<Arc<Vec<u8>>, Error> {
        let fetch = async || self.place.chunk(name, len).await;
        match self.chunks.has(ChunkOrBase::Base(name)) {
            true => self.chunks.get(ChunkOrBase::Base(name), fetch).await,
            false => fetch().await,
        }
    }

    /// The name of a chunk; `None` if it is zeroes.
    pub(crate) async fn name_of(&self, chunk: u64) -> Result<Option<ChunkName>, Error> {
        let table = chunk / TABLE_CHUNKS;
        match self.manifest.table(table) {
            None => Ok(None),
            Some(_) => Ok(self.table(table).await?.name_of(chunk)),
        }
    }

    /// Fills `buf`, which lies inside the disk.
    async fn fill(self: &Arc<Self>, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
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
                let is_hole = |chunk: u64| table.name_of(chunk).is_none();
                let first = is_hole(chunk);
                let end = (chunk..chunks.end).find(|other| is_hole(*other) != first).unwrap_or(chunks.end);
                (if first { ExtentKind::Hole } else { ExtentKind::Data }, end)
            }
        };
        let end = end.saturating_mul(chunk_bytes).min(offset.saturating_add(len));
        Ok(Extent { len: end.saturating_sub(offset).max(1), kind })
    }
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
        self.image.manifest.size()
    }

    fn read(&self, offset: u64, mut buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            let inside = place(self.length().saturating_sub(offset)).min(buf.len());
            let (inside, beyond) = buf.split_at_mut(inside);
            beyond.fill(0);
            let filled = if inside.is_empty() { Ok(()) } else { self.image.fill(offset, inside).await };
            (filled.map_err(Into::into), buf)
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(async move { Ok(self.image.extent_at(offset, len).await?) })
    }

    fn refusal(&self) -> io::Error {
        Error::ReadOnly { image: self.name.clone() }.into()
    }
}
