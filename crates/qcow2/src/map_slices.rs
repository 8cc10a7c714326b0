//! Which slices of its map an image has, for callers that compute with them.

use map_cache::SliceKey;

use crate::image::Qcow2;

/// The slice of the active layer's map that leads to a byte of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSlice {
    /// Which one.
    pub key: SliceKey,
    /// First byte of the disk that another slice leads to.
    pub end: u64,
    /// The table exists: otherwise nothing is looked up.
    pub exists: bool,
}

impl Qcow2 {
    /// The slice that leads to byte `guest`, which must be below the disk's size.
    pub fn map_slice(&self, guest: u64) -> MapSlice {
        let inner = &self.inner;
        let key = inner.map.shape.key(guest);
        let table = inner
            .map
            .l1
            .get(u64::from(key.l1_index), &inner.medium.geometry)
            .ok()
            .and_then(|entry| entry.table);
        MapSlice { key, end: inner.map.shape.slice_end(guest), exists: table.is_some() }
    }

    /// Bytes that the slice takes in memory, packed; `None` where it is not there.
    pub fn map_slice_memory(&self, key: SliceKey) -> Option<u64> {
        self.inner.map.cache.slice_bytes(key)
    }

    /// Slices that each table is cut into.
    pub fn map_slices_per_table(&self) -> usize {
        self.inner.map.shape.slices_per_table()
    }
}
