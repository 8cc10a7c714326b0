//! Bitmaps made to fit a disk of another size.

use std::sync::Arc;

use qcow2_layout::BitmapEntry;

use super::change::check_consistent;
use super::draft::{Afterwards, Draft, table_entries_for};
use crate::Error;
use crate::image::Inner;
use crate::pause::Pause;

impl Inner {
    /// Whether the image has bitmaps, in the file or in memory.
    pub(crate) fn has_bitmaps(&self) -> bool {
        let now = self.tracking.now();
        !(now.entries.is_empty() && now.live.is_empty())
    }

    /// Whether every bitmap can be made to fit a disk of `size` bytes.
    pub(crate) fn check_bitmaps_can_fit(&self, size: u64) -> Result<(), Error> {
        self.tracking.now().entries.iter().try_for_each(|entry| {
            check_consistent(&self.medium, entry)?;
            table_entries_for(&self.medium, entry, size).map(drop)
        })
    }

    /// The disk has `new` bytes instead of `old`, and all bitmaps fit it: both by one write of the header.
    pub(crate) async fn set_size_with_bitmaps(
        self: &Arc<Self>,
        pause: &Pause<'_>,
        old: u64,
        new: u64,
    ) -> Result<(), Error> {
        self.draft(pause, new, Afterwards::AsBefore, async |draft| draft.fit(old, new).await).await
    }
}

impl Draft<'_> {
    /// Every bitmap for a disk of `new` bytes instead of `old`: what is added is clean, and what was cut off is clean when it comes
    /// back.
    async fn fit(&mut self, old: u64, new: u64) -> Result<(), Error> {
        for index in 0..self.entries.len() {
            let Some(entry) = self.entries.get(index).cloned() else { break };
            self.touched.insert(entry.name.clone());
            let entry = self.fit_one(entry, old, new).await?;
            self.put(index, entry);
        }
        Ok(())
    }

    async fn fit_one(&mut self, mut entry: BitmapEntry, old: u64, new: u64) -> Result<BitmapEntry, Error> {
        let needed = table_entries_for(&self.image.medium, &entry, new)?;
        let before = self.table(&entry).await?;
        let mut words = before.clone();
        for &word in words.get(needed..).unwrap_or_default() {
            self.free_bits(self.entry_of(&entry, word)?)?;
        }
        words.resize(needed, 0);
        let kept = old.min(new);
        let last = kept / self.bytes_per_cluster_of_bits(&entry);
        // Below 2^27; the cluster of bits in which the disk ends, or ended.
        if let Some(word) = words.get_mut(last as usize) {
            let in_cluster = kept - last * self.bytes_per_cluster_of_bits(&entry);
            let bits = in_cluster.div_ceil(1 << entry.granularity_bits);
            *word = self.cut_bits(&entry, *word, last, bits).await?.encode();
        }
        if words != before {
            self.give_up(entry.table_offset, u64::from(entry.table_entries) * 8);
            self.write_table(&mut entry, &words).await?;
        }
        Ok(entry)
    }
}
