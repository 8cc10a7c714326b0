//! One reading of all metadata.

use std::ops::Range;

use qcow2_layout::{
    BitmapEntry, BitmapError, BitmapTableEntry, Geometry, Header, HeaderError, HostOffset, SNAPSHOTS_MAX,
    SnapshotEntry, decode_bitmap_directory,
};
use storage::{ExtentKind, IoBuf, Storage};

use super::claims::{Claim, Claims};
use super::counts::{Counts, Full};
use super::reading::{Reader, batch_len};
use super::report::{CheckReport, Finding, Owner, Progress, Repair, Severity};
use super::{CheckError, compare::Comparison};
use crate::table_io::{PIECE_BYTES, read_bytes};

/// Memory for counters of one kind that every image gets, whatever its size.
const COUNT_BYTES_BASE: u64 = 24 << 20;
/// The same for references to clusters: 1 TiB of data in 64 KiB clusters takes 32 MiB.
const REFERENCE_BYTES_BASE: u64 = 112 << 20;
/// Beyond that, the bytes that a file really holds per byte of counters. A cluster has at least 512 bytes,
/// the thinnest spread counter takes about 100.
const CONTENT_PER_COUNT_BYTE: u64 = 2;
/// Where the header says how many snapshots there are.
const NB_SNAPSHOTS_AT: usize = 60;
/// Tables smaller than this are read without asking first whether they are holes.
const HOLE_BYTES_MIN: u64 = 4096;
/// So many tables are read before they are known to be in a hole: asking takes as long as reading 64 KiB. From then on all are asked
/// about first: tables of a hostile image may be holes without end.
const ZERO_TABLES_MAX: u32 = 64;

/// What one reading finds, and what a repair needs of it.
pub(crate) struct Pass<'a> {
    pub(crate) file: &'a dyn Storage,
    /// The same file, and how its tables are read.
    pub(crate) reader: Reader<'a>,
    pub(crate) header: Header,
    pub(crate) geometry: Geometry,
    /// Bytes of the file when the pass began.
    pub(crate) file_length: u64,
    /// Bytes that the file held for it then.
    allocated: u64,
    /// Who refers to what.
    pub(crate) claims: Claims,
    /// L2 tables still to be scanned: how many L1 entries refer to each.
    pub(crate) l2_tables: Counts,
    /// What the refcounts on disk said.
    pub(crate) comparison: Comparison,
    pub(crate) snapshots: Snapshots,
    /// Every reference was found: what nothing refers to is free.
    pub(crate) complete: bool,
    /// The refcount structure cannot be mended in place.
    pub(crate) rebuild: bool,
    /// What the caller is going to have repaired: entries that this changes refer to nothing already.
    pub(super) repair: Repair,
    pub(crate) report: CheckReport,
    /// Bytes of tables that may still be read; none is left once there was one too many.
    pub(crate) read_bytes_left: u64,
    extent: KnownExtent,
    /// Tables that were read and were nothing but zeroes.
    zero_tables: u32,
    progress: &'a mut dyn FnMut(Progress<'_>),
}

/// A range of the file that is a hole, or is not.
#[derive(Default)]
struct KnownExtent {
    range: Range<u64>,
    hole: bool,
}

/// The snapshot table as it was read.
#[derive(Default)]
pub(crate) struct Snapshots {
    pub(crate) entries: Vec<SnapshotEntry>,
    /// Bytes of the table.
    pub(crate) bytes: u64,
    /// The table must be written anew to be valid.
    pub(crate) faulty: bool,
    /// Its last entries are too many and not among `entries`: what only they refer to is free once the header counts fewer.
    pub(crate) cut: bool,
    /// So many more than there can be at all, by the header.
    pub(crate) beyond: u32,
}

impl<'a> Pass<'a> {
    /// Reads and compares everything.
    pub(crate) async fn run(
        reader: Reader<'a>,
        progress: &'a mut dyn FnMut(Progress<'_>),
    ) -> Result<Self, CheckError> {
        Self::run_before(Repair::None, reader, progress).await
    }

    /// The same, before a repair.
    pub(super) async fn run_before(
        repair: Repair,
        reader: Reader<'a>,
        progress: &'a mut dyn FnMut(Progress<'_>),
    ) -> Result<Self, CheckError> {
        let mut pass = Self::new(reader, progress, REFERENCE_BYTES_BASE).await?;
        pass.repair = repair;
        pass.count_references().await?;
        pass.compare().await?;
        pass.check_copied().await?;
        Ok(pass)
    }

    /// Nothing but the header was read. References to clusters take `reference_bytes` of memory at most, and more in
    /// a file that holds much.
    pub(crate) async fn new(
        reader: Reader<'a>,
        progress: &'a mut dyn FnMut(Progress<'_>),
        reference_bytes: u64,
    ) -> Result<Self, CheckError> {
        let file = reader.file;
        let (header, beyond) = read_header(file).await?;
        let geometry = header.geometry()?;
        let allocated = file.allocated_bytes().unwrap_or_else(|| file.length());
        let content = allocated / CONTENT_PER_COUNT_BYTE;
        let counts = || Counts::new(COUNT_BYTES_BASE + content);
        Ok(Self {
            file,
            reader,
            geometry,
            file_length: file.length(),
            allocated,
            claims: Claims::new(reference_bytes + content, COUNT_BYTES_BASE + content),
            l2_tables: counts(),
            comparison: Comparison::new(counts()),
            snapshots: Snapshots { beyond, ..Snapshots::default() },
            complete: true,
            rebuild: false,
            repair: Repair::None,
            report: CheckReport {
                total_clusters: geometry.clusters_for(header.guest_size()),
                ..CheckReport::default()
            },
            header,
            read_bytes_left: u64::MAX,
            extent: KnownExtent::default(),
            zero_tables: 0,
            progress,
        })
    }

    /// Finds out who refers to what.
    pub(crate) async fn count_references(&mut self) -> Result<(), CheckError> {
        self.claim(Owner::Header, 0, self.geometry.cluster_size(), 1)?;
        let tables = self.claim_l1_tables().await?;
        if let Some(luks) = self.header.extensions.crypto {
            self.claim(Owner::Luks, luks.offset.0, luks.len, 1)?;
        }
        self.count_bitmaps().await?;
        self.claim_refcounts().await?;
        self.count_l2_tables(&tables).await?;
        self.scan_l2_tables().await
    }

    /// Whether there is something that a repair could be asked for: findings, or marks in the header.
    pub(crate) fn wants_repair(&self) -> bool {
        use qcow2_layout::Incompatible;
        let marked = !self.header.incompatible.is_empty()
            && (self.header.incompatible.contains(Incompatible::DIRTY)
                || self.header.incompatible.contains(Incompatible::CORRUPT));
        self.report.check_errors == 0 && (marked || !self.report.is_clean())
    }

    /// Tells of something and counts it.
    pub(crate) fn found(&mut self, finding: &Finding) {
        match (finding.severity(), finding) {
            (Severity::Leak, Finding::Refcount { clusters, .. }) => self.report.leaks += clusters,
            (Severity::Corruption, Finding::Refcount { clusters, .. }) => self.report.corruptions += clusters,
            (Severity::Corruption, Finding::SnapshotsBeyond { snapshots }) => {
                self.report.corruptions += u64::from(*snapshots);
            }
            (Severity::Leak, _) => self.report.leaks += 1,
            (Severity::Corruption, _) => self.report.corruptions += 1,
            (Severity::Error, _) => {
                self.report.check_errors += 1;
                self.complete = false;
            }
            (Severity::Note, _) => {}
        }
        self.progress(Progress::Found(finding));
    }

    /// Something is damaged so that references may be missing: nothing may be freed any more.
    pub(crate) fn found_incomplete(&mut self, finding: &Finding) {
        self.complete = false;
        self.found(finding);
    }

    pub(crate) fn progress(&mut self, progress: Progress<'_>) {
        (self.progress)(progress);
    }

    /// Reads a piece of a table. `None` when there is nothing but zeroes, or when it cannot be read, which
    /// is counted.
    pub(crate) async fn read_piece(&mut self, owner: Owner, offset: u64, len: u64) -> Option<IoBuf> {
        if len >= HOLE_BYTES_MIN && self.is_hole(offset, len).await {
            return None;
        }
        if len >= self.read_bytes_left {
            self.read_bytes_left = 0;
            self.complete = false;
            return None;
        }
        self.read_bytes_left -= len;
        match read_bytes(self.file, offset, len).await {
            Ok(buf) => Some(buf),
            Err(error) => {
                self.unreadable(owner, offset, &error);
                None
            }
        }
    }

    /// The next tables to be read at a time, with what is known of each. Those that are known to be holes are left out, and all from
    /// the one on that is too much to be read.
    pub(crate) async fn next_batch<T: Copy>(
        &mut self,
        tables: &mut impl Iterator<Item = T>,
        offset_of: impl Fn(T) -> u64,
    ) -> Vec<(u64, T)> {
        let len = self.geometry.cluster_size();
        let mut batch = Vec::new();
        while batch.len() < batch_len(len)
            && let Some(table) = tables.next()
        {
            let offset = offset_of(table);
            if self.is_known_hole(offset, len)
                || (self.zero_tables >= ZERO_TABLES_MAX && self.is_hole(offset, len).await)
            {
                continue;
            }
            if len >= self.read_bytes_left {
                self.read_bytes_left = 0;
                self.complete = false;
                break;
            }
            self.read_bytes_left -= len;
            batch.push((offset, table));
        }
        batch
    }

    /// A table of one cluster was read and is nothing but zeroes: others may share its hole.
    pub(crate) async fn found_zeroes(&mut self, offset: u64) {
        let len = self.geometry.cluster_size();
        if len >= HOLE_BYTES_MIN && !self.is_known_hole(offset, len) {
            self.zero_tables = self.zero_tables.saturating_add(1);
            self.is_hole(offset, len).await;
        }
    }

    /// Metadata that could not be looked at, because the file failed or there was no memory for it.
    pub(crate) fn unreadable(&mut self, owner: Owner, offset: u64, error: &dyn std::error::Error) {
        self.found(&Finding::Unreadable { owner, offset, error: error.to_string() });
    }

    /// Whether the part of the range that lies in the file is a hole. The extent that was asked about last is
    /// remembered: tables that were never written often share one.
    async fn is_hole(&mut self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len).min(self.file_length);
        if offset >= end {
            return false;
        }
        if !self.extent.range.contains(&offset) {
            // A medium that cannot tell is read.
            let Ok(extent) = self.file.extent(offset, self.file_length - offset).await else { return false };
            let hole = extent.kind == ExtentKind::Hole;
            self.extent = KnownExtent { range: offset..offset.saturating_add(extent.len), hole };
        }
        self.extent.hole && end <= self.extent.range.end
    }

    /// Whether the range lies in the hole that was asked about last.
    fn is_known_hole(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len).min(self.file_length);
        self.extent.hole && self.extent.range.contains(&offset) && end <= self.extent.range.end
    }

    /// Something is about to be written: holes may vanish.
    pub(crate) fn forget_extent(&mut self) {
        self.extent = KnownExtent::default();
    }

    /// The index of the cluster at `offset`.
    pub(crate) fn cluster_of(&self, offset: u64) -> u64 {
        offset >> self.geometry.cluster_bits
    }

    /// The offset of cluster `index`.
    pub(crate) fn offset_of(&self, index: u64) -> HostOffset {
        HostOffset(index << self.geometry.cluster_bits)
    }

    pub(crate) fn full(&self, limit: u64) -> impl Fn(Full) -> CheckError + use<> {
        let allocated = self.allocated;
        move |full| match full {
            Full::Granted => CheckError::TooManyReferences { limit, allocated },
            Full::Memory => CheckError::NoMemory { what: "counting references" },
        }
    }
}

/// The header, with as many snapshots as there can be, and how many more it says there are.
async fn read_header(file: &dyn Storage) -> Result<(Header, u32), CheckError> {
    let io =
        |source| CheckError::Io { name: file.name().to_owned(), doing: "read the header", offset: 0, source };
    let start = read_bytes(file, 0, file.length().min(512)).await.map_err(io)?;
    let cluster_size = 1u64 << Header::cluster_bits_of(&start)?;
    let mut first = read_bytes(file, 0, file.length().min(cluster_size)).await.map_err(io)?;
    match Header::decode_for_check(&first) {
        Err(HeaderError::TooManySnapshots { found }) => {
            if let Some(count) = first.get_mut(NB_SNAPSHOTS_AT..NB_SNAPSHOTS_AT + 4) {
                count.copy_from_slice(&SNAPSHOTS_MAX.to_be_bytes());
            }
            Ok((Header::decode_for_check(&first)?, found.saturating_sub(SNAPSHOTS_MAX)))
        }
        decoded => Ok((decoded?, 0)),
    }
}

impl Pass<'_> {
    /// Claims the record of changes, the directory, and of every bitmap the table and the clusters with its bits.
    async fn count_bitmaps(&mut self) -> Result<(), CheckError> {
        if let Some(record) = self.header.extensions.record {
            self.claim(Owner::ChangeRecord, record.offset.0, record.len, 1)?;
        }
        let Some(extension) = self.header.extensions.bitmaps else { return Ok(()) };
        let (offset, len) = (extension.directory_offset.0, extension.directory_size);
        if self.claim(Owner::BitmapDirectory, offset, len, 1)? != Claim::Good {
            self.complete = false;
            return Ok(());
        }
        let directory = match read_bytes(self.file, offset, len).await {
            Ok(directory) => directory,
            Err(error) => {
                self.unreadable(Owner::BitmapDirectory, offset, &error);
                return Ok(());
            }
        };
        let decoded = decode_bitmap_directory(&directory, extension.count, &self.geometry);
        // The names are in memory once.
        drop(directory);
        match decoded {
            Err(error @ BitmapError::NoMemory(_)) => {
                self.unreadable(Owner::BitmapDirectory, offset, &error);
            }
            Err(error) => self.found_incomplete(&Finding::Bitmaps(error)),
            Ok(mut bitmaps) => {
                bitmaps.sort_unstable_by_key(|bitmap| bitmap.table_offset);
                let mut end = 0;
                for bitmap in &bitmaps {
                    end = self.count_bitmap(bitmap, end).await?;
                }
            }
        }
        Ok(())
    }

    /// Tables come in the order of their place; `end` is where the ones before end, and so is the result. One
    /// that starts before is neither counted nor read in full, or thousands could keep us busy forever.
    async fn count_bitmap(&mut self, bitmap: &BitmapEntry, end: u64) -> Result<u64, CheckError> {
        let (start, bytes) = (bitmap.table_offset.0, u64::from(bitmap.table_entries) * 8);
        let counted = if start < end { 1 } else { bytes };
        let claim = self.claim(Owner::BitmapTable, start, counted, 1)?;
        if claim != Claim::Good || start < end {
            self.complete = false;
            return Ok(end);
        }
        let mut done = 0;
        while done < bytes {
            let len = PIECE_BYTES.min(bytes - done);
            if let Some(piece) = self.read_piece(Owner::BitmapTable, start + done, len).await {
                self.count_bitmap_piece(start + done, &piece)?;
            }
            done += len;
        }
        Ok(start + bytes)
    }

    fn count_bitmap_piece(&mut self, offset: u64, piece: &[u8]) -> Result<(), CheckError> {
        for (at, word) in (offset..).step_by(8).zip(piece.as_chunks::<8>().0) {
            match BitmapTableEntry::decode(u64::from_be_bytes(*word), &self.geometry) {
                Ok(BitmapTableEntry::Data(host)) => {
                    self.claim(Owner::BitmapData, host.0, self.geometry.cluster_size(), 1)?;
                }
                Ok(BitmapTableEntry::Zeroes | BitmapTableEntry::Ones) => {}
                Err(error) => {
                    self.found_incomplete(&Finding::Entry { at: qcow2_layout::HostOffset(at), error });
                }
            }
        }
        Ok(())
    }
}
