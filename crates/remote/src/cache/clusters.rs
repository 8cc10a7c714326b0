//! Which clusters are cached, which are being read, and which go first.

use std::collections::BTreeMap;
use std::ops::Range;

/// The clusters that are cached. Memory grows with them, not with the file.
#[derive(Debug, Default)]
pub(crate) struct Clusters {
    cached: BTreeMap<u64, Cached>,
    /// Where the sweep goes on.
    hand: u64,
}

#[derive(Debug, Default)]
struct Cached {
    /// Read since the sweep last passed.
    used: bool,
    /// Reads under way. The sweep passes by.
    pins: u32,
}

impl Clusters {
    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.cached.len() as u64
    }

    pub(crate) fn contains(&self, cluster: u64) -> bool {
        self.cached.contains_key(&cluster)
    }

    /// A cluster that was filled: what has just been read counts as used.
    pub(crate) fn insert(&mut self, cluster: u64) {
        self.cached.insert(cluster, Cached { used: true, pins: 0 });
    }

    /// Keeps those in `range` where they are until [`Clusters::unpin`], if all of it is cached.
    pub(crate) fn pin(&mut self, range: Range<u64>) -> bool {
        let wanted = range.end - range.start;
        if self.cached.range(range.clone()).count() as u64 != wanted {
            return false;
        }
        for (_, cached) in self.cached.range_mut(range) {
            cached.used = true;
            cached.pins += 1;
        }
        true
    }

    /// Ends a pin. Clusters that were forgotten meanwhile are passed over.
    pub(crate) fn unpin(&mut self, range: Range<u64>) {
        for (_, cached) in self.cached.range_mut(range) {
            cached.pins = cached.pins.saturating_sub(1);
        }
    }

    /// Takes out up to `wanted` clusters that were not used for the longest: each use saves one from one pass of the sweep. Two rounds at
    /// most; those that are being read stay.
    pub(crate) fn evict(&mut self, wanted: usize) -> Vec<u64> {
        let mut evicted = Vec::new();
        // Two rounds begin anywhere, so they pass the end three times at most.
        for _ in 0..self.cached.len().saturating_mul(2).saturating_add(3) {
            if evicted.len() == wanted {
                break;
            }
            let next = self.cached.range_mut(self.hand..).next();
            let Some((&cluster, cached)) = next else {
                self.hand = 0;
                continue;
            };
            self.hand = cluster + 1;
            if cached.pins > 0 {
                continue;
            }
            if !std::mem::take(&mut cached.used) {
                self.cached.remove(&cluster);
                evicted.push(cluster);
            }
        }
        evicted
    }

    /// None is cached any more.
    pub(crate) fn forget(&mut self) {
        self.cached.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_was_used_stays_a_round_longer_and_one_that_is_read_stays() {
        let mut clusters = Clusters::default();
        (0..4).for_each(|cluster| clusters.insert(cluster));
        assert!(clusters.pin(0..1));
        // The first round takes the marks away.
        assert_eq!(clusters.evict(1), [1]);
        assert!(clusters.pin(2..3));
        clusters.unpin(2..3);
        assert_eq!(clusters.evict(1), [3]);
        assert_eq!(clusters.evict(9), [2]);
        assert!(clusters.evict(9).is_empty() && clusters.count() == 1);
        clusters.unpin(0..1);
        assert_eq!(clusters.evict(1), [0]);
    }

    #[test]
    fn a_range_is_pinned_as_a_whole_or_not_at_all() {
        let mut clusters = Clusters::default();
        clusters.insert(5);
        assert!(!clusters.pin(5..7));
        clusters.insert(6);
        assert!(clusters.pin(5..7));
        assert!(clusters.evict(2).is_empty());
    }
}
