//! Bitmaps read into memory when an image is opened, with what a crash left of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use block::ErrorKind;
use qcow2_layout::{BitmapEntry, BitmapFlags, BitmapTableEntry, HostOffset};

use super::draft::table_entries_for;
use super::{directory_of, read_directory};
use crate::Error;
use crate::image::Inner;
use crate::table_io::{check_place, read_bytes, read_words};
use crate::tables_account::TablesAccount;
use crate::tracking::{
    Bitmap, Bitmaps, Live, LiveSpec, Record, RecordShape, SharedEntry, records_and_is_consistent,
};

/// Memory for the bits of all bitmaps of an image that record changes; twice as much with the copy of what the file has. A bitmap of 1 TiB
/// with a granularity of 64 KiB takes 2 MiB. Those that do not fit are not kept up to date.
const LIVE_BYTES_MAX: u64 = 256 << 20;
/// Likewise their number: each costs every change a look. A manager has one or two for each chain of backups.
const LIVE_MAX: usize = 1024;

/// Memory of a bitmap in the directory beside its name and extra data: the entry, and what reads its bits.
const ENTRY_BYTES: u64 = (size_of::<BitmapEntry>() + size_of::<Bitmap>() + 128) as u64;

/// What a crash left of the changes that bitmaps miss.
struct Left {
    place: HostOffset,
    shape: RecordShape,
    bytes: Vec<u8>,
}

/// What the header's record of changes is good for, while nothing has changed since the image was opened.
pub(super) enum Vouching {
    /// There is none.
    Nothing,
    /// It is of the bitmaps in memory, and of no others.
    ForThoseInMemory(Arc<Record>),
    /// It does not go on: it must not vouch for anything once the disk changes.
    NotForLong,
}

impl Inner {
    /// Reads the directory, and into memory those bitmaps that changes are to be noted in. When the image is opened.
    pub(crate) async fn load_bitmaps(&self, account: &Arc<TablesAccount>) -> Result<(), Error> {
        let header = self.header.lock().await.clone();
        let medium = &self.medium;
        let Some(directory) = directory_of(&*medium.file, &header, &medium.blame)? else { return Ok(()) };
        let bytes = directory.directory_size + u64::from(directory.count) * ENTRY_BYTES;
        let held = account.hold(bytes).map_err(|full| full.blamed(&medium.blame))?;
        let mut entries = read_directory(&*medium.file, &header, &medium.geometry, &medium.blame).await?;
        if entries.is_empty() {
            return Ok(());
        }
        let left = self.read_record(entries.len()).await?;
        // An image is opened once.
        let _ = self.tracking.held.set(Arc::new(held));
        let mut bitmaps = Bitmaps { vouched_for: header.extensions.record.is_some(), ..Bitmaps::default() };
        for (index, entry) in entries.iter_mut().enumerate() {
            let missed = left.as_ref().filter(|left| {
                entry.flags.contains(BitmapFlags::IN_USE) && RecordShape::covers(&left.bytes, index)
            });
            if missed.is_some() {
                entry.flags.set(BitmapFlags::IN_USE, false);
            }
            let wanted = missed.is_some() || self.options.writable;
            let loaded = match wanted {
                true => self.load(entry, self.size(), &bitmaps.live).await?,
                false => None,
            };
            match (loaded, missed) {
                (Some(live), Some(left)) => {
                    for range in left
                        .shape
                        .ranges(&left.bytes, self.size())
                        .into_iter()
                        .filter(|range| !range.is_empty())
                    {
                        live.mark(range);
                    }
                    bitmaps.recovered = true;
                    bitmaps.live.push(Arc::new(live));
                }
                (Some(live), None) => bitmaps.live.push(Arc::new(live)),
                // Without what it misses it cannot be trusted.
                (None, Some(_)) => entry.flags.set(BitmapFlags::IN_USE, true),
                (None, None) => {}
            }
        }
        if bitmaps.recovered {
            tracing::info!(
                "{}: was not closed; bitmaps have what changed since they were stored, and at most a little more",
                medium.blame.name()
            );
        }
        self.put_bitmaps(Bitmaps { entries: Arc::new(entries), ..bitmaps });
        Ok(())
    }

    /// What a crash left, if it fits the disk and lies in the file.
    async fn read_record(&self, bitmaps: usize) -> Result<Option<Left>, Error> {
        let Some(record) = self.header.lock().await.extensions.record else { return Ok(None) };
        let medium = &self.medium;
        let (what, file) = ("the record of changes", &*medium.file);
        let in_file = check_place(file, &medium.blame, what, record.offset.0, record.len).is_ok();
        match RecordShape::of(&record, self.size(), bitmaps).filter(|_| in_file) {
            Some(shape) => {
                let bytes = read_bytes(file, record.offset.0, record.len).await;
                let bytes = bytes.map_err(medium.blame.io("reading the record of changes"))?.to_vec();
                Ok(Some(Left { place: record.offset, shape, bytes }))
            }
            None => Ok(None),
        }
    }

    /// What becomes of the record that the header leads to, where no other can take its place. Nothing has changed since the image was opened.
    pub(super) async fn record_that_was_left(&self, now: &Bitmaps) -> Result<Vouching, Error> {
        if self.header.lock().await.extensions.record.is_none() {
            return Ok(Vouching::Nothing);
        }
        let Some(left) = self.read_record(now.entries.len()).await? else { return Ok(Vouching::NotForLong) };
        // A change that all bitmaps in memory have in the file is not recorded: so the record must be of no others.
        let in_memory: HashSet<&str> = now.recording().map(|live| live.spec.name.as_str()).collect();
        let is_of_these = now.entries.iter().enumerate().all(|(index, entry)| {
            RecordShape::covers(&left.bytes, index) == in_memory.contains(entry.name.as_str())
        });
        if !is_of_these {
            return Ok(Vouching::NotForLong);
        }
        let slack_bytes = self.options.bitmap_slack;
        Ok(match Record::resumed(left.place, left.shape, &left.bytes, slack_bytes) {
            Ok(record) => Vouching::ForThoseInMemory(Arc::new(record)),
            Err(_) => Vouching::NotForLong,
        })
    }

    /// The bitmap of `entry`, of a disk of `size` bytes, if changes are to be noted in it, beside those in memory. `None` also if it is damaged
    /// or too large, which is reported.
    pub(super) async fn load(
        &self,
        entry: &BitmapEntry,
        size: u64,
        beside: &[Arc<Live>],
    ) -> Result<Option<Live>, Error> {
        if !records_and_is_consistent(entry) {
            return Ok(None);
        }
        let loaded = match self.check_room_for(size, entry.granularity_bits, beside) {
            Ok(()) => self.read_live(entry, size).await,
            Err(error) => Err(error),
        };
        match loaded {
            Ok(live) => Ok(Some(live)),
            // The file may have it the next time.
            Err(error) if error.kind() == ErrorKind::Io => Err(error),
            Err(error) => {
                tracing::warn!("bitmap {:?} is not kept up to date: {error}", entry.name);
                Ok(None)
            }
        }
    }

    /// Refuses another bitmap in memory where there are too many, or too large ones.
    pub(super) fn check_room_for(
        &self,
        size: u64,
        granularity_bits: u8,
        beside: &[Arc<Live>],
    ) -> Result<(), Error> {
        if beside.len() >= LIVE_MAX {
            let what = format!("{LIVE_MAX} bitmaps record changes, the most there can be");
            return Err(self.medium.blame.invalid(what));
        }
        let taken: u64 = beside.iter().map(|live| live.bits.len() / 8).sum();
        let bytes = size.div_ceil(1 << granularity_bits) / 8;
        if taken.saturating_add(bytes) > LIVE_BYTES_MAX {
            return Err(self.medium.blame.invalid(format!(
                "bitmaps that record changes take {taken} bytes of memory, and this one {bytes}; at most {LIVE_BYTES_MAX} are \
                 allowed together: choose a larger granularity"
            )));
        }
        Ok(())
    }

    async fn read_live(&self, entry: &BitmapEntry, size: u64) -> Result<Live, Error> {
        let medium = &self.medium;
        let needed = table_entries_for(medium, entry, size)?;
        if needed != entry.table_entries as usize {
            let (found, name) = (entry.table_entries, &entry.name);
            let what = format!("bitmap {name:?} has {found} table entries; must be {needed}");
            return Err(medium.blame.corrupt(what));
        }
        let spec = LiveSpec {
            name: entry.name.clone(),
            granularity_bits: entry.granularity_bits,
            persistent: true,
            recording: true,
            size,
        };
        let live = Live::new(spec).map_err(|_| medium.blame.no_memory("a bitmap"))?;
        let (what, bytes) = ("the table of a bitmap", u64::from(entry.table_entries) * 8);
        let words = read_words(&*medium.file, &medium.blame, what, entry.table_offset.0, bytes).await?;
        let stored = Bitmap::new(entry.clone().into(), Arc::clone(&medium.file), medium.geometry, size);
        let bits = medium.geometry.cluster_size() * 8;
        for (index, word) in (0u64..).zip(words) {
            match BitmapTableEntry::decode(word, &medium.geometry) {
                Ok(BitmapTableEntry::Zeroes) => {}
                Ok(BitmapTableEntry::Ones) => {
                    live.bits.set(index * bits, index * bits + bits - 1);
                    live.stored.set(index * bits, index * bits + bits - 1);
                }
                Ok(BitmapTableEntry::Data(_)) | Err(_) => {
                    let bytes = stored.cluster(index).await?;
                    live.bits.set_bytes(index * bits / 8, &bytes);
                    live.stored.set_bytes(index * bits / 8, &bytes);
                }
            }
        }
        Ok(live)
    }

    /// Other bitmaps from now on, with all that can be read of them. No request is in flight.
    pub(super) fn put_bitmaps(&self, mut bitmaps: Bitmaps) {
        let live: HashMap<&str, &Arc<Live>> =
            bitmaps.recording().map(|live| (live.spec.name.as_str(), live)).collect();
        let mut usable = Vec::with_capacity(bitmaps.entries.len());
        let is_usable = |entry: &BitmapEntry| !entry.flags.contains(BitmapFlags::IN_USE);
        for (index, entry) in bitmaps.entries.iter().enumerate().filter(|(_, entry)| is_usable(entry)) {
            usable.push(Arc::new(match live.get(entry.name.as_str()) {
                Some(live) => Bitmap::in_memory(Arc::clone(live)),
                None => Bitmap::new(
                    SharedEntry::of(&bitmaps.entries, index),
                    Arc::clone(&self.medium.file),
                    self.medium.geometry,
                    self.size(),
                ),
            }));
        }
        let in_memory = bitmaps.live.iter().filter(|live| !live.spec.persistent);
        usable.extend(in_memory.map(|live| Arc::new(Bitmap::in_memory(Arc::clone(live)))));
        // Known bitmaps keep their order, in which they were made.
        let before = self.tracking.now();
        let places: HashMap<&str, usize> =
            before.usable.iter().enumerate().map(|(at, bitmap)| (bitmap.name(), at)).collect();
        usable.sort_by_key(|bitmap| places.get(bitmap.name()).copied().unwrap_or(usize::MAX));
        bitmaps.usable = usable;
        self.tracking.put(bitmaps);
    }
}
