//! What a guest and its front-end write: messages, rings in memory, records of requests in flight.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use door_vhost_user_blk::inflight::{Form, Inflight};
use door_vhost_user_blk::limits::{CHAIN_DESCRIPTORS_MAX, RANGES_MAX, REQUEST_BYTES_MAX};
use door_vhost_user_blk::memory::Memory;
use door_vhost_user_blk::message::{
    Area, HEADER_BYTES, Header, InflightInfo, Message, RegionInfo, RingAddress,
};
use door_vhost_user_blk::request::{Ask, Range, Request, Takes};
use door_vhost_user_blk::ring::packed::{PackedRing, Position};
use door_vhost_user_blk::ring::split::SplitRing;
use door_vhost_user_blk::ring::{Chain, RingFeatures, Segments};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::input::Input;

/// Bytes of a guest's memory: two regions of half of it, side by side.
const MEMORY_BYTES: u64 = 1 << 16;
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000;

/// Where the parts of the ring are.
const AVAILABLE_AT: u64 = 0x2000;
const USED_AT: u64 = 0x3000;

/// Bytes of the disk.
const DISK_BYTES: u64 = 1 << 20;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() & 3 {
        0 => messages(&mut input),
        1 => records(&mut input),
        _ => rings(&mut input),
    }
}

fn messages(input: &mut Input<'_>) {
    while !input.is_empty() {
        let mut head = [0; HEADER_BYTES];
        let taken = input.bytes(HEADER_BYTES);
        head.iter_mut().zip(taken).for_each(|(place, byte)| *place = *byte);
        if let Ok(header) = Header::decode(head) {
            let _ = Message::decode(header.request, input.bytes(header.payload_bytes));
        }
        let request = u32::from(input.byte() % 45);
        let len = usize::from(input.byte());
        match Message::decode(request, input.bytes(len)) {
            Ok(Message::SetMemoryTable(regions)) => assert!(regions.len() <= 16),
            Ok(Message::GetConfig(range) | Message::SetConfig(range)) => {
                assert!(range.offset + range.bytes.len() <= 256);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// Records with any content: what is found in them is of the ring, each once.
fn records(input: &mut Input<'_>) {
    let entries = 1 << (input.byte() % 6);
    let info = InflightInfo { area: Area { len: 0, file_offset: 0 }, queues: 2, entries };
    let Ok((fd, info)) = Inflight::create(info, Form::Packed) else {
        panic!("records in bounds are refused")
    };
    let used = u16::from(input.byte());
    let _ = rustix::io::pwrite(&fd, input.bytes(1 << 14), 0);
    let Ok(all) = Inflight::open(&fd, info) else { panic!("our own records are refused") };
    let all = Arc::new(all);
    let _ = all.cache();
    for queue in 0..2 {
        packed_records(&all, queue, entries);
        let Some(mut records) = all.split(queue, entries) else { panic!("a queue is missing") };
        let Ok(Some(found)) = records.begin(used) else { continue };
        let mut heads = found.heads.clone();
        heads.sort_unstable();
        heads.dedup();
        assert_eq!(heads.len(), found.heads.len(), "a request is repeated twice");
        assert!(heads.iter().all(|head| *head < entries));
        for head in heads {
            assert!(records.about_to_publish(head).is_ok() && records.published(head, used).is_ok());
        }
    }
}

/// The same of a packed ring: what is found is at most as much as the ring has, and no record leads beyond the last.
fn packed_records(all: &Arc<Inflight>, queue: usize, entries: u16) {
    let Ok(fd) = memfd_create("guest", MemfdFlags::CLOEXEC) else { return };
    if ftruncate(&fd, MEMORY_BYTES).is_err() {
        return;
    }
    let memory = memory(&fd);
    let Ok(ring) = PackedRing::new(&memory, &address(), u32::from(entries), RingFeatures::default()) else {
        panic!("a sound ring is refused")
    };
    let Some(mut records) = all.packed(queue, entries) else { panic!("a queue is missing") };
    let Ok(found) = records.begin(&ring, Position::START) else { return };
    let mut used = Position::START;
    for begun in found.into_iter().flat_map(|found| found.begun) {
        assert!(begun.record < entries && (1..=usize::from(entries)).contains(&begun.descriptors.len()));
        used = used.after(begun.descriptors.len() as u16, entries);
        if records.about_to_publish(begun.record, used).is_ok() {
            let _ = records.published(begun.record);
        }
    }
    for _ in 0..=entries {
        // Who changed the list has none free, or the same one again: it stays inside.
        let _ = records.started(&[Default::default(), Default::default()]);
    }
}

fn memory(fd: &OwnedFd) -> Memory {
    let half = MEMORY_BYTES / 2;
    let region = |at: u64| RegionInfo { guest: GUEST + at, len: half, user: USER + at, file_offset: at };
    let memory = Memory::default().with(region(0), fd).and_then(|memory| memory.with(region(half), fd));
    let Ok(memory) = memory else { panic!("regions side by side are refused") };
    memory
}

fn address() -> RingAddress {
    let [descriptors, used, available] = [0, USED_AT, AVAILABLE_AT].map(|at| USER + at);
    RingAddress { ring: 0, logged: false, descriptors, used, available, log_guest: 0 }
}

/// Descriptors that mostly make sense, in rings of both forms, whose requests are then read.
fn rings(input: &mut Input<'_>) {
    let Ok(fd) = memfd_create("guest", MemfdFlags::CLOEXEC) else { return };
    if ftruncate(&fd, MEMORY_BYTES).is_err() {
        return;
    }
    let features = RingFeatures { indirect: input.flag(), event_index: input.flag(), packed: false };
    let entries = 1u32 << (input.byte() % 7);
    let put = |at: u64, bytes: &[u8]| {
        // Inside the file.
        let _ = rustix::io::pwrite(&fd, bytes, at);
    };
    // Headers of each kind, for descriptors to name.
    for (at, kind) in (0x4000..).step_by(16).zip([0u32, 1, 4, 8, 11, 13, 77]) {
        put(at, &[&kind.to_le_bytes()[..], &[0; 4], &input.number(2).to_le_bytes()].concat());
    }
    let available = u16::from(input.byte());
    put(AVAILABLE_AT + 2, &available.to_le_bytes());
    for entry in 0..u64::from(available.min(64)) {
        put(AVAILABLE_AT + 4 + 2 * entry, &u16::from(input.byte() % 66).to_le_bytes());
    }
    let mut at = 0;
    while !input.is_empty() && at < 0x1000 {
        let descriptor = descriptor(input);
        // The same in the ring and in a table.
        put(at, &descriptor);
        put(0x5000 + at, &descriptor);
        at += 16;
    }
    let memory = Arc::new(memory(&fd));
    let Ok(ring) = SplitRing::new(&memory, &address(), entries, features) else {
        panic!("a sound ring is refused")
    };
    requests(&ring, &memory);
    // The same bytes as packed descriptors: flags and numbers change places, and carry the driver's mark.
    let mut place = 0;
    while place < at {
        let mut flags = [0; 4];
        if rustix::io::pread(&fd, &mut flags, place + 12).is_ok() {
            let [f0, f1, n0, n1] = flags;
            put(place + 12, &[n0, n1, f0 | 1 << 7, f1]);
        }
        place += 16;
    }
    let features = RingFeatures { packed: true, ..features };
    let Ok(ring) = PackedRing::new(&memory, &address(), entries, features) else {
        panic!("a sound ring is refused")
    };
    packed_requests(&ring, &memory);
}

fn packed_requests(ring: &PackedRing, memory: &Arc<Memory>) {
    let mut at = Position::START;
    for _ in 0..ring.entries() {
        let Ok(Some(descriptors)) = ring.next(at) else { return };
        assert!((1..=usize::from(ring.entries())).contains(&descriptors.len()));
        let after = at.after(descriptors.len() as u16, ring.entries());
        if let Ok(chain) = ring.chain(memory, &descriptors) {
            request(chain, memory);
        }
        assert!(ring.put_used(at, 0, 1, None).is_ok() && ring.wants_call(after, 1).is_ok());
        at = after;
    }
}

fn descriptor(input: &mut Input<'_>) -> Vec<u8> {
    let how = input.byte();
    let address = match how & 3 {
        0 => GUEST + 0x4000 + 16 * u64::from(input.byte() % 8),
        1 => GUEST + 0x5000 + input.number(1),
        2 => GUEST + input.number(2),
        _ => input.number(8),
    };
    let len = match how >> 2 & 3 {
        0 => 16,
        1 => 512 * input.number(1),
        2 => input.number(1),
        _ => input.number(4),
    };
    let (flags, next) = (u16::from(input.byte() & 7), u16::from(input.byte() % 66));
    [&address.to_le_bytes()[..], &(len as u32).to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()]
        .concat()
}

fn requests(ring: &SplitRing, memory: &Arc<Memory>) {
    let Ok(count) = ring.available_from(0) else { return };
    assert!(count <= ring.entries());
    for index in 0..count {
        let Ok(chain) = ring.head(index).and_then(|head| ring.chain(memory, head)) else { continue };
        request(chain, memory);
    }
}

fn request(chain: Chain, memory: &Arc<Memory>) {
    let takes = Takes { size: DISK_BYTES, read_only: false, discard: true, zero: true };
    assert!(chain.readable.len() + chain.writable.len() <= CHAIN_DESCRIPTORS_MAX);
    let Ok(request) = Request::of(chain, memory, &takes) else { return };
    assert!(request.bytes() <= REQUEST_BYTES_MAX);
    match &request.ask {
        Ask::Read { offset, data, len } | Ask::Write { offset, data, len } => {
            assert!(offset + len <= DISK_BYTES && len.is_multiple_of(512));
            data_fits(data, *len, memory);
        }
        Ask::Discard(ranges) | Ask::Zero(ranges) => {
            let inside = |range: &Range| range.offset + range.len <= DISK_BYTES;
            assert!(ranges.len() <= RANGES_MAX as usize && ranges.iter().all(inside));
        }
        Ask::Flush | Ask::Id { .. } | Ask::Answered(_) => {}
    }
    assert!(memory.write(request.status_at, &[0]).is_ok(), "no place for the status");
}

/// The segments have as many bytes as the request, and are memory as a whole or not at all.
fn data_fits(data: &Segments, len: u64, memory: &Arc<Memory>) {
    let ranges = data.iter().map(|segment| (segment.address, u64::from(segment.len)));
    assert_eq!(ranges.clone().map(|(_, len)| len).sum::<u64>(), len);
    if let Ok(bytes) = memory.foreign(ranges) {
        assert_eq!(bytes.len() as u64, len);
    }
}
