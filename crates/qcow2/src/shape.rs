//! How L2 tables are cut into slices.

use map_cache::{ColumnShape, Field, Packing, SliceKey};
use qcow2_layout::Geometry;
use sync::atomic::{AtomicU32, Ordering};

/// What L2 entries are like: the offset of a cluster counts up, or that of a compressed one varies; in
/// bitmaps often one half says nothing.
pub(crate) fn packing(geometry: &Geometry) -> Packing {
    let offset = Field::new(geometry.cluster_bits, 56);
    // Of the 62 bits of a compressed cluster's descriptor the sectors take as many as the cluster has, but 8.
    let compressed = Field::new(0, 70 - geometry.cluster_bits);
    let entry = ColumnShape { fields: [offset, compressed] };
    let bitmap = ColumnShape { fields: [Field::new(0, 0), Field::new(0, 32)] };
    if geometry.extended_l2 { Packing::two([entry, bitmap]) } else { Packing::one(entry) }
}

/// Size of a slice and the arithmetic that follows from it.
#[derive(Debug)]
pub(crate) struct SliceShape {
    /// Guest bits below the cluster index.
    cluster_bits: u32,
    l2_bits: u32,
    /// log2 of the entries in a slice. Changes only while no request is in flight.
    entry_bits: AtomicU32,
    extended: bool,
}

impl SliceShape {
    /// Slices of `slice_bytes`: a power of two, at least one entry, at most a cluster.
    pub(crate) fn new(geometry: &Geometry, slice_bytes: u64) -> Self {
        let shape = Self {
            cluster_bits: geometry.cluster_bits,
            l2_bits: geometry.l2_bits(),
            entry_bits: AtomicU32::new(0),
            extended: geometry.extended_l2,
        };
        shape.set_slice_bytes(slice_bytes);
        shape
    }

    /// Cuts tables into slices of `slice_bytes`; what keys and indices mean changes with it.
    pub(crate) fn set_slice_bytes(&self, slice_bytes: u64) {
        let entries = slice_bytes / (self.entry_words() as u64 * 8);
        self.entry_bits.store(entries.ilog2(), Ordering::Relaxed);
    }

    /// log2 of the entries in a slice.
    #[inline]
    pub(crate) fn entry_bits(&self) -> u32 {
        self.entry_bits.load(Ordering::Relaxed)
    }

    /// Words of an entry: 1, or 2 with extended L2.
    #[inline]
    pub(crate) fn entry_words(&self) -> usize {
        if self.extended { 2 } else { 1 }
    }

    /// Bytes of a slice.
    pub(crate) fn slice_bytes(&self) -> usize {
        (self.entry_words() * 8) << self.entry_bits()
    }

    /// Slices of one table.
    pub(crate) fn slices_per_table(&self) -> usize {
        1 << (self.l2_bits - self.entry_bits())
    }

    /// The slice that maps `guest`. L1 tables have at most 2^22 entries, tables at most 2^12 slices.
    #[inline]
    pub(crate) fn key(&self, guest: u64) -> SliceKey {
        let slice = guest >> (self.cluster_bits + self.entry_bits());
        let slices_bits = self.l2_bits - self.entry_bits();
        SliceKey { l1_index: (slice >> slices_bits) as u32, slice: (slice & ((1 << slices_bits) - 1)) as u32 }
    }

    /// Index in its slice of the entry that maps `guest`.
    #[inline]
    pub(crate) fn index(&self, guest: u64) -> usize {
        ((guest >> self.cluster_bits) & ((1 << self.entry_bits()) - 1)) as usize
    }

    /// First guest byte behind the slice that maps `guest`.
    #[inline]
    pub(crate) fn slice_end(&self, guest: u64) -> u64 {
        ((guest >> (self.cluster_bits + self.entry_bits())) + 1) << (self.cluster_bits + self.entry_bits())
    }

    /// Guest offset of entry `index` in slice `key`.
    pub(crate) fn guest(&self, key: SliceKey, index: usize) -> u64 {
        let slice = (u64::from(key.l1_index) << (self.l2_bits - self.entry_bits())) + u64::from(key.slice);
        ((slice << self.entry_bits()) + index as u64) << self.cluster_bits
    }
}
