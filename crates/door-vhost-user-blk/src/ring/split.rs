//! A split ring (virtio 1.2, 2.7): a table of descriptors, a ring of what is available, a ring of what is used.

use std::sync::atomic::{Ordering, fence};

use super::{
    Chain, DESCRIPTOR_BYTES, Descriptor, INDIRECT, NEXT, RingFault, RingFeatures, find, load, mark, passes,
    store, table, write,
};
use crate::limits::{CHAIN_DESCRIPTORS_MAX, RING_ENTRIES_MAX};
use crate::memory::{DirtyLog, Memory, Span};
use crate::message::RingAddress;

/// Bytes of an entry of the used ring.
const USED_ENTRY_BYTES: usize = 8;
/// Flags and index stand before the entries of both rings.
const ENTRIES_AT: usize = 4;
/// Where the index is.
const INDEX_AT: usize = 2;

/// The driver wants no interrupts.
const NO_INTERRUPT: u16 = 1;

/// A ring's place in memory.
#[derive(Debug)]
pub struct SplitRing {
    entries: u16,
    features: RingFeatures,
    descriptors: Span,
    available: Span,
    used: Span,
    /// The used ring as the guest has it, where writes there are logged.
    log_used: Option<u64>,
}

impl SplitRing {
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
        Ok(Self {
            entries,
            features,
            descriptors: find(memory, address.descriptors, count * DESCRIPTOR_BYTES, 16)?,
            available: find(memory, address.available, ENTRIES_AT + 2 * count + 2, 2)?,
            used: find(memory, address.used, ENTRIES_AT + USED_ENTRY_BYTES * count + 2, 4)?,
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
        let index = load(&self.available, INDEX_AT, Ordering::Acquire)?;
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
        let head = load(&self.available, at, Ordering::Relaxed)?;
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
            at = descriptor.link;
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

    /// Follows a chain in a table.
    fn follow_table(
        &self,
        memory: &Memory,
        descriptor: &Descriptor,
        chain: &mut Chain,
    ) -> Result<(), RingFault> {
        let bytes = table(memory, descriptor)?;
        let entries = bytes.len() / DESCRIPTOR_BYTES;
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
            at = descriptor.link;
        }
        Err(RingFault::Endless(entries))
    }

    /// The index of the used ring, as it stands in memory.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn used_index(&self) -> Result<u16, RingFault> {
        load(&self.used, INDEX_AT, Ordering::Relaxed)
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
        write(&self.used, at, &entry)?;
        self.log(log, at, USED_ENTRY_BYTES);
        Ok(())
    }

    /// Lets the driver see all entries before `index`.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn publish_used(&self, index: u16, log: Option<&DirtyLog>) -> Result<(), RingFault> {
        store(&self.used, INDEX_AT, index, Ordering::Release)?;
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
            return Ok(load(&self.available, 0, Ordering::Relaxed)? & NO_INTERRUPT == 0);
        }
        let at = ENTRIES_AT + 2 * usize::from(self.entries);
        let event = load(&self.available, at, Ordering::Relaxed)?;
        Ok(passes(event, before, index))
    }

    /// Asks the driver to wake the device for entries of the available ring from `next` on. Look for new ones after it.
    ///
    /// # Errors
    /// Never, for a ring that was found.
    pub fn ask_for_kick(&self, next: u16, log: Option<&DirtyLog>) -> Result<(), RingFault> {
        if self.features.event_index {
            let at = ENTRIES_AT + USED_ENTRY_BYTES * usize::from(self.entries);
            store(&self.used, at, next, Ordering::Relaxed)?;
            self.log(log, at, 2);
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn log(&self, log: Option<&DirtyLog>, at: usize, len: usize) {
        if let Some(used) = self.log_used {
            mark(log, used, at, len);
        }
    }
}
