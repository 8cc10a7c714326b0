//! Bitmaps on their way into an image: tables and bits in new places, then a new directory, then one write of the header that
//! leads to it. Nothing that the old directory leads to is changed before that.

use std::sync::Arc;

use qcow2_layout::{
    Autoclear, BITMAP_BYTES_MAX, BITMAP_DIRECTORY_BYTES_MAX, BITMAP_TABLE_ENTRIES_MAX, BitmapEntry,
    BitmapTableEntry, BitmapsExtension, HostOffset, encode_bitmap_directory,
};

use super::read_directory;
use crate::Error;
use crate::allocator::Run;
use crate::free::Free;
use crate::image::Inner;
use crate::medium::Medium;
use crate::overlap::Section;
use crate::pause::Pause;
use crate::table_io::{encode_words, read_words};

/// What the directory is to say, and what was written and given up for it.
pub(crate) struct Draft<'a> {
    pub(super) image: &'a Arc<Inner>,
    pub(super) entries: Vec<BitmapEntry>,
    /// The directory that counts now.
    old: Option<BitmapsExtension>,
    /// Clusters allocated for the new one.
    taken: Vec<Run>,
    /// Clusters that only the old one leads to.
    freed: Vec<Free>,
}

impl<'a> Draft<'a> {
    /// The bitmaps as they are. Nobody changes them while the pause lasts.
    pub(crate) async fn of(image: &'a Arc<Inner>, _pause: &Pause<'_>) -> Result<Self, Error> {
        let header = image.header.lock().await;
        let medium = &image.medium;
        let entries = read_directory(&*medium.file, &header, &medium.geometry, &medium.blame).await?;
        let old = header.extensions.bitmaps;
        Ok(Self { image, entries, old, taken: Vec::new(), freed: Vec::new() })
    }

    /// Makes the directory count, and the disk `size` bytes long. Durable when this returns.
    pub(crate) async fn take_effect(&mut self, size: u64) -> Result<(), Error> {
        let new = self.write_directory().await?;
        let image = self.image;
        // Refcounts; and the barrier for everything that was written here.
        image.commit().await?;
        let change = |header: &mut qcow2_layout::Header| {
            header.extensions.bitmaps = new;
            header.autoclear.set(Autoclear::BITMAPS, new.is_some());
            header.size = size;
        };
        image.header.rewrite(&image.medium, change).await?;
        let overlap = &image.medium.overlap;
        if let Some(old) = self.old {
            overlap.remove(old.directory_offset.0, Section::BitmapDirectory);
        }
        if let Some(new) = new {
            overlap.add(new.directory_offset.0, new.directory_size, Section::BitmapDirectory);
        }
        Ok(())
    }

    /// Frees what the header does not lead to: after success the old places, otherwise the new ones, unless it may lead to either.
    pub(crate) async fn end(self, result: Result<(), Error>) -> Result<(), Error> {
        match &result {
            Ok(()) => self.image.reclaim(self.freed),
            Err(_) if self.image.medium.check_not_stopped().is_ok() => {
                for run in self.taken {
                    self.image.space.give_back(&self.image.medium, run).await;
                }
            }
            Err(_) => {}
        }
        result
    }

    /// Consecutive clusters for what is new.
    pub(super) async fn place(&mut self, clusters: u64) -> Result<HostOffset, Error> {
        let run = self.image.space.allocate_exactly(&self.image.medium, clusters).await?;
        self.taken.push(run);
        Ok(HostOffset(run.start << self.image.medium.geometry.cluster_bits))
    }

    /// The old directory alone leads to these `bytes`.
    pub(super) fn give_up(&mut self, offset: HostOffset, bytes: u64) {
        let geometry = &self.image.medium.geometry;
        let (start, len) = (offset.0 >> geometry.cluster_bits, geometry.clusters_for(bytes));
        let punch = self.image.options.pass_discard_other;
        match self.freed.last_mut() {
            Some(last) if last.start + last.len == start => last.len += len,
            _ => self.freed.push(Free { start, len, punch }),
        }
    }

    /// A bitmap's table, in host byte order.
    pub(super) async fn table(&self, entry: &BitmapEntry) -> Result<Vec<u64>, Error> {
        let medium = &self.image.medium;
        let bytes = u64::from(entry.table_entries) * 8;
        read_words(&*medium.file, &medium.blame, "the table of a bitmap", entry.table_offset.0, bytes).await
    }

    /// Gives a bitmap a table in a new place.
    pub(super) async fn write_table(&mut self, entry: &mut BitmapEntry, words: &[u64]) -> Result<(), Error> {
        let clusters = self.image.medium.geometry.clusters_for(words.len() as u64 * 8);
        let len = (clusters << self.image.medium.geometry.cluster_bits) as usize;
        let bytes = encode_words(words.iter().copied(), len);
        let bytes = bytes.map_err(|_| self.image.medium.blame.no_memory("the table of a bitmap"))?;
        entry.table_offset = self.place(clusters).await?;
        // At most 2^27, see [`table_entries_for`].
        entry.table_entries = words.len() as u32;
        let medium = &self.image.medium;
        medium.write_table(entry.table_offset.0, &bytes, Section::BitmapDirectory).await
    }

    /// Writes a cluster of bits; gives its entry.
    pub(super) async fn write_bits(&mut self, bits: &[u8]) -> Result<BitmapTableEntry, Error> {
        let at = self.place(1).await?;
        self.image.medium.write_table(at.0, bits, Section::BitmapDirectory).await?;
        Ok(BitmapTableEntry::Data(at))
    }

    /// Gives up a bitmap with its bits and its table.
    pub(super) async fn free_bitmap(&mut self, entry: &BitmapEntry) -> Result<(), Error> {
        for word in self.table(entry).await? {
            let decoded = self.entry_of(entry, word)?;
            self.free_bits(decoded)?;
        }
        self.give_up(entry.table_offset, u64::from(entry.table_entries) * 8);
        Ok(())
    }

    /// What a word of a bitmap's table means.
    pub(super) fn entry_of(&self, entry: &BitmapEntry, word: u64) -> Result<BitmapTableEntry, Error> {
        let medium = &self.image.medium;
        BitmapTableEntry::decode(word, &medium.geometry)
            .map_err(|error| medium.blame.corrupt(format!("bitmap {:?}: {error}", entry.name)))
    }

    /// Gives up a cluster of bits.
    pub(super) fn free_bits(&mut self, entry: BitmapTableEntry) -> Result<(), Error> {
        let BitmapTableEntry::Data(at) = entry else { return Ok(()) };
        let medium = &self.image.medium;
        let size = medium.geometry.cluster_size();
        if let Some((other, section)) = medium.overlap.touched(at.0, size, None) {
            return Err(medium
                .blame
                .corrupt(format!("bits of a bitmap at {at} overlap metadata ({section} at {other:#x})")));
        }
        self.give_up(at, size);
        Ok(())
    }

    /// Writes the directory to a new place; `None` when no bitmap is left.
    async fn write_directory(&mut self) -> Result<Option<BitmapsExtension>, Error> {
        if let Some(old) = self.old {
            self.give_up(old.directory_offset, old.directory_size);
        }
        if self.entries.is_empty() {
            return Ok(None);
        }
        let blame = &self.image.medium.blame;
        let bytes = encode_bitmap_directory(&self.entries, &self.image.medium.geometry)
            .map_err(|error| blame.invalid(format!("the bitmap directory: {error}")))?;
        let directory_size = bytes.len() as u64;
        if directory_size > BITMAP_DIRECTORY_BYTES_MAX {
            return Err(blame.invalid(format!(
                "the bitmap directory would have {directory_size} bytes; at most {BITMAP_DIRECTORY_BYTES_MAX} are allowed"
            )));
        }
        let clusters = self.image.medium.geometry.clusters_for(directory_size);
        let directory_offset = self.place(clusters).await?;
        let medium = &self.image.medium;
        medium.write_table(directory_offset.0, &bytes, Section::BitmapDirectory).await?;
        // At most 65535: checked where one is added.
        Ok(Some(BitmapsExtension { count: self.entries.len() as u32, directory_size, directory_offset }))
    }
}

/// Entries of the table that a bitmap needs for a disk of `size` bytes.
pub(super) fn table_entries_for(medium: &Medium, entry: &BitmapEntry, size: u64) -> Result<usize, Error> {
    let bits = size.div_ceil(1 << entry.granularity_bits);
    // A table has an entry also for a disk of no bytes.
    let entries = medium.geometry.clusters_for(bits.div_ceil(8)).max(1);
    let bytes = entries << medium.geometry.cluster_bits;
    if bytes > BITMAP_BYTES_MAX || entries > u64::from(BITMAP_TABLE_ENTRIES_MAX) {
        return Err(medium.blame.invalid(format!(
            "bitmap {:?} would take {bytes} bytes for a disk of {size} bytes at a granularity of {}; at most {BITMAP_BYTES_MAX} \
             are allowed: choose a larger granularity",
            entry.name,
            1u64 << entry.granularity_bits
        )));
    }
    // Below 2^27.
    Ok(entries as usize)
}
