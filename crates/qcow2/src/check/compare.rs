//! Refcounts on disk against references found.

use std::collections::{BTreeSet, TryReserveError};

use futures_util::stream::{FuturesOrdered, StreamExt};
use qcow2_layout::{HostOffset, RefcountTableEntry, refcount_get, refcount_set};

use super::CheckError;
use super::claims::Claim;
use super::counts::{Counts, GROUP};
use super::pass::Pass;
use super::reading::BATCHES_AT_ONCE;
use super::report::{Finding, Owner};
use crate::lists;
use crate::table_io::PIECE_BYTES;

/// Beside a wrong refcount: it is lower than the references.
const TOO_LOW: u32 = 4;

/// What the refcounts on disk said.
pub(crate) struct Comparison {
    /// Blocks that can be relied on, in order: index in the refcount table, and place.
    pub(crate) blocks: Vec<(u64, HostOffset)>,
    /// Of those, blocks with a wrong refcount.
    pub(crate) wrong_blocks: BTreeSet<u64>,
    /// For clusters with references whose refcount is wrong: the refcount, at most 2, plus one; and [`TOO_LOW`] where it is.
    wrong: Counts,
    /// Clusters from here on are neither in the file nor referred to.
    pub(crate) end: u64,
    /// Neighbours with the same fault are reported together.
    run: Option<Run>,
    /// One more than the last cluster with a refcount or a reference.
    pub(crate) used_end: u64,
}

#[derive(Clone, Copy)]
struct Run {
    cluster: u64,
    clusters: u64,
    refcount: u64,
    references: u64,
}

impl Comparison {
    pub(crate) fn new(wrong: Counts) -> Self {
        Self { blocks: Vec::new(), wrong_blocks: BTreeSet::new(), wrong, end: 0, run: None, used_end: 0 }
    }

    /// The wrong refcount of a cluster with references: 0, 1, or 2 for all larger ones.
    pub(crate) fn mismatch(&self, cluster: u64) -> Option<u64> {
        u64::from(self.wrong.get(cluster) & !TOO_LOW).checked_sub(1)
    }

    /// Whether a cluster has more references than are counted.
    pub(crate) fn is_too_low(&self, cluster: u64) -> bool {
        self.wrong.get(cluster) & TOO_LOW != 0
    }

    /// The first cluster from `from` on with references whose refcount is wrong.
    pub(crate) fn next_mismatch(&self, from: u64) -> Option<u64> {
        self.wrong.next(from)
    }

    /// Whether block `index` can be relied on: then refcounts in it are mended where they are.
    pub(crate) fn has_block(&self, index: u64) -> bool {
        self.blocks.binary_search_by_key(&index, |(index, _)| *index).is_ok()
    }

    /// All refcounts have been written anew.
    pub(crate) fn forget_mismatches(&mut self) {
        self.wrong = Counts::new(self.wrong.bytes_max());
    }
}

impl Pass<'_> {
    /// Claims the refcount table and its blocks. What cannot be used marks the structure for a rebuild.
    pub(crate) async fn claim_refcounts(&mut self) -> Result<(), CheckError> {
        let start = self.header.refcount_table_offset.0;
        let bytes = u64::from(self.header.refcount_table_clusters) * self.geometry.cluster_size();
        if bytes == 0 {
            self.rebuild = true;
            self.found(&Finding::NoRefcountTable);
            return Ok(());
        }
        match self.claim(Owner::RefcountTable, start, bytes, 1)? {
            Claim::Good => {}
            Claim::Overlapping => self.rebuild = true,
            Claim::Outside => {
                self.rebuild = true;
                return Ok(());
            }
        }
        let mut done = 0;
        while done < bytes {
            let len = PIECE_BYTES.min(bytes - done);
            if let Some(piece) = self.read_piece(Owner::RefcountTable, start + done, len).await {
                self.claim_blocks(start, done, &piece)?;
            }
            done += len;
        }
        Ok(())
    }

    fn claim_blocks(&mut self, start: u64, done: u64, piece: &[u8]) -> Result<(), CheckError> {
        for (place, word) in (done..).step_by(8).zip(piece.as_chunks::<8>().0) {
            let word = u64::from_be_bytes(*word);
            match RefcountTableEntry::decode(word, &self.geometry) {
                Ok(RefcountTableEntry { block: None }) => {}
                Ok(RefcountTableEntry { block: Some(block) }) => {
                    let cluster_size = self.geometry.cluster_size();
                    let claim = self.claim(Owner::RefcountBlock, block.0, cluster_size, 1)?;
                    self.rebuild |= claim != Claim::Good;
                    if claim == Claim::Good || self.is_below_bad_table(claim, block) {
                        lists::push(&mut self.comparison.blocks, (place / 8, block))
                            .map_err(|_| CheckError::NoMemory { what: "the list of refcount blocks" })?;
                    }
                }
                Err(error) => {
                    self.rebuild = true;
                    self.found(&Finding::Entry { at: HostOffset(start + place), error });
                }
            }
        }
        Ok(())
    }

    /// Whether the block shares its cluster with a snapshot table that is wrong: one entry with a wrong length has the table reach over
    /// what lies behind it. What the block says is believed then, until all is written anew.
    fn is_below_bad_table(&self, claim: Claim, block: HostOffset) -> bool {
        let owner = self.claims.owner(self.cluster_of(block.0));
        claim == Claim::Overlapping && self.snapshots.faulty && owner == Owner::SnapshotTable
    }

    /// Compares every refcount with the references that were found.
    pub(crate) async fn compare(&mut self) -> Result<(), CheckError> {
        self.comparison.end = self.geometry.clusters_for(self.file_length);
        let entries = self.geometry.refcount_block_entries();
        let blocks = std::mem::take(&mut self.comparison.blocks);
        let from = self.compare_blocks(&blocks, entries).await?;
        self.compare_without_block(from, u64::MAX)?;
        self.end_run();
        self.comparison.blocks = blocks;
        self.find_claimed_blocks();
        self.report_overlaps();
        self.report.image_end_offset = self.comparison.used_end << self.geometry.cluster_bits;
        Ok(())
    }

    /// Clusters from `from` to `to` have no refcounts at all: all references to them are too many.
    fn compare_without_block(&mut self, mut from: u64, to: u64) -> Result<(), CheckError> {
        while let Some(cluster) = self.claims.next(from).filter(|&cluster| cluster < to) {
            self.rebuild = true;
            self.compare_cluster(cluster, 0)?;
            from = cluster + 1;
        }
        Ok(())
    }

    /// Compares what these blocks count, and what lies between them; the cluster behind the last one.
    ///
    /// Several blocks are read at a time. One that is left out of the reading is a hole, or could not be read for want of
    /// `read_bytes_left`: then all behind it are left out too, and `complete` says so.
    async fn compare_blocks(
        &mut self,
        blocks: &[(u64, HostOffset)],
        entries: u64,
    ) -> Result<u64, CheckError> {
        let (reader, cluster_size) = (self.reader.clone(), self.geometry.cluster_size());
        let mut reading = FuturesOrdered::new();
        let (mut to_read, mut to_compare) = (blocks.iter().copied(), blocks.iter().copied());
        let mut from = 0;
        loop {
            while reading.len() < BATCHES_AT_ONCE {
                let batch = self.next_batch(&mut to_read, |(_, at)| at.0).await;
                if batch.is_empty() {
                    break;
                }
                reading.push_back(reader.clone().read_each(batch, cluster_size, copy_of));
            }
            let Some(batch) = reading.next().await else { break };
            for ((index, at), bytes) in batch {
                for (hole, _) in to_compare.by_ref().take_while(|(other, _)| *other != index) {
                    from = self.compare_hole(from, hole * entries)?;
                }
                self.compare_without_block(from, index * entries)?;
                match bytes {
                    Ok(Ok(bytes)) if is_zero(&bytes) => {
                        self.found_zeroes(at.0).await;
                        self.compare_zero_block(index * entries)?;
                    }
                    Ok(Ok(bytes)) => self.compare_with_block(index * entries, &bytes)?,
                    Ok(Err(error)) => self.unreadable(Owner::RefcountBlock, at.0, &error),
                    Err(error) => self.unreadable(Owner::RefcountBlock, at.0, &error),
                }
                from = (index + 1) * entries;
            }
        }
        for (hole, _) in to_compare {
            from = self.compare_hole(from, hole * entries)?;
        }
        Ok(from)
    }

    /// Compares up to the end of what the block counts whose first cluster is `first`: the block is a hole.
    fn compare_hole(&mut self, from: u64, first: u64) -> Result<u64, CheckError> {
        self.compare_without_block(from, first)?;
        self.compare_zero_block(first)?;
        Ok(first + self.geometry.refcount_block_entries())
    }

    fn compare_with_block(&mut self, first: u64, bytes: &[u8]) -> Result<(), CheckError> {
        let (entries, order) = (self.geometry.refcount_block_entries(), self.geometry.refcount_order);
        let group_bytes = ((GROUP << order) / 8) as usize;
        let one_each = one_each(group_bytes, order);
        let mut index = 0;
        while index < entries {
            let cluster = first + index;
            // Nearly all of a large image: a word of references and a line of refcounts are compared at once.
            if index.is_multiple_of(GROUP)
                && cluster + GROUP <= self.comparison.end
                && self.claims.is_one_each(cluster)
                && bytes
                    .get((index / GROUP) as usize * group_bytes..)
                    .is_some_and(|rest| rest.starts_with(&one_each))
            {
                self.comparison.used_end = self.comparison.used_end.max(cluster + GROUP);
                index += GROUP;
                continue;
            }
            if cluster >= self.comparison.end {
                // Behind the end of the file only references matter.
                let Some(next) = self.claims.next(cluster) else { break };
                if next >= first + entries {
                    break;
                }
            }
            let refcount = refcount_get(bytes, index, order).unwrap_or(0);
            self.compare_cluster(cluster, refcount)?;
            index += 1;
        }
        Ok(())
    }

    /// As a block that is a hole says: every refcount is zero.
    fn compare_zero_block(&mut self, first: u64) -> Result<(), CheckError> {
        let end = first + self.geometry.refcount_block_entries();
        let mut from = first;
        while let Some(cluster) = self.claims.next(from).filter(|&cluster| cluster < end) {
            self.compare_cluster(cluster, 0)?;
            from = cluster + 1;
        }
        Ok(())
    }

    fn compare_cluster(&mut self, cluster: u64, refcount: u64) -> Result<(), CheckError> {
        let references = self.claims.count(cluster);
        if refcount == 0 && references == 0 {
            return Ok(());
        }
        if cluster >= self.comparison.end && references == 0 {
            return Ok(());
        }
        self.comparison.used_end = self.comparison.used_end.max(cluster + 1);
        if refcount == references {
            return Ok(());
        }
        if references > 0 {
            let too_low = if refcount < references { TOO_LOW } else { 0 };
            let stored = self.comparison.wrong.set(cluster, (refcount.min(2) as u32 + 1) | too_low);
            stored.map_err(self.full(self.comparison.wrong.bytes_max()))?;
        }
        self.comparison.wrong_blocks.insert(cluster / self.geometry.refcount_block_entries());
        self.extend_run(Run { cluster, clusters: 1, refcount, references });
        Ok(())
    }

    fn extend_run(&mut self, next: Run) {
        if let Some(run) = &mut self.comparison.run
            && run.cluster + run.clusters == next.cluster
            && (run.refcount, run.references) == (next.refcount, next.references)
        {
            run.clusters += 1;
            return;
        }
        self.end_run();
        self.comparison.run = Some(next);
    }

    fn end_run(&mut self) {
        if let Some(Run { cluster, clusters, refcount, references }) = self.comparison.run.take() {
            self.found(&Finding::Refcount { cluster, clusters, refcount, references });
        }
    }

    /// A block that something else claimed later must not be written to.
    fn find_claimed_blocks(&mut self) {
        let (claims, geometry) = (&self.claims, &self.geometry);
        let claimed = |block: &HostOffset| claims.count(block.0 >> geometry.cluster_bits) > 1;
        let before = self.comparison.blocks.len();
        self.comparison.blocks.retain(|(_, block)| !claimed(block));
        if self.comparison.blocks.len() < before {
            self.rebuild = true;
        }
        let start = self.cluster_of(self.header.refcount_table_offset.0);
        let clusters = u64::from(self.header.refcount_table_clusters);
        if (start..start + clusters).any(|cluster| self.claims.count(cluster) > 1) {
            self.rebuild = true;
        }
    }

    /// The refcount of a cluster on disk: 0, 1, or 2 and more as 2.
    pub(crate) fn refcount_on_disk(&self, cluster: u64) -> u64 {
        self.comparison.mismatch(cluster).unwrap_or_else(|| self.claims.count(cluster).min(2))
    }
}

/// What was read, for another thread.
fn copy_of(_: (u64, HostOffset), bytes: &[u8]) -> Result<Vec<u8>, TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Refcounts of a group, each of them one.
fn one_each(group_bytes: usize, order: u32) -> Vec<u8> {
    let mut bytes = vec![0; group_bytes];
    for index in 0..GROUP {
        // Cannot fail: one fits in every width.
        let _ = refcount_set(&mut bytes, index, order, 1);
    }
    bytes
}
