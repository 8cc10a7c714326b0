//! What one bitmap has as dirty, set in another.

use std::ops::Range;
use std::sync::Arc;

use qcow2_layout::{BitmapEntry, BitmapTableEntry};

use super::draft::Draft;
use crate::Error;
use crate::medium::Medium;
use crate::tracking::Bitmap;

impl Draft<'_> {
    /// Sets the bits of `entry` for everything that `source` has as dirty. Clusters of bits that do not change stay where
    /// they are.
    pub(super) async fn merge(
        &mut self,
        index: usize,
        mut entry: BitmapEntry,
        source: &Bitmap,
        size: u64,
    ) -> Result<(), Error> {
        check_size(&self.image.medium, source, size)?;
        let target = self.opened(&entry, size);
        let mut words = self.table(&entry).await?;
        if self.merge_words(&mut words, &entry, Some(&target), source, size).await? {
            self.give_up(entry.table_offset, u64::from(entry.table_entries) * 8);
            self.write_table(&mut entry, &words).await?;
            self.put(index, entry);
        }
        Ok(())
    }

    /// Gives those of `words`, the table of `entry`, another cluster of bits that `source` has more bits of. `old` reads the bits that are
    /// there; without it there are none. Says whether any word changed.
    pub(super) async fn merge_words(
        &mut self,
        words: &mut [u64],
        entry: &BitmapEntry,
        old: Option<&Bitmap>,
        source: &Bitmap,
        size: u64,
    ) -> Result<bool, Error> {
        let mut changed = false;
        let per_cluster = self.bytes_per_cluster_of_bits(entry);
        for (at, word) in (0u64..).zip(words) {
            let start = at.saturating_mul(per_cluster);
            let window = start..start.saturating_add(per_cluster).min(size);
            if window.is_empty() {
                break;
            }
            let bits = match old {
                Some(old) => old.cluster(at).await?.to_vec(),
                None => vec![0; 1 << self.image.medium.geometry.cluster_bits],
            };
            let Some(bits) = with_bits_of(source, bits, entry.granularity_bits, window).await? else {
                continue;
            };
            self.free_bits(self.entry_of(entry, *word)?)?;
            *word = self.write_bits(&bits).await?.encode();
            changed = true;
        }
        Ok(changed)
    }

    /// The bitmap of `entry`, for reading.
    pub(super) fn opened(&self, entry: &BitmapEntry, size: u64) -> Bitmap {
        Bitmap::new(
            entry.clone().into(),
            Arc::clone(&self.image.medium.file),
            self.image.medium.geometry,
            size,
        )
    }

    /// Bytes of the disk that a cluster of bits stands for: below 2^56.
    pub(super) fn bytes_per_cluster_of_bits(&self, entry: &BitmapEntry) -> u64 {
        (self.image.medium.geometry.cluster_size() * 8) << entry.granularity_bits
    }

    /// Clears the bits behind the first `bits` of a bitmap in the last cluster of them that stays; gives its entry.
    pub(super) async fn cut_bits(
        &mut self,
        entry: &BitmapEntry,
        word: u64,
        at: u64,
        bits: u64,
    ) -> Result<BitmapTableEntry, Error> {
        let decoded = self.entry_of(entry, word)?;
        if decoded == BitmapTableEntry::Zeroes {
            return Ok(decoded);
        }
        let old = self.opened(entry, 0).cluster(at).await?;
        let mut new = old.to_vec();
        clear_behind(&mut new, bits);
        if *old == new {
            return Ok(decoded);
        }
        self.free_bits(decoded)?;
        self.write_bits(&new).await
    }
}

/// Refuses a bitmap of a disk of another size.
pub(super) fn check_size(medium: &Medium, source: &Bitmap, size: u64) -> Result<(), Error> {
    match source.size == size {
        true => Ok(()),
        false => Err(medium.blame.invalid(format!(
            "bitmap {:?} is of a disk of {} bytes, this one has {size}: they cannot be merged",
            source.name(),
            source.size
        ))),
    }
}

/// `bits`, a cluster of them that stands for `window`, with those of `source`; `None` if it has them.
async fn with_bits_of(
    source: &Bitmap,
    mut bits: Vec<u8>,
    granularity_bits: u8,
    window: Range<u64>,
) -> Result<Option<Vec<u8>>, Error> {
    let mut changed = false;
    let mut guest = window.start;
    while guest < window.end {
        let said = source.status(guest, window.end - guest).await?;
        if said.dirty {
            let last = guest + said.len - 1;
            let place = |at: u64| (at - window.start) >> granularity_bits;
            changed |= set(&mut bits, place(guest), place(last));
        }
        guest += said.len;
    }
    Ok(changed.then_some(bits))
}

/// Sets the bits from `first` to `last`. Says whether one of them was not set.
fn set(bits: &mut [u8], first: u64, last: u64) -> bool {
    let mut changed = false;
    // A cluster has at most 2^24 bits.
    for at in first as usize..=last as usize {
        if let Some(byte) = bits.get_mut(at / 8) {
            changed |= *byte & (1 << (at % 8)) == 0;
            *byte |= 1 << (at % 8);
        }
    }
    changed
}

/// Clears all bits but the first `kept`.
fn clear_behind(bits: &mut [u8], kept: u64) {
    for (index, byte) in (0u64..).zip(bits) {
        *byte &= match kept.saturating_sub(index * 8) {
            0 => 0,
            left @ 1..8 => (1 << left) - 1,
            _ => 0xff,
        };
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_and_cut_off_to_the_bit() {
        let mut bits = [0; 4];
        assert!(set(&mut bits, 3, 17));
        assert_eq!(bits, [0xf8, 0xff, 0x03, 0]);
        assert!(!set(&mut bits, 4, 17));
        clear_behind(&mut bits, 10);
        assert_eq!(bits, [0xf8, 0x03, 0, 0]);
        clear_behind(&mut bits, 8);
        assert_eq!(bits, [0xf8, 0, 0, 0]);
    }
}
