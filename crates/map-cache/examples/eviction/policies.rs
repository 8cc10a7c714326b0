//! Ways to evict, as they are published, without regard for memory or locks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use map_cache::{Model, SliceKey};

/// A cache of slices.
pub trait Policy {
    /// Looks a slice up, and takes it in if it is missing. Returns whether it was there.
    fn access(&mut self, slice: u32, now: usize) -> bool;
}

/// Least recently used.
pub struct Lru {
    size: usize,
    last: HashMap<u32, usize>,
    order: BTreeMap<usize, u32>,
}

impl Lru {
    pub fn new(size: usize) -> Self {
        Self { size, last: HashMap::new(), order: BTreeMap::new() }
    }
}

impl Policy for Lru {
    fn access(&mut self, slice: u32, now: usize) -> bool {
        let before = self.last.insert(slice, now);
        if let Some(before) = before {
            self.order.remove(&before);
        } else if self.order.len() == self.size
            && let Some((_, victim)) = self.order.pop_first()
        {
            self.last.remove(&victim);
        }
        self.order.insert(now, slice);
        before.is_some()
    }
}

/// Second chance: a circle and a hand.
pub struct Clock {
    size: usize,
    used: HashMap<u32, bool>,
    circle: VecDeque<u32>,
}

impl Clock {
    pub fn new(size: usize) -> Self {
        Self { size, used: HashMap::new(), circle: VecDeque::new() }
    }
}

impl Policy for Clock {
    fn access(&mut self, slice: u32, _now: usize) -> bool {
        if let Some(used) = self.used.get_mut(&slice) {
            *used = true;
            return true;
        }
        while self.circle.len() >= self.size
            && let Some(victim) = self.circle.pop_front()
        {
            if self.used.insert(victim, false) == Some(true) {
                self.circle.push_back(victim);
            } else {
                self.used.remove(&victim);
            }
        }
        self.circle.push_back(slice);
        // A request looks a slice up right after it loaded it.
        self.used.insert(slice, true);
        false
    }
}

/// A queue whose survivors stay where they are.
pub struct Sieve {
    size: usize,
    used: HashMap<u32, bool>,
    /// Oldest first.
    queue: Vec<u32>,
    hand: usize,
}

impl Sieve {
    pub fn new(size: usize) -> Self {
        Self { size, used: HashMap::new(), queue: Vec::new(), hand: 0 }
    }
}

impl Policy for Sieve {
    fn access(&mut self, slice: u32, _now: usize) -> bool {
        if let Some(used) = self.used.get_mut(&slice) {
            *used = true;
            return true;
        }
        while self.queue.len() >= self.size {
            self.hand %= self.queue.len();
            let candidate = self.queue[self.hand];
            if self.used.insert(candidate, false) == Some(true) {
                self.hand += 1;
            } else {
                self.used.remove(&candidate);
                self.queue.remove(self.hand);
            }
        }
        self.queue.push(slice);
        self.used.insert(slice, true);
        false
    }
}

/// CLOCK-Pro in its simple form: cold pages on trial, hot ones on a clock, and a trial that outlives the
/// page; the share of cold pages adapts.
pub struct ClockPro {
    size: usize,
    cold_size: usize,
    hot: Clock2,
    cold: Clock2,
    trial: VecDeque<u32>,
    on_trial: HashSet<u32>,
}

#[derive(Default)]
struct Clock2 {
    used: HashMap<u32, bool>,
    queue: VecDeque<u32>,
}

impl Clock2 {
    fn push(&mut self, slice: u32) {
        self.queue.push_back(slice);
        self.used.insert(slice, false);
    }

    fn pop(&mut self) -> Option<(u32, bool)> {
        let slice = self.queue.pop_front()?;
        Some((slice, self.used.remove(&slice).unwrap_or(false)))
    }
}

impl ClockPro {
    pub fn new(size: usize) -> Self {
        let cold_size = (size / 4).max(1);
        let (trial, on_trial) = (VecDeque::new(), HashSet::new());
        Self { size, cold_size, hot: Clock2::default(), cold: Clock2::default(), trial, on_trial }
    }

    fn make_hot(&mut self, slice: u32) {
        self.hot.push(slice);
        while self.hot.queue.len() > self.size - self.cold_size
            && let Some((slice, used)) = self.hot.pop()
        {
            if used { self.hot.push(slice) } else { self.cold.push(slice) }
        }
    }

    fn make_room(&mut self) {
        while self.hot.queue.len() + self.cold.queue.len() >= self.size {
            let Some((slice, used)) = self.cold.pop() else {
                self.hot.pop();
                continue;
            };
            if used {
                self.make_hot(slice);
                continue;
            }
            self.trial.push_back(slice);
            self.on_trial.insert(slice);
            if self.trial.len() > self.size
                && let Some(over) = self.trial.pop_front()
                && self.on_trial.remove(&over)
            {
                self.cold_size = (self.cold_size - 1).max(1);
            }
        }
    }
}

impl Policy for ClockPro {
    fn access(&mut self, slice: u32, _now: usize) -> bool {
        for clock in [&mut self.hot, &mut self.cold] {
            if let Some(used) = clock.used.get_mut(&slice) {
                *used = true;
                return true;
            }
        }
        let again = self.on_trial.remove(&slice);
        if again {
            self.cold_size = (self.cold_size + 1).min(self.size.max(2) - 1);
        }
        self.make_room();
        if again {
            self.make_hot(slice);
        } else {
            self.cold.push(slice);
            self.cold.used.insert(slice, true);
        }
        false
    }
}

/// A short queue for newcomers, a clock for slices that were used there, and ghosts.
pub struct S3Fifo {
    size: usize,
    used: HashMap<u32, bool>,
    short: VecDeque<u32>,
    long: VecDeque<u32>,
    ghosts: VecDeque<u32>,
    ghostly: HashSet<u32>,
}

impl S3Fifo {
    pub fn new(size: usize) -> Self {
        Self {
            size,
            used: HashMap::new(),
            short: VecDeque::new(),
            long: VecDeque::new(),
            ghosts: VecDeque::new(),
            ghostly: HashSet::new(),
        }
    }

    fn evict(&mut self) {
        while self.short.len() + self.long.len() >= self.size {
            let from_short = self.short.len() > (self.size / 10).max(2) || self.long.is_empty();
            let queue = if from_short { &mut self.short } else { &mut self.long };
            let Some(slice) = queue.pop_front() else { return };
            if self.used.insert(slice, false) == Some(true) {
                self.long.push_back(slice);
                continue;
            }
            self.used.remove(&slice);
            self.ghosts.push_back(slice);
            self.ghostly.insert(slice);
            if self.ghosts.len() > self.size
                && let Some(over) = self.ghosts.pop_front()
            {
                self.ghostly.remove(&over);
            }
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, slice: u32, _now: usize) -> bool {
        if let Some(used) = self.used.get_mut(&slice) {
            *used = true;
            return true;
        }
        self.evict();
        // A request looks a slice up right after it loaded it.
        self.used.insert(slice, true);
        let queue = if self.ghostly.remove(&slice) { &mut self.long } else { &mut self.short };
        queue.push_back(slice);
        false
    }
}

/// What the cache does: its own code.
pub struct Ours(Model);

/// So large that what else a cache takes makes no difference.
const SLICE_BYTES: u64 = 1 << 30;
const SLICES_PER_TABLE: u32 = 64;

impl Ours {
    pub fn new(size: usize) -> Self {
        Self(Model::new(size as u64 * SLICE_BYTES + SLICE_BYTES / 2, SLICES_PER_TABLE as usize))
    }
}

impl Policy for Ours {
    fn access(&mut self, slice: u32, _now: usize) -> bool {
        let key = SliceKey { l1_index: slice / SLICES_PER_TABLE, slice: slice % SLICES_PER_TABLE };
        self.0.access(key, SLICE_BYTES)
    }
}

/// The optimum: evicts what is needed last.
pub struct Opt {
    size: usize,
    /// When the slice looked up at each time is looked up again.
    again: Vec<usize>,
    next: HashMap<u32, usize>,
    order: BTreeSet<(usize, u32)>,
}

impl Opt {
    pub fn new(size: usize, slices: &[u32]) -> Self {
        let mut again = vec![usize::MAX; slices.len()];
        let mut next = HashMap::new();
        for (now, slice) in slices.iter().enumerate().rev() {
            again[now] = next.insert(*slice, now).unwrap_or(usize::MAX);
        }
        Self { size, again, next: HashMap::new(), order: BTreeSet::new() }
    }
}

impl Policy for Opt {
    fn access(&mut self, slice: u32, now: usize) -> bool {
        let next = self.again[now];
        let before = self.next.insert(slice, next);
        match before {
            Some(before) => {
                self.order.remove(&(before, slice));
            }
            None if self.order.len() == self.size => {
                if let Some((_, victim)) = self.order.pop_last() {
                    self.next.remove(&victim);
                }
            }
            None => {}
        }
        self.order.insert((next, slice));
        before.is_some()
    }
}
