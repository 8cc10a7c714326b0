//! Reading the tables that are in memory as a whole, each checked against the file's length first.

use std::collections::TryReserveError;
use std::sync::Arc;

use block::Blame;
use qcow2_layout::{CryptMethod, Geometry, Header, L1Entry, RefcountTableEntry, SnapshotEntry, refcount_get};
use storage::{Extent, ExtentKind, Hints, IoBuf, Step, Storage, about_to};

use crate::allocator::Allocator;
use crate::l1::L1Table;
use crate::overlap::{Places, Section};
use crate::refcount::RefcountTable;
use crate::table_io::{PIECE_BYTES, check_place, each_word, read_words};
use crate::tables_account::TablesAccount;
use crate::{Error, Options};

/// Refcount blocks without any refcount that are read in search of the end of an image on a device:
/// an image can have a million of them.
const EMPTY_BLOCKS_MAX: u32 = 64;

/// Bytes of memory that the place of a table takes.
const PLACE_BYTES: u64 = 8;

/// The image that is being opened.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) file: &'a dyn Storage,
    pub(super) header: &'a Header,
    pub(super) geometry: &'a Geometry,
    pub(super) options: &'a Options,
    pub(super) blame: &'a Blame,
}

/// The tables that are in memory as a whole, and the place of those that are not.
pub(super) struct Tables {
    pub(super) l1: L1Table,
    pub(super) refcounts: RefcountTable,
    pub(super) places: Places,
    pub(super) allocator: Allocator,
}

impl Tables {
    /// Memory of L1 and of the place of all tables is taken out of `account`.
    pub(super) async fn read(source: Source<'_>, account: &Arc<TablesAccount>) -> Result<Self, Error> {
        let Source { file, geometry, options, .. } = source;
        let l1 = read_l1(source, account).await?;
        let mut refcounts = read_refcounts(source).await?;
        // Of each table that L1 names the place is kept.
        let named = l1.tables(geometry).count() as u64 * PLACE_BYTES;
        l1.charge(named).map_err(|error| error.blamed(source.blame))?;
        let places = read_places(source, &l1, &refcounts).await?;
        if !options.writable {
            refcounts = empty_refcounts(source);
        }
        let allocator = allocator(geometry.clusters_for(file.length()), source);
        Ok(Self { l1, refcounts, places, allocator })
    }

    /// A device has its whole length from the start: where the image ends stands in the refcounts.
    pub(super) async fn allocator_on_device(&self, source: Source<'_>) -> Result<Allocator, Error> {
        let Source { file, geometry, blame, .. } = source;
        let end = file.length() >> geometry.cluster_bits;
        let entries = geometry.refcount_block_entries();
        let mut empty_blocks = 0;
        for (index, &word) in self.refcounts.words().iter().enumerate().rev() {
            let Some(block) = RefcountTableEntry::decode(word, geometry).ok().and_then(|entry| entry.block)
            else {
                continue;
            };
            let first = index as u64 * entries;
            let (result, bytes) =
                file.read(block.0, IoBuf::uninit(1 << geometry.cluster_bits), Hints::NONE).await;
            result.map_err(blame.io("reading a refcount block"))?;
            let used = |at: &u64| refcount_get(&bytes, *at, geometry.refcount_order) != Some(0);
            let last = (0..entries).rev().find(used);
            empty_blocks += 1;
            if last.is_some() || empty_blocks == EMPTY_BLOCKS_MAX {
                let frontier = last.map_or(first + entries, |last| first + last + 1);
                return Ok(allocator(frontier.min(end), source).ending_at(end));
            }
        }
        Ok(allocator(end, source).ending_at(end))
    }
}

/// The active L1 table, straight into its place in memory. Holes of the file are not read.
async fn read_l1(source: Source<'_>, account: &Arc<TablesAccount>) -> Result<L1Table, Error> {
    let Source { file, header, options, blame, .. } = source;
    let (what, offset) = ("the L1 table", header.l1_table_offset.0);
    let bytes = u64::from(header.l1_size) * 8;
    check_place(file, blame, what, offset, bytes)?;
    let entries = header.l1_size as usize;
    let table = L1Table::empty(offset, entries, Arc::clone(account));
    if options.writable {
        // A writer enters tables anywhere, and must not be short of memory then.
        table.reserve(entries).map_err(|error| error.blamed(blame))?;
    }
    let (mut at, end) = (0, bytes);
    // A writer's table is in memory as a whole, and the holes of a short one are not worth asking for.
    let skips_holes = !options.writable && bytes > PIECE_BYTES;
    while at < end {
        let extent = match skips_holes {
            true => file.extent(offset + at, end - at).await.map_err(blame.io("reading a table"))?,
            false => Extent { len: end - at, kind: ExtentKind::Data },
        };
        // Whole words: a hole that ends inside of one is read with what follows.
        let len = extent.len.min(end - at);
        let (hole, rest) = (len / 8 * 8, end - at);
        if extent.kind == ExtentKind::Hole && hole > 0 {
            at += hole;
            continue;
        }
        let mut index = at as usize / 8;
        let load = |word| {
            table.load(index, word).map_err(|error| error.blamed(blame))?;
            index += 1;
            Ok(())
        };
        let read = len.next_multiple_of(8).min(rest);
        each_word(file, blame, offset + at, read, load).await?;
        at += read;
    }
    Ok(table)
}

/// The refcount table. A reader needs it only to know metadata from data: it does without a table that cannot be
/// read.
pub(super) async fn read_refcounts(source: Source<'_>) -> Result<RefcountTable, Error> {
    let Source { file, header, geometry, options, blame } = source;
    let offset = header.refcount_table_offset.0;
    let clusters = u64::from(header.refcount_table_clusters);
    let bytes = clusters << geometry.cluster_bits;
    about_to(file, Step::ReftableLoad);
    match read_words(file, blame, "the refcount table", offset, bytes).await {
        Ok(words) => {
            Ok(RefcountTable::new(header.refcount_table_offset, clusters, geometry.cluster_bits, words))
        }
        // The file's failures are reported all the same.
        Err(Error::Corrupt { .. }) if !options.writable => Ok(empty_refcounts(source)),
        Err(error) => Err(error),
    }
}

fn empty_refcounts(Source { header, geometry, .. }: Source<'_>) -> RefcountTable {
    let clusters = u64::from(header.refcount_table_clusters);
    RefcountTable::new(header.refcount_table_offset, clusters, geometry.cluster_bits, Vec::new())
}

/// Where all metadata is: by the tables in memory, and by the snapshot table, which is read.
pub(super) async fn read_places(
    source: Source<'_>,
    l1: &L1Table,
    refcounts: &RefcountTable,
) -> Result<Places, Error> {
    let Source { file, header, geometry, options, blame } = source;
    let mut places = Places::new(geometry.cluster_bits);
    place_tables(&mut places, source, l1, refcounts).map_err(|_| no_memory_for_places(blame))?;
    let with_l2 = options.writable && options.overlap_check.checks(Section::InactiveL2);
    let mut snapshots = Vec::new();
    if header.snapshots > 0 {
        let place = |entry: SnapshotEntry| {
            let bytes = u64::from(entry.l1_size) * 8;
            let placed = places.push(entry.l1_table_offset.0, bytes, Section::InactiveL1);
            placed.map_err(|_| no_memory_for_places(blame))?;
            if with_l2 {
                snapshots.try_reserve(1).map_err(|_| no_memory_for_places(blame))?;
                snapshots.push(entry);
            }
            Ok(())
        };
        let bytes = crate::snapshot::each_entry(file, header, blame, place).await?;
        let placed = places.push(header.snapshots_offset.0, bytes, Section::SnapshotTable);
        placed.map_err(|_| no_memory_for_places(blame))?;
    }
    if options.writable && !options.ignore_corrupt {
        check_apart(&mut places, blame)?;
    }
    // Tables of snapshots may well be tables of each other and of the active image.
    for snapshot in &snapshots {
        place_l2_of_snapshot(&mut places, source, snapshot).await?;
    }
    Ok(places)
}

/// Where the disk's own tables are.
fn place_tables(
    places: &mut Places,
    source: Source<'_>,
    l1: &L1Table,
    refcounts: &RefcountTable,
) -> Result<(), TryReserveError> {
    let Source { header, geometry, .. } = source;
    let cluster = geometry.cluster_size();
    places.reserve(l1.tables(geometry).count() + refcounts.blocks(geometry).count())?;
    places.push(0, cluster, Section::MainHeader)?;
    places.push(header.l1_table_offset.0, u64::from(header.l1_size) * 8, Section::ActiveL1)?;
    let bytes = u64::from(header.refcount_table_clusters) << geometry.cluster_bits;
    places.push(header.refcount_table_offset.0, bytes, Section::RefcountTable)?;
    if let Some(bitmaps) = header.extensions.bitmaps {
        places.push(bitmaps.directory_offset.0, bitmaps.directory_size, Section::BitmapDirectory)?;
    }
    if let Some(record) = header.extensions.record {
        places.push(record.offset.0, record.len, Section::BitmapDirectory)?;
    }
    if let Some(luks) = header.extensions.crypto {
        places.push(luks.offset.0, luks.len, Section::MainHeader)?;
    }
    for table in l1.tables(geometry) {
        places.push(table.0, cluster, Section::ActiveL2)?;
    }
    for block in refcounts.blocks(geometry) {
        places.push(block.0, cluster, Section::RefcountBlock)?;
    }
    Ok(())
}

async fn place_l2_of_snapshot(
    places: &mut Places,
    source: Source<'_>,
    snapshot: &SnapshotEntry,
) -> Result<(), Error> {
    let Source { file, geometry, blame, .. } = source;
    snapshot.check(geometry).map_err(|error| blame.corrupt(error.to_string()))?;
    let (what, offset) = ("the L1 table of a snapshot", snapshot.l1_table_offset.0);
    let bytes = u64::from(snapshot.l1_size) * 8;
    check_place(file, blame, what, offset, bytes)?;
    let enter = |word| match L1Entry::decode(word, geometry) {
        Ok(L1Entry { table: Some(table), .. }) => {
            places.push_shared(table.0).map_err(|_| no_memory_for_places(blame))
        }
        _ => Ok(()),
    };
    each_word(file, blame, offset, bytes, enter).await
}

/// A writer must not find two L1 entries with one table, or tables inside each other.
fn check_apart(places: &mut Places, blame: &Blame) -> Result<(), Error> {
    match places.overlap() {
        Some([(start, section), (next, other)]) => Err(blame.corrupt(format!(
            "{section} at {start:#x} and {other} at {next:#x} overlap; run `cowhand check`"
        ))),
        None => Ok(()),
    }
}

fn no_memory_for_places(blame: &Blame) -> Error {
    blame.no_memory("the place of all tables")
}

/// In an encrypted image it is unknown what a cluster reads as that was never written.
fn allocator(frontier: u64, Source { file, header, .. }: Source<'_>) -> Allocator {
    Allocator::new(frontier, file.capabilities().grows_zeroed && header.crypt == CryptMethod::None)
}
