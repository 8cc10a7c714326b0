//! Bitmaps on their way into an image: tables and bits in new places, then a new directory, then one write of the header that
//! leads to it. Nothing that the old directory leads to is changed before that.

use std::collections::BTreeSet;
use std::sync::Arc;

use qcow2_layout::{
    Autoclear, BITMAP_BYTES_MAX, BITMAP_DIRECTORY_BYTES_MAX, BITMAP_TABLE_ENTRIES_MAX, BitmapEntry,
    BitmapFlags, BitmapTableEntry, BitmapsExtension, HostOffset, RecordExtension, encode_bitmap_directory,
};

use crate::Error;
use crate::allocator::Run;
use crate::free::Free;
use crate::image::Inner;
use crate::medium::Medium;
use crate::overlap::Section;
use crate::pause::Pause;
use crate::table_io::{encode_words, read_words};
use crate::tracking::{Bitmaps, Live, Record, RecordShape, records_and_is_consistent};
use sync::atomic::Ordering;

/// What becomes of the image when bitmaps are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Afterwards {
    /// It goes on as it is.
    AsBefore,
    /// It changes: bitmaps that record changes are marked, and a record is made of what they will miss.
    Changes,
    /// It is closed.
    Closed,
}

/// What the directory is to say, and what was written and given up for it.
pub(crate) struct Draft<'a> {
    pub(super) image: &'a Arc<Inner>,
    /// As they will be when they are stored: "in use" are those that are inconsistent.
    pub(super) entries: Vec<BitmapEntry>,
    /// So many of them, at the end, were made since the image was opened.
    pub(super) made: usize,
    /// Names of those whose bits are not those in memory.
    pub(super) touched: BTreeSet<String>,
    /// What there is in memory now.
    pub(super) now: Arc<Bitmaps>,
    /// The directory, and the record, that count now.
    old: Option<BitmapsExtension>,
    old_record: Option<RecordExtension>,
    /// Clusters allocated for the new ones.
    taken: Vec<Run>,
    /// Clusters that only the old ones lead to.
    freed: Vec<Free>,
}

/// What leads to everything new, and what is in memory then.
struct Next {
    directory: Option<BitmapsExtension>,
    record: Option<RecordExtension>,
    bitmaps: Bitmaps,
    /// Names of bitmaps that miss changes from now on.
    missing: Vec<String>,
}

impl Inner {
    /// Has `work` change the bitmaps, and stores them with what changed since they were stored, for a disk of `size` bytes. All or nothing;
    /// durable when this returns. No request changes bitmaps while the pause lasts.
    pub(crate) async fn draft(
        self: &Arc<Self>,
        _pause: &Pause<'_>,
        size: u64,
        afterwards: Afterwards,
        work: impl AsyncFnOnce(&mut Draft<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let header = self.header.lock().await.clone();
        let now = self.tracking.now();
        let mut draft = Draft {
            image: self,
            entries: Vec::clone(&now.entries),
            made: now.made,
            touched: BTreeSet::new(),
            now,
            old: header.extensions.bitmaps,
            old_record: header.extensions.record,
            taken: Vec::new(),
            freed: Vec::new(),
        };
        let result = async {
            draft.store_bits().await?;
            work(&mut draft).await?;
            draft.take_effect(size, afterwards).await
        };
        let result = result.await;
        draft.end(result).await
    }
}

impl Draft<'_> {
    /// Writes the bits that are in memory and not in the file. Clusters of them that do not change stay where they are.
    async fn store_bits(&mut self) -> Result<(), Error> {
        let now = Arc::clone(&self.now);
        for live in now.recording() {
            let index = self.find(&live.spec.name)?;
            let Some(mut entry) = self.entries.get(index).cloned() else { continue };
            let mut words = self.table(&entry).await?;
            let mut changed = false;
            let size = 1 << self.image.medium.geometry.cluster_bits;
            let (mut bits, mut stored) = (vec![0; size], vec![0; size]);
            for (at, word) in (0u64..).zip(&mut words) {
                // What is stored is among them.
                if live.bits.are_untouched(at * size as u64, size as u64) {
                    continue;
                }
                live.bits.copy_to(at * size as u64, &mut bits);
                live.stored.copy_to(at * size as u64, &mut stored);
                if bits == stored {
                    continue;
                }
                changed = true;
                self.free_bits(self.entry_of(&entry, *word)?)?;
                *word = match bits.iter().all(|byte| *byte == 0xff) {
                    true => BitmapTableEntry::Ones.encode(),
                    false => self.write_bits(&bits).await?.encode(),
                };
            }
            if changed {
                self.give_up(entry.table_offset, u64::from(entry.table_entries) * 8);
                self.write_table(&mut entry, &words).await?;
                self.put(index, entry);
            }
        }
        Ok(())
    }

    /// Makes all of it count, and the disk `size` bytes long. Durable when this returns.
    async fn take_effect(&mut self, size: u64, afterwards: Afterwards) -> Result<(), Error> {
        let image = self.image;
        let next = self.next(size, afterwards).await?;
        // Refcounts; and the barrier for everything that was written here.
        image.commit().await?;
        // Who adds to the old record has done so, and the next one finds the new one.
        let _writing = image.tracking.writing.lock().await;
        let change = |header: &mut qcow2_layout::Header| {
            header.extensions.bitmaps = next.directory;
            header.extensions.record = next.record;
            header.autoclear.set(Autoclear::BITMAPS, next.directory.is_some());
            header.autoclear.set(Autoclear::BITMAP_RECORD, next.record.is_some());
            header.size = size;
        };
        image.header.rewrite(&image.medium, change).await?;
        let overlap = &image.medium.overlap;
        let places = |directory: Option<BitmapsExtension>, record: Option<RecordExtension>| {
            let directory = directory.map(|place| (place.directory_offset.0, place.directory_size));
            directory.into_iter().chain(record.map(|record| (record.offset.0, record.len)))
        };
        for (at, _) in places(self.old, self.old_record) {
            overlap.remove(at, Section::BitmapDirectory);
        }
        for (at, len) in places(next.directory, next.record) {
            overlap.add(at, len, Section::BitmapDirectory);
        }
        image.size.store(size, Ordering::Relaxed);
        next.bitmaps.recording().for_each(|live| live.stored.set_all_of(&live.bits));
        image.put_bitmaps(next.bitmaps);
        image.header.tell_of_bitmaps(&image.medium, next.missing);
        Ok(())
    }

    /// Writes what the header is to lead to.
    async fn next(&mut self, size: u64, afterwards: Afterwards) -> Result<Next, Error> {
        let live = self.live_afterwards(size).await?;
        let in_use = match afterwards {
            Afterwards::AsBefore => self.image.was_changed(),
            Afterwards::Changes => true,
            Afterwards::Closed => false,
        };
        let mut known = self.entries.clone();
        let (mut covered, mut missing) = (vec![false; known.len()], Vec::new());
        let names: BTreeSet<&str> =
            live.iter().filter(|live| live.spec.persistent).map(|live| live.spec.name.as_str()).collect();
        let recording = known.iter_mut().zip(&mut self.entries).zip(&mut covered);
        for ((known, entry), covered) in recording.filter(|((known, _), _)| {
            in_use && known.flags.contains(BitmapFlags::AUTO) && !known.flags.contains(BitmapFlags::IN_USE)
        }) {
            entry.flags.set(BitmapFlags::IN_USE, true);
            *covered = names.contains(known.name.as_str());
            if !*covered {
                known.flags.set(BitmapFlags::IN_USE, true);
                missing.push(known.name.clone());
            }
        }
        let (extension, record) = match covered.contains(&true) {
            true => self.write_record(size, &covered).await?,
            false => (None, None),
        };
        if let Some(old) = self.old_record {
            self.give_up(old.offset, old.len);
        }
        let directory = self.write_directory().await?;
        let bitmaps =
            Bitmaps { entries: Arc::new(known), made: self.made, live, record, ..Bitmaps::default() };
        Ok(Next { directory, record: extension, bitmaps, missing })
    }

    /// What is in memory afterwards: bitmaps that stay as they are, those that record changes from now on, and those in memory alone.
    async fn live_afterwards(&self, size: u64) -> Result<Vec<Arc<Live>>, Error> {
        let no_memory = || self.image.medium.blame.no_memory("a bitmap");
        let mut live: Vec<Arc<Live>> = Vec::new();
        for old in self.now.live.iter().filter(|live| !live.spec.persistent) {
            live.push(match old.spec.size == size {
                true => Arc::clone(old),
                false => Arc::new(old.remade(size, old.spec.recording).map_err(|_| no_memory())?),
            });
        }
        for entry in self.entries.iter().filter(|entry| records_and_is_consistent(entry)) {
            let kept = self.now.recording().find(|live| live.spec.name == entry.name);
            match kept.filter(|live| live.spec.size == size && !self.touched.contains(&entry.name)) {
                Some(kept) => live.push(Arc::clone(kept)),
                None => live.extend(self.image.load(entry, size, &live).await?.map(Arc::new)),
            }
        }
        Ok(live)
    }

    /// Writes a record in which nothing is, of the bitmaps that are `covered`.
    async fn write_record(
        &mut self,
        size: u64,
        covered: &[bool],
    ) -> Result<(Option<RecordExtension>, Option<Arc<Record>>), Error> {
        let shape = RecordShape::new(size, covered.len());
        let clusters = self.image.medium.geometry.clusters_for(shape.len());
        let offset = self.place(clusters).await?;
        let medium = &self.image.medium;
        medium.write_table(offset.0, &shape.empty(covered), Section::BitmapDirectory).await?;
        let record = Record::new(offset, shape, self.image.options.bitmap_slack);
        let record = record.map_err(|_| medium.blame.no_memory("the record of changes"))?;
        let extension = RecordExtension { offset, len: shape.len(), region_bits: shape.region_bits };
        Ok((Some(extension), Some(Arc::new(record))))
    }

    /// Frees what the header does not lead to: after success the old places, otherwise the new ones, unless it may lead to either.
    async fn end(self, result: Result<(), Error>) -> Result<(), Error> {
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
