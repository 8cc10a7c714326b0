//! What lies where in an image, from one reading of its tables: for pictures and figures. Whether the tables are right is not asked
//! here; `check` says that.

use std::ops::Range;

use block::{Blame, BlockFuture};
use qcow2_layout::{Geometry, Header, HostOffset, L1Entry, L2Entry, RefcountTableEntry, refcount_get};
use storage::{ExtentKind, IoBuf, Storage};

use crate::Error;
use crate::open::read_header;
use crate::table_io::{PIECE_BYTES, is_in_file, read_bytes};

/// What a survey comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surveyed {
    /// The image's own tables say something of a cluster of the disk. Reported in the order of the disk.
    Cluster {
        /// Where it begins on the disk, in bytes.
        guest: u64,
        /// What they say.
        entry: L2Entry,
    },
    /// A table of the disk or of the refcounts, or the header.
    Metadata {
        /// Where it begins in the file, in bytes.
        offset: u64,
        /// Its bytes, in whole clusters.
        bytes: u64,
    },
    /// Neighbouring clusters with a refcount. Reported in the order of the file.
    Used {
        /// Where they begin in the file, in bytes.
        offset: u64,
        /// Their bytes.
        bytes: u64,
    },
}

/// Reads the active L1 and L2 tables and the refcounts of the image in `file`, and tells `seen` what is there.
///
/// Entries that are not valid, and tables that are not in the file, are left out: `check` counts them. Takes the memory of one cluster
/// and one piece of a table, and the time to read what the file holds: a table that is a hole is not read.
///
/// # Errors
/// The header is not one, the file fails, or the image refers to more tables than its file has clusters.
pub fn survey<'a>(
    file: &'a dyn Storage,
    seen: &'a mut dyn FnMut(Surveyed),
) -> BlockFuture<'a, Result<(), Error>> {
    Box::pin(async move {
        let header = read_header(file).await?;
        let blame = Blame::new(file.name());
        let geometry = header.geometry().map_err(|error| blame.corrupt(error.to_string()))?;
        let mut survey = Survey { file, geometry, blame, extent: Extent::default(), seen };
        survey.tell_metadata(HostOffset(0), 1);
        survey.clusters(&header).await?;
        survey.refcounts(&header).await
    })
}

struct Survey<'a> {
    file: &'a dyn Storage,
    geometry: Geometry,
    blame: Blame,
    extent: Extent,
    seen: &'a mut dyn FnMut(Surveyed),
}

/// The part of the file that was asked about last.
#[derive(Default)]
struct Extent {
    range: Range<u64>,
    hole: bool,
}

impl Survey<'_> {
    async fn clusters(&mut self, header: &Header) -> Result<(), Error> {
        let (start, entries) = (header.l1_table_offset, u64::from(header.l1_size));
        self.tell_metadata(start, (entries * 8).div_ceil(self.geometry.cluster_size()));
        let mut guest = 0u64;
        let mut tables = self.tables_max();
        for first in (0..entries).step_by((PIECE_BYTES / 8) as usize) {
            let piece = self.read(start + first * 8, ((entries - first) * 8).min(PIECE_BYTES)).await?;
            for word in piece.as_chunks::<8>().0 {
                if guest >= header.guest_size() {
                    return Ok(());
                }
                let entry = L1Entry::decode(u64::from_be_bytes(*word), &self.geometry);
                if let Ok(L1Entry { table: Some(table), .. }) = entry {
                    self.take_table(&mut tables, "L2 tables")?;
                    self.l2_table(table, guest, header.guest_size()).await?;
                }
                guest = guest.saturating_add(self.geometry.bytes_per_l2_table());
            }
        }
        Ok(())
    }

    async fn l2_table(&mut self, at: HostOffset, mut guest: u64, size: u64) -> Result<(), Error> {
        self.tell_metadata(at, 1);
        let Some(table) = self.table(at).await? else { return Ok(()) };
        let words = if self.geometry.extended_l2 { 2 } else { 1 };
        for entry in table.as_chunks::<8>().0.chunks_exact(words) {
            if guest >= size {
                break;
            }
            let word = |at: usize| entry.get(at).map_or(0, |bytes| u64::from_be_bytes(*bytes));
            let entry = L2Entry::decode_at([word(0), word(1)], guest, &self.geometry);
            if let Ok(entry) = entry
                && entry != L2Entry::UNALLOCATED
            {
                (self.seen)(Surveyed::Cluster { guest, entry });
            }
            guest = guest.saturating_add(self.geometry.cluster_size());
        }
        Ok(())
    }

    async fn refcounts(&mut self, header: &Header) -> Result<(), Error> {
        let (start, clusters) = (header.refcount_table_offset, u64::from(header.refcount_table_clusters));
        self.tell_metadata(start, clusters);
        let bytes = clusters << self.geometry.cluster_bits;
        let bytes_per_block = self.geometry.refcount_block_entries() << self.geometry.cluster_bits;
        let (mut described, mut tables) = (0u64, self.tables_max());
        for first in (0..bytes).step_by(PIECE_BYTES as usize) {
            let piece = self.read(start + first, (bytes - first).min(PIECE_BYTES)).await?;
            for word in piece.as_chunks::<8>().0 {
                let entry = RefcountTableEntry::decode(u64::from_be_bytes(*word), &self.geometry);
                if let Ok(RefcountTableEntry { block: Some(block) }) = entry {
                    self.take_table(&mut tables, "refcount blocks")?;
                    self.refcount_block(block, described).await?;
                }
                described = described.saturating_add(bytes_per_block);
            }
        }
        Ok(())
    }

    /// Tells of the clusters in use that a block of refcounts describes, the first of which is at `described`.
    async fn refcount_block(&mut self, at: HostOffset, described: u64) -> Result<(), Error> {
        self.tell_metadata(at, 1);
        let Some(block) = self.table(at).await? else { return Ok(()) };
        let (order, count) = (self.geometry.refcount_order, self.geometry.refcount_block_entries());
        let mut run = 0u64;
        for index in 0..=count {
            let used = index < count && refcount_get(&block, index, order).is_some_and(|count| count > 0);
            match used {
                true => run += 1,
                false if run > 0 => {
                    let bytes = run << self.geometry.cluster_bits;
                    let end = described.saturating_add(index << self.geometry.cluster_bits);
                    (self.seen)(Surveyed::Used { offset: end.saturating_sub(bytes), bytes });
                    run = 0;
                }
                false => {}
            }
        }
        Ok(())
    }

    /// How many tables of a kind there can be: each has a cluster of the file to itself.
    fn tables_max(&self) -> u64 {
        self.file.length().div_ceil(self.geometry.cluster_size())
    }

    /// One more table is read. An image that names one table many times would take for ever.
    fn take_table(&self, left: &mut u64, what: &str) -> Result<(), Error> {
        let more = left.checked_sub(1).ok_or_else(|| {
            let clusters = self.tables_max();
            self.blame.corrupt(format!("it refers to more {what} than its file has clusters ({clusters})"))
        })?;
        *left = more;
        Ok(())
    }

    fn tell_metadata(&mut self, at: HostOffset, clusters: u64) {
        (self.seen)(Surveyed::Metadata { offset: at.0, bytes: clusters << self.geometry.cluster_bits });
    }

    /// A table of one cluster; `None` if it is a hole, or not in the file.
    async fn table(&mut self, at: HostOffset) -> Result<Option<IoBuf>, Error> {
        let bytes = self.geometry.cluster_size();
        if !is_in_file(self.file, bytes, at.0, bytes) || self.is_hole(at, bytes).await {
            return Ok(None);
        }
        self.read(at, bytes).await.map(Some)
    }

    async fn read(&self, at: HostOffset, bytes: u64) -> Result<IoBuf, Error> {
        read_bytes(self.file, at.0, bytes).await.map_err(self.blame.io("reading a table"))
    }

    async fn is_hole(&mut self, at: HostOffset, bytes: u64) -> bool {
        let offset = at.0;
        let end = (offset + bytes).min(self.file.length());
        if !self.extent.range.contains(&offset) {
            // A medium that cannot tell is read.
            let Ok(extent) = self.file.extent(offset, self.file.length() - offset).await else {
                return false;
            };
            let range = offset..offset.saturating_add(extent.len);
            self.extent = Extent { range, hole: extent.kind == ExtentKind::Hole };
        }
        self.extent.hole && end <= self.extent.range.end
    }
}
