//! Bitmaps made, removed and changed, one at a time.

use std::sync::Arc;

use qcow2_layout::{
    BITMAP_GRANULARITY_BITS, BITMAP_NAME_BYTES_MAX, BITMAPS_MAX, BitmapEntry, BitmapFlags, HostOffset,
    Version,
};

use super::Bitmap;
use super::draft::{Draft, table_entries_for};
use crate::image::Inner;
use crate::medium::Medium;
use crate::pause::Pause;
use crate::{Error, Qcow2};

/// Granularity of a new bitmap, unless it is given: a cluster, within these limits in bytes.
const GRANULARITY_DEFAULT: std::ops::RangeInclusive<u64> = 4096..=65536;

/// What to do with a bitmap of an image.
#[derive(Clone, Debug)]
pub enum BitmapChange {
    /// Make it, with no bit set.
    Add {
        /// Bytes of the disk that one bit stands for, a power of two from 512 to 2^31; `None` is a cluster, at least 4 KiB and at
        /// most 64 KiB.
        granularity_bytes: Option<u64>,
        /// Whether writes are to set its bits.
        recording: bool,
    },
    /// Remove it. The only change of a bitmap that is inconsistent.
    Remove,
    /// Clear all its bits.
    Clear,
    /// Let writes set its bits from now on, or not.
    Record(bool),
    /// Set all bits whose range another bitmap has as dirty: of this image, or of another one that is open.
    Merge(Arc<Bitmap>),
}

impl Qcow2 {
    /// Changes the persistent bitmap called `name`. Requests are held back meanwhile; the disk stays as it is, and other bitmaps
    /// stay consistent. Durable when it returns. Costs the directory anew, and of the bitmap what changes: a merge reads both
    /// bitmaps, a cluster of each at a time.
    ///
    /// A copy of a bitmap in another image of the same size is [`BitmapChange::Add`] and then [`BitmapChange::Merge`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] when there is no such bitmap, or one already, or it is inconsistent, or does not keep to the
    /// limits of the format; [`crate::ErrorKind::Unsupported`] for version 2; whatever the storage says. Then nothing has changed.
    ///
    /// # Crash
    /// The old bitmaps or the new ones; leaks. docs/write-order.md, `bitmap_change`.
    pub async fn change_bitmap(&self, name: &str, change: BitmapChange) -> Result<(), Error> {
        let result = self.inner.change_bitmap(name.to_owned(), change).await;
        self.inner.reporting(result).await
    }
}

impl Inner {
    async fn change_bitmap(self: &Arc<Self>, name: String, change: BitmapChange) -> Result<(), Error> {
        self.check_writable()?;
        if self.medium.geometry.version == Version::V2 {
            return Err(self.medium.blame.unsupported(
                "an image of version 2 (compat=0.10) has no persistent bitmaps; `cowhand amend -o compat=1.1` makes it version 3",
            ));
        }
        self.managed(async move |image| {
            image.header.prepare_for_metadata(&image.medium).await?;
            let pause = image.pause().await?;
            let mut draft = Draft::of(&image, &pause).await?;
            let size = image.size();
            let result = match draft.apply(&name, change, size).await {
                Ok(()) => draft.take_effect(size).await,
                Err(error) => Err(error),
            };
            draft.end(result).await
        })
        .await
    }
}

impl Inner {
    /// Removes all bitmaps, also those that are inconsistent; gives their names.
    pub(crate) async fn remove_bitmaps(self: &Arc<Self>, pause: &Pause<'_>) -> Result<Vec<String>, Error> {
        let mut draft = Draft::of(self, pause).await?;
        let removed = std::mem::take(&mut draft.entries);
        if removed.is_empty() {
            return Ok(Vec::new());
        }
        let result = match draft.free_bitmaps(&removed).await {
            Ok(()) => draft.take_effect(self.size()).await,
            Err(error) => Err(error),
        };
        draft.end(result).await?;
        Ok(removed.into_iter().map(|entry| entry.name).collect())
    }
}

impl Draft<'_> {
    async fn free_bitmaps(&mut self, entries: &[BitmapEntry]) -> Result<(), Error> {
        for entry in entries {
            self.free_bitmap(entry).await?;
        }
        Ok(())
    }

    async fn apply(&mut self, name: &str, change: BitmapChange, size: u64) -> Result<(), Error> {
        match change {
            BitmapChange::Add { granularity_bytes, recording } => {
                self.add(name, granularity_bytes, recording, size).await
            }
            BitmapChange::Remove => {
                let index = self.find(name)?;
                let removed = self.entries.remove(index);
                self.free_bitmap(&removed).await
            }
            BitmapChange::Clear => {
                let (index, mut entry) = self.consistent(name)?;
                self.free_bitmap(&entry).await?;
                let words = vec![0; entry.table_entries as usize];
                self.write_table(&mut entry, &words).await?;
                self.put(index, entry);
                Ok(())
            }
            BitmapChange::Record(on) => {
                let (index, mut entry) = self.consistent(name)?;
                entry.flags.set(BitmapFlags::AUTO, on);
                self.put(index, entry);
                Ok(())
            }
            BitmapChange::Merge(source) => {
                let (index, entry) = self.consistent(name)?;
                self.merge(index, entry, &source, size).await
            }
        }
    }

    async fn add(
        &mut self,
        name: &str,
        granularity_bytes: Option<u64>,
        recording: bool,
        size: u64,
    ) -> Result<(), Error> {
        let blame = &self.image.medium.blame;
        if !(1..=BITMAP_NAME_BYTES_MAX).contains(&name.len()) || name.contains('\0') {
            return Err(blame.invalid(format!(
                "the name of a bitmap has {} bytes; must be 1 to {BITMAP_NAME_BYTES_MAX}, none of them 0",
                name.len()
            )));
        }
        if self.entries.iter().any(|entry| entry.name == name) {
            return Err(blame.invalid(format!("there is a bitmap {name:?} already")));
        }
        if self.entries.len() >= BITMAPS_MAX as usize {
            return Err(blame.invalid(format!("the image has {BITMAPS_MAX} bitmaps, the most there can be")));
        }
        let cluster = self.image.medium.geometry.cluster_size();
        let default = cluster.clamp(*GRANULARITY_DEFAULT.start(), *GRANULARITY_DEFAULT.end());
        let granularity = granularity_bytes.unwrap_or(default);
        // Below 64.
        let granularity_bits = granularity.trailing_zeros() as u8;
        if !granularity.is_power_of_two() || !BITMAP_GRANULARITY_BITS.contains(&granularity_bits) {
            return Err(blame.invalid(format!(
                "the granularity is {granularity}; must be a power of two from 512 to 2147483648 (2G)"
            )));
        }
        let mut flags = BitmapFlags::default();
        flags.set(BitmapFlags::AUTO, recording);
        let mut entry = BitmapEntry {
            table_offset: HostOffset(0),
            table_entries: 0,
            flags,
            granularity_bits,
            name: name.to_owned(),
            extra: Vec::new(),
        };
        let words = vec![0; table_entries_for(&self.image.medium, &entry, size)?];
        self.write_table(&mut entry, &words).await?;
        self.entries.push(entry);
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize, Error> {
        let found = self.entries.iter().position(|entry| entry.name == name);
        found.ok_or_else(|| self.image.medium.blame.invalid(format!("there is no bitmap {name:?}")))
    }

    /// The bitmap called `name`, if its bits can be trusted and are all there is of it.
    fn consistent(&self, name: &str) -> Result<(usize, BitmapEntry), Error> {
        let index = self.find(name)?;
        let entry = self.entries.get(index).cloned();
        let entry = entry.ok_or_else(|| self.image.medium.blame.invalid("there is no such bitmap"))?;
        check_consistent(&self.image.medium, &entry)?;
        Ok((index, entry))
    }

    pub(super) fn put(&mut self, index: usize, entry: BitmapEntry) {
        if let Some(place) = self.entries.get_mut(index) {
            *place = entry;
        }
    }
}

/// Whether the bits of a bitmap can be trusted, and are all there is of it.
pub(super) fn check_consistent(medium: &Medium, entry: &BitmapEntry) -> Result<(), Error> {
    if entry.flags.contains(BitmapFlags::IN_USE) {
        return Err(medium.blame.invalid(format!(
            "bitmap {:?} is inconsistent: it was not stored after its last use, and can only be removed",
            entry.name
        )));
    }
    if !entry.extra.is_empty() {
        return Err(medium.blame.unsupported(format!(
            "bitmap {:?} has data of a later version of the format, and can only be removed",
            entry.name
        )));
    }
    Ok(())
}
