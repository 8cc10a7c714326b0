//! Rings in guest memory: which requests the driver made available, and which the device has used. There are two forms, [`split`] and
//! [`packed`]; what a request looks like is the same in both.
//!
//! The driver may write anything, at any time. Each field is read once, into a value of our own; a chain is followed for a bounded
//! number of steps; every address is looked up in the guest's memory.

pub mod packed;
pub mod split;

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::limits::{CHAIN_DESCRIPTORS_MAX, RING_ENTRIES_MAX};
use crate::memory::{DirtyLog, Memory, Outside, Span};

/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 16;
/// Another descriptor follows.
const NEXT: u16 = 1;
/// The device writes there.
const WRITE: u16 = 2;
/// It is a table of descriptors.
const INDIRECT: u16 = 4;

/// What is wrong with a ring. It is of no use any more: the driver broke it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// How many entries it has.
    #[error("a ring has {0} entries; 1 to {RING_ENTRIES_MAX} are allowed, of a split ring a power of two")]
    Entries(u32),
    /// Where it is.
    #[error("a part of the ring at {0:#x} is not in one region of the guest's memory, or not aligned")]
    Place(u64),
    /// The index went further than the ring is long.
    #[error("the driver made {found} requests available at once, in a ring of {entries}")]
    Jump {
        /// How many.
        found: u16,
        /// Entries of the ring.
        entries: u16,
    },
    /// A descriptor's number.
    #[error("descriptor {found} is named, of {entries}")]
    Descriptor {
        /// The number.
        found: u16,
        /// How many there are.
        entries: usize,
    },
    /// More descriptors than there can be: it goes in circles.
    #[error("a chain of descriptors has no end after {0}")]
    Endless(usize),
    /// A table in a table, or one that was not agreed on.
    #[error("a table of descriptors stands where none may be")]
    Indirect,
    /// The bytes of a table.
    #[error("a table of descriptors has {0} bytes; a multiple of 16 up to {max} is allowed", max = CHAIN_DESCRIPTORS_MAX * DESCRIPTOR_BYTES)]
    Table(u32),
    /// What the device reads stands before what it writes.
    #[error("a chain has a readable descriptor behind a writable one")]
    Order,
    /// No room for a status.
    #[error("a chain has no byte for the status")]
    NoStatus,
    /// Where a packed ring goes on.
    #[error("a ring of {entries} entries cannot resume at entry {found}")]
    Position {
        /// The entry.
        found: u16,
        /// How many there are.
        entries: u16,
    },
    /// Where a split ring goes on.
    #[error("a split ring cannot resume at {0:#x}: an index has 16 bits")]
    Base(u32),
    /// Records of requests in flight that the front-end kept.
    #[error("the records of requests in flight make no sense: {0}")]
    Records(&'static str),
    /// Memory that was read may not have what was written there.
    #[error("memory that the front-end shares was lost: its file was cut, or memory of the machine failed")]
    Lost,
    /// Addresses that are no memory.
    #[error(transparent)]
    Outside(#[from] Outside),
}

/// A range of guest memory that a descriptor names. It has not been looked up yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte.
    pub address: u64,
    /// Bytes; not zero.
    pub len: u32,
}

/// Ranges in order.
pub type Segments = SmallVec<[Segment; 4]>;

/// A request as the driver described it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What names it when it is done: in a split ring its first descriptor, in a packed one the number that the driver gave it.
    pub head: u16,
    /// What the device reads.
    pub readable: Segments,
    /// What the device writes.
    pub writable: Segments,
}

/// What was agreed on with the driver, as far as rings depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingFeatures {
    /// Tables of descriptors.
    pub indirect: bool,
    /// Notifications by index.
    pub event_index: bool,
    /// The ring is a packed one.
    pub packed: bool,
}

/// Whether `event` is one of the indices from `before` (included) to `index` (excluded), round the end of the numbers.
fn passes(event: u16, before: u16, index: u16) -> bool {
    index.wrapping_sub(event).wrapping_sub(1) < index.wrapping_sub(before)
}

/// The bytes of a table of descriptors, copied once: they can change no more.
fn table(memory: &Memory, table: &Descriptor) -> Result<SmallVec<[u8; 512]>, RingFault> {
    let len = table.len as usize;
    if len == 0 || !len.is_multiple_of(DESCRIPTOR_BYTES) || len > CHAIN_DESCRIPTORS_MAX * DESCRIPTOR_BYTES {
        return Err(RingFault::Table(table.len));
    }
    let mut bytes: SmallVec<[u8; 512]> = smallvec::smallvec![0; len];
    memory.read(table.address, &mut bytes)?;
    Ok(bytes)
}

fn load(part: &Span, at: usize, order: Ordering) -> Result<u16, RingFault> {
    let loaded = part.mapping.load_u16(part.offset + at, order);
    loaded.map(u16::from_le).map_err(|_| RingFault::Place(part.guest))
}

fn store(part: &Span, at: usize, value: u16, order: Ordering) -> Result<(), RingFault> {
    let stored = part.mapping.store_u16(part.offset + at, value.to_le(), order);
    stored.map_err(|_| RingFault::Place(part.guest))
}

fn write(part: &Span, at: usize, bytes: &[u8]) -> Result<(), RingFault> {
    part.mapping.write(part.offset + at, bytes).map_err(|_| RingFault::Place(part.guest))
}

/// A part of a ring, which has to be aligned and in one region.
fn find(memory: &Memory, user: u64, len: usize, alignment: u64) -> Result<Span, RingFault> {
    let span = memory.span(user, len).filter(|_| user.is_multiple_of(alignment));
    span.filter(|span| span.offset.is_multiple_of(2)).ok_or(RingFault::Place(user))
}

fn mark(log: Option<&DirtyLog>, guest: u64, at: usize, len: usize) {
    if let Some(log) = log {
        log.mark(guest.saturating_add(at as u64), len as u64);
    }
}

/// One descriptor, copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// What it is.
    pub flags: u16,
    /// Of a split ring: the descriptor that follows. Of a packed one: the number that the driver gave to the request.
    pub link: u16,
}

impl Descriptor {
    fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, len @ .., f0, f1, n0, n1] = *bytes;
        Self {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_le_bytes(len),
            flags: u16::from_le_bytes([f0, f1]),
            link: u16::from_le_bytes([n0, n1]),
        }
    }
}

impl Chain {
    fn add(&mut self, descriptor: &Descriptor) -> Result<(), RingFault> {
        let segment = Segment { address: descriptor.address, len: descriptor.len };
        let writes = descriptor.flags & WRITE != 0;
        if !writes && !self.writable.is_empty() {
            return Err(RingFault::Order);
        }
        if segment.len > 0 {
            if writes { self.writable.push(segment) } else { self.readable.push(segment) }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_passed_by_the_entries_that_contain_it() {
        assert!(passes(5, 5, 6) && passes(5, 0, 6) && passes(5, 5, 9));
        assert!(!passes(5, 6, 9) && !passes(5, 0, 5) && !passes(5, 5, 5));
        assert!(passes(u16::MAX, u16::MAX, 0) && passes(0, u16::MAX, 1) && !passes(1, u16::MAX, 1));
    }
}
