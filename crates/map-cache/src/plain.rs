//! Entries that are being changed: one word each, read without a lock.

use std::ops::Range;

use sync::atomic::{AtomicU64, Ordering, fence};
use sync::{Mutex, MutexGuard};

use crate::footprint;

/// The words of a slice that was modified lately. Readers take no lock: a version that is odd while a
/// writer is at work lets them notice a torn entry and read again.
#[derive(Debug)]
pub(crate) struct Plain {
    version: AtomicU64,
    state: Mutex<State>,
    words: Box<[AtomicU64]>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts modifications.
    modified: u64,
    /// The modification count that the storage holds.
    written: u64,
    /// The modification count when idle slices were looked for last.
    settled: u64,
    /// Words that may differ from what the storage holds, and those between them.
    changed: Range<usize>,
    /// No longer in the cache, or there in another form: a modification here would be lost.
    sealed: bool,
}

impl State {
    fn is_clean(&self) -> bool {
        self.modified == self.written
    }

    /// Nothing would be lost. A slice that is not modified yet stays: the request that unpacked it is about to modify it, and two
    /// requests that evict each other's slice would never make progress.
    fn may_leave(&self) -> bool {
        self.is_clean() && self.modified > 0
    }
}

impl Plain {
    pub(crate) fn new(words: impl Iterator<Item = u64>) -> Self {
        let words = words.map(AtomicU64::new).collect();
        Self { version: AtomicU64::new(0), state: Mutex::default(), words }
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// `N` words from `first` on, as they were at one moment.
    #[inline]
    pub(crate) fn get<const N: usize>(&self, first: usize) -> [u64; N] {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let words = core::array::from_fn(|word| self.word(first + word));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return words;
            }
            // The writer holds the lock for a few stores only.
            drop(self.state.lock());
        }
    }

    /// Starts a modification; `None` if it would be lost and the slice must be looked up again.
    pub(crate) fn modify(&self) -> Option<Modify<'_>> {
        let mut state = self.state.lock();
        if state.sealed {
            return None;
        }
        let was_dirty = !state.is_clean();
        state.modified += 1;
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        Some(Modify { plain: self, state, was_dirty })
    }

    /// A copy of all words, the modification count it stands for, and which words the storage may not have.
    pub(crate) fn copy(&self) -> (Vec<u64>, u64, Range<usize>) {
        let state = self.state.lock();
        (self.words(), state.modified, state.changed.clone())
    }

    fn words(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Says that the storage now holds the copy taken at `modified`. Calls `clean` if nothing was
    /// modified since, before anything can be.
    pub(crate) fn written(&self, modified: u64, clean: impl FnOnce()) {
        let mut state = self.state.lock();
        state.written = state.written.max(modified);
        if state.is_clean() {
            state.changed = 0..0;
            clean();
        }
    }

    /// Seals the words unless they are dirty, or were never modified. Returns whether they are sealed.
    pub(crate) fn seal(&self) -> bool {
        let mut state = self.state.lock();
        state.sealed |= state.may_leave();
        state.sealed
    }

    /// As [`Plain::seal`], if nothing was modified since this was asked last.
    pub(crate) fn seal_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        let idle = state.settled == state.modified;
        state.settled = state.modified;
        state.sealed |= idle && state.may_leave();
        state.sealed
    }

    /// Seals the words whether they are dirty or not: they are not needed any more. Calls `clean` before the seal can be seen.
    pub(crate) fn give_up(&self, clean: impl FnOnce()) {
        let mut state = self.state.lock();
        state.sealed = true;
        clean();
    }

    /// The words, after they were sealed.
    pub(crate) fn sealed_words(&self) -> Vec<u64> {
        debug_assert!(self.state.lock().sealed, "these words may change any moment");
        self.words()
    }

    /// Memory held, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        footprint::allocation(size_of::<Self>()) + footprint::allocation(size_of_val(&*self.words))
    }
}

/// A modification under way: readers wait for its end.
#[derive(Debug)]
pub struct Modify<'a> {
    plain: &'a Plain,
    state: MutexGuard<'a, State>,
    was_dirty: bool,
}

impl Modify<'_> {
    /// The word at `index`.
    pub fn word(&self, index: usize) -> u64 {
        self.plain.word(index)
    }

    /// Replaces the word at `index`.
    pub fn set_word(&mut self, index: usize, value: u64) {
        debug_assert!(index < self.plain.words.len(), "word {index} is outside the slice");
        if let Some(word) = self.plain.words.get(index) {
            word.store(value, Ordering::Relaxed);
            let changed = &mut self.state.changed;
            *changed = match changed.start == changed.end {
                true => index..index + 1,
                false => changed.start.min(index)..changed.end.max(index + 1),
            };
        }
    }

    /// Whether the slice was dirty before this modification.
    pub(crate) fn was_dirty(&self) -> bool {
        self.was_dirty
    }
}

impl Drop for Modify<'_> {
    fn drop(&mut self) {
        let version = self.plain.version.load(Ordering::Relaxed);
        self.plain.version.store(version + 1, Ordering::Release);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_modified_yet_stays_and_what_was_written_may_leave() {
        let plain = Plain::new([1, 2].into_iter());
        assert!(!plain.seal() && !plain.seal_if_idle() && !plain.seal_if_idle());
        drop(plain.modify());
        assert!(!plain.seal(), "dirty");
        plain.written(1, || {});
        assert!(!plain.seal_if_idle(), "modified since it was looked at");
        assert!(plain.seal_if_idle() && plain.modify().is_none());
    }
}
