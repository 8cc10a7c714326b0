//! Whether a write to the page cache is made on the loop's own thread.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A write that took longer than this met something else than memory: a page to be read first, or
/// the kernel's throttling of writers that dirty pages faster than the disk takes them.
const SLOW: Duration = Duration::from_millis(1);

/// Writes that are made beside the loop after a slow one.
const PAUSE: u32 = 64;

/// A write that takes longer than this is worth handing to another thread when others come with it; the
/// handing over costs some 4 microseconds of CPU time. Where the page cache holds small folios a write of 4 KiB
/// takes 4 microseconds, where it holds the largest (a file written in one go) 12.
const LONG: Duration = Duration::from_micros(8);

/// How far the count of long writes goes: few enough to follow a change soon, enough not to be
/// moved by a write during which the thread lost its processor.
const LONG_VOTES_MAX: u32 = 32;

/// Whether writing to the page cache on the loop's own thread pays.
///
/// No file system here lets io_uring write to the page cache without one of its worker threads
/// (ext4 and tmpfs answer EOPNOTSUPP to RWF_NOWAIT), and a worker costs far more than the write. 4 KiB
/// random writes in microseconds, wall and CPU time: ext4 at depth 1 27 and 36 by a worker, 7.8 and
/// 7.7 here; at depth 16 7.6 and 15 against 7.4 and 7.4; tmpfs at depth 1 20 and 23 against 1.1 and
/// 1.1. 64 KiB on ext4 at depth 1: 169 and 153 against 8.4 and 8.3; 1 MiB: 213 and 194 against 141
/// and 141 (`cargo run --release -p cowhand-storage --example io_loop -- FILE write DEPTH COUNT`).
#[derive(Debug, Default)]
pub(super) struct InlineWrites {
    skip: AtomicU32,
    /// Goes up with every long write and down with every other.
    long: AtomicU32,
}

impl InlineWrites {
    pub(super) fn pays(&self) -> bool {
        // Threads may disagree by a few: it is a guess anyway.
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip == 0
    }

    /// Whether more than half of the latest writes took long.
    pub(super) fn are_long(&self) -> bool {
        self.long.load(Ordering::Relaxed) > LONG_VOTES_MAX / 2
    }

    pub(super) fn note(&self, taken: Duration) {
        let long = self.long.load(Ordering::Relaxed);
        let next = if taken > LONG { (long + 1).min(LONG_VOTES_MAX) } else { long.saturating_sub(1) };
        if next != long {
            self.long.store(next, Ordering::Relaxed);
        }
        if taken > SLOW {
            self.skip.store(PAUSE, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_write_among_short_ones_changes_nothing_and_many_do() {
        let inline = InlineWrites::default();
        inline.note(Duration::from_micros(900));
        assert!(!inline.are_long());
        for _ in 0..LONG_VOTES_MAX {
            inline.note(Duration::from_micros(20));
        }
        assert!(inline.are_long());
        for _ in 0..LONG_VOTES_MAX {
            inline.note(Duration::from_micros(4));
        }
        assert!(!inline.are_long());
    }

    #[test]
    fn after_a_slow_write_a_number_of_them_are_made_elsewhere() {
        let inline = InlineWrites::default();
        inline.note(Duration::from_micros(30));
        assert!(inline.pays());
        inline.note(Duration::from_millis(5));
        for _ in 0..PAUSE {
            assert!(!inline.pays());
        }
        assert!(inline.pays());
    }
}
