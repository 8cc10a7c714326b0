//! Reading the tables that are in memory as a whole, each checked against the file's length first.

use qcow2_layout::{Geometry, Header, L1Entry, RefcountTableEntry, refcount_get};
use storage::{IoBuf, Storage};

use crate::allocator::Allocator;
use crate::error::Blame;
use crate::overlap::Section;
use crate::refcount::RefcountTable;
use crate::table_io::PIECE_BYTES;
use crate::{Error, Options, lists};

/// Refcount blocks without any refcount that are read in search of the end of an image on a device:
/// an image can have a million of them.
const EMPTY_BLOCKS_MAX: u32 = 64;

/// The image that is being opened.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) file: &'a dyn Storage,
    pub(super) header: &'a Header,
    pub(super) geometry: &'a Geometry,
    pub(super) options: &'a Options,
    pub(super) blame: &'a Blame,
}

/// Start, end (excluded) and kind of a piece of metadata.
type Piece = (u64, u64, Section);

/// The tables that are in memory as a whole.
pub(super) struct Tables {
    pub(super) l1: Vec<u64>,
    pub(super) refcounts: Vec<u64>,
    pub(super) pieces: Vec<Piece>,
    pub(super) allocator: Allocator,
}

impl Tables {
    pub(super) async fn read(source: Source<'_>) -> Result<Self, Error> {
        let Source { file, header, geometry, blame, .. } = source;
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
        tables.read_refcount_table(source).await?;
        tables.read_snapshots(source).await?;
        if let Some(bitmaps) = header.extensions.bitmaps {
            let piece = piece(bitmaps.directory_offset.0, bitmaps.directory_size, Section::BitmapDirectory);
            tables.pieces.push(piece);
        }
        tables.check_apart(source)?;
        Ok(tables)
    }

    /// Where refcounts are, and for writing the table itself. A reader needs them only to know
    /// metadata from data: it does without a table that cannot be read.
    async fn read_refcount_table(&mut self, source: Source<'_>) -> Result<(), Error> {
        let Source { file, header, geometry, options, blame } = source;
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
    async fn read_snapshots(&mut self, source: Source<'_>) -> Result<(), Error> {
        let Source { file, header, geometry, options, blame } = source;
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
    pub(super) async fn allocator_on_device(&self, source: Source<'_>) -> Result<Allocator, Error> {
        let Source { file, geometry, blame, .. } = source;
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
    fn check_apart(&self, source: Source<'_>) -> Result<(), Error> {
        let Source { options, blame, .. } = source;
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

/// Adds pieces of metadata, of which there are as many as the image has tables.
fn add_pieces(
    pieces: &mut Vec<Piece>,
    more: impl Iterator<Item = Piece>,
    blame: &Blame,
) -> Result<(), Error> {
    for piece in more {
        lists::push(pieces, piece).map_err(|_| blame.no_memory("the place of all tables"))?;
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
