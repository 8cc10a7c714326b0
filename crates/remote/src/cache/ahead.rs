//! What is read ahead of guests: which clusters were not asked for yet, and when the server may be asked.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// A task waits for the bytes.
    Guest,
    /// No task does: they are brought closer.
    Later,
}

/// Clusters that were fetched ahead, or are being fetched, and that no guest has asked for. The state's lock keeps them in step with what is
/// cached and on its way.
#[derive(Debug, Default)]
pub(crate) struct Unused(BTreeSet<u64>);

impl Unused {
    pub(crate) fn add(&mut self, clusters: Range<u64>) {
        self.0.extend(clusters);
    }

    /// A guest asks for `clusters`, or they are given up. How many of them were here.
    pub(crate) fn take(&mut self, clusters: Range<u64>) -> u64 {
        let mut taken = 0;
        while let Some(&cluster) = self.0.range(clusters.clone()).next() {
            self.0.remove(&cluster);
            taken += 1;
        }
        taken
    }
}

/// What reading ahead waits for: guests' misses under way, and those who wait for the cache to come to rest.
#[derive(Debug, Default)]
pub(crate) struct Precedence {
    holders: AtomicUsize,
    none: Event,
}

/// As long as this lives, nothing more is asked of the server ahead of guests.
#[derive(Debug)]
pub(crate) struct Precedes(Arc<Precedence>);

impl Precedence {
    pub(crate) fn take(self: &Arc<Self>) -> Precedes {
        self.holders.fetch_add(1, Ordering::AcqRel);
        Precedes(Arc::clone(self))
    }

    /// Waits until no task goes before. The task that comes afterwards does not call back what is under way.
    pub(crate) async fn none(&self) {
        loop {
            let none = self.none.listen();
            if self.holders.load(Ordering::Acquire) == 0 {
                return;
            }
            none.await;
        }
    }
}

impl Drop for Precedes {
    fn drop(&mut self) {
        if self.0.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_used_once() {
        let mut unused = Unused::default();
        unused.add(3..9);
        assert_eq!([unused.take(0..5), unused.take(4..6), unused.take(4..6)], [2, 1, 0]);
    }
}
