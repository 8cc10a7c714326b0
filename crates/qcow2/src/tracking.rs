//! The bitmaps of an open image, and what they learn of changes.
//!
//! A change is noted by a request that is inside, before anything of it happens ([`Tracking::note`]). Whatever else happens to bitmaps
//! happens while no request is in flight: so a bit that is set before is of a change that has ended, and one that is set afterwards is not lost.

mod bits;
mod live;
mod reading;
mod record;

use std::sync::{Arc, OnceLock};

use qcow2_layout::{BitmapEntry, BitmapFlags};
use storage::Storage;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{ArcSwapOption, AsyncMutex};

use crate::guest_range::GuestRange;
use crate::tables_account::HeldBytes;
pub(crate) use live::{Live, LiveSpec};
pub(crate) use reading::SharedEntry;
pub use reading::{Bitmap, Dirtiness};
pub(crate) use record::{Record, RecordShape};

/// The bitmaps of an image.
///
/// Law: a bit that is set in memory is set in the file, or its region is in the record on disk, before what it stands for changes.
#[derive(Debug)]
pub(crate) struct Tracking {
    /// Some bitmap records changes. Changes when `now` does.
    recording: AtomicBool,
    /// Changes while no request is in flight.
    now: ArcSwapOption<Bitmaps>,
    /// Held while the record is written, and while another one takes its place.
    pub(crate) writing: AsyncMutex<()>,
    /// How often they could not be stored for want of room.
    pub(crate) put_off: AtomicU64,
    /// What the directory that the image was opened with takes of the memory of the disk's images.
    pub(crate) held: OnceLock<Arc<HeldBytes>>,
}

/// What bitmaps there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bitmaps {
    /// Those of the image file, in the order of its directory. "In use" are those that are inconsistent.
    pub(crate) entries: Arc<Vec<BitmapEntry>>,
    /// So many of them, at the end, were made since the image was opened: the newest first, as QEMU stores them.
    pub(crate) made: usize,
    /// Those that are in memory: all that record changes, and those that are in memory alone.
    pub(crate) live: Vec<Arc<Live>>,
    /// All whose bits can be trusted.
    pub(crate) usable: Vec<Arc<Bitmap>>,
    /// What the file has of changes since bitmaps were stored.
    pub(crate) record: Option<Arc<Record>>,
    /// The file says that bitmaps are in use, and has no record of changes: there was no room for it.
    pub(crate) unrecorded: bool,
    /// They were put together from a record that a crash left; the file does not have them so.
    pub(crate) recovered: bool,
    /// The header leads to a record of changes that is not `record`: it must not stay so when the disk changes.
    pub(crate) vouched_for: bool,
}

impl Bitmaps {
    /// The persistent ones that record changes.
    pub(crate) fn recording(&self) -> impl Iterator<Item = &Arc<Live>> {
        self.live.iter().filter(|live| live.spec.persistent)
    }

    /// The bitmap in memory called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Live>> {
        self.live.iter().find(|live| live.spec.name == name)
    }

    /// Whether a crash after a change of this range would leave the persistent ones true.
    #[inline]
    fn is_safe(&self, range: GuestRange) -> bool {
        if self.unrecorded {
            return true;
        }
        let stored = || self.recording().all(|live| live.has_stored(range));
        match &self.record {
            Some(record) => record.has(range) || stored(),
            None => self.recording().next().is_none(),
        }
    }
}

impl Default for Tracking {
    fn default() -> Self {
        Self {
            recording: AtomicBool::new(false),
            now: ArcSwapOption::empty(),
            writing: AsyncMutex::default(),
            put_off: AtomicU64::new(0),
            held: OnceLock::new(),
        }
    }
}

impl Tracking {
    /// What there is now.
    pub(crate) fn now(&self) -> Arc<Bitmaps> {
        self.now.load_full().unwrap_or_default()
    }

    /// The same bitmaps, where the image switches to the copy `file` of its file. No request is in flight.
    pub(crate) fn on(&self, file: &Arc<dyn Storage>) -> Self {
        let mut bitmaps = Bitmaps::clone(&self.now());
        bitmaps.usable.iter_mut().for_each(|bitmap| *bitmap = bitmap.on(file));
        let put_off = AtomicU64::new(self.put_off.load(Ordering::Relaxed));
        let same = Self { put_off, held: self.held.clone(), ..Self::default() };
        same.put(bitmaps);
        same
    }

    /// Other bitmaps from now on. No request is in flight.
    pub(crate) fn put(&self, bitmaps: Bitmaps) {
        let recording = bitmaps.live.iter().any(|live| live.spec.recording);
        self.now.store(Some(Arc::new(bitmaps)));
        self.recording.store(recording, Ordering::Relaxed);
    }

    /// Whether the file has to say before the first change that bitmaps miss it, or that none is vouched for.
    pub(crate) fn must_be_marked(&self) -> bool {
        let now = self.now();
        now.vouched_for || now.entries.iter().any(records_and_is_consistent)
    }

    /// Notes that a range changes, for a request in flight. If it says false, it has not: the file must have the range in
    /// its record first, and that is not done by a request in flight.
    #[inline]
    pub(crate) fn note(&self, range: GuestRange) -> bool {
        if range.is_empty() || !self.recording.load(Ordering::Relaxed) {
            return true;
        }
        let now = self.now.load();
        let Some(bitmaps) = &*now else { return true };
        if !bitmaps.is_safe(range) {
            return false;
        }
        bitmaps.live.iter().filter(|live| live.spec.recording).for_each(|live| live.mark(range));
        true
    }
}

/// Whether a bitmap records changes, and its bits can be trusted and are all there is of it.
pub(crate) fn records_and_is_consistent(entry: &BitmapEntry) -> bool {
    entry.flags.contains(BitmapFlags::AUTO)
        && !entry.flags.contains(BitmapFlags::IN_USE)
        && entry.extra.is_empty()
}

/// Names that a message lists; an image may have 65,535 bitmaps.
const NAMES_SHOWN_MAX: usize = 8;

/// What a user has to know of the bitmaps called `names`, which a change put out of date.
pub fn out_of_date(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(NAMES_SHOWN_MAX).map(|name| format!("{name:?}")).collect();
    let more = match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "persistent bitmaps are out of date from this first change on and marked inconsistent: {}{more}; changes are not recorded in \
         them (the reason was logged when the image was opened), so the next backup must be a full one",
        shown.join(", ")
    )
}
