//! Counters for clusters, sparse and packed: memory follows the clusters that are counted, not the largest index, and one bit is
//! enough where nothing is shared.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::lists;

/// Clusters on a page.
const PAGE: u64 = 4096;
/// Clusters whose counters of one bit are a word.
pub(crate) const GROUP: u64 = u64::BITS as u64;
/// A page with more counters than this becomes an array.
const FEW_MAX: usize = 128;
/// Bits of a counter in an array: the least in which all of the page's counters fit.
const WIDTHS: [u32; 3] = [1, 4, 16];
/// Stands in an array for a count that is kept in `large`.
const LARGE: u16 = u16::MAX;
/// Bytes that a page takes besides its counters: slot, tree node, allocation.
const PAGE_BYTES: u64 = 96;

enum Page {
    /// Index on the page and count, sorted by index.
    Few(Vec<(u16, u16)>),
    Array(Array),
}

/// A counter for each cluster of a page.
struct Array {
    /// Bits of a counter.
    width: u32,
    words: Box<[u64]>,
}

/// A count for every cluster, zero unless added to.
pub(crate) struct Counts {
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
pub(crate) enum Full {
    /// What was granted is used up.
    Granted,
    /// The machine has no more.
    Memory,
}

impl Counts {
    /// All zero; may take about `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
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
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The count of `cluster`.
    pub(crate) fn get(&self, cluster: u64) -> u32 {
        let slot = self.find(cluster / PAGE);
        let stored = slot.and_then(|slot| self.pages.get(slot)).map_or(0, |page| page.get(cluster % PAGE));
        if stored == LARGE { self.large.get(&cluster).copied().unwrap_or(0) } else { u32::from(stored) }
    }

    /// Adds `times` to the count of `cluster` and says what it was; stays at the largest number rather than wrapping.
    pub(crate) fn add(&mut self, cluster: u64, times: u32) -> Result<u32, Full> {
        let before = self.get(cluster);
        self.set(cluster, before.saturating_add(times))?;
        Ok(before)
    }

    /// Sets the count of `cluster`.
    pub(crate) fn set(&mut self, cluster: u64, count: u32) -> Result<(), Full> {
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
        let before = page.bytes();
        page.set(cluster % PAGE, stored);
        let after = page.bytes();
        self.bytes -= before;
        self.take(after)
    }

    /// Whether each of the [`GROUP`] clusters from `first` on, a multiple of that, has a count of one.
    pub(crate) fn is_one_each(&self, first: u64) -> bool {
        self.group(first).is_some_and(|group| group == u64::MAX)
    }

    /// Counts one for each of some clusters of a group that have no count. False, and nothing changed, where one has, or where
    /// counters are not packed.
    pub(crate) fn add_fresh(&mut self, clusters: Range<u64>) -> bool {
        let first = clusters.start / GROUP * GROUP;
        let Some(group) = self.group(first) else { return false };
        let bits = (u64::MAX >> (GROUP - (clusters.end - clusters.start))) << (clusters.start - first);
        if group & bits != 0 {
            return false;
        }
        if let Some(slot) = self.find(first / PAGE)
            && let Some(Page::Array(array)) = self.pages.get_mut(slot)
            && let Some(word) = array.words.get_mut((first % PAGE / GROUP) as usize)
        {
            *word |= bits;
        }
        true
    }

    /// The counters of a group, a bit each. `None` where they are not kept so.
    fn group(&self, first: u64) -> Option<u64> {
        match self.pages.get(self.find(first / PAGE)?)? {
            Page::Array(array) if array.width == 1 => {
                array.words.get((first % PAGE / GROUP) as usize).copied()
            }
            Page::Array(_) | Page::Few(_) => None,
        }
    }

    /// Whether a cluster near `cluster`, on its page, may have a count.
    pub(crate) fn has_page(&self, cluster: u64) -> bool {
        self.find(cluster / PAGE).is_some()
    }

    /// The first cluster from `from` on with a count.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
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
            Page::Array(array) => array.get(at),
        }
    }

    /// Bytes of its counters.
    fn bytes(&self) -> u64 {
        match self {
            Page::Few(few) => (few.capacity() * size_of::<(u16, u16)>()) as u64,
            Page::Array(array) => size_of_val::<[u64]>(&array.words) as u64,
        }
    }

    fn set(&mut self, at: u64, count: u16) {
        match self {
            Page::Array(array) => array.set(at, count),
            Page::Few(few) => {
                match few.binary_search_by_key(&at, |(index, _)| u64::from(*index)) {
                    Ok(place) => {
                        if let Some(counter) = few.get_mut(place) {
                            counter.1 = count;
                        }
                    }
                    Err(place) => few.insert(place, (at as u16, count)),
                }
                if few.len() <= FEW_MAX {
                    return;
                }
                let largest = few.iter().map(|(_, count)| *count).max().unwrap_or(0);
                let mut all = Array::new(width_for(largest));
                for (index, count) in few {
                    all.set(u64::from(*index), *count);
                }
                *self = Page::Array(all);
            }
        }
    }

    fn next(&self, from: u64) -> Option<u64> {
        match self {
            Page::Few(few) => few
                .iter()
                .find(|(at, count)| u64::from(*at) >= from && *count != 0)
                .map(|(at, _)| u64::from(*at)),
            Page::Array(array) => array.next(from),
        }
    }
}

impl Array {
    fn new(width: u32) -> Self {
        let words = PAGE * u64::from(width) / u64::from(u64::BITS);
        Self { width, words: vec![0; words as usize].into_boxed_slice() }
    }

    /// The word of a counter, and the counter's first bit in it.
    fn place(&self, at: u64) -> (usize, u32) {
        let bit = at * u64::from(self.width);
        ((bit / u64::from(u64::BITS)) as usize, (bit % u64::from(u64::BITS)) as u32)
    }

    /// The largest count that fits.
    fn max(&self) -> u64 {
        (1 << self.width) - 1
    }

    fn get(&self, at: u64) -> u16 {
        let (word, shift) = self.place(at);
        self.words.get(word).map_or(0, |word| (word >> shift & self.max()) as u16)
    }

    /// Stores a count, in wider counters if it has to be.
    fn set(&mut self, at: u64, count: u16) {
        if u64::from(count) > self.max() {
            let mut wider = Self::new(width_for(count));
            (0..PAGE).for_each(|other| wider.store(other, self.get(other)));
            *self = wider;
        }
        self.store(at, count);
    }

    fn store(&mut self, at: u64, count: u16) {
        let (word, shift) = self.place(at);
        let max = self.max();
        if let Some(word) = self.words.get_mut(word) {
            *word = *word & !(max << shift) | u64::from(count) << shift;
        }
    }

    fn next(&self, from: u64) -> Option<u64> {
        let (first, shift) = self.place(from);
        let mut mask = u64::MAX << shift;
        for (at, word) in self.words.iter().enumerate().skip(first) {
            let counters = word & mask;
            if counters != 0 {
                let bit = at as u64 * u64::from(u64::BITS) + u64::from(counters.trailing_zeros());
                return Some(bit / u64::from(self.width));
            }
            mask = u64::MAX;
        }
        None
    }
}

/// The least width in which `count` fits.
fn width_for(count: u16) -> u32 {
    WIDTHS.into_iter().find(|width| u64::from(count) < 1 << width).unwrap_or(u16::BITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sparse_counts_are_those_of_a_plain_map(
            adds in proptest::collection::vec((0u64..9000, prop_oneof![1u32..3, 1u32..20, 1u32..40000]), 0..3000),
            far in 1u64 << 30..1 << 50,
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
    fn neighbours_that_nothing_shares_take_a_bit_each() {
        const CLUSTERS: u64 = 1 << 20;
        let mut counts = Counts::new(CLUSTERS / 8 + CLUSTERS / PAGE * 2 * PAGE_BYTES + 10_000);
        assert!((0..CLUSTERS).all(|cluster| counts.add(cluster, 1) == Ok(0)));
        assert_eq!((counts.get(CLUSTERS - 1), counts.next(CLUSTERS)), (1, None));
        assert!(counts.is_one_each(GROUP) && !counts.is_one_each(CLUSTERS));
    }

    #[test]
    fn what_is_counted_in_groups_is_what_is_counted_one_by_one() {
        let mut counts = Counts::new(1 << 20);
        assert!(!counts.add_fresh(0..GROUP), "nothing is packed yet");
        assert!((0..200).all(|cluster| counts.add(cluster, 1) == Ok(0)));
        assert!(!counts.add_fresh(199..201), "one of them has a count");
        assert!(counts.add_fresh(200..203) && counts.add_fresh(256..320));
        let counted = |cluster: u64| cluster < 203 || (256..320).contains(&cluster);
        for cluster in 0..PAGE {
            assert_eq!(counts.get(cluster), u32::from(counted(cluster)), "{cluster}");
        }
        counts.add(256, 1).unwrap();
        assert!(!counts.add_fresh(320..321) && !counts.is_one_each(0), "wider counters");
        assert_eq!((counts.get(256), counts.get(257), counts.next(203)), (2, 1, Some(256)));
    }

    #[test]
    fn counts_spread_thinly_hit_the_limit() {
        let mut counts = Counts::new(100_000);
        let stored = (0..10_000u64).take_while(|i| counts.add(i * 8192, 1).is_ok()).count();
        assert!((500..1500).contains(&stored), "{stored}");
    }
}
