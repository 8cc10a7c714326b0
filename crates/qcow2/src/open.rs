//! Opening an image: from a header that anybody may have written to state that can be trusted.

use std::sync::Arc;

use map_cache::{CacheLimits, MapCache};
use qcow2_layout::{
    Autoclear, Compatible, CryptMethod, Geometry, Header, HeaderError, Incompatible, L1Entry,
    RefcountTableEntry, refcount_get,
};
use storage::{IoBuf, Storage};
use sync::atomic::{AtomicBool, AtomicU64};
use sync::{AsyncMutex, Mutex, OnceLock, RwLock};

use crate::allocator::Allocator;
use crate::cache_sizes::{cache_sizes, l2_ceiling};
use crate::caches::cached_image;
use crate::commit::Committer;
use crate::compressed::Decompressed;
use crate::error::Blame;
use crate::free::Frees;
use crate::gate::Gate;
use crate::growth::Growth;
use crate::image::{Inner, NO_UNREF_NEEDS_V3, Qcow2};
use crate::in_flight::InFlight;
use crate::l1::L1Table;
use crate::overlap::{MetadataMap, Section};
use crate::refcount::{RefcountTable, Refcounts};
use crate::reserve::Reserve;
use crate::shape::{SliceShape, packing};
use crate::table_io::PIECE_BYTES;
use crate::waiting::Waiting;
use crate::{Error, Host, Layer, Options};

/// Refcount blocks without any refcount that are read in search of the end of an image on a device:
/// an image can have a million of them.
const EMPTY_BLOCKS_MAX: u32 = 64;

/// The reserve, unless set: enough for what a guest allocates between two flushes, and little to leak in
/// a crash.
const RESERVE_BYTES: u64 = 16 << 20;
/// Likewise, with large clusters.
const RESERVE_CLUSTERS_MIN: u64 = 128;
/// Likewise, with small ones: each costs a refcount that is written.
const RESERVE_CLUSTERS_MAX: u64 = 4096;

/// Bytes that hold every header field that says how much more there is to read.
const HEADER_START: usize = 512;

/// The files that an image is made of, opened by the caller: which names may be followed is the
/// caller's decision.
#[derive(Debug)]
pub struct Files {
    /// The image file.
    pub file: Arc<dyn Storage>,
    /// The external data file, if the header has one.
    pub data: Option<Arc<dyn Storage>>,
    /// The backing layer, if the header has one.
    pub backing: Option<Layer>,
}

/// Reads the header of an image: what it is, and which other files it names. At most one cluster
/// is read.
pub async fn read_header(file: &dyn Storage) -> Result<Header, Error> {
    let blame = Blame::new(file.name());
    let start = read_up_to(file, &blame, HEADER_START).await?;
    let refuse = |error: HeaderError| header_error(&blame, &error);
    let cluster_bits = Header::cluster_bits_of(&start).map_err(refuse)?;
    let first = read_up_to(file, &blame, 1 << cluster_bits).await?;
    Header::decode(&first).map_err(refuse)
}

/// The first `len` bytes, or all there are.
async fn read_up_to(file: &dyn Storage, blame: &Blame, len: usize) -> Result<IoBuf, Error> {
    let there = usize::try_from(file.length()).unwrap_or(usize::MAX);
    let (result, buf) = file.read(0, IoBuf::uninit(len.min(there))).await;
    result.map_err(blame.io("reading the header"))?;
    Ok(buf)
}

fn header_error(blame: &Blame, error: &HeaderError) -> Error {
    match error.kind() {
        qcow2_layout::ErrorKind::Unsupported => blame.unsupported(error.to_string()),
        qcow2_layout::ErrorKind::Corrupt | qcow2_layout::ErrorKind::Invalid => {
            blame.corrupt(error.to_string())
        }
    }
}

impl Qcow2 {
    /// Opens an image over `files`. Writable images that were not closed (dirty bit) must be repaired
    /// first ([`crate::check`]); this refuses them.
    ///
    /// Costs the header, L1, refcount table and snapshot table in reads and memory: at most
    /// 32 MiB + 8 MiB + 64 MiB, each checked against the file's length first.
    pub async fn open(files: Files, options: Options, host: Arc<dyn Host>) -> Result<Qcow2, Error> {
        let blame = Blame::new(files.file.name());
        let header = read_header(&*files.file).await?;
        check_openable(&header, &files, &options, &blame)?;
        let geometry = header.geometry().map_err(|error| blame.corrupt(error.to_string()))?;
        let tables = Tables::read(&*files.file, &header, &geometry, &options, &blame).await?;
        let inner = assemble(files, header, geometry, tables, options, host, blame)?;
        let image = Qcow2 { inner: Arc::new(inner) };
        if options.writable {
            image.inner.clear_unknown_autoclear().await?;
        }
        Ok(image)
    }
}

fn check_openable(header: &Header, files: &Files, options: &Options, blame: &Blame) -> Result<(), Error> {
    match header.crypt {
        CryptMethod::None => {}
        CryptMethod::Aes => {
            return Err(blame.unsupported("the image is encrypted (AES); cowhand cannot decrypt it"));
        }
        CryptMethod::Luks => {
            return Err(blame.unsupported("the image is encrypted (LUKS); cowhand cannot decrypt it"));
        }
    }
    let external = header.incompatible.contains(Incompatible::EXTERNAL_DATA);
    if external != files.data.is_some() {
        let what = if external { "needs an external data file" } else { "has no external data file" };
        return Err(blame.invalid(format!("the image {what}")));
    }
    if !options.writable {
        return Ok(());
    }
    if files.file.limits().read_only {
        return Err(blame.refused("the file is opened read-only"));
    }
    if header.incompatible.contains(Incompatible::CORRUPT) && !options.ignore_corrupt {
        return Err(blame.refused(
            "the image is marked corrupt and cannot be opened for writing; repair it with `cowhand check -r all`, \
             or open it read-only",
        ));
    }
    if header.incompatible.contains(Incompatible::DIRTY) {
        return Err(
            blame.refused("the image was not closed and its refcounts must be repaired before it is written")
        );
    }
    let lazy = options.lazy_refcounts == Some(true);
    if lazy && header.version == qcow2_layout::Version::V2 {
        return Err(blame.invalid("lazy-refcounts=on needs a version 3 image (compat=1.1)"));
    }
    if options.discard_no_unref && header.version == qcow2_layout::Version::V2 {
        return Err(blame.invalid(NO_UNREF_NEEDS_V3));
    }
    Ok(())
}

/// The tables that are in memory as a whole.
struct Tables {
    l1: Vec<u64>,
    refcounts: Vec<u64>,
    pieces: Vec<Piece>,
    allocator: Allocator,
}

impl Tables {
    async fn read(
        file: &dyn Storage,
        header: &Header,
        geometry: &Geometry,
        options: &Options,
        blame: &Blame,
    ) -> Result<Self, Error> {
        let l1_bytes = u64::from(header.l1_size) * 8;
        let l1 = read_words(file, blame, "the L1 table", header.l1_table_offset.0, l1_bytes).await?;
        let allocator = allocator(geometry.clusters_for(file.length()), geometry, file);
        let mut tables = Tables { l1, refcounts: Vec::new(), pieces: Vec::new(), allocator };
        let cluster = geometry.cluster_size();
        let piece = |offset: u64, len: u64, section| (offset, offset.saturating_add(len), section);
        tables.pieces.push(piece(0, cluster, Section::MainHeader));
        tables.pieces.push(piece(header.l1_table_offset.0, l1_bytes, Section::ActiveL1));
        let active = tables.l1.iter().filter_map(|&word| L1Entry::decode(word, geometry).ok()?.table);
        let active = active.map(|table| piece(table.0, cluster, Section::ActiveL2));
        add_pieces(&mut tables.pieces, active, blame)?;
        tables.read_refcount_table(file, header, geometry, options, blame).await?;
        if options.writable && !file.limits().resizable {
            tables.allocator = tables.allocator_on_device(file, geometry, blame).await?;
        }
        tables.read_snapshots(file, header, geometry, options, blame).await?;
        if let Some(bitmaps) = header.extensions.bitmaps {
            let piece = piece(bitmaps.directory_offset.0, bitmaps.directory_size, Section::BitmapDirectory);
            tables.pieces.push(piece);
        }
        tables.check_apart(blame, options)?;
        Ok(tables)
    }

    /// Where refcounts are, and for writing the table itself. A reader needs them only to know
    /// metadata from data: it does without a table that cannot be read.
    async fn read_refcount_table(
        &mut self,
        file: &dyn Storage,
        header: &Header,
        geometry: &Geometry,
        options: &Options,
        blame: &Blame,
    ) -> Result<(), Error> {
        let cluster = geometry.cluster_size();
        let offset = header.refcount_table_offset.0;
        let len = u64::from(header.refcount_table_clusters) * cluster;
        self.pieces.push((offset, offset.saturating_add(len), Section::RefcountTable));
        let words = match read_words(file, blame, "the refcount table", offset, len).await {
            Ok(words) => words,
            // What is only read does without refcounts; the medium's failures are told all the same.
            Err(Error::Corrupt { .. }) if !options.writable => return Ok(()),
            Err(error) => return Err(error),
        };
        let table = RefcountTable::new(offset, 0, geometry.cluster_bits, words);
        let blocks = table.blocks(geometry);
        let blocks = blocks.map(|at| (at.0, at.0.saturating_add(cluster), Section::RefcountBlock));
        add_pieces(&mut self.pieces, blocks, blame)?;
        if options.writable {
            self.refcounts = table.into_words();
        }
        Ok(())
    }

    /// Where snapshots keep their tables. Read-only images that nobody repairs do without it.
    async fn read_snapshots(
        &mut self,
        file: &dyn Storage,
        header: &Header,
        geometry: &Geometry,
        options: &Options,
        blame: &Blame,
    ) -> Result<(), Error> {
        if header.snapshots == 0 {
            return Ok(());
        }
        let (entries, len) = crate::snapshot::read_table(file, header, blame).await?;
        let offset = header.snapshots_offset.0;
        self.pieces.push((offset, offset.saturating_add(len), Section::SnapshotTable));
        for entry in &entries {
            let at = entry.l1_table_offset.0;
            let l1_bytes = u64::from(entry.l1_size) * 8;
            self.pieces.push((at, at.saturating_add(l1_bytes), Section::InactiveL1));
            if options.writable && options.overlap_check.checks(Section::InactiveL2) {
                entry.check(geometry).map_err(|error| blame.corrupt(error.to_string()))?;
                let words = read_words(file, blame, "the L1 table of a snapshot", at, l1_bytes).await?;
                let tables = words.into_iter().filter_map(|word| L1Entry::decode(word, geometry).ok()?.table);
                let cluster = geometry.cluster_size();
                let tables =
                    tables.map(|table| (table.0, table.0.saturating_add(cluster), Section::InactiveL2));
                add_pieces(&mut self.pieces, tables, blame)?;
            }
        }
        Ok(())
    }

    /// A device has its whole length from the start: where the image ends stands in the refcounts.
    async fn allocator_on_device(
        &self,
        file: &dyn Storage,
        geometry: &Geometry,
        blame: &Blame,
    ) -> Result<Allocator, Error> {
        let end = file.length() >> geometry.cluster_bits;
        let entries = geometry.refcount_block_entries();
        let mut empty_blocks = 0;
        for (index, &word) in self.refcounts.iter().enumerate().rev() {
            let Some(block) = RefcountTableEntry::decode(word, geometry).ok().and_then(|entry| entry.block)
            else {
                continue;
            };
            let first = index as u64 * entries;
            let (result, bytes) = file.read(block.0, IoBuf::uninit(1 << geometry.cluster_bits)).await;
            result.map_err(blame.io("reading a refcount block"))?;
            let used = |at: &u64| refcount_get(&bytes, *at, geometry.refcount_order) != Some(0);
            let last = (0..entries).rev().find(used);
            empty_blocks += 1;
            if last.is_some() || empty_blocks == EMPTY_BLOCKS_MAX {
                let frontier = last.map_or(first + entries, |last| first + last + 1);
                return Ok(allocator(frontier.min(end), geometry, file).ending_at(end));
            }
        }
        Ok(allocator(end, geometry, file).ending_at(end))
    }

    /// A writer must not find two L1 entries with one table, or tables inside each other.
    fn check_apart(&mut self, blame: &Blame, options: &Options) -> Result<(), Error> {
        if !options.writable || options.ignore_corrupt {
            return Ok(());
        }
        // Tables of snapshots may well be tables of each other and of the active image.
        let mut sorted = Vec::new();
        let pieces = self.pieces.iter();
        let apart = pieces.filter(|(start, end, section)| start < end && *section != Section::InactiveL2);
        add_pieces(&mut sorted, apart.copied(), blame)?;
        sorted.sort_unstable_by_key(|(start, ..)| *start);
        for pair in sorted.windows(2) {
            let [(start, end, section), (next, _, other)] = pair else { continue };
            if end > next {
                return Err(blame.corrupt(format!(
                    "{section} at {start:#x} and {other} at {next:#x} overlap; run `cowhand check`"
                )));
            }
        }
        Ok(())
    }
}

type Piece = (u64, u64, Section);

/// Adds pieces of metadata, of which there are as many as the image has tables.
fn add_pieces(
    pieces: &mut Vec<Piece>,
    more: impl Iterator<Item = Piece>,
    blame: &Blame,
) -> Result<(), Error> {
    for piece in more {
        pieces.try_reserve(1).map_err(|_| blame.no_memory("the place of all tables"))?;
        pieces.push(piece);
    }
    Ok(())
}

/// A table of `bytes` bytes as words in host byte order. Nothing is allocated before the table is
/// known to lie inside the file.
pub(crate) async fn read_words(
    file: &dyn Storage,
    blame: &Blame,
    what: &'static str,
    offset: u64,
    bytes: u64,
) -> Result<Vec<u64>, Error> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let end = offset.checked_add(bytes);
    let (Some(end), Ok(len)) = (end, usize::try_from(bytes)) else {
        return Err(blame.corrupt(format!("{what} at {offset:#x} has an impossible length ({bytes} bytes)")));
    };
    if end > file.length() {
        return Err(blame.corrupt(format!(
            "{what} ends at {end:#x}, past the end of the file ({:#x}); the file may be truncated",
            file.length()
        )));
    }
    let mut words = Vec::new();
    words.try_reserve_exact(len / 8).map_err(|_| blame.no_memory(what))?;
    let mut at = offset;
    while at < end {
        let piece = (end - at).min(PIECE_BYTES);
        let (result, buf) = file.read(at, IoBuf::uninit(piece as usize)).await;
        result.map_err(blame.io("reading a table"))?;
        words.extend(buf.as_chunks::<8>().0.iter().map(|word| u64::from_be_bytes(*word)));
        at += piece;
    }
    Ok(words)
}

fn allocator(frontier: u64, geometry: &Geometry, file: &dyn Storage) -> Allocator {
    let blocks = frontier.div_ceil(geometry.refcount_block_entries());
    Allocator::new(frontier, blocks, file.limits().grows_zeroed)
}

/// How many clusters are counted before anybody wants them.
fn reserve_clusters(options: &Options, geometry: &Geometry) -> u64 {
    match options.allocation_reserve {
        Some(bytes) => bytes >> geometry.cluster_bits,
        None => (RESERVE_BYTES >> geometry.cluster_bits)
            .clamp(RESERVE_CLUSTERS_MIN, RESERVE_CLUSTERS_MAX)
            .min(geometry.refcount_block_entries()),
    }
}

fn assemble(
    files: Files,
    header: Header,
    geometry: Geometry,
    tables: Tables,
    options: Options,
    host: Arc<dyn Host>,
    blame: Blame,
) -> Result<Inner, Error> {
    let cached = cached_image(header.guest_size(), &geometry);
    let cache_sizes =
        cache_sizes(&options.cache, &cached).map_err(|error| blame.invalid(error.to_string()))?;
    let shape = SliceShape::new(&geometry, cache_sizes.l2_entry_bytes);
    let limits = CacheLimits {
        slices_per_table: shape.slices_per_table(),
        bytes_max: l2_ceiling(&options.cache, &cache_sizes),
    };
    let budget = host.map_budget();
    let refcount_table = RefcountTable::new(
        header.refcount_table_offset.0,
        u64::from(header.refcount_table_clusters),
        geometry.cluster_bits,
        tables.refcounts,
    );
    let lazy_bit = header.compatible.contains(Compatible::LAZY_REFCOUNTS);
    let l1 =
        L1Table::new(header.l1_table_offset.0, &tables.l1).map_err(|_| blame.no_memory("the L1 table"))?;
    let file = files.file;
    Ok(Inner {
        data: files.data.unwrap_or_else(|| Arc::clone(&file)),
        backing: files.backing,
        chain: OnceLock::new(),
        compression: header.compression,
        raw_data: header.autoclear.contains(Autoclear::RAW_EXTERNAL_DATA) && geometry.external_data,
        lazy_refcounts: options.lazy_refcounts.unwrap_or(lazy_bit),
        size: AtomicU64::new(header.guest_size()),
        l1,
        header: AsyncMutex::new(header),
        cache: MapCache::new(limits, packing(&geometry), &budget),
        shape,
        refcounts: Refcounts::new(
            Arc::clone(&file),
            blame.clone(),
            geometry,
            refcount_table,
            usize::try_from(cache_sizes.refcount_count).unwrap_or(usize::MAX),
            Arc::clone(&budget),
        ),
        budget,
        allocator: Mutex::new(tables.allocator),
        reserve: Reserve::new(reserve_clusters(&options, &geometry)),
        growth: Growth::default(),
        making_blocks: AsyncMutex::new(()),
        overlap: MetadataMap::new(options.overlap_check, tables.pieces),
        gate: Gate::default(),
        clusters: InFlight::default(),
        tables: InFlight::default(),
        raw_ranges: InFlight::default(),
        frees: Frees::default(),
        waiting: Waiting::default(),
        committer: Committer::default(),
        decompressed: Decompressed::default(),
        closing: AtomicBool::new(false),
        announced: AtomicBool::new(false),
        corrupt: AtomicBool::new(false),
        corrupt_marked: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
        managing: AsyncMutex::new(()),
        blame,
        host,
        file,
        discards: RwLock::new(options.discards()),
        options,
        cache_sizes: RwLock::new(cache_sizes),
        geometry,
    })
}
