//! Requests that a disk may admit without its group's lock.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use throttle::{Amount, Direction, Request};

/// Bits of a word that count bytes; the others count requests. More than [`throttle::Group::ahead`] grants fits by far.
const BYTES_BITS: u32 = 40;

/// What was granted and what of it was taken, per direction. Requests that look at the same moment may take
/// one more each: loops are few, and grants a small part of the room.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Ahead {
    granted: [AtomicU64; 2],
    taken: [AtomicU64; 2],
}

impl Ahead {
    /// Whether the request may go. No lock, nothing written.
    #[inline]
    pub(super) fn allows(&self, request: Request) -> bool {
        let granted = self.granted[place(request.direction)].load(Acquire);
        // The usual case near a limit.
        if granted == 0 {
            return false;
        }
        let (granted, taken) = (amount(granted), amount(self.taken[place(request.direction)].load(Relaxed)));
        taken.requests < granted.requests && taken.bytes.saturating_add(request.bytes) <= granted.bytes
    }

    /// The request goes, or has gone.
    #[inline]
    pub(super) fn take(&self, request: Request) {
        self.taken[place(request.direction)].fetch_add((1 << BYTES_BITS) | request.bytes, Release);
    }

    /// What was taken since this was asked last.
    pub(super) fn collect(&self, direction: Direction) -> Amount {
        amount(self.taken[place(direction)].swap(0, Acquire))
    }

    /// Gives out a new grant.
    pub(super) fn grant(&self, direction: Direction, granted: Amount) {
        debug_assert!(granted.bytes >> BYTES_BITS == 0, "bytes run into requests");
        self.granted[place(direction)].store((granted.requests << BYTES_BITS) | granted.bytes, Release);
    }
}

fn amount(word: u64) -> Amount {
    Amount { requests: word >> BYTES_BITS, bytes: word & ((1 << BYTES_BITS) - 1) }
}

/// The place of a direction in a pair.
pub(super) fn place(direction: Direction) -> usize {
    match direction {
        Direction::Read => 0,
        Direction::Write => 1,
    }
}
