//! Looking for completions a little longer before going to sleep.
//!
//! Waking a sleeping processor costs more than a request from the page cache: at depth 1 the
//! client's next request is usually there before the sleep would have paid. Looking costs the time
//! looked, so it is done only while it mostly succeeds, and only for peers: a disk takes longer
//! than its interrupt (4 KiB O_DIRECT reads at depth 1 in process: 40 microseconds of CPU time with
//! looking, 23 to 29 without, for a quarter more of them; through a socket: 40 to 75 against 30, for
//! none more), and a loop that waits for disks waits for peers that do.

use std::time::{Duration, Instant};

use io_uring::IoUring;

/// How long to look. A client answers a reply in about 20 microseconds, a sleep and its end take as
/// long. Measured with fio's nbd engine, page cache, depth 1 (thousands of requests a second and
/// microseconds of CPU time each, on an otherwise idle machine of two virtual processors):
/// 18 and 21 without looking, 19 and 25 for 20 microseconds, 40 and 24 for 50, 40 and 24 for 100
/// (one quiet second each: the step is far beyond the noise, the last digit is not).
const LOOK_MAX: Duration = Duration::from_micros(50);

/// Looks at the queue between one look at the clock and the next. Each time another thread that wants this processor
/// gets it, most of all the client whose requests are awaited. With more threads than processors (4 connections
/// at depth 16, two processors) that is 318,000 requests a second against 208,000 without, and 2.5
/// microseconds of CPU time each against 2.7.
const LOOKS_PER_YIELD: u32 = 16;

/// A yield that takes longer gave the processor to a thread that computes, and not to a peer that sends its next request. Peers run for some tens of
/// microseconds, threads that compute until the kernel's slice ends, which is three milliseconds or more.
const YIELD_MAX: Duration = Duration::from_millis(1);
/// For so many times the length of such a yield no other one is made: they cost less than two hundredths of the time beside threads that compute.
/// NBD reads at depth 1 beside two busy loops on two processors: 389 to 8,700 a second without this rule, 32,500 to 36,700 with it.
const YIELD_PAUSES: u32 = 64;

/// Most waits that go by without looking after failures: then looking in vain costs a fifth of a
/// microsecond a wait.
const SKIPPED_MAX: u32 = 255;

/// What the loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// Sockets and other threads only.
    Peers,
    /// A file operation, too.
    Files,
}

/// Whether looking has paid lately.
///
/// Doubles the pauses with every failure, halves them with every success: looking goes on only
/// where more than half of it succeeds. A sleep that was shorter than a look is a success, too: after some failures
/// (other programs had the processors) it would otherwise take hundreds of sleeps and wake-ups until looking is tried again.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    pause: u32,
    skip: u32,
    /// Looking has failed before the sleep that comes.
    has_failed: bool,
    yields: Yields,
}

/// Whether to give the processor to others while looking.
#[derive(Debug, Default)]
struct Yields {
    /// Not before this moment.
    from: Option<Instant>,
}

impl Yields {
    fn pay(&self, now: Instant) -> bool {
        self.from.is_none_or(|from| now >= from)
    }

    /// A yield began at `start` and is over now.
    fn took(&mut self, start: Instant, now: Instant) {
        let took = now.saturating_duration_since(start);
        self.from = (took >= YIELD_MAX).then(|| now + took * YIELD_PAUSES);
    }
}

impl Spin {
    /// Whether to look before this wait, which a timer ends after `time`. Before a timer that is nearer
    /// than a look is long the loop does not look: it would be late, and says nothing about peers.
    pub(crate) fn pays(&mut self, awaited: Awaited, time: Option<Duration>) -> bool {
        if time.is_some_and(|time| time <= LOOK_MAX) {
            return false;
        }
        if awaited == Awaited::Files {
            self.note(false);
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        true
    }

    /// Looks for a completion, which the kernel shows in memory, or for what `found` finds; for [`LOOK_MAX`] at most.
    pub(crate) fn look(&mut self, ring: &mut IoUring, found: &dyn Fn() -> bool) {
        let found = look(ring, found, &mut self.yields);
        self.has_failed = !found;
        self.note(found);
    }

    /// The loop slept for `took` while it waited for peers only.
    pub(crate) fn slept(&mut self, took: Duration) {
        if !std::mem::take(&mut self.has_failed) && took < LOOK_MAX {
            self.note(true);
        }
    }

    fn note(&mut self, found: bool) {
        self.pause = if found { self.pause / 2 } else { (self.pause * 2 + 1).min(SKIPPED_MAX) };
        self.skip = self.pause;
    }
}

fn look(ring: &mut IoUring, found: &dyn Fn() -> bool, yields: &mut Yields) -> bool {
    let start = Instant::now();
    let mut now = start;
    loop {
        if yields.pay(now) {
            rustix::thread::sched_yield();
            yields.took(now, Instant::now());
        }
        for _ in 0..LOOKS_PER_YIELD {
            if !ring.completion().is_empty() || ring.submission().taskrun() || found() {
                return true;
            }
            std::hint::spin_loop();
        }
        now = Instant::now();
        if now.duration_since(start) >= LOOK_MAX {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks made during `waits` waits of which `succeeds` says whether looking would have paid.
    fn looks(spin: &mut Spin, waits: u32, succeeds: impl Fn(u32) -> bool) -> u32 {
        let mut looks = 0;
        for wait in 0..waits {
            if spin.pays(Awaited::Peers, None) {
                looks += 1;
                spin.note(succeeds(wait));
            }
        }
        looks
    }

    #[test]
    fn looking_stops_where_it_fails_and_comes_back_where_it_pays() {
        let mut spin = Spin::default();
        assert_eq!(looks(&mut spin, 1000, |_| true), 1000);
        assert!(looks(&mut spin, 10_000, |_| false) < 50);
        looks(&mut spin, 1000, |_| true);
        assert_eq!(looks(&mut spin, 1000, |_| true), 1000);
        assert!(looks(&mut spin, 10_000, |wait| wait % 4 == 0) < 2500);
    }

    /// Another program took the processors for a moment: looking failed some times, and then was not tried for 255 sleeps, which cost a guest with
    /// 16 requests in flight more than half of them.
    #[test]
    fn looking_comes_back_soon_where_sleeps_are_short() {
        let mut spin = Spin::default();
        assert!(looks(&mut spin, 10_000, |_| false) < 50);
        let (mut sleeps, mut looks) = (0, 0);
        while looks < 3 {
            match spin.pays(Awaited::Peers, None) {
                true => {
                    looks += 1;
                    spin.note(true);
                }
                false => {
                    sleeps += 1;
                    spin.slept(LOOK_MAX / 2);
                }
            }
        }
        assert!(sleeps < 20, "{sleeps}");
        // Long ones change nothing, and what comes right after a look in vain is not found by the next one either.
        assert!(super::tests::looks(&mut spin, 10_000, |_| false) < 50);
        let before = spin.pause;
        spin.slept(LOOK_MAX * 2);
        spin.has_failed = true;
        spin.slept(LOOK_MAX / 2);
        assert_eq!(spin.pause, before);
    }

    /// Beside two busy loops on two processors each yield took a whole slice of one of them: 8,000 reads a second instead of 150,000.
    #[test]
    fn no_yield_follows_one_that_took_a_slice_until_it_costs_little() {
        let (mut yields, start) = (Yields::default(), Instant::now());
        let peer = Duration::from_micros(80);
        yields.took(start, start + peer);
        assert!(yields.pay(start + peer));
        let slice = Duration::from_millis(3);
        yields.took(start, start + slice);
        assert!(!yields.pay(start + slice));
        assert!(!yields.pay(start + 60 * slice));
        assert!(yields.pay(start + 65 * slice));
        yields.took(start + 65 * slice, start + 65 * slice + peer);
        assert!(yields.pay(start + 65 * slice + peer));
    }

    #[test]
    fn a_loop_that_waits_for_its_disk_does_not_look() {
        let mut spin = Spin::default();
        let mut looks = 0;
        for _ in 0..10_000 {
            assert!(!spin.pays(Awaited::Files, None));
            if spin.pays(Awaited::Peers, None) {
                looks += 1;
                spin.note(true);
            }
        }
        assert!(looks < 50, "{looks}");
    }

    #[test]
    fn a_near_timer_is_neither_delayed_by_looking_nor_taken_for_a_failure() {
        let mut spin = Spin::default();
        for _ in 0..1000 {
            assert!(!spin.pays(Awaited::Peers, Some(LOOK_MAX / 2)));
        }
        assert!(spin.pays(Awaited::Peers, Some(LOOK_MAX * 2)));
    }
}
