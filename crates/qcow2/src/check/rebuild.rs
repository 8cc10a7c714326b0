//! Writing the refcount structure anew, and the snapshot table where that needs it.
//!
//! Everything new goes behind all that is in use, so the old structure stays valid until one sector of
//! the header switches to the new one. The old structure is not counted in the new one: it is free then.

use std::collections::TryReserveError;

use qcow2_layout::{
    HostOffset, REFCOUNT_TABLE_BYTES_MAX, RefcountTableEntry, encode_snapshots, refcount_set,
};
use storage::IoBuf;

use super::CheckError;
use super::counts::Counts;
use super::pass::Pass;
use super::report::{Finding, Owner};
use crate::lists;
use crate::table_io::{write_bytes, write_words};

fn no_memory(_: TryReserveError) -> CheckError {
    CheckError::NoMemory { what: "the list of refcount blocks" }
}

/// Where the new structure goes, in clusters: snapshot table, refcount table, refcount blocks.
struct Plan {
    start: u64,
    snapshot_clusters: u64,
    table_clusters: u64,
    /// Indices of the blocks that are needed, ascending.
    blocks: Vec<u64>,
}

impl Plan {
    fn table_start(&self) -> u64 {
        self.start + self.snapshot_clusters
    }

    fn blocks_start(&self) -> u64 {
        self.table_start() + self.table_clusters
    }

    fn end(&self) -> u64 {
        self.blocks_start() + self.blocks.len() as u64
    }
}

impl Pass<'_> {
    /// Steps: write all that is new, flush, switch the header, flush. False when it cannot be done; then
    /// nothing refers to what was written. The new structure counts at least `room` clusters behind itself.
    pub(crate) async fn rebuild_refcounts(&mut self, room: u64) -> Result<bool, CheckError> {
        let snapshots = match self.snapshots.faulty {
            true => match encode_snapshots(&self.snapshots.entries, self.geometry.version) {
                Ok(table) => table,
                Err(error) => {
                    self.found(&Finding::Snapshot(error));
                    return Ok(false);
                }
            },
            false => Vec::new(),
        };
        let plan = self.plan_rebuild(self.geometry.clusters_for(snapshots.len() as u64), room)?;
        if plan.table_clusters * self.geometry.cluster_size() > REFCOUNT_TABLE_BYTES_MAX {
            let reason = "the refcount table would need more than 8 MiB";
            self.found(&Finding::NotRepaired { reason });
            return Ok(false);
        }
        self.write_padded(plan.start, &snapshots).await?;
        self.write_blocks(&plan).await?;
        self.write_table(&plan).await?;
        self.flush().await?;
        let mut header = self.header.clone();
        header.refcount_table_offset = self.offset_of(plan.table_start());
        header.refcount_table_clusters = u32::try_from(plan.table_clusters).unwrap_or(u32::MAX);
        if self.snapshots.faulty {
            header.snapshots_offset = self.offset_of(plan.start);
            // As many as there can be, at most.
            header.snapshots = self.snapshots.entries.len() as u32;
            self.snapshots.beyond = 0;
        }
        self.write_header(&header).await?;
        self.forget_old_structure();
        Ok(true)
    }

    /// From now on refcounts are the references without those of the old structure.
    fn forget_old_structure(&mut self) {
        self.claims.structure = Counts::new(self.claims.structure.bytes_max());
        self.comparison.forget_mismatches();
    }

    /// The structure counts itself: grow it until it does. Each round adds what the round before needed.
    fn plan_rebuild(&self, snapshot_clusters: u64, room: u64) -> Result<Plan, CheckError> {
        let entries = self.geometry.refcount_block_entries();
        let used = self.used_blocks()?;
        let start = self.comparison.used_end;
        let blocks = lists::collect(used.iter().copied()).map_err(no_memory)?;
        let mut plan = Plan { start, snapshot_clusters, table_clusters: 0, blocks };
        loop {
            let new = start / entries..=(plan.end().max(start + 1) - 1 + room) / entries;
            let mut blocks = lists::collect(used.iter().copied().chain(new)).map_err(no_memory)?;
            blocks.sort_unstable();
            blocks.dedup();
            let table = blocks.last().map_or(1, |last| self.geometry.clusters_for((last + 1) * 8));
            if (blocks.len(), table) == (plan.blocks.len(), plan.table_clusters) {
                return Ok(Plan { blocks, ..plan });
            }
            plan = Plan { table_clusters: table, blocks, ..plan };
        }
    }

    /// References that remain: the old structure goes, and the old snapshot table if it is replaced.
    fn remaining(&self, cluster: u64) -> u64 {
        let references = u64::from(self.claims.references.get(cluster));
        let start = self.cluster_of(self.header.snapshots_offset.0);
        let replaced = start..start + self.geometry.clusters_for(self.snapshots.bytes);
        let dropped = self.snapshots.faulty
            && replaced.contains(&cluster)
            && self.claims.owner(cluster) == Owner::SnapshotTable;
        references - u64::from(dropped && references > 0)
    }

    /// Indices of the blocks that count something now.
    fn used_blocks(&self) -> Result<Vec<u64>, CheckError> {
        let entries = self.geometry.refcount_block_entries();
        let mut blocks = Vec::new();
        let mut from = 0;
        while let Some(cluster) = self.claims.references.next(from) {
            lists::push(&mut blocks, cluster / entries).map_err(no_memory)?;
            from = (cluster / entries + 1) * entries;
        }
        Ok(blocks)
    }

    async fn write_blocks(&mut self, plan: &Plan) -> Result<(), CheckError> {
        let entries = self.geometry.refcount_block_entries();
        for (place, index) in (plan.blocks_start()..).zip(&plan.blocks) {
            let mut block = IoBuf::zeroed(self.geometry.cluster_size() as usize);
            for at in 0..entries {
                let cluster = index * entries + at;
                let new = (plan.start..plan.end()).contains(&cluster);
                let references = self.remaining(cluster) + u64::from(new);
                let refcount = references.min(self.geometry.refcount_max());
                // Cannot fail: the index is inside the block and the value was cut to the width.
                let _ = refcount_set(&mut block, at, self.geometry.refcount_order, refcount);
            }
            let offset = self.offset_of(place).0;
            let written = write_bytes(self.file, offset, &block).await;
            written.map_err(self.io("write a refcount block", offset))?;
        }
        Ok(())
    }

    async fn write_table(&mut self, plan: &Plan) -> Result<(), CheckError> {
        let entries = plan.blocks.last().map_or(0, |last| last + 1);
        let words = (self.geometry.clusters_for(entries * 8) << self.geometry.cluster_bits) / 8;
        let word = |index: u64| {
            let place =
                plan.blocks.binary_search(&index).ok().map(|place| plan.blocks_start() + place as u64);
            RefcountTableEntry { block: place.map(|place| self.offset_of(place)) }.encode()
        };
        let HostOffset(offset) = self.offset_of(plan.table_start());
        let written = write_words(self.file, offset, words, word).await;
        written.map_err(self.io("write a table", offset))
    }

    /// Writes a table into whole clusters from `cluster` on.
    async fn write_padded(&mut self, cluster: u64, table: &[u8]) -> Result<(), CheckError> {
        if table.is_empty() {
            return Ok(());
        }
        let HostOffset(offset) = self.offset_of(cluster);
        let bytes = self.geometry.clusters_for(table.len() as u64) << self.geometry.cluster_bits;
        // Less than a cluster.
        let padding = vec![0; bytes as usize - table.len()];
        let written = write_bytes(self.file, offset, table).await;
        written.map_err(self.io("write a table", offset))?;
        let written = write_bytes(self.file, offset + table.len() as u64, &padding).await;
        written.map_err(self.io("write a table", offset))
    }
}
