//! An image that is made from its first byte to its last, for media that take bytes in no other order.
//!
//! Clusters lie in the order of the guest's disk. An L2 table stands behind the clusters that it leads to, a refcount block behind
//! those that it counts; L1 table, the last refcount blocks and the refcount table stand at the end. Only the header leads there, so
//! its cluster is given back last, to be put over the start.

use qcow2_layout::{
    Cluster, CompressedCluster, Compression, Header, HostOffset, L1Entry, L2Entry, RefcountTableEntry,
    Version, refcount_set,
};
use storage::IoBytes;

use super::plan::Plan;
use super::{CreateError, CreateOptions, Preallocation};
use crate::compressing::pack::pack;

/// What a cluster of the disk reads as.
#[derive(Debug)]
pub enum InOrderCluster<'a> {
    /// These bytes, and zeroes behind them.
    Data(&'a [u8]),
    /// What [`InOrder::packer`] made of its bytes.
    Packed(&'a [u8]),
    /// Zeroes, whatever is below.
    Zeroes,
}

/// An image on its way.
///
/// Memory: an L2 table, a refcount block with a count for each of its clusters, the L1 table and the refcount table; and what was not
/// taken yet ([`InOrder::take`]).
#[derive(Debug)]
pub struct InOrder {
    plan: Plan,
    header: Header,
    compression: Compression,
    /// Bytes of the file that were made.
    end: u64,
    /// Of these, the ones that were not taken yet.
    made: Vec<u8>,
    l1: Vec<L1Entry>,
    /// The table that is filled, and which one it is.
    l2: Option<(u64, Vec<u64>)>,
    /// References to the clusters of the file behind the last block that was made.
    counts: Vec<u64>,
    blocks: Vec<HostOffset>,
}

/// Packs clusters of an image; on any thread.
#[derive(Clone, Copy, Debug)]
pub struct Packer {
    compression: Compression,
    cluster_bytes: usize,
}

impl Packer {
    /// The bytes of a cluster, packed; `None` if that does not make them fewer.
    ///
    /// # Errors
    /// When the library for it fails.
    pub fn pack(&self, cluster: &[u8]) -> std::io::Result<Option<IoBytes>> {
        pack(self.compression, cluster, self.cluster_bytes)
    }
}

impl InOrder {
    /// Begins an image with these options.
    ///
    /// # Errors
    /// As [`super::create`]; also for options that need clusters at known places: `preallocation`, `data_file`, `extended_l2`, encryption.
    pub fn new(options: &CreateOptions) -> Result<Self, CreateError> {
        let refused = [
            ("preallocation", options.preallocation != Preallocation::Off),
            ("data_file", options.data_file.is_some()),
            ("extended_l2", options.extended_l2),
            ("encrypt.format=luks", options.encrypt.is_some()),
        ];
        if let Some((option, _)) = refused.iter().find(|(_, given)| *given) {
            return Err(CreateError::Conflict {
                option: (*option).to_owned(),
                other: "an image that is written from its first byte to its last",
                reason: "its clusters are not at places that are known ahead",
            });
        }
        let plan = options.plan()?;
        let header = plan.header(options);
        // Checks what the places at the end do not change.
        header.encode()?;
        let cluster = plan.cluster_size() as usize;
        let l1 = vec![L1Entry::UNALLOCATED; plan.l1_entries as usize];
        Ok(Self {
            header,
            compression: options.compression,
            end: plan.cluster_size(),
            made: vec![0; cluster],
            l1,
            l2: None,
            counts: vec![1],
            blocks: Vec::new(),
            plan,
        })
    }

    /// Bytes of a cluster.
    pub fn cluster_bytes(&self) -> u64 {
        self.plan.cluster_size()
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.plan.size
    }

    /// What packs its clusters.
    pub fn packer(&self) -> Packer {
        Packer { compression: self.compression, cluster_bytes: self.plan.cluster_size() as usize }
    }

    /// Adds cluster `index` of the disk. Indices only grow; what lies between two of them reads as what is below, or as zeroes.
    ///
    /// # Errors
    /// When the image is larger than its refcounts can say.
    pub fn add(&mut self, index: u64, cluster: InOrderCluster<'_>) -> Result<(), CreateError> {
        let entry = match cluster {
            InOrderCluster::Data(bytes) => self.data(bytes)?,
            InOrderCluster::Packed(bytes) => self.packed(bytes)?,
            // Nothing is below, or there is no other way to say it.
            InOrderCluster::Zeroes if self.header.backing.is_none() => return Ok(()),
            InOrderCluster::Zeroes if self.plan.geometry.version == Version::V2 => self.data(&[])?,
            InOrderCluster::Zeroes => L2Entry::Standard(Cluster { zero: 1, ..Cluster::UNALLOCATED }),
        };
        let entries = self.plan.geometry.l2_entries();
        let table = index / entries;
        if self.l2.as_ref().is_some_and(|(open, _)| *open != table) {
            self.end_table()?;
        }
        let (_, words) = self.l2.get_or_insert_with(|| (table, vec![0; entries as usize]));
        if let Some(word) = words.get_mut((index % entries) as usize) {
            debug_assert_eq!(*word, 0, "clusters come in ascending order");
            [*word, _] = entry.encode(&self.plan.geometry);
        }
        Ok(())
    }

    /// The bytes of the file that follow those that were taken before.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.made)
    }

    /// Ends the image: what is taken next is its end. Gives what is put over the start of the file.
    ///
    /// # Errors
    /// As [`InOrder::add`].
    pub fn finish(&mut self) -> Result<Vec<u8>, CreateError> {
        self.end_table()?;
        let words: Vec<u64> = self.l1.iter().map(L1Entry::encode).collect();
        self.header.l1_table_offset = self.array(&words);
        let (blocks, table_clusters) = self.refcount_clusters();
        self.counts.resize(self.counts.len() + (blocks + table_clusters) as usize, 1);
        for _ in 0..blocks {
            self.block()?;
        }
        self.header.refcount_table_offset = HostOffset(self.end);
        self.header.refcount_table_clusters = u32::try_from(table_clusters).unwrap_or(u32::MAX);
        let block = |block: &HostOffset| RefcountTableEntry { block: Some(*block) }.encode();
        let table: Vec<u64> = self.blocks.iter().map(block).collect();
        self.put(&bytes_of(&table));
        self.align();
        Ok(self.header.encode()?)
    }

    /// How many refcount blocks are missing at the end, and clusters of their table: they count themselves, so each round covers what the
    /// round before added.
    fn refcount_clusters(&self) -> (u64, u64) {
        let geometry = &self.plan.geometry;
        let (per_block, there) = (geometry.refcount_block_entries(), self.blocks.len() as u64);
        let (mut blocks, mut table) = (0, 1);
        loop {
            let needed = (self.counts.len() as u64 + blocks + table).div_ceil(per_block);
            let needed_table = geometry.clusters_for((there + needed) * 8);
            if (needed, needed_table) == (blocks, table) {
                return (blocks, table);
            }
            (blocks, table) = (needed, needed_table);
        }
    }

    fn data(&mut self, bytes: &[u8]) -> Result<L2Entry, CreateError> {
        self.end_blocks()?;
        let host = self.cluster(bytes);
        Ok(L2Entry::Standard(Cluster { host: Some(host), copied: true, alloc: 1, zero: 0 }))
    }

    fn packed(&mut self, bytes: &[u8]) -> Result<L2Entry, CreateError> {
        self.end_blocks()?;
        // A cluster that is begun takes more, as long as references to it can be counted.
        let last = self.counts.last().copied().unwrap_or(1);
        if last >= self.plan.geometry.refcount_max() {
            self.align();
        }
        let host = HostOffset(self.end);
        let is_begun = self.plan.geometry.in_cluster(self.end) != 0;
        if let Some(count) = self.counts.last_mut().filter(|_| is_begun) {
            *count += 1;
        }
        self.put(bytes);
        let counted = self.blocks.len() as u64 * self.plan.geometry.refcount_block_entries();
        let touched = self.plan.geometry.clusters_for(self.end) - counted;
        self.counts.resize(touched as usize, 1);
        Ok(L2Entry::Compressed(CompressedCluster { host, len: bytes.len() as u64 }))
    }

    /// Appends the table that is filled.
    fn end_table(&mut self) -> Result<(), CreateError> {
        let Some((index, words)) = self.l2.take() else { return Ok(()) };
        self.end_blocks()?;
        let table = self.array(&words);
        if let Some(entry) = self.l1.get_mut(index as usize) {
            *entry = L1Entry { table: Some(table), copied: true };
        }
        Ok(())
    }

    /// Appends the blocks whose clusters get no more references.
    fn end_blocks(&mut self) -> Result<(), CreateError> {
        while self.counts.len() as u64 > self.plan.geometry.refcount_block_entries() {
            self.align();
            self.counts.push(1);
            self.block()?;
        }
        Ok(())
    }

    /// Appends a block of the first counts. Its own is among them, or behind them.
    fn block(&mut self) -> Result<(), CreateError> {
        let geometry = self.plan.geometry;
        let per_block = self.counts.len().min(geometry.refcount_block_entries() as usize);
        let mut block = vec![0; geometry.cluster_size() as usize];
        for (index, count) in (0..).zip(self.counts.drain(..per_block)) {
            refcount_set(&mut block, index, geometry.refcount_order, count)?;
        }
        self.blocks.push(HostOffset(self.end));
        self.put(&block);
        Ok(())
    }

    /// Appends words, zeroes behind them, as whole clusters.
    fn array(&mut self, words: &[u64]) -> HostOffset {
        let cluster_words = self.plan.cluster_size() as usize / 8;
        let mut clusters = words.chunks(cluster_words).map(bytes_of);
        let start = self.cluster(&clusters.next().unwrap_or_default());
        for bytes in clusters {
            self.cluster(&bytes);
        }
        start
    }

    /// Appends a cluster of these bytes, zeroes behind them.
    fn cluster(&mut self, bytes: &[u8]) -> HostOffset {
        self.align();
        let host = HostOffset(self.end);
        self.counts.push(1);
        self.put(bytes);
        if bytes.is_empty() {
            self.zeroes(self.plan.cluster_size());
        }
        self.align();
        host
    }

    fn put(&mut self, bytes: &[u8]) {
        self.made.extend_from_slice(bytes);
        self.end += bytes.len() as u64;
    }

    /// Fills the cluster that is begun.
    fn align(&mut self) {
        let begun = self.plan.geometry.in_cluster(self.end);
        if begun != 0 {
            self.zeroes(self.plan.cluster_size() - begun);
        }
    }

    fn zeroes(&mut self, len: u64) {
        self.made.resize(self.made.len() + len as usize, 0);
        self.end += len;
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}
