//! Who leaves when room is needed.
//!
//! S3-FIFO with one bit of use. Newcomers enter a short queue; a newcomer that is used there moves to the long queue,
//! which is a clock. A window of the newest few stands in front of both, and use does not count in it: a sequential
//! reader touches a slice hundreds of times in a row and then never again.
//!
//! A slice that comes back after it left gets into the long queue only in place of one that has not been used for longer
//! than it was away, as in LIRS. So a loop over more than fits keeps a part of it in memory, where all would leave shortly
//! before they are needed. docs/internals/map-cache.md has the measurements.

use std::collections::VecDeque;

use crate::directory::SliceKey;
use crate::footprint;

/// The short queue may hold this part of all slices before newcomers leave first.
const SHORT_PART: usize = 10;
/// Fewer are not too many: two slices always stay, and neither must stay for ever.
const SHORT_LEAST: usize = 2;
/// The window holds this part of all slices ...
const WINDOW_PART: usize = 32;
/// ... and at most so many: as many sequential readers may be at work at a time.
const WINDOW_MAX: usize = 64;

/// So many slices of the long queue are looked at for one that comes back.
const CONTEST_LOOKS: usize = 4;
/// One in so many newcomers takes the place of one that has not been used for [`LONG_UNUSED`] times what the cache holds: it is left from other times.
const NEWCOMERS_PER_CONTEST: u32 = 16;
const LONG_UNUSED: u64 = 64;

/// When something is done, on the clock of evicted bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The clock, modulo 2^32.
    pub(crate) now: u32,
    /// What all slices take, in its units.
    pub(crate) held: u64,
}

/// What eviction finds where a key leads.
#[derive(Debug)]
pub(crate) enum Look<T> {
    /// Nothing.
    Absent,
    /// Used since it was looked at last.
    Used,
    /// It cannot leave.
    Busy,
    /// It leaves.
    Cold(T),
}

/// The keys of all resident slices.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    window: VecDeque<SliceKey>,
    short: VecDeque<SliceKey>,
    /// Each with the moment at which it was last known to be used.
    long: VecDeque<(SliceKey, u32)>,
    newcomers: u32,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.window.len() + self.short.len() + self.long.len()
    }

    /// Enters a newcomer, which was `away` for so long if it left lately. `take_use` says whether a slice was used since it
    /// was asked last.
    pub(crate) fn insert(
        &mut self,
        key: SliceKey,
        Moment { now, held }: Moment,
        away: Option<u32>,
        mut take_use: impl FnMut(SliceKey) -> bool,
    ) {
        self.newcomers = self.newcomers.wrapping_add(1);
        let unused_for = match away {
            // It was of no use before it left, either.
            Some(away) => Some(u64::from(away) + self.on_trial(held)),
            None => self.newcomers.is_multiple_of(NEWCOMERS_PER_CONTEST).then_some(held * LONG_UNUSED),
        };
        if unused_for.is_some_and(|long| self.gives_way(long, now, &mut take_use)) {
            push(&mut self.long, (key, now));
            return;
        }
        push(&mut self.window, key);
        let window_max = (self.len() / WINDOW_PART).min(WINDOW_MAX);
        while self.window.len() > window_max
            && let Some(key) = self.window.pop_front()
        {
            take_use(key);
            push(&mut self.short, key);
        }
        // There was room for one more, and nothing is said against the oldest.
        while self.short.len() > self.short_max() + 1
            && let Some(key) = self.short.pop_front()
        {
            push(&mut self.long, (key, now));
        }
    }

    fn short_max(&self) -> usize {
        (self.len() / SHORT_PART).max(SHORT_LEAST)
    }

    /// What slices that have not proved useful take of `held`: one that is of no use leaves after so much.
    fn on_trial(&self, held: u64) -> u64 {
        let on_trial = (self.window.len() + self.short.len()) as u64;
        held * on_trial / self.len().max(1) as u64
    }

    /// Whether the next of the long queue that is not in use has not been for longer than this: it is the next to leave then.
    fn gives_way(&mut self, long: u64, now: u32, mut take_use: impl FnMut(SliceKey) -> bool) -> bool {
        for _ in 0..CONTEST_LOOKS {
            let Some(&(key, last)) = self.long.front() else { return false };
            let is_used = take_use(key);
            if !is_used && u64::from(now.wrapping_sub(last)) > long {
                return true;
            }
            self.long.pop_front();
            push(&mut self.long, (key, if is_used { now } else { last }));
            if !is_used {
                return false;
            }
        }
        false
    }

    /// Takes out one that may leave, after at most `steps` looks.
    pub(crate) fn evict<T>(
        &mut self,
        steps: usize,
        now: u32,
        mut look: impl FnMut(SliceKey) -> Look<T>,
    ) -> Option<T> {
        let mut busy = 0;
        for _ in 0..steps {
            let short = self.short.len() > self.short_max() || busy >= self.long.len();
            let next = match short {
                true => self.short.pop_front().map(|key| (key, now)),
                false => self.long.pop_front(),
            };
            let (key, last) = next.or_else(|| Some((self.window.pop_front()?, now)))?;
            match look(key) {
                Look::Absent => {}
                Look::Used => push(&mut self.long, (key, now)),
                Look::Busy => {
                    push(&mut self.long, (key, last));
                    busy += 1;
                }
                Look::Cold(found) => return Some(found),
            }
        }
        None
    }

    /// Takes out every key that `gone` names.
    pub(crate) fn remove(&mut self, mut gone: impl FnMut(SliceKey) -> bool) {
        for queue in [&mut self.window, &mut self.short] {
            queue.retain(|&key| !gone(key));
            queue.shrink_to(queue.len() * 2);
        }
        self.long.retain(|&(key, _)| !gone(key));
        self.long.shrink_to(self.long.len() * 2);
    }

    /// Memory held, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        let newcomers = [&self.window, &self.short].map(VecDeque::capacity);
        let newcomers = newcomers.map(|capacity| capacity * size_of::<SliceKey>());
        let long = self.long.capacity() * size_of::<(SliceKey, u32)>();
        newcomers.into_iter().chain([long]).map(footprint::allocation).sum()
    }
}

/// Grows by an eighth at a time: doubling would waste as much as the keys take.
fn push<T>(queue: &mut VecDeque<T>, key: T) {
    if queue.len() == queue.capacity() {
        queue.reserve_exact(queue.len() / 8 + 4);
    }
    queue.push_back(key);
}
