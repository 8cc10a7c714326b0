//! Records of requests of a packed ring. The device's marks overwrite descriptors, so a record keeps copies of a request's own; free
//! records are a list. What is done to list and position is done twice: first to the new values, then, when the driver can see it, to the old
//! ones. Who comes next goes back to the old ones, or forward.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{ENTRIES_AT, Inflight, VERSION, VERSION_AT};
use crate::mapping::OutsideMapping;
use crate::ring::packed::{Descriptors, PackedRing, Position};
use crate::ring::{Descriptor, RingFault};

/// Bytes of a queue's head: features (8), version, entries, and then, each new and old: first free record, index, wrap counter.
pub(super) const HEAD_BYTES: usize = 32;
const FREE_AT: usize = 12;
const FREE_OLD_AT: usize = 14;
/// Index (2) and old index (2), wrap counter (1) and old one (1), padding (2): they change in one step.
const USED_AT: usize = 16;

/// Bytes of a record: in flight (1), padding, next free (2), last of the request (2), how many (2), counter (8), number (2), flags (2),
/// bytes (4), address (8).
pub(super) const RECORD_BYTES: usize = 32;
const NEXT_AT: usize = 2;
const LAST_AT: usize = 4;
const COUNT_AT: usize = 6;
const COUNTER_AT: usize = 8;
const NUMBER_AT: usize = 16;

/// A request that was begun and not seen to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// Its first record.
    pub record: u16,
    /// Its descriptors.
    pub descriptors: Descriptors,
}

/// What records say of one queue, after a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Requests, in the order of their beginnings.
    pub begun: Vec<Started>,
    /// The entry that is used next.
    pub used: Position,
    /// The entry that is available next.
    pub available: Position,
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

fn outside(_: OutsideMapping) -> RingFault {
    RingFault::Records("they are not as long as they were")
}

impl Records {
    pub(super) fn new(all: Arc<Inflight>, start: usize, entries: u16) -> Self {
        Self { all, start, entries, counter: 0 }
    }

    /// What was in flight when the last back-end ended. `None` for records that were not used yet: they begin now, with the ring at `begin`.
    ///
    /// # Errors
    /// When they make no sense: the front-end, which keeps them, changed them.
    pub fn begin(&mut self, ring: &PackedRing, begin: Position) -> Result<Option<Recovered>, RingFault> {
        if self.head(VERSION_AT)? != VERSION {
            self.make(begin)?;
            return Ok(None);
        }
        let (new, old) = self.used()?;
        // The driver saw the entry: what was done last is so. Otherwise it was not.
        let seen = new != old && !ring.is_available(old)?;
        let used = if seen {
            self.settle()?;
            new
        } else {
            self.set_head(FREE_AT, self.head(FREE_OLD_AT)?)?;
            self.set_used(old, old)?;
            old
        };
        self.clear_free()?;
        let begun = self.begun()?;
        let count: usize = begun.iter().map(|(_, one)| one.descriptors.len()).sum();
        let count = u16::try_from(count).ok().filter(|count| *count <= self.entries);
        let count = count.ok_or(RingFault::Records("more is in flight than the ring has"))?;
        self.counter = begun.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        let available = used.after(count, self.entries);
        Ok(Some(Recovered { begun: begun.into_iter().map(|(_, one)| one).collect(), used, available }))
    }

    fn make(&self, begin: Position) -> Result<(), RingFault> {
        for record in 0..self.entries {
            self.set(record, NEXT_AT, record + 1)?;
            self.set(record, 0, 0)?;
        }
        self.set_head(ENTRIES_AT, self.entries)?;
        self.set_head(FREE_AT, 0)?;
        self.set_head(FREE_OLD_AT, 0)?;
        self.set_used(begin, begin)?;
        fence(Ordering::Release);
        self.set_head(VERSION_AT, VERSION)
    }

    /// Free records are not in flight, whatever a back-end that was killed left there.
    fn clear_free(&self) -> Result<(), RingFault> {
        let mut record = self.head(FREE_AT)?;
        for _ in 0..self.entries {
            if record >= self.entries {
                break;
            }
            self.set_in_flight(record, false)?;
            record = self.get(record, NEXT_AT)?;
        }
        Ok(())
    }

    fn begun(&self) -> Result<Vec<(u64, Started)>, RingFault> {
        let (mut found, mut total) = (Vec::new(), 0);
        for record in 0..self.entries {
            let mut bytes = [0; NUMBER_AT];
            self.all.mapping.read(self.at(record), &mut bytes).map_err(outside)?;
            let [1, _, _, _, _, _, _, _, counter @ ..] = bytes else { continue };
            let count = self.get(record, COUNT_AT)?;
            total += usize::from(count);
            if count == 0 || total > usize::from(self.entries) {
                return Err(RingFault::Records("a request has no descriptors, or too many"));
            }
            let (mut descriptors, mut next) = (Descriptors::new(), record);
            for _ in 0..count {
                descriptors.push(self.copy(next)?);
                next = self.get(next, NEXT_AT)?;
            }
            found.push((u64::from_ne_bytes(counter), Started { record, descriptors }));
        }
        found.sort_unstable_by_key(|(counter, one)| (*counter, one.record));
        Ok(found)
    }

    fn copy(&self, record: u16) -> Result<Descriptor, RingFault> {
        if record >= self.entries {
            return Err(RingFault::Records("a request continues in a record that does not exist"));
        }
        let mut bytes = [0; RECORD_BYTES - NUMBER_AT];
        self.all.mapping.read(self.at(record) + NUMBER_AT, &mut bytes).map_err(outside)?;
        let [i0, i1, f0, f1, l0, l1, l2, l3, address @ ..] = bytes;
        Ok(Descriptor {
            address: u64::from_ne_bytes(address),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            flags: u16::from_ne_bytes([f0, f1]),
            link: u16::from_ne_bytes([i0, i1]),
        })
    }

    /// The request of these descriptors begins; gives its first record. It has been taken from the ring only when this has returned.
    ///
    /// # Errors
    /// When no record is free: the front-end changed them.
    pub fn started(&mut self, descriptors: &[Descriptor]) -> Result<u16, RingFault> {
        let first = self.head(FREE_AT)?;
        let (mut record, mut last) = (first, first);
        for descriptor in descriptors {
            if record >= self.entries {
                return Err(RingFault::Records("none is free"));
            }
            let Descriptor { address, len, flags, link } = *descriptor;
            let (mut copy, at) = ([0; RECORD_BYTES - NUMBER_AT], self.at(record) + NUMBER_AT);
            copy[..2].copy_from_slice(&link.to_ne_bytes());
            copy[2..4].copy_from_slice(&flags.to_ne_bytes());
            copy[4..8].copy_from_slice(&len.to_ne_bytes());
            copy[8..].copy_from_slice(&address.to_ne_bytes());
            self.all.mapping.write(at, &copy).map_err(outside)?;
            last = record;
            record = self.get(record, NEXT_AT)?;
        }
        self.set(first, LAST_AT, last)?;
        // At most as many as the ring has entries.
        self.set(first, COUNT_AT, descriptors.len() as u16)?;
        let counter = self.counter.to_ne_bytes();
        self.all.mapping.write(self.at(first) + COUNTER_AT, &counter).map_err(outside)?;
        self.counter = self.counter.wrapping_add(1);
        fence(Ordering::Release);
        self.set_in_flight(first, true)?;
        self.set_head(FREE_AT, record)?;
        // It has begun with this step.
        self.set_head(FREE_OLD_AT, record)?;
        Ok(first)
    }

    /// The driver is about to see that the request of `record` is done, after which `used` is the entry that is used next.
    ///
    /// # Errors
    /// Never, for a record that was given.
    pub fn about_to_publish(&self, record: u16, used: Position) -> Result<(), RingFault> {
        let last = self.get(record, LAST_AT)?;
        if last >= self.entries {
            return Err(RingFault::Records("a request ends in a record that there is not"));
        }
        self.set(last, NEXT_AT, self.head(FREE_AT)?)?;
        self.set_head(FREE_AT, record)?;
        let (_, old) = self.used()?;
        self.set_used(used, old)
    }

    /// The driver sees it.
    ///
    /// # Errors
    /// Never, for a record that was given.
    pub fn published(&self, record: u16) -> Result<(), RingFault> {
        fence(Ordering::SeqCst);
        self.set_in_flight(record, false)?;
        self.settle()
    }

    /// What is new becomes what was.
    fn settle(&self) -> Result<(), RingFault> {
        self.set_head(FREE_OLD_AT, self.head(FREE_AT)?)?;
        let (new, _) = self.used()?;
        self.set_used(new, new)
    }

    fn at(&self, record: u16) -> usize {
        self.start + HEAD_BYTES + RECORD_BYTES * usize::from(record)
    }

    fn head(&self, at: usize) -> Result<u16, RingFault> {
        self.all.mapping.load_u16(self.start + at, Ordering::Acquire).map_err(outside)
    }

    fn set_head(&self, at: usize, value: u16) -> Result<(), RingFault> {
        self.all.mapping.store_u16(self.start + at, value, Ordering::Release).map_err(outside)
    }

    fn get(&self, record: u16, at: usize) -> Result<u16, RingFault> {
        self.all.mapping.load_u16(self.at(record) + at, Ordering::Relaxed).map_err(outside)
    }

    fn set(&self, record: u16, at: usize, value: u16) -> Result<(), RingFault> {
        self.all.mapping.store_u16(self.at(record) + at, value, Ordering::Relaxed).map_err(outside)
    }

    fn set_in_flight(&self, record: u16, on: bool) -> Result<(), RingFault> {
        self.all.mapping.write(self.at(record), &[u8::from(on)]).map_err(outside)
    }

    /// The entry that is used next: new and old.
    fn used(&self) -> Result<(Position, Position), RingFault> {
        let word = self.all.mapping.load_u64(self.start + USED_AT, Ordering::Acquire).map_err(outside)?;
        let [n0, n1, o0, o1, new_wrap, old_wrap, ..] = word.to_ne_bytes();
        let position = |index: [u8; 2], wrap: u8| {
            let (found, entries) = (u16::from_ne_bytes(index), self.entries);
            let fault = RingFault::Position { found, entries };
            if found < entries { Ok(Position { index: found, wrap: wrap != 0 }) } else { Err(fault) }
        };
        Ok((position([n0, n1], new_wrap)?, position([o0, o1], old_wrap)?))
    }

    fn set_used(&self, new: Position, old: Position) -> Result<(), RingFault> {
        let ([n0, n1], [o0, o1]) = (new.index.to_ne_bytes(), old.index.to_ne_bytes());
        let word = u64::from_ne_bytes([n0, n1, o0, o1, new.wrap.into(), old.wrap.into(), 0, 0]);
        self.all.mapping.store_u64(self.start + USED_AT, word, Ordering::Release).map_err(outside)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::inflight::Form;
    use crate::memory::Memory;
    use crate::message::{Area, InflightInfo, RegionInfo, RingAddress};
    use crate::ring::RingFeatures;

    const ENTRIES: u16 = 5;

    /// A ring of five entries in a guest's memory, and its records.
    struct Place {
        _memory: Memory,
        guest: OwnedFd,
        ring: PackedRing,
        fd: OwnedFd,
        info: InflightInfo,
    }

    impl Place {
        fn new() -> Self {
            let guest = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
            ftruncate(&guest, 4096).expect("memory");
            let region = RegionInfo { guest: 0, len: 4096, user: 0, file_offset: 0 };
            let memory = Memory::default().with(region, &guest).expect("a region");
            let address = RingAddress {
                ring: 0,
                logged: false,
                descriptors: 0,
                used: 1024,
                available: 1028,
                log_guest: 0,
            };
            let features = RingFeatures { packed: true, ..RingFeatures::default() };
            let ring = PackedRing::new(&memory, &address, u32::from(ENTRIES), features).expect("a ring");
            let info = InflightInfo { area: Area { len: 0, file_offset: 0 }, queues: 1, entries: ENTRIES };
            let (fd, info) = Inflight::create(info, Form::Packed).expect("memory");
            Self { _memory: memory, guest, ring, fd, info }
        }

        fn records(&self) -> Records {
            let all = Arc::new(Inflight::open(&self.fd, self.info).expect("records"));
            all.packed(0, ENTRIES).expect("a queue")
        }

        /// The driver makes entries available from `at` on, as one request, of the number `number`.
        fn available(&self, at: Position, count: u16, number: u16) {
            for nth in 0..count {
                let place = at.after(nth, ENTRIES);
                let more = u16::from(nth + 1 < count);
                let mut bytes = [0; 16];
                bytes[0] = nth as u8;
                bytes[12..14].copy_from_slice(&number.to_le_bytes());
                let flags: u16 = more | if place.wrap { 1 << 7 } else { 1 << 15 };
                bytes[14..].copy_from_slice(&flags.to_le_bytes());
                rustix::io::pwrite(&self.guest, &bytes, u64::from(place.index) * 16).expect("memory");
            }
        }
    }

    /// A back-end was killed between each two steps of three requests, the second of which is done first, at every place of the ring, also
    /// when the driver has filled the entries again: the next one repeats what the driver has not seen done, in order, and nothing else, and
    /// goes on at the same places.
    #[test]
    fn who_comes_next_goes_on_where_the_driver_is() {
        for (begin, refilled) in [0, 1, 2, 3, 4].into_iter().flat_map(|at| [(at, false), (at, true)]) {
            for killed_after in 0..=9 {
                let place = Place::new();
                let start = Position { index: begin, wrap: true };
                let mut records = place.records();
                assert_eq!(records.begin(&place.ring, start).expect("records"), None);
                let (second, third) = (start.after(2, ENTRIES), start.after(3, ENTRIES));
                let mut left = killed_after;
                let mut step = || {
                    left -= 1;
                    left >= 0
                };
                place.available(start, 2, 7);
                place.available(second, 1, 8);
                place.available(third, 2, 9);
                let (mut begun, mut seen, mut used) = (Vec::new(), Vec::new(), start);
                let mut of = [0; 10];
                let ring = &place.ring;
                'work: {
                    for at in [start, second, third] {
                        if !step() {
                            break 'work;
                        }
                        let descriptors = ring.next(at).expect("a ring").expect("a request");
                        let number = descriptors.last().expect("one").link;
                        of[usize::from(number)] = records.started(&descriptors).expect("a record");
                        begun.push(number);
                    }
                    for (number, count) in [(8, 1), (7, 2)] {
                        let after = used.after(count, ENTRIES);
                        if !step() {
                            break 'work;
                        }
                        records.about_to_publish(of[usize::from(number)], after).expect("a record");
                        if !step() {
                            break 'work;
                        }
                        ring.put_used(used, number, 1, None).expect("a place");
                        seen.push(number);
                        if refilled {
                            // The driver sees it, and fills the entries once more.
                            place.available(Position { wrap: !used.wrap, ..used }, count, 6);
                        }
                        used = after;
                        if !step() {
                            break 'work;
                        }
                        records.published(of[usize::from(number)]).expect("a record");
                    }
                }
                let found = place.records().begin(ring, start).expect("records").expect("they are in use");
                let again: Vec<u16> =
                    found.begun.iter().map(|one| one.descriptors.last().expect("one").link).collect();
                begun.retain(|number| !seen.contains(number));
                let case = format!("at {begin}, refilled: {refilled}, killed after step {killed_after}");
                assert_eq!((again, found.used), (begun.clone(), used), "{case}");
                let taken: u16 = begun.iter().map(|number| if *number == 8 { 1 } else { 2 }).sum();
                assert_eq!(found.available, used.after(taken, ENTRIES), "{case}");
                let whole = found.begun.iter().all(|one| {
                    one.descriptors.iter().enumerate().all(|(nth, own)| own.address == nth as u64)
                });
                assert!(whole, "{case}: {found:?}");
            }
        }
    }

    /// All records are used and given back many times, in another order each time: none is lost.
    #[test]
    fn records_are_never_used_up() {
        let place = Place::new();
        let mut records = place.records();
        records.begin(&place.ring, Position::START).expect("records");
        let one = [Descriptor::default()];
        let mut used = Position::START;
        for round in 0..50 {
            let mut begun: Vec<u16> =
                (0..ENTRIES).map(|_| records.started(&one).expect("a free record")).collect();
            assert!(records.started(&one).is_err(), "more than the ring has");
            begun.rotate_left(round % 5);
            for record in begun {
                used = used.after(1, ENTRIES);
                records.about_to_publish(record, used).expect("a record");
                records.published(record).expect("a record");
            }
        }
    }
}
