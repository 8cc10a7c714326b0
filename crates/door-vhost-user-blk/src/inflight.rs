//! Records of requests in flight, in memory that the front-end keeps while the back-end may die
//! (vhost-user specification, "Inflight I/O tracking", split virtqueue).
//!
//! A request is recorded before it is begun, and its record ends after the driver can see that it is done. The next back-end carries
//! out again what has a record, in the order of the beginnings. The order of the steps is what a kill at any instant leaves.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::limits::{INFLIGHT_BYTES_MAX, QUEUES_MAX, RING_ENTRIES_MAX};
use crate::mapping::{MapError, Mapping, OutsideMapping};
use crate::message::{Area, InflightInfo};

/// Bytes of a queue's head: features (8), version, entries, head of the last batch, index of the used ring.
const HEAD_BYTES: usize = 16;
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const LAST_HEAD_AT: usize = 12;
const USED_AT: usize = 14;

/// Bytes of a record: in flight (1), padding, the record before it in its batch (2), counter (8).
const RECORD_BYTES: usize = 16;
const NEXT_AT: usize = 6;
const COUNTER_AT: usize = 8;

/// The version of the layout.
const VERSION: u16 = 1;

/// Each queue's part begins at a multiple of this.
const ALIGNMENT: usize = 64;

/// Behind the queues stands what we have to remember of the device: whether the driver turned the write cache off.
const TAIL_BYTES: usize = 64;
/// Tells that the tail was written: "CWC" and 1 for on, 2 for off.
const TAIL_MAGIC: [u8; 3] = *b"CWC";

/// Why there are no records.
#[derive(Debug, thiserror::Error)]
pub enum InflightError {
    /// The numbers of queues and entries.
    #[error(
        "records for {queues} queues of {entries} entries are asked for; 1 to {QUEUES_MAX} queues of 1 to {RING_ENTRIES_MAX} are allowed"
    )]
    Numbers {
        /// Queues.
        queues: u16,
        /// Entries of each.
        entries: u16,
    },
    /// The memory is too small.
    #[error("records have {found} bytes; {needed} are needed")]
    TooSmall {
        /// As it came.
        found: u64,
        /// What the queues need.
        needed: u64,
    },
    /// The memory cannot be mapped, or made.
    #[error("records of requests in flight cannot be kept: {0}")]
    Map(#[from] MapError),
}

/// The records of all queues of a device.
#[derive(Debug)]
pub struct Inflight {
    mapping: Mapping,
    queues: u16,
    entries: u16,
}

/// What records say of one queue, after a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Descriptors of requests that were begun and not seen to be done, in the order of their beginnings.
    pub heads: Vec<u16>,
}

impl Inflight {
    /// Makes memory for the records that `info` asks for, none of them in use, and maps it. Gives its descriptor and place, too.
    ///
    /// # Errors
    /// For numbers beyond the bounds, or when there is no memory.
    pub fn create(info: InflightInfo) -> Result<(OwnedFd, InflightInfo), InflightError> {
        let len = needed(info)?;
        let failed = |error: rustix::io::Errno| InflightError::Map(MapError::System(error.into()));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("cowhand-inflight", flags).map_err(failed)?;
        ftruncate(&fd, len).map_err(failed)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed)?;
        Ok((fd, InflightInfo { area: Area { len, file_offset: 0 }, ..info }))
    }

    /// Maps records that a front-end kept, from us or from a back-end before us.
    ///
    /// # Errors
    /// When they are too small for what they are said to be, or cannot be mapped.
    pub fn open(fd: impl AsFd, info: InflightInfo) -> Result<Self, InflightError> {
        let needed = needed(info)?;
        if info.area.len < needed || info.area.len > 2 * INFLIGHT_BYTES_MAX {
            return Err(InflightError::TooSmall { found: info.area.len, needed });
        }
        let mapping = Mapping::new(fd, info.area)?;
        Ok(Self { mapping, queues: info.queues, entries: info.entries })
    }

    /// The records of queue number `queue`, whose ring has `entries`.
    pub fn queue(self: &Arc<Self>, queue: usize, entries: u16) -> Option<Records> {
        let fits = queue < usize::from(self.queues) && entries <= self.entries;
        let start = queue * queue_bytes(self.entries);
        fits.then(|| Records { all: Arc::clone(self), start, entries, counter: 0 })
    }

    /// Whether the driver had the write cache on, if that was recorded.
    pub fn cache(&self) -> Option<bool> {
        let mut tail = [0; 4];
        self.mapping.read(self.tail(), &mut tail).ok()?;
        let [magic @ .., cache] = tail;
        match (magic, cache) {
            (TAIL_MAGIC, 1) => Some(true),
            (TAIL_MAGIC, 2) => Some(false),
            _ => None,
        }
    }

    /// Records whether the driver has the write cache on.
    pub fn set_cache(&self, on: bool) {
        let [a, b, c] = TAIL_MAGIC;
        // The place was there when the records were opened.
        let _ = self.mapping.write(self.tail(), &[a, b, c, if on { 1 } else { 2 }]);
    }

    fn tail(&self) -> usize {
        usize::from(self.queues) * queue_bytes(self.entries)
    }
}

fn queue_bytes(entries: u16) -> usize {
    (HEAD_BYTES + RECORD_BYTES * usize::from(entries)).next_multiple_of(ALIGNMENT)
}

fn needed(info: InflightInfo) -> Result<u64, InflightError> {
    let InflightInfo { queues, entries, .. } = info;
    if !(1..=QUEUES_MAX).contains(&queues) || !(1..=RING_ENTRIES_MAX).contains(&entries) {
        return Err(InflightError::Numbers { queues, entries });
    }
    Ok((usize::from(queues) * queue_bytes(entries) + TAIL_BYTES) as u64)
}

/// The records of one queue.
#[derive(Debug)]
pub struct Records {
    all: Arc<Inflight>,
    /// Where they begin.
    start: usize,
    entries: u16,
    /// Of the next request; who comes after us sorts by it.
    counter: u64,
}

impl Records {
    /// What was in flight when the last back-end ended; `used` is the index of the used ring in memory. `None` for records that nobody used
    /// yet: they begin now.
    ///
    /// # Errors
    /// Never, for records that were opened.
    pub fn begin(&mut self, used: u16) -> Result<Option<Found>, OutsideMapping> {
        let map = &self.all.mapping;
        if map.load_u16(self.start + VERSION_AT, Ordering::Acquire)? != VERSION {
            map.store_u16(self.start + ENTRIES_AT, self.entries, Ordering::Relaxed)?;
            map.store_u16(self.start + USED_AT, used, Ordering::Relaxed)?;
            map.store_u16(self.start + VERSION_AT, VERSION, Ordering::Release)?;
            return Ok(None);
        }
        // The driver saw an entry whose record had not ended: it ends now.
        if map.load_u16(self.start + USED_AT, Ordering::Relaxed)? != used {
            let last = map.load_u16(self.start + LAST_HEAD_AT, Ordering::Relaxed)?;
            if last < self.entries {
                map.write(self.record(last), &[0])?;
            }
            map.store_u16(self.start + USED_AT, used, Ordering::Release)?;
        }
        let mut found = Vec::new();
        for head in 0..self.entries {
            let mut record = [0; RECORD_BYTES];
            map.read(self.record(head), &mut record)?;
            let [in_flight, _, _, _, _, _, _, _, counter @ ..] = record;
            if in_flight == 1 {
                found.push((u64::from_ne_bytes(counter), head));
            }
        }
        found.sort_unstable();
        self.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(Some(Found { heads: found.into_iter().map(|(_, head)| head).collect() }))
    }

    fn record(&self, head: u16) -> usize {
        self.start + HEAD_BYTES + RECORD_BYTES * usize::from(head)
    }

    /// The request `head` begins. It has been taken from the available ring only when this has returned.
    ///
    /// # Errors
    /// Never, for a head of the ring.
    pub fn started(&mut self, head: u16) -> Result<(), OutsideMapping> {
        let (map, at) = (&self.all.mapping, self.record(head));
        map.write(at + COUNTER_AT, &self.counter.to_ne_bytes())?;
        self.counter = self.counter.wrapping_add(1);
        std::sync::atomic::fence(Ordering::Release);
        map.write(at, &[1])
    }

    /// The request `head` is the next that the driver will see to be done.
    ///
    /// # Errors
    /// Never, for a head of the ring.
    pub fn about_to_publish(&self, head: u16) -> Result<(), OutsideMapping> {
        let map = &self.all.mapping;
        let before = map.load_u16(self.start + LAST_HEAD_AT, Ordering::Relaxed)?;
        map.store_u16(self.record(head) + NEXT_AT, before, Ordering::Relaxed)?;
        map.store_u16(self.start + LAST_HEAD_AT, head, Ordering::Release)
    }

    /// The driver sees that `head` is done, by the index `used`.
    ///
    /// # Errors
    /// Never, for a head of the ring.
    pub fn published(&self, head: u16, used: u16) -> Result<(), OutsideMapping> {
        let map = &self.all.mapping;
        std::sync::atomic::fence(Ordering::SeqCst);
        map.write(self.record(head), &[0])?;
        map.store_u16(self.start + USED_AT, used, Ordering::Release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: InflightInfo = InflightInfo { area: Area { len: 0, file_offset: 0 }, queues: 2, entries: 8 };

    fn records() -> (Arc<Inflight>, OwnedFd, InflightInfo) {
        let (fd, info) = Inflight::create(INFO).expect("memory");
        (Arc::new(Inflight::open(&fd, info).expect("records")), fd, info)
    }

    fn queue(all: &Arc<Inflight>, number: usize) -> Records {
        all.queue(number, 8).expect("a queue")
    }

    /// A back-end was killed between each two steps of two requests: the next one is to repeat what the driver has not seen done,
    /// in order, and nothing else.
    #[test]
    fn who_comes_next_finds_what_was_not_seen_done_in_the_order_of_its_beginning() {
        type Step = fn(&mut Records);
        let steps: [(Step, u16, &[u16]); 8] = [
            (|_| {}, 0, &[]),
            (|r| r.started(5).expect("a head"), 0, &[5]),
            (|r| r.started(2).expect("a head"), 0, &[5, 2]),
            (|r| r.about_to_publish(2).expect("a head"), 0, &[5, 2]),
            // The index of the used ring is 1 now, the record has not ended.
            (|_| {}, 1, &[5]),
            (|r| r.published(2, 1).expect("a head"), 1, &[5]),
            (|r| r.about_to_publish(5).expect("a head"), 1, &[5]),
            (|r| r.published(5, 2).expect("a head"), 2, &[]),
        ];
        for killed_after in 0..steps.len() {
            let (all, fd, info) = records();
            let mut before = queue(&all, 1);
            assert_eq!(before.begin(0).expect("records"), None);
            steps[..=killed_after].iter().for_each(|(step, ..)| step(&mut before));
            let (_, used, expected) = steps[killed_after];
            let next = Arc::new(Inflight::open(&fd, info).expect("records"));
            let found = queue(&next, 1).begin(used).expect("records");
            assert_eq!(found, Some(Found { heads: expected.to_vec() }), "after step {killed_after}");
            assert_eq!(queue(&next, 0).begin(0).expect("records"), None, "the other queue is untouched");
        }
    }

    #[test]
    fn the_state_of_the_write_cache_outlives_the_process() {
        let (all, fd, info) = records();
        assert_eq!(all.cache(), None);
        all.set_cache(false);
        assert_eq!(Inflight::open(&fd, info).expect("records").cache(), Some(false));
        all.set_cache(true);
        assert_eq!(all.cache(), Some(true));
    }

    #[test]
    fn numbers_and_sizes_beyond_the_bounds_are_refused() {
        for (queues, entries) in [(0, 8), (65, 8), (1, 0), (1, u16::MAX)] {
            assert!(Inflight::create(InflightInfo { queues, entries, ..INFO }).is_err());
        }
        let (fd, info) = Inflight::create(INFO).expect("memory");
        let larger = InflightInfo { entries: 128, ..info };
        assert!(matches!(Inflight::open(&fd, larger), Err(InflightError::TooSmall { .. })));
        let far = InflightInfo { area: Area { file_offset: 4096, ..info.area }, ..info };
        assert!(matches!(Inflight::open(&fd, far), Err(InflightError::Map(MapError::BeyondEnd { .. }))));
        let (all, ..) = records();
        assert!(all.queue(2, 8).is_none() && all.queue(0, 16).is_none());
    }
}
