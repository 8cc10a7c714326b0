//! Refcounts raised and lowered, in memory.

use std::ops::Range;

use qcow2_layout::{HostOffset, refcount_get};

use super::Refcounts;
use crate::Error;

/// What became of an attempt to claim clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// So many clusters, from the first one, now have refcount 1; at least one.
    Claimed(u64),
    /// The first cluster is in use, and so are those behind it, so many with the first.
    InUse(u64),
    /// The first cluster has no refcount block; make one first.
    NoBlock(u64),
}

/// Consecutive clusters that lost one reference each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lowered {
    /// How many, from the first one; never 0.
    pub(crate) len: u64,
    /// References that each of them has left.
    pub(crate) left: u64,
}

impl Refcounts {
    /// The refcount of one cluster.
    pub(crate) async fn get(&self, cluster: u64) -> Result<u64, Error> {
        let Some(block) = self.block(self.block_of(cluster)).await? else { return Ok(0) };
        let index = cluster % self.geometry.refcount_block_entries();
        Ok(block.read(|bytes| refcount_get(bytes, index, self.geometry.refcount_order)).unwrap_or(0))
    }

    /// Raises refcounts of `clusters`, which is not empty, from 0 to 1, up to the first one that is in use or belongs to the next
    /// block. In memory only.
    pub(crate) async fn claim(&self, clusters: Range<u64>) -> Result<Claim, Error> {
        let index = self.block_of(clusters.start);
        let entries = self.geometry.refcount_block_entries();
        let Range { start: first, end: last } = in_block(&clusters, entries);
        loop {
            let Some(block) = self.block(index).await? else { return Ok(Claim::NoBlock(index)) };
            let order = self.geometry.refcount_order;
            let claim = block.modify(place(first..last, order), |bytes| {
                let free = |at: &u64| refcount_get(bytes, *at, order) == Some(0);
                let count = (first..last).take_while(free).count() as u64;
                if count == 0 {
                    let in_use = (first..entries).take_while(|at| !free(at)).count();
                    return Claim::InUse(in_use as u64);
                }
                (first..first + count).for_each(|at| set(bytes, at, order, 1));
                Claim::Claimed(count)
            });
            if let Some(claim) = claim {
                return Ok(claim);
            }
        }
    }

    /// Lowers the refcounts of the first of `clusters` by one, in memory: as many as have the same refcount and lie in one block.
    pub(crate) async fn lower_run(&self, clusters: Range<u64>) -> Result<Lowered, Error> {
        let start = clusters.start;
        let entries = self.geometry.refcount_block_entries();
        let (index, order) = (start / entries, self.geometry.refcount_order);
        let Range { start: first, end: last } = in_block(&clusters, entries);
        loop {
            let Some(block) = self.block(index).await? else { return Err(self.freed_twice(start)) };
            let lowered = block.modify(place(first..last, order), |bytes| {
                let old = refcount_get(bytes, first, order).unwrap_or(0);
                let left = old.checked_sub(1)?;
                let same =
                    (first..last).take_while(|&at| refcount_get(bytes, at, order) == Some(old)).count();
                (first..first + same as u64).for_each(|at| set(bytes, at, order, left));
                Some(Lowered { len: same as u64, left })
            });
            if let Some(lowered) = lowered {
                return lowered.ok_or_else(|| self.freed_twice(start));
            }
        }
    }

    /// How many of the first of `clusters` have one reference, or how many have several (those of one block).
    ///
    /// # Errors
    /// When the first one has none.
    pub(crate) async fn alike(&self, clusters: Range<u64>) -> Result<(u64, bool), Error> {
        let (start, order) = (clusters.start, self.geometry.refcount_order);
        let entries = self.geometry.refcount_block_entries();
        let Some(block) = self.block(start / entries).await? else { return Err(self.not_counted(start)) };
        let Range { start: first, end: last } = in_block(&clusters, entries);
        let several = |bytes: &[u8], at| match refcount_get(bytes, at, order) {
            Some(0) | None => None,
            Some(count) => Some(count > 1),
        };
        let alike = block.read(|bytes| {
            let first_has = several(bytes, first)?;
            let len = (first..last).take_while(|&at| several(bytes, at) == Some(first_has)).count();
            Some((len as u64, first_has))
        });
        alike.ok_or_else(|| self.not_counted(start))
    }

    /// Raises the refcounts of `clusters` by one, in memory.
    pub(crate) async fn raise(&self, clusters: Range<u64>) -> Result<(), Error> {
        let entries = self.geometry.refcount_block_entries();
        let Range { start: mut cluster, end } = clusters;
        while cluster < end {
            let (index, order) = (cluster / entries, self.geometry.refcount_order);
            let Range { start: first, end: last } = in_block(&(cluster..end), entries);
            let Some(block) = self.block(index).await? else { return Err(self.not_counted(cluster)) };
            if let Some(raised) =
                block.modify(place(first..last, order), |bytes| self.raise_in(bytes, first..last))
            {
                raised.map_err(|(at, count)| match count {
                    0 => self.not_counted(index * entries + at),
                    _ => self.saturated(index * entries + at, count),
                })?;
                cluster += last - first;
            }
        }
        Ok(())
    }

    /// Raises all of `range`, or nothing: then gives the entry that cannot be raised, and its refcount.
    fn raise_in(&self, bytes: &mut [u8], range: Range<u64>) -> Result<(), (u64, u64)> {
        let (order, max) = (self.geometry.refcount_order, self.geometry.refcount_max());
        let count = |bytes: &[u8], at| refcount_get(bytes, at, order).unwrap_or(0);
        if let Some(at) = range.clone().find(|&at| matches!(count(bytes, at), 0) || count(bytes, at) >= max) {
            return Err((at, count(bytes, at)));
        }
        range.for_each(|at| set(bytes, at, order, count(bytes, at) + 1));
        Ok(())
    }

    fn not_counted(&self, cluster: u64) -> Error {
        let offset = HostOffset(cluster << self.geometry.cluster_bits);
        self.blame().corrupt(format!("the cluster at {offset} is in use, but its refcount is 0"))
    }

    fn saturated(&self, cluster: u64, count: u64) -> Error {
        let offset = HostOffset(cluster << self.geometry.cluster_bits);
        self.blame().unsupported(format!(
            "the cluster at {offset} has {count} references, the most that refcounts of {} bits (refcount_bits) can count",
            self.geometry.refcount_bits()
        ))
    }

    fn freed_twice(&self, cluster: u64) -> Error {
        let offset = HostOffset(cluster << self.geometry.cluster_bits);
        self.blame().corrupt(format!("the cluster at {offset} is freed, but its refcount is 0 already"))
    }
}

/// The entries of the first of `clusters` in their block, which has `entries`.
fn in_block(clusters: &Range<u64>, entries: u64) -> Range<u64> {
    let first = clusters.start % entries;
    first..(first + (clusters.end - clusters.start)).min(entries)
}

/// The bytes that hold the refcounts of `entries` of a block.
fn place(entries: Range<u64>, order: u32) -> Range<usize> {
    // A block has at most 2 MiB.
    (entries.start << order) as usize / 8..((entries.end << order) as usize).div_ceil(8)
}

/// `at` lies inside the block and `value` within the refcount width, by construction of the callers.
pub(super) fn set(bytes: &mut [u8], at: u64, order: u32, value: u64) {
    let result = qcow2_layout::refcount_set(bytes, at, order, value);
    debug_assert!(result.is_ok(), "refcount {at}: {result:?}");
}
