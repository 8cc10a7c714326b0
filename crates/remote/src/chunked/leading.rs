//! What the images of a folder lead to: names, as many as memory has room for at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::manifest::Manifest;

/// Names that are in memory at a time, of 32 bytes each: images with more are looked through several times.
const NAMES_MAX: usize = 4 << 20;
/// Fewer are not looked through for those that are there twice.
const SORTED_AT_MIN: usize = 1024;

/// Tables of the images by their names.
pub(crate) type Tables = BTreeMap<[u8; 32], Leading>;

/// A table, or one of deltas: its name, an image that it is of, and its number there.
pub(crate) type Leading = (ChunkName, Arc<Manifest>, u64);

/// What the images lead to beside packs.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) tables: Tables,
    /// Tables of deltas.
    pub(crate) deltas: Tables,
    /// Delta objects.
    pub(crate) objects: BTreeSet<[u8; 32]>,
}

/// Names that begin with one of these bytes.
pub(crate) struct Names<'a> {
    bytes: &'a RangeInclusive<u8>,
    names: Vec<ChunkName>,
    /// Memory has room for so many.
    max: usize,
    /// With so many of them, those that are there twice are let go.
    sorted_at: usize,
}

impl<'a> Names<'a> {
    pub(crate) fn new(bytes: &'a RangeInclusive<u8>) -> Self {
        Self { bytes, names: Vec::new(), max: NAMES_MAX, sorted_at: SORTED_AT_MIN }
    }

    /// Adds those that begin so. Says whether memory has room for all.
    pub(crate) fn add(&mut self, names: impl Iterator<Item = ChunkName>) -> bool {
        let bytes = self.bytes;
        self.names.extend(names.filter(|name| bytes.contains(&name.bytes()[0])));
        // Images have much in common: what is there twice is let go before more memory is taken.
        if self.names.len() < self.sorted_at {
            return true;
        }
        self.sort();
        self.sorted_at = (2 * self.names.len()).clamp(SORTED_AT_MIN, self.max + self.max / 2);
        self.names.len() <= self.max || self.bytes.start() == self.bytes.end()
    }

    fn sort(&mut self) {
        self.names.sort_unstable();
        self.names.dedup();
    }

    pub(crate) fn sorted(mut self) -> Vec<ChunkName> {
        self.sort();
        self.names
    }
}

/// Two halves of the first bytes of names.
pub(crate) fn halves(bytes: &RangeInclusive<u8>) -> [RangeInclusive<u8>; 2] {
    let (first, last) = (*bytes.start(), *bytes.end());
    let middle = first + (last - first) / 2;
    [first..=middle, middle.saturating_add(1)..=last]
}

/// What the names of a part begin with: one digit, so that a small folder takes few requests, or two.
pub(crate) fn prefixes(bytes: RangeInclusive<u8>) -> Vec<String> {
    let (first, last) = (*bytes.start(), *bytes.end());
    match first % 16 == 0 && last % 16 == 15 {
        true => (first / 16..=last / 16).map(|digit| format!("{digit:x}")).collect(),
        false => bytes.map(|byte| format!("{byte:02x}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_first_bytes_have_each_once_and_begin_with_their_prefixes() {
        let mut ranges = vec![0..=u8::MAX];
        for digits in [1, 1, 1, 1, 1, 2, 2, 2, 2] {
            let bytes: Vec<u8> = ranges.iter().cloned().flatten().collect();
            assert!(bytes.iter().copied().eq(0..=u8::MAX));
            let first: Vec<_> = ranges.iter().cloned().flat_map(prefixes).collect();
            assert!(first.len() == 16_usize.pow(digits) && first.is_sorted(), "{first:?}");
            assert!(first.iter().all(|first| first.len() == digits as usize));
            ranges = ranges.iter().flat_map(halves).collect();
        }
    }

    #[test]
    fn names_that_are_there_twice_take_no_room_and_others_are_left_out() {
        let bytes = 0..=127;
        let mut names = Names::new(&bytes);
        let name = |first: u8| ChunkName::from_bytes([first; 32]);
        for _ in 0..10_000 {
            assert!(names.add([5, 200, 3, 5].into_iter().map(name)));
        }
        assert!(names.names.len() <= SORTED_AT_MIN);
        assert_eq!(names.sorted(), [name(3), name(5)]);
        let max = 3 * SORTED_AT_MIN;
        let mut many = Names { max, ..Names::new(&bytes) };
        let each = |number: usize| {
            let mut bytes = [0; 32];
            bytes[1..9].copy_from_slice(&number.to_le_bytes());
            ChunkName::from_bytes(bytes)
        };
        assert!(many.add((0..max).map(each)));
        assert!(many.add((0..max).map(each)));
        assert!(!many.add((max..2 * max).map(each)));
        // Those of one byte are not looked through in parts.
        let one = 0..=0;
        assert!(Names { max, ..Names::new(&one) }.add((0..2 * max).map(each)));
    }
}
