//! The record of changes: which regions of the disk may have changed since the bitmaps were stored. What a crash keeps of them.
//!
//! A region's bit is on disk before anything in it changes. Bytes: [`RecordExtension`]; order: docs/internals/write-order.md, "Bitmaps".

use std::collections::TryReserveError;

use qcow2_layout::{HostOffset, RecordExtension};
use sync::atomic::{AtomicU64, Ordering};

use super::bits::Bits;
use crate::Error;
use crate::guest_range::GuestRange;
use crate::medium::Medium;
use crate::table_io::write_bytes;

/// What a medium never tears.
const SECTOR_BYTES: u64 = 512;
const SECTOR_BITS: u64 = SECTOR_BYTES * 8;

/// Smallest region: what a bit of QEMU's default granularity stands for.
const REGION_BITS_MIN: u32 = 16;
/// Largest region of a disk of up to 1 TiB.
const REGION_BITS_MAX: u32 = 24;
/// Regions of a small disk, at least half as many: a change makes a thousandth of it dirty for nothing.
const REGIONS_WANTED: u64 = 1024;
/// Most regions: a record of 8 KiB.
const REGIONS_MAX: u64 = 65536;

/// Who writes from one region into the next is expected to go on: so many are recorded by one write.
const AHEAD: u64 = 8;

/// Bytes in recorded regions, unless said otherwise, before bitmaps are stored and the record begins anew.
const SLACK_BYTES: u64 = 8 << 30;
/// Likewise for a disk so large that this part of it is more.
const SLACK_SHARE: u64 = 128;

/// How the record of a disk is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordShape {
    /// Where in it the regions begin: behind what it says of bitmaps.
    regions_at: u64,
    regions: u64,
    pub(crate) region_bits: u32,
}

impl RecordShape {
    /// For a disk of `size` bytes in an image with so many bitmaps.
    pub(crate) fn new(size: u64, bitmaps: usize) -> Self {
        let log2 = |bytes: u64| bytes.max(1).next_power_of_two().trailing_zeros();
        let largest = log2(size.div_ceil(REGIONS_MAX)).max(REGION_BITS_MAX);
        let region_bits = log2(size.div_ceil(REGIONS_WANTED)).clamp(REGION_BITS_MIN, largest);
        Self::with_regions(size, bitmaps, region_bits)
    }

    /// The shape of a record that is on disk, if it fits the disk.
    pub(crate) fn of(record: &RecordExtension, size: u64, bitmaps: usize) -> Option<Self> {
        let shape = Self::with_regions(size, bitmaps, record.region_bits);
        (shape.len() == record.len).then_some(shape)
    }

    fn with_regions(size: u64, bitmaps: usize, region_bits: u32) -> Self {
        let regions_at = (bitmaps as u64).div_ceil(8).next_multiple_of(SECTOR_BYTES);
        Self { regions_at, regions: size.div_ceil(1 << region_bits).max(1), region_bits }
    }

    /// Bytes of the record.
    pub(crate) fn len(&self) -> u64 {
        self.regions_at + self.regions.div_ceil(8).next_multiple_of(SECTOR_BYTES)
    }

    /// A record in which no region is: of the bitmaps that are `covered`.
    pub(crate) fn empty(&self, covered: &[bool]) -> Vec<u8> {
        // At most 16 KiB.
        let mut bytes = vec![0; self.len() as usize];
        for (at, _) in covered.iter().enumerate().filter(|(_, covered)| **covered) {
            if let Some(byte) = bytes.get_mut(at / 8) {
                *byte |= 1 << (at % 8);
            }
        }
        bytes
    }

    /// Whether the record with these `bytes` is of the bitmap `index`.
    pub(crate) fn covers(bytes: &[u8], index: usize) -> bool {
        bytes.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
    }

    /// The ranges of a disk of `size` bytes that a record with these `bytes` has.
    pub(crate) fn ranges(&self, bytes: &[u8], size: u64) -> Vec<GuestRange> {
        let regions = bytes.get(self.regions_at as usize..).unwrap_or_default();
        let set = |region: &u64| {
            regions.get((region / 8) as usize).is_some_and(|byte| byte >> (region % 8) & 1 == 1)
        };
        let range = |region: u64| {
            let start = region << self.region_bits;
            GuestRange { start, end: (start + (1 << self.region_bits)).min(size) }
        };
        (0..self.regions).filter(set).map(range).collect()
    }
}

/// The record in use. Regions are added by one at a time: who holds [`super::Tracking`]'s lock for it.
#[derive(Debug)]
pub(crate) struct Record {
    place: HostOffset,
    shape: RecordShape,
    /// Regions that the file has.
    durable: Bits,
    /// And those that a request waits for.
    wanted: Bits,
    /// Regions on disk.
    count: AtomicU64,
    /// More than so many, and bitmaps are stored.
    count_max: AtomicU64,
}

impl Record {
    /// The record at `place`, in which no region is. `slack_bytes` as in [`crate::Options::bitmap_slack`].
    pub(crate) fn new(
        place: HostOffset,
        shape: RecordShape,
        slack_bytes: Option<u64>,
    ) -> Result<Self, TryReserveError> {
        let default = SLACK_BYTES.max((shape.regions << shape.region_bits) / SLACK_SHARE);
        let count_max = (slack_bytes.unwrap_or(default) >> shape.region_bits).max(1);
        Ok(Self {
            place,
            shape,
            durable: Bits::new(shape.regions)?,
            wanted: Bits::new(shape.regions)?,
            count: AtomicU64::new(0),
            count_max: AtomicU64::new(count_max),
        })
    }

    /// The record at `place` that a crash left, with these `bytes`: it goes on as it is.
    pub(crate) fn resumed(
        place: HostOffset,
        shape: RecordShape,
        bytes: &[u8],
        slack_bytes: Option<u64>,
    ) -> Result<Self, TryReserveError> {
        let record = Self::new(place, shape, slack_bytes)?;
        let regions = bytes.get(shape.regions_at as usize..).unwrap_or_default();
        record.durable.set_bytes(0, regions);
        // The next write is of all that is wanted.
        record.wanted.set_bytes(0, regions);
        record.count.store(record.durable.count(), Ordering::Relaxed);
        Ok(record)
    }

    /// Whether the file has all regions that a range touches.
    #[inline]
    pub(crate) fn has(&self, range: GuestRange) -> bool {
        let (first, last) = self.regions(range);
        self.durable.all_set(first, last)
    }

    fn regions(&self, range: GuestRange) -> (u64, u64) {
        (range.start >> self.shape.region_bits, (range.end - 1) >> self.shape.region_bits)
    }

    /// Whether bitmaps are to be stored before another region is added.
    pub(crate) fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.count_max.load(Ordering::Relaxed)
    }

    /// Bitmaps cannot be stored now: the next try is when there are twice as many regions.
    pub(crate) fn put_off(&self) {
        self.count_max.store(self.count.load(Ordering::Relaxed).saturating_mul(2), Ordering::Relaxed);
    }

    /// Asks for the regions that a range touches; the next [`Record::add_wanted`] adds them.
    pub(crate) fn want(&self, range: GuestRange) {
        let (first, last) = self.regions(range);
        let goes_on = first > 0 && self.durable.all_set(first - 1, first - 1);
        self.wanted.set(first, if goes_on { last.saturating_add(AHEAD - 1) } else { last });
    }

    /// Adds all regions that are asked for. Durable when it returns. Costs a write of each sector that changes, and one flush.
    pub(crate) async fn add_wanted(&self, medium: &Medium) -> Result<(), Error> {
        let added =
            Bits::new(self.shape.regions).map_err(|_| medium.blame.no_memory("the record of changes"))?;
        added.set_all_of(&self.wanted);
        for sector in 0..self.shape.regions.div_ceil(SECTOR_BITS) {
            let mut bytes = [0; SECTOR_BYTES as usize];
            added.copy_to(sector * SECTOR_BYTES, &mut bytes);
            let mut there = [0; SECTOR_BYTES as usize];
            self.durable.copy_to(sector * SECTOR_BYTES, &mut there);
            if bytes != there {
                let at = self.place.0 + self.shape.regions_at + sector * SECTOR_BYTES;
                let written = write_bytes(&*medium.file, at, &bytes).await;
                written.map_err(medium.blame.io("recording which part of the disk changes"))?;
            }
        }
        medium.file.flush().await.map_err(medium.blame.io("flushing the record of changes"))?;
        self.durable.set_all_of(&added);
        self.count.store(self.durable.count(), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_a_hundredth_of_a_terabyte_at_most() {
        for (size, region_bits, regions) in [
            (0, 16, 1),
            (2 << 20, 16, 32),
            (4 << 30, 22, 1024),
            (1 << 40, 24, 65536),
            ((1 << 40) + 1, 25, 32769),
            (64 << 40, 30, 65536),
        ] {
            let shape = RecordShape::new(size, 1);
            assert_eq!((shape.region_bits, shape.regions), (region_bits, regions), "{size}");
            let record = Record::new(HostOffset(0), shape, None).ok();
            let max = record.map_or(0, |record| record.count_max.load(Ordering::Relaxed));
            assert!(size < 1 << 40 || (max + AHEAD) << region_bits <= size / 100, "{size}: {max}");
        }
    }

    #[test]
    fn a_record_says_which_bitmaps_and_which_ranges() {
        let shape = RecordShape::new(100_000, 10);
        let mut bytes = shape.empty(&[false, true, false, false, false, false, false, false, true, false]);
        assert_eq!(bytes.len(), 1024);
        let covered: Vec<usize> = (0..10).filter(|at| RecordShape::covers(&bytes, *at)).collect();
        assert_eq!(covered, [1, 8]);
        assert_eq!(shape.ranges(&bytes, 100_000), []);
        bytes[512] = 2;
        assert_eq!(shape.ranges(&bytes, 100_000), [GuestRange { start: 65536, end: 100_000 }]);
        let record = Record::resumed(HostOffset(0), shape, &bytes, None).unwrap();
        assert!(!record.has(GuestRange::at(0, 1)) && record.has(GuestRange::at(65536, 1)));
        assert_eq!((record.count.load(Ordering::Relaxed), record.wanted.count()), (1, 1));
    }
}
