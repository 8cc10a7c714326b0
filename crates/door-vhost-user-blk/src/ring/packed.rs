//! A packed ring (virtio 1.2, 2.8): one ring of descriptors, which both sides write, and for each side a word about when it wants to be
//! woken. Two bits of each descriptor say whether it is available or used; what they say turns round with each pass of the ring.

use std::sync::atomic::{Ordering, fence};

use smallvec::SmallVec;

use super::{
    Chain, DESCRIPTOR_BYTES, Descriptor, INDIRECT, NEXT, RingFault, RingFeatures, WRITE, find, load, mark,
    passes, store, table, write,
};
use crate::limits::{CHAIN_DESCRIPTORS_MAX, RING_ENTRIES_MAX};
use crate::memory::{DirtyLog, Memory, Span};
use crate::message::RingAddress;

/// The driver's mark and the device's, among the flags of a descriptor.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// Where parts of a descriptor are.
const LEN_AT: usize = 8;
const FLAGS_AT: usize = 14;

/// Bytes of each side's word about notifications: position, how.
const EVENT_BYTES: usize = 4;
const EVENT_FLAGS_AT: usize = 2;
/// The other side is not to be woken, or at one position; otherwise always.
const NEVER: u16 = 1;
const AT_POSITION: u16 = 2;

/// A place in the ring, and whether this is an odd pass (the first one is).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The entry.
    pub index: u16,
    /// The wrap counter.
    pub wrap: bool,
}

impl Position {
    /// Where both sides begin.
    pub const START: Self = Self { index: 0, wrap: true };

    /// What 16 bits say of it, in events and in messages.
    pub fn decode(word: u16) -> Self {
        Self { index: word & 0x7fff, wrap: word >> 15 != 0 }
    }

    /// The same for the other side.
    pub fn encode(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    /// The place `count` further, in a ring of `entries`; at most once round.
    #[must_use]
    pub fn after(self, count: u16, entries: u16) -> Self {
        let sum = u32::from(self.index) + u32::from(count);
        match sum.checked_sub(u32::from(entries)) {
            // Less than twice the entries of a ring, minus those.
            Some(beyond) => Self { index: beyond as u16, wrap: !self.wrap },
            None => Self { index: sum as u16, wrap: self.wrap },
        }
    }

    fn available(self) -> u16 {
        if self.wrap { AVAILABLE } else { USED }
    }

    fn used(self) -> u16 {
        if self.wrap { AVAILABLE | USED } else { 0 }
    }
}

/// Descriptors of a request as they stand in the ring, in order.
pub type Descriptors = SmallVec<[Descriptor; 4]>;

/// A ring's place in memory.
#[derive(Debug)]
pub struct PackedRing {
    entries: u16,
    features: RingFeatures,
    descriptors: Span,
    driver: Span,
    device: Span,
    logged: bool,
}

impl PackedRing {
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
        let fits = u16::try_from(entries).ok().filter(|n| (1..=RING_ENTRIES_MAX).contains(n));
        let entries = fits.ok_or(RingFault::Entries(entries))?;
        Ok(Self {
            entries,
            features,
            descriptors: find(memory, address.descriptors, usize::from(entries) * DESCRIPTOR_BYTES, 16)?,
            driver: find(memory, address.available, EVENT_BYTES, 4)?,
            device: find(memory, address.used, EVENT_BYTES, 4)?,
            logged: address.logged,
        })
    }

    /// Entries.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    fn flags(&self, index: u16) -> Result<u16, RingFault> {
        load(&self.descriptors, usize::from(index) * DESCRIPTOR_BYTES + FLAGS_AT, Ordering::Acquire)
    }

    /// Whether the device has never marked the first entry: the ring was not gone round once.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn is_fresh(&self) -> Result<bool, RingFault> {
        Ok(self.flags(0)? & USED == 0)
    }

    /// Whether the entry at `at` still has the driver's mark of that pass: the device has not used it.
    ///
    /// # Errors
    /// Never, for a place in the ring.
    pub fn is_available(&self, at: Position) -> Result<bool, RingFault> {
        Ok(self.flags(at.index)? & (AVAILABLE | USED) == at.available())
    }

    /// The descriptors of the request at `at`, if there is one.
    ///
    /// # Errors
    /// When it has no end. Costs at most as many steps as [`CHAIN_DESCRIPTORS_MAX`].
    pub fn next(&self, at: Position) -> Result<Option<Descriptors>, RingFault> {
        let mut flags = self.flags(at.index)?;
        if flags & (AVAILABLE | USED) != at.available() {
            return Ok(None);
        }
        let most = CHAIN_DESCRIPTORS_MAX.min(usize::from(self.entries));
        let (mut found, mut place) = (Descriptors::new(), at);
        loop {
            if found.len() == most {
                return Err(RingFault::Endless(most));
            }
            let mut bytes = [0; DESCRIPTOR_BYTES];
            let from = self.descriptors.offset + usize::from(place.index) * DESCRIPTOR_BYTES;
            let read = self.descriptors.mapping.read(from, &mut bytes);
            read.map_err(|_| RingFault::Place(self.descriptors.guest))?;
            found.push(Descriptor::of_packed(&bytes, flags));
            if flags & NEXT == 0 {
                return Ok(Some(found));
            }
            place = place.after(1, self.entries);
            flags = self.flags(place.index)?;
        }
    }

    /// What `descriptors` describe.
    ///
    /// # Errors
    /// When that is no request.
    pub fn chain(&self, memory: &Memory, descriptors: &[Descriptor]) -> Result<Chain, RingFault> {
        // The last one has the number.
        let head = descriptors.last().map_or(0, |last| last.link);
        let mut chain = Chain { head, ..Chain::default() };
        for descriptor in descriptors {
            if descriptor.flags & INDIRECT == 0 {
                chain.add(descriptor)?;
                continue;
            }
            if !self.features.indirect || descriptors.len() > 1 {
                return Err(RingFault::Indirect);
            }
            for bytes in table(memory, descriptor)?.chunks_exact(DESCRIPTOR_BYTES) {
                let entry = Descriptor::decode(bytes.first_chunk().unwrap_or(&[0; DESCRIPTOR_BYTES]));
                // In a table all follow each other; the place of the flags is the same, that of the number means nothing.
                let flags = entry.flags_of_packed();
                if flags & INDIRECT != 0 {
                    return Err(RingFault::Indirect);
                }
                chain.add(&Descriptor { flags: flags & WRITE, ..entry })?;
            }
        }
        Ok(chain)
    }

    /// Tells the driver by the entry at `at` that request number `head` is done, and `written` bytes were written for it.
    ///
    /// # Errors
    /// Never, for a place in the ring.
    pub fn put_used(
        &self,
        at: Position,
        head: u16,
        written: u32,
        log: Option<&DirtyLog>,
    ) -> Result<(), RingFault> {
        let from = usize::from(at.index) * DESCRIPTOR_BYTES;
        let mut entry = [0; FLAGS_AT - LEN_AT];
        entry[..4].copy_from_slice(&written.to_le_bytes());
        entry[4..].copy_from_slice(&head.to_le_bytes());
        write(&self.descriptors, from + LEN_AT, &entry)?;
        // What stands before is seen before it.
        let flags = at.used() | if written > 0 { WRITE } else { 0 };
        store(&self.descriptors, from + FLAGS_AT, flags, Ordering::Release)?;
        self.log(log, &self.descriptors, from, DESCRIPTOR_BYTES);
        Ok(())
    }

    /// Whether the driver wants to hear of the last `count` entries before `now`, which were used.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn wants_call(&self, now: Position, count: u16) -> Result<bool, RingFault> {
        // The driver writes what it wants and then looks at the ring; here it is the other way round: one of the two sees the other.
        fence(Ordering::SeqCst);
        let flags = load(&self.driver, EVENT_FLAGS_AT, Ordering::Acquire)?;
        match flags & 3 {
            NEVER => Ok(false),
            AT_POSITION if self.features.event_index => {
                let wanted = Position::decode(load(&self.driver, 0, Ordering::Relaxed)?);
                // Of the pass before: as many entries behind.
                let behind = if wanted.wrap == now.wrap { 0 } else { self.entries };
                let event = wanted.index.wrapping_sub(behind);
                Ok(passes(event, now.index.wrapping_sub(count), now.index))
            }
            _ => Ok(true),
        }
    }

    /// Asks the driver to wake the device for the entry at `next`. Look for it after that.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn ask_for_kick(&self, next: Position, log: Option<&DirtyLog>) -> Result<(), RingFault> {
        let how = if self.features.event_index { AT_POSITION } else { 0 };
        store(&self.device, 0, next.encode(), Ordering::Relaxed)?;
        store(&self.device, EVENT_FLAGS_AT, how, Ordering::Release)?;
        self.log(log, &self.device, 0, EVENT_BYTES);
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// The log's addresses are the guest's, of each part of its own: a message has one for the used ring alone.
    fn log(&self, log: Option<&DirtyLog>, part: &Span, at: usize, len: usize) {
        if self.logged {
            mark(log, part.guest, at, len);
        }
    }
}

impl Descriptor {
    /// Number and flags stand the other way round than in a split ring; the flags were read before.
    fn of_packed(bytes: &[u8; DESCRIPTOR_BYTES], flags: u16) -> Self {
        let split = Self::decode(bytes);
        Self { flags, link: split.flags, ..split }
    }

    fn flags_of_packed(&self) -> u16 {
        self.link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_turns_round_at_the_end_of_the_ring() {
        let at = |index, wrap| Position { index, wrap };
        assert_eq!(Position::START.after(3, 5), at(3, true));
        assert_eq!(at(3, true).after(2, 5), at(0, false));
        assert_eq!(at(4, false).after(5, 5), at(4, true));
        assert_eq!(at(32767, true).after(32768, 32768), at(32767, false));
        for position in [Position::START, at(7, false), at(32767, true)] {
            assert_eq!(Position::decode(position.encode()), position);
        }
    }
}
