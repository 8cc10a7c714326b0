//! Where metadata lies, gathered while tables are read.

use std::collections::TryReserveError;
use std::ops::Range;

use super::clusters::Gathered;
use super::{Section, Sections};
use crate::lists;

/// A list of L2 tables of snapshots may be this long before tables that are in it several times are joined.
const JOIN_FEW: usize = 1 << 16;

/// A piece of metadata: start, end (excluded) and kind.
pub(super) type Piece = (u64, u64, Section);

/// The place of all metadata, as it is collected while tables are read.
#[derive(Debug)]
pub(crate) struct Places {
    pub(super) cluster_bits: u32,
    /// Pieces that are one whole cluster.
    pub(super) clusters: Gathered,
    /// The others: few.
    pub(super) others: Vec<Piece>,
    /// How many clusters there may be before they are joined again.
    join_at: usize,
}

impl Places {
    pub(crate) fn new(cluster_bits: u32) -> Self {
        Self { cluster_bits, clusters: Gathered::default(), others: Vec::new(), join_at: JOIN_FEW }
    }

    /// Makes room for exactly so many more pieces of one cluster.
    pub(crate) fn reserve(&mut self, clusters: usize) -> Result<(), TryReserveError> {
        self.clusters.reserve(clusters)
    }

    /// Enters a piece.
    pub(crate) fn push(&mut self, start: u64, len: u64, section: Section) -> Result<(), TryReserveError> {
        match is_one_cluster(start, len, self.cluster_bits) {
            true => self.clusters.push(start >> self.cluster_bits, section),
            false if len == 0 => Ok(()),
            false => lists::push(&mut self.others, (start, start.saturating_add(len), section)),
        }
    }

    /// Enters an L2 table of a snapshot. Snapshots share most of theirs, so the list is shortened to what is different
    /// whenever it has doubled; what [`Places::overlap`] says has no meaning after that.
    pub(crate) fn push_shared(&mut self, start: u64) -> Result<(), TryReserveError> {
        if self.clusters.len() >= self.join_at {
            self.clusters.join();
            self.join_at = JOIN_FEW.max(self.clusters.len() * 2);
        }
        self.clusters.push(start >> self.cluster_bits, Section::InactiveL2)
    }

    /// All pieces as ranges of bytes, each with one of its kinds, neighbours of the same kind joined up to `bytes_max`.
    pub(crate) fn runs(&mut self, bytes_max: u64) -> impl Iterator<Item = (Range<u64>, Section)> {
        self.clusters.join();
        let bits = self.cluster_bits;
        let mut clusters = self.clusters.iter().peekable();
        let joined = std::iter::from_fn(move || {
            let (first, sections) = clusters.next()?;
            let mut end = first + 1;
            while (end + 1 - first) << bits <= bytes_max && clusters.next_if_eq(&(end, sections)).is_some() {
                end += 1;
            }
            Some((first << bits..end << bits, sections.first()?))
        });
        let others = self.others.iter().flat_map(move |&(start, end, section)| {
            let step = bytes_max.max(1);
            (start..end).step_by(step as usize).map(move |at| (at..end.min(at.saturating_add(step)), section))
        });
        joined.chain(others)
    }

    /// The first two pieces that overlap, each with its start.
    pub(crate) fn overlap(&mut self) -> Option<[(u64, Section); 2]> {
        self.clusters.sort();
        self.others.sort_unstable_by_key(|(start, ..)| *start);
        let bits = self.cluster_bits;
        let piece = |(cluster, sections): (u64, Sections)| {
            let start = cluster << bits;
            Some((start, start.saturating_add(1 << bits), sections.first()?))
        };
        let mut clusters = self.clusters.iter().filter_map(piece).peekable();
        let mut others = self.others.iter().copied().peekable();
        let mut before: Option<Piece> = None;
        loop {
            let other_is_next = match (others.peek(), clusters.peek()) {
                (Some(other), Some(cluster)) => other.0 < cluster.0,
                (other, _) => other.is_some(),
            };
            let next = if other_is_next { others.next() } else { clusters.next() }?;
            if let Some((start, end, section)) = before
                && end > next.0
            {
                return Some([(start, section), (next.0, next.2)]);
            }
            before = Some(next);
        }
    }
}

pub(super) fn is_one_cluster(start: u64, len: u64, cluster_bits: u32) -> bool {
    let cluster = 1 << cluster_bits;
    len == cluster && start.is_multiple_of(cluster)
}
