//! Bitmaps made, removed and changed, one at a time.

use std::sync::Arc;

use block::BlockFuture;
use qcow2_layout::{
    BITMAP_BYTES_MAX, BITMAP_GRANULARITY_BITS, BITMAP_NAME_BYTES_MAX, BITMAPS_MAX, BitmapEntry, BitmapFlags,
    HostOffset, Version,
};

use super::Bitmap;
use super::draft::{Afterwards, Draft, table_entries_for};
use super::merge::check_size;
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::medium::Medium;
use crate::pause::Pause;
use crate::tracking::{Bitmaps, Live, LiveSpec};
use crate::{Error, Qcow2};
use sync::atomic::Ordering;

/// Granularity of a new bitmap, unless it is given: a cluster, within these limits in bytes.
const GRANULARITY_DEFAULT: std::ops::RangeInclusive<u64> = 4096..=65536;

/// A bitmap to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBitmap {
    /// Bytes of the disk that one bit stands for, a power of two from 512 to 2^31; `None` is a cluster, at least 4 KiB and at
    /// most 64 KiB.
    pub granularity_bytes: Option<u64>,
    /// Whether changes are to set its bits.
    pub recording: bool,
    /// Whether it is kept in the image file; otherwise it is gone when the image is closed.
    pub persistent: bool,
}

/// What to do with a bitmap of an image.
#[derive(Clone, Debug)]
pub enum BitmapChange {
    /// Make it, with no bit set.
    Add(NewBitmap),
    /// Remove it. The only change of a bitmap that is inconsistent.
    Remove,
    /// Clear all its bits.
    Clear,
    /// Let writes set its bits from now on, or not.
    Record(bool),
    /// Set all bits whose range another bitmap has as dirty: of this image, or of another one that is open.
    Merge(Arc<Bitmap>),
    /// Have the bits of another one in the place of its own, in one step.
    Become(Arc<Bitmap>),
}

impl Qcow2 {
    /// Changes the bitmap called `name`. Requests are held back meanwhile; the disk stays as it is, and other bitmaps
    /// stay consistent. Durable when it returns, unless the bitmap is in memory alone. Costs the directory anew, and of the bitmap what changes: a merge reads both
    /// bitmaps, a cluster of each at a time; bitmaps that record changes are stored as they are.
    ///
    /// Copies of the bitmaps of another image of the same size: [`Qcow2::copy_bitmaps`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] when there is no such bitmap, or one already, or it is inconsistent, or does not keep to the
    /// limits of the format; [`crate::ErrorKind::Unsupported`] for version 2; whatever the storage says. Then nothing has changed.
    ///
    /// # Crash
    /// The old bitmaps or the new ones; leaks. docs/internals/write-order.md, `bitmap_change`.
    pub fn change_bitmap<'a>(
        &'a self,
        name: &'a str,
        change: BitmapChange,
    ) -> BlockFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.change_bitmap(name.to_owned(), change).await;
            self.inner.reporting(result).await
        })
    }

    /// Makes copies of `bitmaps`, which are of another image that is open and has the same size, with their names, granularities and bits,
    /// persistent, and recording changes where the originals do. Durable when it returns. The file says then what it says of an image that was
    /// closed, until the next change of the disk: each table and the directory are written once, and no room is taken that is given back later.
    ///
    /// # Errors
    /// As [`Qcow2::change_bitmap`], of [`BitmapChange::Add`] and [`BitmapChange::Merge`]. Then nothing has changed.
    ///
    /// # Crash
    /// The old bitmaps or the new ones, all of them; leaks. docs/internals/write-order.md, `bitmap_change`.
    pub fn copy_bitmaps<'a>(&'a self, bitmaps: &'a [Arc<Bitmap>]) -> BlockFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.copy_bitmaps(bitmaps.to_vec()).await;
            self.inner.reporting(result).await
        })
    }

    /// Stores the persistent bitmaps of an image that nothing writes to for now. Durable when it returns. The file says then what it says of an
    /// image that was closed, until the next change of the disk: other programs find the bitmaps consistent, also when this one is killed.
    ///
    /// # Errors
    /// Whatever the storage returns. Then the bitmaps are in use as before.
    ///
    /// # Crash
    /// The old bitmaps or the new ones, all of them; leaks. docs/internals/write-order.md, `bitmap_change`.
    pub fn store_bitmaps(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.store_bitmaps().await;
            self.inner.reporting(result).await
        })
    }
}

impl Inner {
    async fn copy_bitmaps(self: &Arc<Self>, bitmaps: Vec<Arc<Bitmap>>) -> Result<(), Error> {
        self.check_writable()?;
        self.check_has_bitmaps()?;
        self.store_as_closed(bitmaps).await
    }

    async fn store_bitmaps(self: &Arc<Self>) -> Result<(), Error> {
        let now = self.tracking.now();
        match self.options.writable && self.was_changed() && now.recording().next().is_some() {
            true => self.store_as_closed(Vec::new()).await,
            false => Ok(()),
        }
    }

    /// Adds copies of bitmaps, and has the file say what it says of an image that was closed.
    async fn store_as_closed(self: &Arc<Self>, copies: Vec<Arc<Bitmap>>) -> Result<(), Error> {
        self.managed(async move |image| {
            image.header.prepare_for_metadata(&image.medium).await?;
            let pause = image.pause().await?;
            let size = image.size();
            let work = async |draft: &mut Draft<'_>| {
                for bitmap in &copies {
                    draft.copy_of(bitmap, size).await?;
                }
                Ok(())
            };
            image.draft(&pause, size, Afterwards::Closed, work).await?;
            // No request is in flight, and all bitmaps are in the file as they are in memory: the next change says again that they are in use.
            image.header.prepared_for_data.store(false, Ordering::Release);
            Ok(())
        })
        .await
    }

    fn check_has_bitmaps(&self) -> Result<(), Error> {
        match self.medium.geometry.version {
            Version::V3 => Ok(()),
            Version::V2 => Err(self.medium.blame.unsupported(
                "an image of version 2 (compat=0.10) has no persistent bitmaps; `cowhand amend -o compat=1.1` makes it version 3",
            )),
        }
    }

    async fn change_bitmap(self: &Arc<Self>, name: String, change: BitmapChange) -> Result<(), Error> {
        self.check_writable()?;
        let in_memory = match &change {
            BitmapChange::Add(new) => !new.persistent,
            _ => self.tracking.now().find(&name).is_some_and(|live| !live.spec.persistent),
        };
        if in_memory {
            return self.change_in_memory(name, change).await;
        }
        self.check_has_bitmaps()?;
        self.managed(async move |image| {
            image.header.prepare_for_metadata(&image.medium).await?;
            let pause = image.pause().await?;
            let size = image.size();
            let work = async |draft: &mut Draft<'_>| draft.apply(&name, change, size).await;
            image.draft(&pause, size, Afterwards::AsBefore, work).await
        })
        .await
    }

    /// Removes all bitmaps, also those that are inconsistent; gives their names.
    pub(crate) async fn remove_bitmaps(self: &Arc<Self>, pause: &Pause<'_>) -> Result<Vec<String>, Error> {
        let removed = Arc::clone(&self.tracking.now().entries);
        if removed.is_empty() {
            return Ok(Vec::new());
        }
        let work = async |draft: &mut Draft<'_>| {
            draft.made = 0;
            for entry in std::mem::take(&mut draft.entries) {
                draft.free_bitmap(&entry).await?;
            }
            Ok(())
        };
        self.draft(pause, self.size(), Afterwards::AsBefore, work).await?;
        Ok(removed.iter().map(|entry| entry.name.clone()).collect())
    }
}

impl Draft<'_> {
    async fn apply(&mut self, name: &str, change: BitmapChange, size: u64) -> Result<(), Error> {
        self.touched.insert(name.to_owned());
        match change {
            BitmapChange::Add(new) => self.add(name, new, size).await,
            BitmapChange::Remove => {
                let index = self.find(name)?;
                if index >= self.first_made() {
                    self.made -= 1;
                }
                let removed = self.entries.remove(index);
                self.free_bitmap(&removed).await
            }
            BitmapChange::Clear => self.clear(name).await,
            BitmapChange::Become(source) => {
                check_size(&self.image.medium, &source, size)?;
                self.clear(name).await?;
                let (index, entry) = self.consistent(name)?;
                self.merge(index, entry, &source, size).await
            }
            BitmapChange::Record(on) => {
                let (index, mut entry) = self.consistent(name)?;
                entry.flags.set(BitmapFlags::AUTO, on);
                self.check_recording(&entry, size)?;
                self.put(index, entry);
                Ok(())
            }
            BitmapChange::Merge(source) => {
                let (index, entry) = self.consistent(name)?;
                self.merge(index, entry, &source, size).await
            }
        }
    }

    async fn clear(&mut self, name: &str) -> Result<(), Error> {
        let (index, mut entry) = self.consistent(name)?;
        self.free_bitmap(&entry).await?;
        let words = vec![0; entry.table_entries as usize];
        self.write_table(&mut entry, &words).await?;
        self.put(index, entry);
        Ok(())
    }

    /// Refuses another bitmap that records changes where there are too many of them.
    fn check_recording(&self, entry: &BitmapEntry, size: u64) -> Result<(), Error> {
        let is_new = self.now.find(&entry.name).is_none();
        match is_new && entry.flags.contains(BitmapFlags::AUTO) {
            true => self.image.check_room_for(size, entry.granularity_bits, &self.now.live),
            false => Ok(()),
        }
    }

    async fn add(&mut self, name: &str, new: NewBitmap, size: u64) -> Result<(), Error> {
        let mut entry = self.new_entry(name, new, size)?;
        let words = vec![0; table_entries_for(&self.image.medium, &entry, size)?];
        self.write_table(&mut entry, &words).await?;
        self.entries.insert(self.first_made(), entry);
        self.made += 1;
        Ok(())
    }

    /// Where a new entry goes: before those made since the image was opened, as QEMU has it.
    fn first_made(&self) -> usize {
        self.entries.len() - self.made
    }

    /// Adds a bitmap that is as `source`.
    async fn copy_of(&mut self, source: &Bitmap, size: u64) -> Result<(), Error> {
        check_size(&self.image.medium, source, size)?;
        let new = NewBitmap {
            granularity_bytes: Some(source.granularity_bytes()),
            recording: source.is_recording(),
            persistent: true,
        };
        self.touched.insert(source.name().to_owned());
        let mut entry = self.new_entry(source.name(), new, size)?;
        let mut words = vec![0; table_entries_for(&self.image.medium, &entry, size)?];
        self.merge_words(&mut words, &entry, None, source, size).await?;
        self.write_table(&mut entry, &words).await?;
        self.entries.push(entry);
        self.made += 1;
        Ok(())
    }

    /// The directory's entry of a bitmap to be made, which has no table yet.
    fn new_entry(&self, name: &str, new: NewBitmap, size: u64) -> Result<BitmapEntry, Error> {
        let blame = &self.image.medium.blame;
        check_name(&self.image.medium, name)?;
        if self.entries.iter().any(|entry| entry.name == name) || self.now.find(name).is_some() {
            return Err(blame.invalid(format!("there is a bitmap {name:?} already")));
        }
        if self.entries.len() >= BITMAPS_MAX as usize {
            return Err(blame.invalid(format!("the image has {BITMAPS_MAX} bitmaps, the most there can be")));
        }
        let granularity_bits = new.granularity_bits(&self.image.medium)?;
        let mut flags = BitmapFlags::default();
        flags.set(BitmapFlags::AUTO, new.recording);
        let entry = BitmapEntry {
            table_offset: HostOffset(0),
            table_entries: 0,
            flags,
            granularity_bits,
            name: name.to_owned(),
            extra: Vec::new(),
        };
        self.check_recording(&entry, size)?;
        Ok(entry)
    }

    pub(super) fn find(&self, name: &str) -> Result<usize, Error> {
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

impl NewBitmap {
    /// log2 of the granularity, if it is one.
    pub(super) fn granularity_bits(&self, medium: &Medium) -> Result<u8, Error> {
        let cluster = medium.geometry.cluster_size();
        let default = cluster.clamp(*GRANULARITY_DEFAULT.start(), *GRANULARITY_DEFAULT.end());
        let granularity = self.granularity_bytes.unwrap_or(default);
        // Below 64.
        let granularity_bits = granularity.trailing_zeros() as u8;
        if !granularity.is_power_of_two() || !BITMAP_GRANULARITY_BITS.contains(&granularity_bits) {
            return Err(medium.blame.invalid(format!(
                "the granularity is {granularity}; must be a power of two from 512 to 2147483648 (2G)"
            )));
        }
        Ok(granularity_bits)
    }
}

/// Whether a bitmap may be called `name`.
fn check_name(medium: &Medium, name: &str) -> Result<(), Error> {
    match (1..=BITMAP_NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0') {
        true => Ok(()),
        false => Err(medium.blame.invalid(format!(
            "the name of a bitmap has {} bytes; must be 1 to {BITMAP_NAME_BYTES_MAX}, none of them 0",
            name.len()
        ))),
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

impl Inner {
    /// Changes one, or makes it. Nothing is written for it.
    async fn change_in_memory(self: &Arc<Self>, name: String, change: BitmapChange) -> Result<(), Error> {
        self.managed(async move |image| {
            let _pause = image.pause().await?;
            let now = image.tracking.now();
            let mut live = now.live.clone();
            let found = live.iter().position(|live| live.spec.name == name && !live.spec.persistent);
            match (change, found) {
                (BitmapChange::Add(new), _) => live.push(Arc::new(image.made(&now, name, new)?)),
                (BitmapChange::Remove, Some(at)) => drop(live.remove(at)),
                (change, Some(at)) => {
                    if let Some(place) = live.get_mut(at) {
                        *place = Arc::new(image.changed(place, change).await?);
                    }
                }
                (_, None) => {
                    return Err(image.medium.blame.invalid(format!("there is no bitmap {name:?}")));
                }
            }
            image.put_bitmaps(Bitmaps { live, ..Bitmaps::clone(&now) });
            Ok(())
        })
        .await
    }

    fn made(&self, now: &Bitmaps, name: String, new: NewBitmap) -> Result<Live, Error> {
        let blame = &self.medium.blame;
        check_name(&self.medium, &name)?;
        if now.find(&name).is_some() || now.entries.iter().any(|entry| entry.name == name) {
            return Err(blame.invalid(format!("there is a bitmap {name:?} already")));
        }
        let granularity_bits = new.granularity_bits(&self.medium)?;
        let size = self.size();
        self.check_room_for(size, granularity_bits, &now.live)?;
        debug_assert!(size.div_ceil(1 << granularity_bits) / 8 <= BITMAP_BYTES_MAX);
        let spec = LiveSpec { name, granularity_bits, persistent: false, recording: new.recording, size };
        Live::new(spec).map_err(|_| blame.no_memory("a bitmap"))
    }

    /// What one becomes. It is another one in memory: a request may be reading it.
    async fn changed(&self, old: &Live, change: BitmapChange) -> Result<Live, Error> {
        let no_memory = |_| self.medium.blame.no_memory("a bitmap");
        match change {
            BitmapChange::Clear => Live::new(old.spec.clone()).map_err(no_memory),
            BitmapChange::Record(on) => old.remade(old.spec.size, on).map_err(no_memory),
            BitmapChange::Merge(source) => {
                let new = old.remade(old.spec.size, old.spec.recording).map_err(no_memory)?;
                self.with_bits_of(&source, new).await
            }
            BitmapChange::Become(source) => {
                let new = Live::new(old.spec.clone()).map_err(no_memory)?;
                self.with_bits_of(&source, new).await
            }
            // Done by the caller.
            BitmapChange::Add(_) | BitmapChange::Remove => {
                old.remade(old.spec.size, old.spec.recording).map_err(no_memory)
            }
        }
    }

    async fn with_bits_of(&self, source: &Bitmap, live: Live) -> Result<Live, Error> {
        check_size(&self.medium, source, live.spec.size)?;
        for range in source.dirty_ranges().await? {
            live.mark(GuestRange::at(range.start, range.end - range.start));
        }
        Ok(live)
    }
}
