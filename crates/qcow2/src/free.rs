//! Clusters on their way from "nothing refers to it" to "may be given out again".
//!
//! 1. *open*: the entry that referred to it is gone from memory, not yet from the file.
//! 2. *settled*: the file has the new entry. Requests that found the old one may still run.
//! 3. When those have left: the refcount goes down (in memory; the next commit writes it), the hole
//!    is punched, and only then the allocator may hand the cluster out.
//!
//! A crash in between leaks the cluster; no other order is safe (docs/internals/write-order.md, free).

use sync::atomic::{AtomicU64, Ordering};
use sync::{Event, Mutex};

/// Clusters that lost one reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Whether the space goes back to the file system.
    pub(crate) punch: bool,
}

/// Runs of freed clusters in memory before a commit is due even without a flush: some 200 KiB.
const OPEN_RUNS_MAX: usize = 1 << 13;

/// All clusters on their way.
#[derive(Debug, Default)]
pub(crate) struct Frees {
    state: Mutex<State>,
    idle: Event,
    leaked: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    open: Vec<Free>,
    settled: Vec<Free>,
    /// The settled ones are the batch of this number; all before it are given back, or on their way.
    batch: u64,
    reclaiming: bool,
}

impl Frees {
    /// Step 1. Call it after the entry changed in memory.
    pub(crate) fn add(&self, free: Free) {
        let mut state = self.state.lock();
        match state.open.last_mut() {
            Some(last) if last.start + last.len == free.start && last.punch == free.punch => {
                last.len += free.len
            }
            _ => state.open.push(free),
        }
    }

    /// Whether enough waits that a commit is due.
    pub(crate) fn wants_commit(&self) -> bool {
        self.state.lock().open.len() > OPEN_RUNS_MAX
    }

    /// Whether a commit has something to settle.
    pub(crate) fn any_open(&self) -> bool {
        !self.state.lock().open.is_empty()
    }

    /// Whether freed clusters are on their way to the allocator.
    pub(crate) fn is_reclaiming(&self) -> bool {
        self.state.lock().reclaiming
    }

    /// What the commit that starts now will settle. Call it before copying tables.
    pub(crate) fn take_open(&self) -> Vec<Free> {
        std::mem::take(&mut self.state.lock().open)
    }

    /// The commit failed: the file may still have the old entries.
    pub(crate) fn reopen(&self, frees: Vec<Free>) {
        self.state.lock().open.extend(frees);
    }

    /// Step 2. Returns whether a request must start reclaiming.
    pub(crate) fn settle(&self, frees: Vec<Free>) -> bool {
        if frees.is_empty() {
            return false;
        }
        let mut state = self.state.lock();
        state.settled.extend(frees);
        !std::mem::replace(&mut state.reclaiming, true)
    }

    /// What is settled; `None` ends reclaiming.
    pub(crate) fn take_settled(&self) -> Option<Vec<Free>> {
        let mut state = self.state.lock();
        // Those of the batch before are given back.
        self.idle.notify(usize::MAX);
        if state.settled.is_empty() {
            state.reclaiming = false;
            return None;
        }
        state.batch += 1;
        Some(std::mem::take(&mut state.settled))
    }

    /// Clusters that could not be given back: a check finds and frees them.
    pub(crate) fn leaked(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }

    /// A cluster could not be given back.
    pub(crate) fn count_leaked(&self) {
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }

    /// Reclaiming has ended; `gave_up` if with something left, which another may take up.
    pub(crate) fn ended(&self, gave_up: bool) {
        if gave_up {
            self.state.lock().reclaiming = false;
        }
        self.idle.notify(usize::MAX);
    }

    /// Waits until what is settled now has been given back, or that was given up.
    pub(crate) async fn given_back(&self) {
        let batch = {
            let state = self.state.lock();
            if !state.reclaiming {
                return;
            }
            state.batch + u64::from(!state.settled.is_empty())
        };
        loop {
            let idle = self.idle.listen();
            // The batch that was taken last is on its way for as long as a request reclaims.
            let is_given_back = {
                let state = self.state.lock();
                !state.reclaiming || state.batch > batch
            };
            if is_given_back {
                return;
            }
            idle.await;
        }
    }

    /// Waits until nothing is being reclaimed.
    pub(crate) async fn idle(&self) {
        loop {
            let idle = self.idle.listen();
            if !self.state.lock().reclaiming {
                return;
            }
            idle.await;
        }
    }
}
