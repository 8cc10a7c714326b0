//! One resident slice of an L2 table.

use sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use sync::{Mutex, MutexGuard};

/// Which slice of which L2 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceKey {
    /// Index of the table in L1.
    pub l1_index: u32,
    /// Index of the slice in its table.
    pub slice: u32,
}

/// Touched since the eviction hand passed last.
const VISITED: u8 = 1;
/// Touched since the cleaner passed last.
const USED: u8 = 2;

/// The entries of one slice. Readers take no lock: a version that is odd while a writer is at work
/// lets them notice a torn entry and read again.
#[derive(Debug)]
pub struct Slice {
    key: SliceKey,
    version: AtomicU64,
    touched: AtomicU8,
    state: Mutex<State>,
    words: Box<[AtomicU64]>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts modifications; 0 for a slice as it was loaded.
    modified: u64,
    /// The modification count that the storage holds.
    written: u64,
    /// No longer in the cache: a modification here would be lost.
    evicted: bool,
}

impl Slice {
    pub(crate) fn new(key: SliceKey, words: impl Iterator<Item = u64>) -> Self {
        Self {
            key,
            version: AtomicU64::new(0),
            touched: AtomicU8::new(USED),
            state: Mutex::new(State::default()),
            words: words.map(AtomicU64::new).collect(),
        }
    }

    /// Which slice this is.
    pub fn key(&self) -> SliceKey {
        self.key
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are no words; never true for a slice in use.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Calls `read` with a function that gives the word at an index, until it ran without a
    /// modification in between. `read` may run several times, and must not loop forever on odd input.
    /// Indices beyond the slice give 0.
    pub fn read<T>(&self, mut read: impl FnMut(&dyn Fn(usize) -> u64) -> T) -> T {
        loop {
            let before = self.version.load(Ordering::Acquire);
            if before % 2 == 1 {
                // The writer holds the lock for a few stores only.
                drop(self.state.lock());
                continue;
            }
            let value = read(&|index| self.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed)));
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == before {
                return value;
            }
        }
    }

    /// The words of entry `index`, `N` words an entry.
    #[inline]
    pub fn entry<const N: usize>(&self, index: usize) -> [u64; N] {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let words = core::array::from_fn(|word| {
                self.words.get(index * N + word).map_or(0, |word| word.load(Ordering::Relaxed))
            });
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return words;
            }
            drop(self.state.lock());
        }
    }

    /// Starts a modification; `None` if the slice has left the cache and must be looked up again.
    pub fn modify(&self) -> Option<Modify<'_>> {
        let mut state = self.state.lock();
        if state.evicted {
            return None;
        }
        let was_dirty = state.modified != state.written;
        state.modified += 1;
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        Some(Modify { slice: self, _state: state, was_dirty })
    }

    /// A copy of all words and the modification count it stands for.
    pub(crate) fn copy(&self) -> (Vec<u64>, u64) {
        let state = self.state.lock();
        (self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect(), state.modified)
    }

    /// Says that the storage now holds the copy taken at `modified`. Calls `clean` if nothing was
    /// modified since, before anything can be.
    pub(crate) fn written(&self, modified: u64, clean: impl FnOnce()) {
        let mut state = self.state.lock();
        state.written = state.written.max(modified);
        if state.modified == state.written {
            clean();
        }
    }

    /// Marks the slice as gone unless it is dirty. Returns whether it is gone.
    pub(crate) fn evict(&self) -> bool {
        let mut state = self.state.lock();
        state.evicted |= state.modified == state.written;
        state.evicted
    }

    #[inline]
    pub(crate) fn touch(&self) {
        // Reading first keeps the cache line shared between the cores that hit it.
        if self.touched.load(Ordering::Relaxed) != VISITED | USED {
            self.touched.store(VISITED | USED, Ordering::Relaxed);
        }
    }

    pub(crate) fn take_visited(&self) -> bool {
        self.touched.fetch_and(!VISITED, Ordering::Relaxed) & VISITED != 0
    }

    pub(crate) fn take_used(&self) -> bool {
        self.touched.fetch_and(!USED, Ordering::Relaxed) & USED != 0
    }

    /// Memory held, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&*self.words)) as u64
    }
}

/// A modification under way: readers wait for its end.
#[derive(Debug)]
pub struct Modify<'a> {
    slice: &'a Slice,
    _state: MutexGuard<'a, State>,
    was_dirty: bool,
}

impl Modify<'_> {
    /// The word at `index`.
    pub fn word(&self, index: usize) -> u64 {
        self.slice.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Replaces the word at `index`.
    pub fn set_word(&mut self, index: usize, value: u64) {
        debug_assert!(index < self.slice.words.len(), "word {index} is outside the slice");
        if let Some(word) = self.slice.words.get(index) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Whether the slice was dirty before this modification.
    pub(crate) fn was_dirty(&self) -> bool {
        self.was_dirty
    }
}

impl Drop for Modify<'_> {
    fn drop(&mut self) {
        let version = self.slice.version.load(Ordering::Relaxed);
        self.slice.version.store(version + 1, Ordering::Release);
    }
}
