//! Records to bytes.

use super::{Before, MAGIC, Record, SECTOR, TraceDisk, TraceRequest, VERSION, tag, varint};
use crate::front::Kind;

/// Writes the records of one trace, in order.
#[derive(Debug, Default)]
pub struct Encoder {
    disks: Vec<Before>,
    disk: u16,
    now_us: u64,
}

impl Encoder {
    /// An encoder, and the bytes that a trace begins with.
    pub fn new() -> (Self, Vec<u8>) {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        (Self::default(), bytes)
    }

    /// Appends a record to `bytes`. A request of a disk that was not named before is left out; one that came
    /// before the last one gets the last one's time.
    pub fn put(&mut self, bytes: &mut Vec<u8>, record: &Record) {
        match record {
            Record::Disk(disk) => self.put_disk(bytes, disk),
            Record::Request(request) => self.put_request(bytes, request),
            Record::Lost(lost) => {
                bytes.push(tag::LOST);
                varint::put(bytes, *lost);
            }
            Record::End { requests, lost } => {
                bytes.push(tag::END);
                varint::put(bytes, *requests);
                varint::put(bytes, *lost);
            }
        }
    }

    fn put_disk(&mut self, bytes: &mut Vec<u8>, disk: &TraceDisk) {
        self.disks.push(Before::default());
        bytes.push(tag::DISK);
        varint::put(bytes, disk.bytes);
        varint::put(bytes, disk.cluster_bytes);
        varint::put(bytes, disk.name.len() as u64);
        bytes.extend_from_slice(disk.name.as_bytes());
    }

    fn put_request(&mut self, bytes: &mut Vec<u8>, request: &TraceRequest) {
        let Some(before) = self.disks.get_mut(usize::from(request.disk)) else { return };
        let same_disk = request.disk == self.disk;
        let place = bytes.len();
        bytes.push(request.kind.index() as u8 | if same_disk { tag::SAME_DISK } else { 0 });
        if !same_disk {
            varint::put(bytes, u64::from(request.disk));
        }
        varint::put(bytes, request.at_us.saturating_sub(self.now_us));
        self.disk = request.disk;
        self.now_us = self.now_us.max(request.at_us);
        if request.kind != Kind::Flush {
            let flags = put_range(bytes, before, request);
            bytes[place] |= flags;
        }
    }
}

/// Appends the range, and gives the flags that say how.
fn put_range(bytes: &mut Vec<u8>, before: &mut Before, request: &TraceRequest) -> u8 {
    let len = request.len.min(u64::MAX - request.offset);
    let distance = request.offset.wrapping_sub(before.end).cast_signed();
    let unit = if distance % SECTOR as i64 == 0 && len.is_multiple_of(SECTOR) { SECTOR } else { 1 };
    let mut flags = if unit == SECTOR { tag::SECTORS } else { 0 };
    match distance {
        0 => flags |= tag::FOLLOWS,
        distance => varint::put(bytes, varint::fold(distance / unit as i64)),
    }
    match len == before.len {
        true => flags |= tag::SAME_LEN,
        false => varint::put(bytes, len / unit),
    }
    *before = Before { end: request.offset + len, len };
    flags
}
