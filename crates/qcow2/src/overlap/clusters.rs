//! Which kinds of metadata fill which clusters, in eight bytes a cluster: an image can have millions of tables.

use std::collections::{BTreeMap, TryReserveError};

use super::{Section, Sections};
use crate::lists;

/// Bits of a word below the cluster's number. Clusters have 512 bytes at least, so the number fits above them.
const SECTION_BITS: u32 = Section::ALL.len() as u32;

/// Additions and removals are merged when there are more of them than this part of all clusters: a merge moves 8 bytes
/// a cluster, so 128 bytes are moved for each change.
const CHANGES_PART: usize = 16;
/// So many never are too many.
const CHANGES_FEW: usize = 64;

/// Bytes of an addition: a leaf of the map has room for eleven and is two thirds full, more or less.
const ADDED_BYTES: u64 = size_of::<(u64, Sections)>() as u64 * 3 / 2;

/// A cluster's number and what is there, sorted by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Word(u64);

impl Word {
    fn new(cluster: u64, sections: Sections) -> Self {
        debug_assert!(cluster >> (u64::BITS - SECTION_BITS) == 0);
        Self(cluster << SECTION_BITS | u64::from(sections.0))
    }

    fn cluster(self) -> u64 {
        self.0 >> SECTION_BITS
    }

    fn sections(self) -> Sections {
        // The mask leaves nine bits.
        Sections((self.0 & ((1 << SECTION_BITS) - 1)) as u16)
    }
}

/// Clusters as they are found, in any order; several times where several tables are in one place.
#[derive(Debug, Default)]
pub(super) struct Gathered(Vec<Word>);

impl Gathered {
    /// Makes room for exactly so many more.
    pub(super) fn reserve(&mut self, more: usize) -> Result<(), TryReserveError> {
        self.0.try_reserve_exact(more)
    }

    pub(super) fn push(&mut self, cluster: u64, section: Section) -> Result<(), TryReserveError> {
        lists::push(&mut self.0, Word::new(cluster, Sections::of(&[section])))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn sort(&mut self) {
        self.0.sort_unstable();
    }

    /// All of them, in order after [`Gathered::sort`].
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Sections)> {
        self.0.iter().map(|word| (word.cluster(), word.sections()))
    }

    /// Each cluster once.
    pub(super) fn join(&mut self) {
        self.sort();
        self.0.dedup_by(|next, kept| {
            let same = next.cluster() == kept.cluster();
            if same {
                *kept = Word::new(kept.cluster(), kept.sections().with(next.sections()));
            }
            same
        });
    }
}

/// Clusters by number.
#[derive(Debug, Default)]
pub(super) struct Clusters {
    /// Sorted, each cluster once. One without sections is gone.
    merged: Vec<Word>,
    /// How many are gone.
    gone: usize,
    /// What was added since and is not among those.
    added: BTreeMap<u64, Sections>,
}

impl Clusters {
    /// Those of `gathered` with one of `sections`.
    pub(super) fn new(mut gathered: Gathered, sections: Sections) -> Self {
        gathered.0.retain_mut(|word| {
            *word = Word::new(word.cluster(), Sections(word.sections().0 & sections.0));
            word.sections() != Sections::NONE
        });
        gathered.join();
        gathered.0.shrink_to_fit();
        Self { merged: gathered.0, gone: 0, added: BTreeMap::new() }
    }

    /// Bytes of memory, more or less.
    pub(super) fn footprint(&self) -> u64 {
        self.merged.capacity() as u64 * size_of::<Word>() as u64 + self.added.len() as u64 * ADDED_BYTES
    }

    /// Adds a section to a cluster.
    pub(super) fn enter(&mut self, cluster: u64, section: Section) {
        let section = Sections::of(&[section]);
        match self.merged_mut(cluster) {
            Some(word) => {
                let before = word.sections();
                *word = Word::new(cluster, before.with(section));
                self.gone -= usize::from(before == Sections::NONE);
            }
            None => {
                let there = self.added.entry(cluster).or_default();
                *there = there.with(section);
                // What is gone may come again one by one, as with `forget` and the tables that were kept.
                if self.added.len() > self.few() {
                    self.merge_many();
                }
            }
        }
    }

    /// Takes a section from a cluster; says whether it was there.
    pub(super) fn leave(&mut self, cluster: u64, section: Section) -> bool {
        let gone = Sections::of(&[section]);
        if let Some(word) = self.merged_mut(cluster) {
            let before = word.sections();
            let left = before.without(gone);
            *word = Word::new(cluster, left);
            self.gone += usize::from(before != Sections::NONE && left == Sections::NONE);
            self.merge_many();
            return before.has(section);
        }
        let Some(there) = self.added.get_mut(&cluster) else { return false };
        let before = *there;
        *there = before.without(gone);
        if *there == Sections::NONE {
            self.added.remove(&cluster);
        }
        before.has(section)
    }

    /// Takes sections from all clusters.
    pub(super) fn forget(&mut self, sections: Sections) {
        self.gone = 0;
        for word in &mut self.merged {
            *word = Word::new(word.cluster(), word.sections().without(sections));
            self.gone += usize::from(word.sections() == Sections::NONE);
        }
        self.added.retain(|_, there| {
            *there = there.without(sections);
            *there != Sections::NONE
        });
    }

    /// The last of the clusters from `start` up to and without `end` that has a section other than `except`.
    #[inline]
    pub(super) fn last_in(&self, start: u64, end: u64, except: Sections) -> Option<(u64, Section)> {
        let below = self.merged.partition_point(|word| word.cluster() < end);
        let merged = self.merged.iter().take(below).rev().map(|word| (word.cluster(), word.sections()));
        let mut merged = merged.take_while(|(cluster, _)| *cluster >= start);
        let merged = merged.find_map(|(cluster, there)| Some((cluster, there.without(except).first()?)));
        if self.added.is_empty() || start >= end {
            return merged;
        }
        let mut added = self.added.range(start..end).rev();
        let added = added.find_map(|(&cluster, there)| Some((cluster, there.without(except).first()?)));
        merged.max(added)
    }

    /// Clusters with `section`, in no order.
    pub(super) fn with(&self, section: Section) -> impl Iterator<Item = u64> {
        let merged = self.merged.iter().map(|word| (word.cluster(), word.sections()));
        let all = merged.chain(self.added.iter().map(|(&cluster, &there)| (cluster, there)));
        all.filter_map(move |(cluster, there)| there.has(section).then_some(cluster))
    }

    #[inline]
    fn merged_mut(&mut self, cluster: u64) -> Option<&mut Word> {
        let at = self.merged.binary_search_by_key(&cluster, |word| word.cluster()).ok()?;
        self.merged.get_mut(at)
    }

    /// Merges what was added if it is much, or much is gone. Without memory it stays as it is.
    pub(super) fn merge_many(&mut self) {
        let few = self.few();
        if self.added.len() <= few && self.gone <= few {
            return;
        }
        if self.merged.try_reserve_exact(self.added.len().saturating_sub(self.gone)).is_err() {
            return;
        }
        self.merged.retain(|word| word.sections() != Sections::NONE);
        self.gone = 0;
        self.merge();
        if self.merged.capacity() / 2 > self.merged.len() {
            self.merged.shrink_to_fit();
        }
    }

    fn few(&self) -> usize {
        (self.merged.len() / CHANGES_PART).max(CHANGES_FEW)
    }

    /// Moves what is merged towards the end, from its end on, and puts what was added between.
    fn merge(&mut self) {
        let mut from = self.merged.len();
        let mut to = from + self.added.len();
        self.merged.resize(to, Word(0));
        while let Some((cluster, sections)) = self.added.pop_last() {
            let stays = self.merged[..from].partition_point(|word| word.cluster() < cluster);
            let moved = from - stays;
            self.merged.copy_within(stays..from, to - moved);
            (from, to) = (stays, to - moved - 1);
            self.merged[to] = Word::new(cluster, sections);
        }
    }
}
