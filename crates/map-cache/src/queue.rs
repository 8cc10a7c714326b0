//! Who leaves when room is needed.
//!
//! S3-FIFO with one bit of use: newcomers pass through a short queue, and only those that are used
//! there, or that come back soon after they left, get into the long one, which is a clock. In front of both
//! stands a window of the newest few, in which use does not count: a sequential reader touches a slice
//! hundreds of times in a row and then never again. docs/internals/map-cache.md has the measurements.

use std::collections::VecDeque;

use crate::footprint;
use crate::slice::SliceKey;

/// The short queue may hold this part of all slices before newcomers leave first.
const SHORT_PART: usize = 10;
/// Fewer are not too many: two slices always stay, and neither must stay for ever.
const SHORT_LEAST: usize = 2;
/// The window holds this part of all slices ...
const WINDOW_PART: usize = 32;
/// ... and at most so many: as many sequential readers may be at work at a time.
const WINDOW_MAX: usize = 64;

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
    long: VecDeque<SliceKey>,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.window.len() + self.short.len() + self.long.len()
    }

    /// Enters a newcomer; `again` if it left lately. Calls `forget_use` for slices whose use begins to
    /// count.
    pub(crate) fn insert(&mut self, key: SliceKey, again: bool, mut forget_use: impl FnMut(SliceKey)) {
        if again {
            push(&mut self.long, key);
            return;
        }
        push(&mut self.window, key);
        let window_max = (self.len() / WINDOW_PART).min(WINDOW_MAX);
        while self.window.len() > window_max
            && let Some(key) = self.window.pop_front()
        {
            forget_use(key);
            push(&mut self.short, key);
        }
    }

    /// Takes out one that may leave, after at most `steps` looks.
    pub(crate) fn evict<T>(&mut self, steps: usize, mut look: impl FnMut(SliceKey) -> Look<T>) -> Option<T> {
        let mut busy = 0;
        for _ in 0..steps {
            let short = self.short.len() > (self.len() / SHORT_PART).max(SHORT_LEAST);
            let short = short || busy >= self.long.len();
            let next = if short { self.short.pop_front() } else { self.long.pop_front() };
            let key = next.or_else(|| self.window.pop_front())?;
            match look(key) {
                Look::Absent => {}
                Look::Used => push(&mut self.long, key),
                Look::Busy => {
                    push(&mut self.long, key);
                    busy += 1;
                }
                Look::Cold(found) => return Some(found),
            }
        }
        None
    }

    /// Takes out every key that `gone` names.
    pub(crate) fn remove(&mut self, mut gone: impl FnMut(SliceKey) -> bool) {
        for queue in [&mut self.window, &mut self.short, &mut self.long] {
            queue.retain(|&key| !gone(key));
            queue.shrink_to(queue.len() * 2);
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        let queues = [&self.window, &self.short, &self.long];
        queues.iter().map(|queue| footprint::allocation(queue.capacity() * size_of::<SliceKey>())).sum()
    }
}

/// Grows by an eighth at a time: doubling would waste as much as the keys take.
fn push(queue: &mut VecDeque<SliceKey>, key: SliceKey) {
    if queue.len() == queue.capacity() {
        queue.reserve_exact(queue.len() / 8 + 4);
    }
    queue.push_back(key);
}
