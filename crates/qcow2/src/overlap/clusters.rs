//! Which kinds of metadata fill which clusters, in eight bytes a cluster: an image can have millions of tables.

use std::collections::TryReserveError;
use std::sync::Arc;

// Words are single and change alone: there is no order among them to explore.
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Section, Sections};
use crate::lists;

/// Bits of a word below the cluster's number. Clusters have 512 bytes at least, so the number fits above them.
const SECTION_BITS: u32 = Section::ALL.len() as u32;

/// What is gone is taken out when it is more than this part of all clusters: that moves 8 bytes a cluster, so 128 bytes are
/// moved for each that went.
const GONE_PART: usize = 16;
/// So many never are too many.
const CHANGES_FEW: usize = 64;
/// Additions are merged when there are more: each copies those before it, 8 KiB at most, and a merge moves all clusters.
const ADDED_MAX: usize = 1024;

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

/// A word that changes in place, while others look.
#[derive(Debug)]
struct Slot(AtomicU64);

impl Slot {
    fn new(word: Word) -> Self {
        Self(AtomicU64::new(word.0))
    }

    #[inline]
    fn get(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// One change of words at a time.
    fn set(&self, word: Word) {
        self.0.store(word.0, Ordering::Release);
    }
}

/// Clusters by number. A clone is a snapshot of which clusters there are; what is there still changes in both.
#[derive(Clone, Debug, Default)]
pub(super) struct Clusters {
    /// Sorted, each cluster once. One without sections is gone.
    merged: Arc<Vec<Slot>>,
    /// How many are gone.
    gone: usize,
    /// What was added since and is not among those. Sorted, each cluster once.
    added: Arc<Vec<Word>>,
}

impl Clusters {
    /// Those of `gathered` with one of `sections`.
    pub(super) fn new(mut gathered: Gathered, sections: Sections) -> Self {
        gathered.0.retain_mut(|word| {
            *word = Word::new(word.cluster(), Sections(word.sections().0 & sections.0));
            word.sections() != Sections::NONE
        });
        gathered.join();
        let mut merged: Vec<Slot> = gathered.0.into_iter().map(Slot::new).collect();
        merged.shrink_to_fit();
        Self { merged: Arc::new(merged), gone: 0, added: Arc::default() }
    }

    /// Bytes of memory, more or less.
    pub(super) fn footprint(&self) -> u64 {
        ((self.merged.capacity() + self.added.capacity()) * size_of::<Word>()) as u64
    }

    /// Adds a section to a cluster.
    pub(super) fn enter(&mut self, cluster: u64, section: Section) {
        let section = Sections::of(&[section]);
        if let Some(slot) = self.slot(cluster) {
            let before = slot.get().sections();
            slot.set(Word::new(cluster, before.with(section)));
            self.gone -= usize::from(before == Sections::NONE);
            return;
        }
        let added = Arc::make_mut(&mut self.added);
        match added.binary_search_by_key(&cluster, |word| word.cluster()) {
            Ok(at) => added[at] = Word::new(cluster, added[at].sections().with(section)),
            Err(at) => added.insert(at, Word::new(cluster, section)),
        }
        // What is gone may come again one by one, as with `forget` and the tables that were kept.
        self.merge_many();
    }

    /// Takes a section from a cluster; says whether it was there.
    pub(super) fn leave(&mut self, cluster: u64, section: Section) -> bool {
        let gone = Sections::of(&[section]);
        if let Some(slot) = self.slot(cluster) {
            let before = slot.get().sections();
            let left = before.without(gone);
            slot.set(Word::new(cluster, left));
            self.gone += usize::from(before != Sections::NONE && left == Sections::NONE);
            self.merge_many();
            return before.has(section);
        }
        let Ok(at) = self.added.binary_search_by_key(&cluster, |word| word.cluster()) else { return false };
        let added = Arc::make_mut(&mut self.added);
        let before = added[at].sections();
        match before.without(gone) {
            Sections::NONE => _ = added.remove(at),
            left => added[at] = Word::new(cluster, left),
        }
        before.has(section)
    }

    /// What is `from` at a cluster is `to` from now on, in one step. Nothing happens where there is no `from`.
    pub(super) fn turn(&mut self, cluster: u64, from: Section, to: Section) {
        let turned = |word: Word| {
            let others = word.sections().without(Sections::of(&[from]));
            Word::new(cluster, others.with(Sections::of(&[to])))
        };
        if let Some(slot) = self.slot(cluster) {
            if slot.get().sections().has(from) {
                slot.set(turned(slot.get()));
            }
        } else if let Ok(at) = self.added.binary_search_by_key(&cluster, |word| word.cluster())
            && self.added[at].sections().has(from)
        {
            let added = Arc::make_mut(&mut self.added);
            added[at] = turned(added[at]);
        }
    }

    /// Takes sections from all clusters. Who looks at a snapshot that was taken before sees no half of it, unless there is no memory
    /// for another list.
    pub(super) fn forget(&mut self, sections: Sections) {
        let left = |word: Word| Word::new(word.cluster(), word.sections().without(sections));
        let mut merged = Vec::new();
        if merged.try_reserve_exact(self.merged.len()).is_ok() {
            merged.extend(self.merged.iter().map(|slot| Slot::new(left(slot.get()))));
            self.merged = Arc::new(merged);
        } else {
            self.merged.iter().for_each(|slot| slot.set(left(slot.get())));
        }
        self.gone = self.merged.iter().filter(|slot| slot.get().sections() == Sections::NONE).count();
        Arc::make_mut(&mut self.added).retain_mut(|word| {
            *word = left(*word);
            word.sections() != Sections::NONE
        });
    }

    /// The last of the clusters from `start` up to and without `end` that has a section other than `except`.
    #[inline]
    pub(super) fn last_in(&self, start: u64, end: u64, except: Sections) -> Option<(u64, Section)> {
        let there = |word: Word| Some((word.cluster(), word.sections().without(except).first()?));
        let below = self.merged.partition_point(|slot| slot.get().cluster() < end);
        let merged = self.merged.iter().take(below).rev().map(Slot::get);
        let merged = merged.take_while(|word| word.cluster() >= start).find_map(there);
        let below = self.added.partition_point(|word| word.cluster() < end);
        let added = self.added.iter().take(below).rev().copied();
        let added = added.take_while(|word| word.cluster() >= start).find_map(there);
        merged.max(added)
    }

    /// Clusters with `section`, in no order.
    pub(super) fn with(&self, section: Section) -> impl Iterator<Item = u64> {
        let all = self.merged.iter().map(Slot::get).chain(self.added.iter().copied());
        all.filter_map(move |word| word.sections().has(section).then_some(word.cluster()))
    }

    #[inline]
    fn slot(&self, cluster: u64) -> Option<&Slot> {
        let at = self.merged.binary_search_by_key(&cluster, |slot| slot.get().cluster()).ok()?;
        self.merged.get(at)
    }

    /// Merges what was added if it is much, or much is gone, into another list: snapshots keep theirs. Without memory it stays as
    /// it is.
    pub(super) fn merge_many(&mut self) {
        let few = (self.merged.len() / GONE_PART).max(CHANGES_FEW);
        if self.added.len() <= few.min(ADDED_MAX) && self.gone <= few {
            return;
        }
        let mut merged = Vec::new();
        if merged.try_reserve_exact(self.merged.len() - self.gone + self.added.len()).is_err() {
            return;
        }
        let mut added = self.added.iter().copied().peekable();
        let stays = self.merged.iter().map(Slot::get).filter(|word| word.sections() != Sections::NONE);
        for word in stays {
            while let Some(before) = added.next_if(|added| *added < word) {
                merged.push(Slot::new(before));
            }
            merged.push(Slot::new(word));
        }
        merged.extend(added.map(Slot::new));
        self.merged = Arc::new(merged);
        self.added = Arc::default();
        self.gone = 0;
    }
}
