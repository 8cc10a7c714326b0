//! Records of requests of a split ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ENTRIES_AT, Inflight, VERSION, VERSION_AT};
use crate::mapping::OutsideMapping;

/// Bytes of a queue's head: features (8), version, entries, head of the last batch, index of the used ring.
pub(super) const HEAD_BYTES: usize = 16;
const LAST_HEAD_AT: usize = 12;
const USED_AT: usize = 14;

/// Bytes of a record: in flight (1), padding, the record before it in its batch (2), counter (8).
pub(super) const RECORD_BYTES: usize = 16;
const NEXT_AT: usize = 6;
const COUNTER_AT: usize = 8;

/// What records say of one queue, after a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Descriptors of requests that were begun and not seen to be done, in the order of their beginnings.
    pub heads: Vec<u16>,
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
    pub(super) fn new(all: Arc<Inflight>, start: usize, entries: u16) -> Self {
        Self { all, start, entries, counter: 0 }
    }

    /// What was in flight when the last back-end ended; `used` is the index of the used ring in memory. `None` for records that were not used
    /// yet: they begin now.
    ///
    /// # Errors
    /// Never, for records that were opened.
    pub fn begin(&mut self, used: u16) -> Result<Option<Recovered>, OutsideMapping> {
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
        Ok(Some(Recovered { heads: found.into_iter().map(|(_, head)| head).collect() }))
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
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::inflight::Form;
    use crate::message::{Area, InflightInfo};

    const INFO: InflightInfo = InflightInfo { area: Area { len: 0, file_offset: 0 }, queues: 2, entries: 8 };

    fn records() -> (Arc<Inflight>, OwnedFd, InflightInfo) {
        let (fd, info) = Inflight::create(INFO, Form::Split).expect("memory");
        (Arc::new(Inflight::open(&fd, info).expect("records")), fd, info)
    }

    fn queue(all: &Arc<Inflight>, number: usize) -> Records {
        all.split(number, 8).expect("a queue")
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
            assert_eq!(found, Some(Recovered { heads: expected.to_vec() }), "after step {killed_after}");
            assert_eq!(queue(&next, 0).begin(0).expect("records"), None, "the other queue is untouched");
        }
    }
}
