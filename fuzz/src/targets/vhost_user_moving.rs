//! A driver that changes its ring while requests of it are at work, and a front-end that takes memory away and gives it back meanwhile.
//!
//! The steps are those of the door's ledger: take, carry out, tell, in any order. As long as the ring is not broken, records of requests in flight say
//! at the end what is in flight.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use door_vhost_user_blk::inflight::{Form, Inflight, packed, split};
use door_vhost_user_blk::memory::Memory;
use door_vhost_user_blk::message::{Area, InflightInfo, RegionInfo, RingAddress};
use door_vhost_user_blk::request::{Request, Takes};
use door_vhost_user_blk::ring::packed::{PackedRing, Position};
use door_vhost_user_blk::ring::split::SplitRing;
use door_vhost_user_blk::ring::{RingFault, RingFeatures};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::input::Input;

/// Bytes of a guest's memory: a region with the ring, and three that come and go.
const REGION_BYTES: u64 = 1 << 14;
const REGIONS: u64 = 4;
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000;

/// Where the parts of the ring are, in the first region.
const AVAILABLE_AT: u64 = 0x1000;
const USED_AT: u64 = 0x1800;

/// Headers of requests, one of each kind, also in the first region.
const HEADERS_AT: u64 = 0x3000;
const KINDS: [u32; 7] = [0, 1, 4, 8, 11, 13, 77];

const TAKES: Takes = Takes { size: 1 << 20, read_only: false, discard: true, zero: true };

/// Requests at work at most.
const AT_WORK_MAX: usize = 64;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let entries = 1u16 << (1 + input.byte() % 5);
    let features = RingFeatures { indirect: true, event_index: input.flag(), packed: input.flag() };
    let form = if features.packed { Form::Packed } else { Form::Split };
    let Ok(fd) = memfd_create("guest", MemfdFlags::CLOEXEC) else { return };
    if ftruncate(&fd, REGION_BYTES * REGIONS).is_err() {
        return;
    }
    for (at, kind) in (HEADERS_AT..).step_by(16).zip(KINDS) {
        put(&fd, at, &[&kind.to_le_bytes()[..], &[0; 4], &input.number(1).to_le_bytes()].concat());
    }
    let info = InflightInfo { area: Area { len: 0, file_offset: 0 }, queues: 1, entries };
    let Ok((records, info)) = Inflight::create(info, form) else { panic!("records in bounds are refused") };
    let Ok(all) = Inflight::open(&records, info) else { panic!("our own records are refused") };
    let world = World { fd, entries, features };
    let all = Arc::new(all);
    // Whatever happens to a ring is reported; nothing is to be done about it here.
    match form {
        Form::Split => drop(world.split(&mut input, &all, &|| reopened(&records, info))),
        Form::Packed => drop(world.packed(&mut input, &all, &|| reopened(&records, info))),
    }
}

/// The records as the next process has them.
fn reopened(records: &OwnedFd, info: InflightInfo) -> Arc<Inflight> {
    let Ok(all) = Inflight::open(records, info) else { panic!("our own records are refused") };
    Arc::new(all)
}

fn put(fd: &OwnedFd, at: u64, bytes: &[u8]) {
    // Inside the file, or cut by it.
    let room = (REGION_BYTES * REGIONS).saturating_sub(at);
    let bytes = bytes.get(..bytes.len().min(room as usize)).unwrap_or_default();
    let _ = rustix::io::pwrite(fd, bytes, at);
}

/// What the driver or another writer may change, and how.
struct World {
    fd: OwnedFd,
    entries: u16,
    features: RingFeatures,
}

/// One request at work, which holds the memory that it was taken with.
struct AtWork<T> {
    ticket: T,
    status_at: u64,
    memory: Arc<Memory>,
}

impl World {
    fn address(&self, moved: bool) -> RingAddress {
        // The used ring may go elsewhere, into a region that can be taken away.
        let used = if moved { REGION_BYTES } else { USED_AT };
        let [descriptors, used, available] = [0, used, AVAILABLE_AT].map(|at| USER + at);
        RingAddress { ring: 0, logged: false, descriptors, used, available, log_guest: 0 }
    }

    /// The first region is always there; of the others those in `present`.
    fn memory(&self, present: u8) -> Arc<Memory> {
        let mut there = (0..REGIONS).filter(|number| *number == 0 || present & 1 << number != 0);
        let memory = there.try_fold(Memory::default(), |memory, number| {
            let at = number * REGION_BYTES;
            let info = RegionInfo { guest: GUEST + at, len: REGION_BYTES, user: USER + at, file_offset: at };
            memory.with(info, &self.fd)
        });
        let Ok(memory) = memory else { panic!("regions side by side are refused") };
        Arc::new(memory)
    }

    /// The driver writes a descriptor, a number of the available ring, or anything anywhere.
    fn write(&self, input: &mut Input<'_>) {
        let place = u64::from(input.byte()) % u64::from(self.entries);
        match input.byte() % 4 {
            0 | 1 => put(&self.fd, 16 * place, &self.descriptor(input)),
            2 => {
                put(&self.fd, AVAILABLE_AT + 4 + 2 * place, &u16::from(input.byte() % 34).to_le_bytes());
                put(&self.fd, AVAILABLE_AT + 2, &u16::from(input.byte()).to_le_bytes());
            }
            _ => {
                let len = usize::from(input.byte() % 64);
                put(&self.fd, input.number(2), input.bytes(len));
            }
        }
    }

    fn descriptor(&self, input: &mut Input<'_>) -> Vec<u8> {
        let how = input.byte();
        let address = match how & 3 {
            0 => GUEST + HEADERS_AT + 16 * u64::from(input.byte() % 8),
            // Across the end of a region, too.
            1 => GUEST + REGION_BYTES * u64::from(1 + input.byte() % 3) - input.number(1),
            2 => GUEST + input.number(2),
            _ => input.number(8),
        };
        let len = match how >> 2 & 3 {
            0 => 16,
            1 => 512 * input.number(1),
            _ => input.number(1),
        };
        let (flags, next) = (u16::from(input.byte() & 7), u16::from(input.byte() % 34));
        let mut tail = [flags.to_le_bytes(), next.to_le_bytes()];
        if self.features.packed {
            // Available in the first pass or in the second.
            let mark = if how & 0x40 == 0 { 1 << 7 } else { 1 << 15 };
            tail = [next.to_le_bytes(), (flags | mark).to_le_bytes()];
        }
        [&address.to_le_bytes()[..], &(len as u32).to_le_bytes(), &tail.concat()].concat()
    }

    fn split(
        &self,
        input: &mut Input<'_>,
        all: &Arc<Inflight>,
        next_process: &dyn Fn() -> Arc<Inflight>,
    ) -> Result<(), RingFault> {
        let (mut memory, mut moved) = (self.memory(0xff), false);
        let find = |memory: &Memory, moved| {
            SplitRing::new(memory, &self.address(moved), u32::from(self.entries), self.features)
        };
        let mut ring = find(&memory, moved)?;
        let Some(mut records) = all.split(0, self.entries) else { panic!("a queue is missing") };
        assert!(matches!(records.begin(0), Ok(None)), "fresh records have requests");
        let (mut available, mut used) = (0u16, 0u16);
        let mut at_work: Vec<AtWork<u16>> = Vec::new();
        while !input.is_empty() {
            match input.byte() % 6 {
                0 | 1 => self.write(input),
                2 if at_work.len() < AT_WORK_MAX => {
                    if ring.available_from(available)? == 0 {
                        continue;
                    }
                    let head = ring.head(available)?;
                    // A head that is at work already has one record for both: a driver that does that breaks its own ring.
                    if at_work.iter().any(|one| one.ticket == head) {
                        break;
                    }
                    let request = Request::of(ring.chain(&memory, head)?, &memory, &TAKES)?;
                    assert_eq!(request.head, head);
                    assert!(records.started(head).is_ok());
                    available = available.wrapping_add(1);
                    at_work.push(AtWork {
                        ticket: head,
                        status_at: request.status_at,
                        memory: Arc::clone(&memory),
                    });
                }
                3 if !at_work.is_empty() => {
                    let AtWork { ticket, status_at, memory } =
                        at_work.remove(usize::from(input.byte()) % at_work.len());
                    assert!(
                        memory.write(status_at, &[0]).is_ok(),
                        "a request's memory is gone while it is at work"
                    );
                    assert!(records.about_to_publish(ticket).is_ok());
                    ring.put_used(used, ticket, 1, None)?;
                    used = used.wrapping_add(1);
                    ring.publish_used(used, None)?;
                    assert!(records.published(ticket, used).is_ok());
                    ring.wants_call(used.wrapping_sub(1), used)?;
                }
                4 => {
                    (memory, moved) = (self.memory(input.byte()), input.flag());
                    ring = find(&memory, moved)?;
                }
                _ => ring.ask_for_kick(available, None)?,
            }
        }
        let next = next_process();
        let Some(mut found) = next.split(0, self.entries) else { panic!("a queue is missing") };
        let expected: Vec<u16> = at_work.iter().map(|one| one.ticket).collect();
        let found =
            found.begin(used).ok().flatten().map(|split::Recovered { heads }| heads).unwrap_or_default();
        assert_eq!(found, expected, "what is in flight");
        Ok(())
    }

    fn packed(
        &self,
        input: &mut Input<'_>,
        all: &Arc<Inflight>,
        next_process: &dyn Fn() -> Arc<Inflight>,
    ) -> Result<(), RingFault> {
        let (mut memory, mut moved) = (self.memory(0xff), false);
        let find = |memory: &Memory, moved| {
            PackedRing::new(memory, &self.address(moved), u32::from(self.entries), self.features)
        };
        let mut ring = find(&memory, moved)?;
        let Some(mut records) = all.packed(0, self.entries) else { panic!("a queue is missing") };
        assert!(records.begin(&ring, Position::START)?.is_none(), "fresh records have requests");
        let (mut available, mut used) = (Position::START, Position::START);
        let mut at_work: Vec<AtWork<(u16, u16)>> = Vec::new();
        while !input.is_empty() {
            match input.byte() % 6 {
                0 | 1 => self.write(input),
                2 => {
                    let Some(descriptors) = ring.next(available)? else { continue };
                    assert!((1..=usize::from(self.entries)).contains(&descriptors.len()));
                    let request = Request::of(ring.chain(&memory, &descriptors)?, &memory, &TAKES)?;
                    // There are as many records as entries: a driver that has more at work than the ring holds broke it.
                    let record = records.started(&descriptors)?;
                    let entries = descriptors.len() as u16;
                    available = available.after(entries, self.entries);
                    let ticket = (record, entries);
                    at_work.push(AtWork {
                        ticket,
                        status_at: request.status_at,
                        memory: Arc::clone(&memory),
                    });
                }
                3 if !at_work.is_empty() => {
                    let one = at_work.remove(usize::from(input.byte()) % at_work.len());
                    let (record, entries) = one.ticket;
                    assert!(
                        one.memory.write(one.status_at, &[0]).is_ok(),
                        "a request's memory is gone while it is at work"
                    );
                    let after = used.after(entries, self.entries);
                    records.about_to_publish(record, after)?;
                    ring.put_used(used, record, 1, None)?;
                    used = after;
                    records.published(record)?;
                    ring.wants_call(used, entries)?;
                }
                4 => {
                    (memory, moved) = (self.memory(input.byte()), input.flag());
                    ring = find(&memory, moved)?;
                }
                _ => ring.ask_for_kick(available, None)?,
            }
        }
        let next = next_process();
        let Some(mut found) = next.packed(0, self.entries) else { panic!("a queue is missing") };
        let found = found.begin(&ring, Position::START)?;
        let begun = found.map(|packed::Recovered { begun, .. }| begun).unwrap_or_default();
        let found: Vec<(u16, u16)> =
            begun.iter().map(|one| (one.record, one.descriptors.len() as u16)).collect();
        assert_eq!(found, at_work.iter().map(|one| one.ticket).collect::<Vec<_>>(), "what is in flight");
        Ok(())
    }
}
