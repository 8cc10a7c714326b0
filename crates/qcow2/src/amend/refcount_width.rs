//! All refcounts in another width, in new places: blocks and table behind everything that is in use.

use std::io;
use std::ops::ControlFlow;

use block::Blame;
use qcow2_layout::{
    Geometry, Header, HostOffset, REFCOUNT_TABLE_BYTES_MAX, RefcountTableEntry, refcount_get, refcount_set,
};
use storage::{Hints, IoBuf, Storage};

use crate::Error;
use crate::lists;
use crate::table_io::{read_words, write_bytes, write_words};

/// The refcounts there are.
struct Old<'a> {
    file: &'a dyn Storage,
    blame: &'a Blame,
    geometry: Geometry,
    /// Where each block is.
    blocks: Vec<Option<HostOffset>>,
    /// Clusters of table and blocks, ascending: the new refcounts do not count them.
    structure: Vec<u64>,
}

/// Where the new refcounts go, in clusters: the table, then the blocks.
struct Plan {
    start: u64,
    table_clusters: u64,
    /// Indices of the blocks that are needed, ascending.
    blocks: Vec<u64>,
}

impl Plan {
    fn blocks_start(&self) -> u64 {
        self.start + self.table_clusters
    }

    fn end(&self) -> u64 {
        self.blocks_start() + self.blocks.len() as u64
    }
}

/// Writes the refcounts of the image with `header` in the width of `new`, which leads to them afterwards. Durable when this
/// returns. `progress`: bytes of blocks written, of so many.
pub(super) async fn change(
    file: &dyn Storage,
    blame: &Blame,
    header: &Header,
    new: &mut Header,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<(), Error> {
    let old = Old::read(file, blame, header).await?;
    let wanted = new.geometry().map_err(|error| blame.invalid(error.to_string()))?;
    let plan = old.plan(&wanted).await?;
    let end = plan.end().saturating_mul(wanted.cluster_size());
    if !file.capabilities().resizable && end > file.length() {
        return Err(blame.io("writing refcounts")(io::Error::from(io::ErrorKind::StorageFull)));
    }
    old.write_blocks(&plan, &wanted, progress).await?;
    let last = plan.blocks.last().map_or(0, |last| last + 1);
    let words = wanted.clusters_for(last * 8) * wanted.cluster_size() / 8;
    let word = |index: u64| {
        let place = plan.blocks.binary_search(&index).ok();
        let place = place.map(|place| (plan.blocks_start() + place as u64) << wanted.cluster_bits);
        RefcountTableEntry { block: place.map(HostOffset) }.encode()
    };
    let table = plan.start << wanted.cluster_bits;
    write_words(file, table, words, word).await.map_err(blame.io("writing the refcount table"))?;
    file.flush().await.map_err(blame.io("flushing"))?;
    new.refcount_table_offset = HostOffset(table);
    // At most 8 MiB of them.
    new.refcount_table_clusters = plan.table_clusters as u32;
    Ok(())
}

impl<'a> Old<'a> {
    async fn read(file: &'a dyn Storage, blame: &'a Blame, header: &Header) -> Result<Self, Error> {
        let geometry = header.geometry().map_err(|error| blame.corrupt(error.to_string()))?;
        let offset = header.refcount_table_offset.0;
        let clusters = u64::from(header.refcount_table_clusters);
        let bytes = clusters << geometry.cluster_bits;
        let words = read_words(file, blame, "the refcount table", offset, bytes).await?;
        let (mut blocks, mut structure) = (Vec::new(), Vec::new());
        let no_memory = |_| blame.no_memory("the refcount table");
        let first = offset >> geometry.cluster_bits;
        for cluster in first..first + clusters {
            lists::push(&mut structure, cluster).map_err(no_memory)?;
        }
        for word in words {
            let entry = RefcountTableEntry::decode(word, &geometry)
                .map_err(|error| blame.corrupt(format!("refcount table: {error}")))?;
            if let Some(block) = entry.block {
                lists::push(&mut structure, block.0 >> geometry.cluster_bits).map_err(no_memory)?;
            }
            lists::push(&mut blocks, entry.block).map_err(no_memory)?;
        }
        structure.sort_unstable();
        Ok(Self { file, blame, geometry, blocks, structure })
    }

    /// What is to be counted in the clusters from `from` up to `end`, at most those of one block: calls `each` with every cluster that has
    /// references, and how many.
    async fn counts(
        &self,
        from: u64,
        end: u64,
        mut each: impl FnMut(u64, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let entries = self.geometry.refcount_block_entries();
        let index = from / entries;
        let end = end.min((index + 1) * entries);
        let Some(at) = self.blocks.get(index as usize).copied().flatten() else { return Ok(()) };
        if at.0.checked_add(self.geometry.cluster_size()).is_none_or(|end| end > self.file.length()) {
            return Err(self.blame.corrupt(format!(
                "refcount block {index} is at {at}, past the end of the file ({:#x})",
                self.file.length()
            )));
        }
        let (result, block) =
            self.file.read(at.0, IoBuf::uninit(1 << self.geometry.cluster_bits), Hints::NONE).await;
        result.map_err(self.blame.io("reading a refcount block"))?;
        for cluster in from..end {
            let count = refcount_get(&block, cluster % entries, self.geometry.refcount_order).unwrap_or(0);
            let own = if count > 0 { self.in_structure(cluster) } else { 0 };
            if count > own {
                each(cluster, count - own)?;
            }
        }
        Ok(())
    }

    /// References of the old structure to a cluster.
    fn in_structure(&self, cluster: u64) -> u64 {
        let first = self.structure.partition_point(|&at| at < cluster);
        self.structure.iter().skip(first).take_while(|&&at| at == cluster).count() as u64
    }

    /// Which blocks are needed, and where they go. The new structure counts itself: it grows until it does.
    async fn plan(&self, wanted: &Geometry) -> Result<Plan, Error> {
        let entries = self.geometry.refcount_block_entries();
        let per_block = wanted.refcount_block_entries();
        let mut used: Vec<u64> = Vec::new();
        // The old structure counts until the header leads to the new one.
        let mut end = self.structure.last().map_or(0, |last| last + 1);
        for index in 0..self.blocks.len() as u64 {
            self.counts(index * entries, (index + 1) * entries, |cluster, count| {
                end = end.max(cluster + 1);
                if count > wanted.refcount_max() {
                    return Err(self.blame.invalid(format!(
                        "cluster {cluster} has {count} references; with refcount_bits={} at most {} are allowed",
                        1u64 << wanted.refcount_order,
                        wanted.refcount_max()
                    )));
                }
                match used.last() == Some(&(cluster / per_block)) {
                    true => Ok(()),
                    false => lists::push(&mut used, cluster / per_block).map_err(|_| self.no_memory()),
                }
            })
            .await?;
        }
        // A device has its whole length from the start.
        let file_end = if self.file.capabilities().resizable { self.file.length() } else { 0 };
        let start = end.max(self.geometry.clusters_for(file_end));
        self.planned_from(start, &used, wanted)
    }

    fn planned_from(&self, start: u64, used: &[u64], wanted: &Geometry) -> Result<Plan, Error> {
        let per_block = wanted.refcount_block_entries();
        let mut plan = Plan { start, table_clusters: 1, blocks: Vec::new() };
        loop {
            let own = start / per_block..=(plan.end() - 1) / per_block;
            let mut blocks = lists::collect(used.iter().copied().chain(own)).map_err(|_| self.no_memory())?;
            blocks.sort_unstable();
            blocks.dedup();
            let table_clusters = wanted.clusters_for((blocks.last().map_or(0, |last| last + 1)) * 8);
            if table_clusters << wanted.cluster_bits > REFCOUNT_TABLE_BYTES_MAX {
                return Err(self.blame.invalid(format!(
                    "with refcount_bits={} the refcount table would take {} bytes; at most {REFCOUNT_TABLE_BYTES_MAX} are allowed",
                    1u64 << wanted.refcount_order,
                    table_clusters << wanted.cluster_bits
                )));
            }
            if (blocks.len(), table_clusters) == (plan.blocks.len(), plan.table_clusters) {
                return Ok(Plan { blocks, ..plan });
            }
            plan = Plan { table_clusters, blocks, ..plan };
        }
    }

    async fn write_blocks(
        &self,
        plan: &Plan,
        wanted: &Geometry,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let per_block = wanted.refcount_block_entries();
        let own = plan.start..plan.end();
        for (done, index) in (0u64..).zip(&plan.blocks) {
            let mut block = vec![0; 1 << wanted.cluster_bits];
            let (first, end) = (index * per_block, (index + 1) * per_block);
            let mut set = |cluster: u64, count: u64| {
                refcount_set(&mut block, cluster % per_block, wanted.refcount_order, count)
                    .map_err(|error| self.blame.invalid(format!("cluster {cluster}: {error}")))
            };
            let step = self.geometry.refcount_block_entries();
            let mut from = first;
            while from < end {
                self.counts(from, end, &mut set).await?;
                from = (from / step + 1) * step;
            }
            for cluster in own.start.max(first)..own.end.min(end) {
                set(cluster, 1)?;
            }
            let at = (plan.blocks_start() + done) << wanted.cluster_bits;
            write_bytes(self.file, at, &block).await.map_err(self.blame.io("writing a refcount block"))?;
            let bytes = |blocks| blocks << wanted.cluster_bits;
            if progress(bytes(done + 1), bytes(plan.blocks.len() as u64)).is_break() {
                return Err(self.blame.refused("interrupted; nothing has changed"));
            }
        }
        Ok(())
    }

    fn no_memory(&self) -> Error {
        self.blame.no_memory("the refcount table")
    }
}
