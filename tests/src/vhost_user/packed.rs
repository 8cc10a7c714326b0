//! The driver's half of a packed ring.

use super::{AVAILABLE_AT, DESCRIPTORS_AT, Done, ENTRIES, Machine, SLOTS, USED_AT, encoded};

/// A place in the ring, and whether this is an odd pass.
#[derive(Clone, Copy, Debug)]
struct Position {
    index: u16,
    wrap: bool,
}

impl Position {
    fn after(self, count: u16) -> Self {
        let sum = self.index + count;
        if sum < ENTRIES {
            Self { index: sum, ..self }
        } else {
            Self { index: sum - ENTRIES, wrap: !self.wrap }
        }
    }

    fn word(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }
}

/// What the driver knows of one ring.
#[derive(Debug)]
pub(super) struct Driver {
    available: Position,
    used: Position,
    /// Descriptors of the request in each slot.
    counts: [u16; SLOTS as usize],
}

/// Where a ring begins, as a message says it.
pub const BASE_AT_START: u32 = 1 << 15 | 1 << 31;

impl Driver {
    pub(super) fn new() -> Self {
        let start = Position { index: 0, wrap: true };
        Self { available: start, used: start, counts: [0; SLOTS as usize] }
    }
}

impl Machine {
    /// Makes a request available, of these parts: address, bytes, flags.
    pub(super) fn put_packed(&mut self, queue: u16, slot: u16, parts: &[(u64, u32, u16)]) {
        let own = &mut self.queues[usize::from(queue)].packed;
        let (start, count) = (own.available, parts.len() as u16);
        own.counts[usize::from(slot)] = count;
        own.available = start.after(count);
        let places: Vec<Position> = (0..count).map(|nth| start.after(nth)).collect();
        // The first one last: it makes all of them available.
        for (nth, (place, (address, len, flags))) in places.iter().zip(parts).enumerate().rev() {
            let more = u16::from(nth + 1 < parts.len());
            let marks = if place.wrap { 1 << 7 } else { 1 << 15 };
            let at = Self::queue_at(queue) + DESCRIPTORS_AT + 16 * u64::from(place.index);
            // Number and flags stand the other way round than in a split ring.
            let bytes = encoded((*address, *len, slot, flags | more | marks));
            self.put(at, &bytes[..14]);
            self.put(at + 14, &bytes[14..]);
        }
    }

    pub(super) fn completed_packed(&mut self, queue: u16) -> Vec<Done> {
        let mut done = Vec::new();
        loop {
            let used = self.queues[usize::from(queue)].packed.used;
            let at = DESCRIPTORS_AT + 16 * u64::from(used.index);
            let flags = self.get_u16(queue, at + 14);
            let marks = if used.wrap { 1 << 7 | 1 << 15 } else { 0 };
            if flags & (1 << 7 | 1 << 15) != marks {
                break;
            }
            let slot = self.get_u16(queue, at + 12);
            let written =
                u32::from(self.get_u16(queue, at + 8)) | u32::from(self.get_u16(queue, at + 10)) << 16;
            done.push(Done { slot, status: self.status(queue, slot), written });
            let own = &mut self.queues[usize::from(queue)].packed;
            own.used = used.after(own.counts[usize::from(slot)]);
        }
        // The driver asks to be woken for what comes next.
        let next = self.queues[usize::from(queue)].packed.used.word();
        self.put_u16(queue, AVAILABLE_AT, next);
        self.put_u16(queue, AVAILABLE_AT + 2, if self.ways.event_index { 2 } else { 0 });
        done
    }

    /// Where a packed ring is when nothing is in flight, as a message says it.
    pub fn packed_base(&self, queue: u16) -> u32 {
        let Driver { available, used, .. } = self.queues[usize::from(queue)].packed;
        u32::from(available.word()) | u32::from(used.word()) << 16
    }

    /// Asks not to be woken at all, or by every answer; [`Machine::completed`] asks again.
    pub fn suppress_packed(&self, queue: u16, never: bool) {
        self.put_u16(queue, AVAILABLE_AT + 2, u16::from(never));
    }

    /// What the device wrote about its wish to be woken: position, how.
    pub fn wish_of_device(&self, queue: u16) -> (u16, u16) {
        (self.get_u16(queue, USED_AT), self.get_u16(queue, USED_AT + 2))
    }
}
