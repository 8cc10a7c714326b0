//! Which slices left lately: to know those that should have stayed, and what more memory would do.

use crate::directory::SliceKey;
use crate::footprint;
use crate::queue::Moment;

/// Ghosts of one hash: the oldest of them gives way.
const WAYS: usize = 4;
/// Fewest ghosts that are remembered.
const LEAST: usize = 64;
/// Most: half a megabyte.
const MOST: usize = 1 << 16;
/// Unit of the clock of evicted bytes: 32 bits of it pass after 256 GiB.
const UNIT: u64 = 64;
/// Powers of two of bytes that hits are counted by.
const CLASSES: usize = 32;

/// Misses of slices that had left lately, by the memory that would have kept them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GhostHits([u64; CLASSES]);

impl Default for GhostHits {
    fn default() -> Self {
        Self([0; CLASSES])
    }
}

/// What more memory would have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advice {
    /// So many bytes more ...
    pub more_bytes: u64,
    /// ... would have avoided so many misses.
    pub avoided_misses: u64,
}

impl GhostHits {
    fn count(&mut self, bytes: u64) {
        let class = bytes.max(1).next_power_of_two().trailing_zeros() as usize;
        if let Some(hits) = self.0.get_mut(class.min(CLASSES - 1)) {
            *hits += 1;
        }
    }

    /// Misses that `more_bytes` more memory would have avoided, as far as ghosts reach back.
    pub fn avoided(&self, more_bytes: u64) -> u64 {
        let classes = self.0.iter().enumerate();
        classes.filter(|(class, _)| 1 << class <= more_bytes).map(|(_, hits)| hits).sum()
    }

    /// The least memory that would have avoided three quarters of the misses that ghosts know of;
    /// `None` if they know of none.
    pub fn advice(&self) -> Option<Advice> {
        let all: u64 = self.0.iter().sum();
        let enough = |more_bytes: &u64| self.avoided(*more_bytes) * 4 >= all * 3;
        let more_bytes = (0..CLASSES).map(|class| 1 << class).find(enough).filter(|_| all > 0)?;
        Some(Advice { more_bytes, avoided_misses: self.avoided(more_bytes) })
    }
}

/// Ghosts: hashes of keys, and when each left on a clock of evicted bytes. One that is taken for another
/// now and then does no harm.
#[derive(Debug, Default)]
pub(crate) struct Ghosts {
    /// Hash in the upper half, time in the lower; 0 is none.
    table: Box<[u64]>,
    clock: u64,
    hits: GhostHits,
}

impl Ghosts {
    /// Remembers that a slice of `bytes` left a cache of `residents` slices.
    pub(crate) fn insert(&mut self, key: SliceKey, bytes: u64, residents: usize) {
        self.grow(residents);
        self.clock += bytes;
        let (hash, now) = (hash(key), self.now());
        let set = self.set(hash);
        let oldest = set.iter_mut().max_by_key(|ghost| match **ghost {
            0 => u32::MAX,
            ghost => now.wrapping_sub(ghost as u32),
        });
        if let Some(ghost) = oldest {
            *ghost = (u64::from(hash) << 32) | u64::from(now);
        }
    }

    /// For how long `key` is away, on the clock, if it left lately; it is not a ghost any more then.
    pub(crate) fn take(&mut self, key: SliceKey) -> Option<u32> {
        let (hash, now) = (hash(key), self.now());
        let found = self.set(hash).iter_mut().find(|ghost| **ghost != 0 && (**ghost >> 32) as u32 == hash);
        let ghost = std::mem::take(found?);
        let away = now.wrapping_sub(ghost as u32);
        self.hits.count(u64::from(away) * UNIT);
        Some(away)
    }

    pub(crate) fn hits(&self) -> GhostHits {
        self.hits
    }

    /// The moment, to a cache whose slices take `bytes`.
    pub(crate) fn moment(&self, bytes: u64) -> Moment {
        Moment { now: self.now(), held: bytes / UNIT }
    }

    /// The clock.
    pub(crate) fn now(&self) -> u32 {
        // 0 would make a ghost of hash 0 look like none.
        ((self.clock / UNIT) as u32) | 1
    }

    fn set(&mut self, hash: u32) -> &mut [u64] {
        let sets = self.table.len() / WAYS;
        let at = if sets == 0 { 0 } else { hash as usize % sets * WAYS };
        self.table.get_mut(at..).map_or(&mut [], |rest| {
            let end = rest.len().min(WAYS);
            &mut rest[..end]
        })
    }

    /// As many ghosts as slices, in powers of two. Ghosts stay where they can still be found.
    fn grow(&mut self, residents: usize) {
        let wanted = residents.next_power_of_two().clamp(LEAST, MOST);
        if wanted <= self.table.len() {
            return;
        }
        let old = std::mem::replace(&mut self.table, vec![0; wanted].into());
        for ghost in old.into_iter().filter(|ghost| *ghost != 0) {
            if let Some(free) = self.set((ghost >> 32) as u32).iter_mut().find(|other| **other == 0) {
                *free = ghost;
            }
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn footprint(&self) -> u64 {
        footprint::allocation(size_of_val(&*self.table))
    }
}

/// Mixes well in all bits: neighbours must not crowd into few sets.
fn hash(key: SliceKey) -> u32 {
    let number = (u64::from(key.l1_index) << 32) | u64::from(key.slice);
    let mixed = (number ^ (number >> 29)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(slice: u32) -> SliceKey {
        SliceKey { l1_index: 0, slice }
    }

    #[test]
    fn a_ghost_says_how_much_more_memory_would_have_kept_its_slice() {
        let mut ghosts = Ghosts::default();
        (0..64).for_each(|slice| ghosts.insert(key(slice), 4096, 64));
        assert_eq!(ghosts.take(key(63)), Some(0));
        assert_eq!(ghosts.take(key(63)), None, "a ghost is taken once");
        assert_eq!(ghosts.take(key(40)), Some(23 * 64));
        assert_eq!(ghosts.take(key(1000)), None);
        let hits = ghosts.hits();
        assert_eq!((hits.avoided(4096), hits.avoided(64 << 10), hits.avoided(128 << 10)), (1, 1, 2));
        assert_eq!(hits.advice(), Some(Advice { more_bytes: 128 << 10, avoided_misses: 2 }));
        assert_eq!(GhostHits::default().advice(), None);
    }

    #[test]
    fn ghosts_are_bounded_and_the_oldest_give_way() {
        let mut ghosts = Ghosts::default();
        (0..1_000_000).for_each(|slice| ghosts.insert(key(slice), 64, 10_000_000));
        assert_eq!(ghosts.footprint(), footprint::allocation(MOST * 8));
        let late = (990_000..1_000_000).filter(|&slice| ghosts.take(key(slice)).is_some()).count();
        let early = (0..10_000).filter(|&slice| ghosts.take(key(slice)).is_some()).count();
        assert!(late > 9_900 && early < 100, "{late} late, {early} early");
    }
}
