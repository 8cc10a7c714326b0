//! A split ring in guest memory (virtio 1.2, 2.7): which requests the driver made available, and which the device has used.
//!
//! The driver may write anything, at any time. Each field is read once, into a value of our own; a chain is followed for a bounded
//! number of steps; every address is looked up in the guest's memory.

use std::sync::atomic::{Ordering, fence};

use smallvec::SmallVec;

use crate::limits::{CHAIN_DESCRIPTORS_MAX, RING_ENTRIES_MAX};
use crate::memory::{DirtyLog, Memory, Outside, Span};
use crate::message::RingAddress;

/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 16;
/// Bytes of an entry of the used ring.
const USED_ENTRY_BYTES: usize = 8;
/// Flags and index stand before the entries of both rings.
const ENTRIES_AT: usize = 4;
/// Where the index is.
const INDEX_AT: usize = 2;

/// Another descriptor follows.
const NEXT: u16 = 1;
/// The device writes there.
const WRITE: u16 = 2;
/// It is a table of descriptors.
const INDIRECT: u16 = 4;

/// The driver wants no interrupts.
const NO_INTERRUPT: u16 = 1;

/// What is wrong with a ring. It is of no use any more: the driver broke it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// How many entries it has.
    #[error("a ring has {0} entries; a power of two up to {RING_ENTRIES_MAX} is allowed")]
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
    /// What names it in the used ring.
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
}

/// A ring's place in memory.
#[derive(Debug)]
pub struct Ring {
    entries: u16,
    features: RingFeatures,
    descriptors: Span,
    available: Span,
    used: Span,
    /// The used ring as the guest has it, where writes there are logged.
    log_used: Option<u64>,
}

impl Ring {
    /// The ring of `entries` at `address`.
    ///
    /// # Errors
    /// When a part of it is not in memory or not aligned, or it can have no such number of entries.
    pub fn new(
        memory: &Memory,
        address: &RingAddress,
        entries: u32,
        features: RingFeatures,
    ) -> Result<Self, RingFault> {
        let fits = u16::try_from(entries).ok().filter(|n| n.is_power_of_two() && *n <= RING_ENTRIES_MAX);
        let entries = fits.ok_or(RingFault::Entries(entries))?;
        let count = usize::from(entries);
        // Behind the entries of each ring stands the index of the other side's event.
        let find = |user: u64, len: usize, alignment: u64| {
            let span = memory.span(user, len).filter(|_| user.is_multiple_of(alignment));
            span.filter(|span| span.offset.is_multiple_of(2)).ok_or(RingFault::Place(user))
        };
        Ok(Self {
            entries,
            features,
            descriptors: find(address.descriptors, count * DESCRIPTOR_BYTES, 16)?,
            available: find(address.available, ENTRIES_AT + 2 * count + 2, 2)?,
            used: find(address.used, ENTRIES_AT + USED_ENTRY_BYTES * count + 2, 4)?,
            log_used: address.logged.then_some(address.log_guest),
        })
    }

    /// Entries.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// How many requests are available from index `next` on.
    ///
    /// # Errors
    /// When there are more than the ring has entries.
    pub fn available_from(&self, next: u16) -> Result<u16, RingFault> {
        // What the driver wrote before the index is seen after it.
        let index = self.load(&self.available, INDEX_AT, Ordering::Acquire)?;
        let found = index.wrapping_sub(next);
        if found > self.entries {
            return Err(RingFault::Jump { found, entries: self.entries });
        }
        Ok(found)
    }

    /// The descriptor that entry `index` of the available ring names.
    ///
    /// # Errors
    /// When there is none of that number.
    pub fn head(&self, index: u16) -> Result<u16, RingFault> {
        let at = ENTRIES_AT + 2 * usize::from(index % self.entries);
        let head = self.load(&self.available, at, Ordering::Relaxed)?;
        if head >= self.entries {
            return Err(RingFault::Descriptor { found: head, entries: usize::from(self.entries) });
        }
        Ok(head)
    }

    /// The chain that begins at descriptor `head`.
    ///
    /// # Errors
    /// When it is none. Costs at most as many steps as [`CHAIN_DESCRIPTORS_MAX`].
    pub fn chain(&self, memory: &Memory, head: u16) -> Result<Chain, RingFault> {
        let mut chain = Chain { head, ..Chain::default() };
        let (mut at, mut steps) = (head, 0);
        loop {
            steps += 1;
            if steps > CHAIN_DESCRIPTORS_MAX.min(usize::from(self.entries)) {
                return Err(RingFault::Endless(steps - 1));
            }
            let descriptor = self.descriptor(at)?;
            if descriptor.flags & INDIRECT != 0 {
                if !self.features.indirect || descriptor.flags & NEXT != 0 {
                    return Err(RingFault::Indirect);
                }
                self.follow_table(memory, &descriptor, &mut chain)?;
                return Ok(chain);
            }
            chain.add(&descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(chain);
            }
            at = descriptor.next;
        }
    }

    fn descriptor(&self, number: u16) -> Result<Descriptor, RingFault> {
        let entries = usize::from(self.entries);
        if usize::from(number) >= entries {
            return Err(RingFault::Descriptor { found: number, entries });
        }
        let mut bytes = [0; DESCRIPTOR_BYTES];
        let at = self.descriptors.offset + usize::from(number) * DESCRIPTOR_BYTES;
        let read = self.descriptors.mapping.read(at, &mut bytes);
        read.map_err(|_| RingFault::Place(self.descriptors.guest))?;
        Ok(Descriptor::decode(&bytes))
    }

    /// Follows a chain in a table, which is copied once: it can change no more.
    fn follow_table(&self, memory: &Memory, table: &Descriptor, chain: &mut Chain) -> Result<(), RingFault> {
        let len = table.len as usize;
        if len == 0 || !len.is_multiple_of(DESCRIPTOR_BYTES) || len > CHAIN_DESCRIPTORS_MAX * DESCRIPTOR_BYTES
        {
            return Err(RingFault::Table(table.len));
        }
        let mut bytes: SmallVec<[u8; 512]> = smallvec::smallvec![0; len];
        memory.read(table.address, &mut bytes)?;
        let entries = len / DESCRIPTOR_BYTES;
        let mut at = 0u16;
        for _ in 0..entries {
            let from = usize::from(at) * DESCRIPTOR_BYTES;
            let bytes = bytes.get(from..from + DESCRIPTOR_BYTES).and_then(|bytes| bytes.first_chunk());
            let bytes = bytes.ok_or(RingFault::Descriptor { found: at, entries })?;
            let descriptor = Descriptor::decode(bytes);
            if descriptor.flags & INDIRECT != 0 {
                return Err(RingFault::Indirect);
            }
            chain.add(&descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            at = descriptor.next;
        }
        Err(RingFault::Endless(entries))
    }

    /// The index of the used ring, as it stands in memory.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn used_index(&self) -> Result<u16, RingFault> {
        self.load(&self.used, INDEX_AT, Ordering::Relaxed)
    }

    /// Tells the driver at index `index` that the request `head` is done, and `written` bytes were written for it.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn put_used(
        &self,
        index: u16,
        head: u16,
        written: u32,
        log: Option<&DirtyLog>,
    ) -> Result<(), RingFault> {
        let at = ENTRIES_AT + USED_ENTRY_BYTES * usize::from(index % self.entries);
        let mut entry = [0; USED_ENTRY_BYTES];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        let put = self.used.mapping.write(self.used.offset + at, &entry);
        put.map_err(|_| RingFault::Place(self.used.guest))?;
        self.log(log, at, USED_ENTRY_BYTES);
        Ok(())
    }

    /// Lets the driver see all entries before `index`.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn publish_used(&self, index: u16, log: Option<&DirtyLog>) -> Result<(), RingFault> {
        self.store(&self.used, INDEX_AT, index, Ordering::Release)?;
        self.log(log, INDEX_AT, 2);
        Ok(())
    }

    /// Whether the driver wants to hear of the entries from `before` to `index`, which were published.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn wants_call(&self, before: u16, index: u16) -> Result<bool, RingFault> {
        // The driver writes what it wants and then looks at the index; here it is the other way round: one of the two sees the other.
        fence(Ordering::SeqCst);
        if !self.features.event_index {
            return Ok(self.load(&self.available, 0, Ordering::Relaxed)? & NO_INTERRUPT == 0);
        }
        let at = ENTRIES_AT + 2 * usize::from(self.entries);
        let event = self.load(&self.available, at, Ordering::Relaxed)?;
        Ok(passes(event, before, index))
    }

    /// Asks the driver to wake the device for entries of the available ring from `next` on. Look for new ones after it.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn ask_for_kick(&self, next: u16, log: Option<&DirtyLog>) -> Result<(), RingFault> {
        if self.features.event_index {
            let at = ENTRIES_AT + USED_ENTRY_BYTES * usize::from(self.entries);
            self.store(&self.used, at, next, Ordering::Relaxed)?;
            self.log(log, at, 2);
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn load(&self, part: &Span, at: usize, order: Ordering) -> Result<u16, RingFault> {
        let loaded = part.mapping.load_u16(part.offset + at, order);
        loaded.map(u16::from_le).map_err(|_| RingFault::Place(part.guest))
    }

    fn store(&self, part: &Span, at: usize, value: u16, order: Ordering) -> Result<(), RingFault> {
        let stored = part.mapping.store_u16(part.offset + at, value.to_le(), order);
        stored.map_err(|_| RingFault::Place(part.guest))
    }

    fn log(&self, log: Option<&DirtyLog>, at: usize, len: usize) {
        if let (Some(log), Some(used)) = (log, self.log_used) {
            log.mark(used.saturating_add(at as u64), len as u64);
        }
    }
}

/// Whether `event` is one of the indices from `before` (included) to `index` (excluded), round the end of the numbers.
fn passes(event: u16, before: u16, index: u16) -> bool {
    index.wrapping_sub(event).wrapping_sub(1) < index.wrapping_sub(before)
}

/// One descriptor, copied.
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, len @ .., f0, f1, n0, n1] = *bytes;
        Self {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_le_bytes(len),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
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
