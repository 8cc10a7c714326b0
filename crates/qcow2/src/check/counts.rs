//! Counters for clusters, sparse: memory follows the clusters that are counted, not the largest index.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

use crate::lists;

/// Clusters on a page.
const PAGE: u64 = 512;
/// A page with more counters than this becomes an array.
const FEW_MAX: usize = 64;
/// Stands in an array for a count that is kept in `large`.
const LARGE: u16 = u16::MAX;
/// Bytes that a page takes besides its counters: slot, tree node, allocation.
const PAGE_BYTES: u64 = 96;

enum Page {
    /// Index on the page and count, sorted by index.
    Few(Vec<(u16, u16)>),
    Dense(Box<[u16; PAGE as usize]>),
}

/// A count for every cluster, zero unless added to.
pub(super) struct Counts {
    /// Page number -> index into `pages`.
    index: BTreeMap<u64, usize>,
    pages: Vec<Page>,
    /// The page asked for last, and where it is, if it is there: references come in runs, and so does what has none.
    last: Cell<Option<(u64, Option<usize>)>>,
    /// Counts of 65535 and more.
    large: HashMap<u64, u32>,
    bytes: u64,
    bytes_max: u64,
}

/// Why there is no room for another count.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// What was granted is used up.
    Granted,
    /// The machine has no more.
    Memory,
}

impl Counts {
    /// All zero; may take about `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            index: BTreeMap::new(),
            pages: Vec::new(),
            last: Cell::new(None),
            large: HashMap::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Bytes that may be taken.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The count of `cluster`.
    pub(super) fn get(&self, cluster: u64) -> u32 {
        let slot = self.find(cluster / PAGE);
        let stored = slot.and_then(|slot| self.pages.get(slot)).map_or(0, |page| page.get(cluster % PAGE));
        if stored == LARGE { self.large.get(&cluster).copied().unwrap_or(0) } else { u32::from(stored) }
    }

    /// Adds `times` to the count of `cluster`; stays at the largest number rather than wrapping.
    pub(super) fn add(&mut self, cluster: u64, times: u32) -> Result<(), Full> {
        let count = self.get(cluster).saturating_add(times);
        self.set(cluster, count)
    }

    /// Sets the count of `cluster`.
    pub(super) fn set(&mut self, cluster: u64, count: u32) -> Result<(), Full> {
        let stored = match u16::try_from(count) {
            Ok(small) if small < LARGE => {
                // Hashing costs more than all the rest, and nearly always nothing is there.
                if !self.large.is_empty() {
                    self.large.remove(&cluster);
                }
                small
            }
            _ => {
                self.large.try_reserve(1).map_err(|_| Full::Memory)?;
                if self.large.insert(cluster, count).is_none() {
                    self.take(PAGE_BYTES)?;
                }
                LARGE
            }
        };
        let slot = self.slot(cluster / PAGE)?;
        let Some(page) = self.pages.get_mut(slot) else { return Ok(()) };
        let grown = page.set(cluster % PAGE, stored);
        self.take(grown)
    }

    /// The first cluster from `from` on with a count.
    pub(super) fn next(&self, from: u64) -> Option<u64> {
        let mut start = from % PAGE;
        for (page, slot) in self.index.range(from / PAGE..) {
            if *page != from / PAGE {
                start = 0;
            }
            let found = self.pages.get(*slot).and_then(|counters| counters.next(start));
            if let Some(found) = found {
                return Some(page * PAGE + found);
            }
        }
        None
    }

    /// Where a page is, if it is there.
    fn find(&self, page: u64) -> Option<usize> {
        match self.last.get() {
            Some((last, slot)) if last == page => slot,
            _ => {
                let slot = self.index.get(&page).copied();
                self.last.set(Some((page, slot)));
                slot
            }
        }
    }

    fn slot(&mut self, page: u64) -> Result<usize, Full> {
        if let Some(slot) = self.find(page) {
            return Ok(slot);
        }
        self.take(PAGE_BYTES)?;
        let slot = self.pages.len();
        lists::push(&mut self.pages, Page::Few(Vec::new())).map_err(|_| Full::Memory)?;
        self.index.insert(page, slot);
        self.last.set(Some((page, Some(slot))));
        Ok(slot)
    }

    fn take(&mut self, bytes: u64) -> Result<(), Full> {
        self.bytes += bytes;
        if self.bytes > self.bytes_max { Err(Full::Granted) } else { Ok(()) }
    }
}

impl Page {
    fn get(&self, at: u64) -> u16 {
        match self {
            Page::Few(few) => {
                let found = few.binary_search_by_key(&at, |(index, _)| u64::from(*index));
                found.ok().and_then(|place| few.get(place)).map_or(0, |(_, count)| *count)
            }
            Page::Dense(all) => all.get(at as usize).copied().unwrap_or(0),
        }
    }

    /// Stores a count and says how many bytes the page has grown.
    fn set(&mut self, at: u64, count: u16) -> u64 {
        match self {
            Page::Dense(all) => {
                if let Some(place) = all.get_mut(at as usize) {
                    *place = count;
                }
                0
            }
            Page::Few(few) => {
                let before = few.capacity();
                match few.binary_search_by_key(&at, |(index, _)| u64::from(*index)) {
                    Ok(place) => {
                        if let Some(counter) = few.get_mut(place) {
                            counter.1 = count;
                        }
                    }
                    Err(place) => few.insert(place, (at as u16, count)),
                }
                if few.len() <= FEW_MAX {
                    return ((few.capacity() - before) * size_of::<(u16, u16)>()) as u64;
                }
                let mut all = Box::new([0; PAGE as usize]);
                for (index, count) in few {
                    all[usize::from(*index)] = *count;
                }
                *self = Page::Dense(all);
                PAGE * 2
            }
        }
    }

    fn next(&self, from: u64) -> Option<u64> {
        match self {
            Page::Few(few) => few
                .iter()
                .find(|(at, count)| u64::from(*at) >= from && *count != 0)
                .map(|(at, _)| u64::from(*at)),
            Page::Dense(all) => {
                (from..PAGE).find(|at| all.get(*at as usize).is_some_and(|count| *count != 0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sparse_counts_are_those_of_a_plain_map(
            adds in proptest::collection::vec((0u64..3000, 1u32..40000), 0..2000), far in 1u64 << 30..1 << 50,
        ) {
            let mut counts = Counts::new(1 << 30);
            let mut plain = BTreeMap::new();
            for (cluster, times) in adds {
                for cluster in [cluster, cluster % 7, cluster + far] {
                    counts.add(cluster, times).unwrap();
                    *plain.entry(cluster).or_insert(0u32) += times;
                }
            }
            let mut at = 0;
            for (cluster, count) in plain {
                prop_assert_eq!(counts.next(at), Some(cluster));
                prop_assert_eq!(counts.get(cluster), count);
                at = cluster + 1;
            }
            prop_assert_eq!(counts.next(at), None);
        }
    }

    #[test]
    fn counts_spread_thinly_hit_the_limit() {
        let mut counts = Counts::new(100_000);
        let stored = (0..10_000u64).take_while(|i| counts.add(i * 4096, 1).is_ok()).count();
        assert!((500..1500).contains(&stored), "{stored}");
    }
}
