//! What a cache of some size would have kept, without its contents: to say beforehand what size suffices.

use std::collections::HashMap;

use sync::Arc;

use crate::directory::{Directory, SliceKey};
use crate::footprint::{ARC_COUNTS, allocation};
use crate::ghosts::Ghosts;
use crate::queue::{Look, Queue};
use crate::store::{SLICES_MIN, Store};

/// A cache that holds how large its slices are in place of the slices, under the same rules and accounts, except
/// that none of them is ever dirty.
#[derive(Debug)]
pub struct Model {
    bytes_max: u64,
    directory: Directory<()>,
    queue: Queue,
    ghosts: Ghosts,
    slices: HashMap<SliceKey, Modelled>,
    /// Bytes of all slices.
    held: u64,
}

#[derive(Debug)]
struct Modelled {
    bytes: u64,
    visited: bool,
}

impl Model {
    /// An empty cache of `bytes_max` bytes for tables of `slices_per_table` slices.
    pub fn new(bytes_max: u64, slices_per_table: usize) -> Self {
        Self {
            bytes_max,
            directory: Directory::new(slices_per_table),
            queue: Queue::default(),
            ghosts: Ghosts::default(),
            slices: HashMap::new(),
            held: 0,
        }
    }

    /// A request looks for a slice, and loads it where it is missing: one of `bytes` bytes. Returns whether it was there.
    pub fn access(&mut self, key: SliceKey, bytes: u64) -> bool {
        if let Some(slice) = self.slices.get_mut(&key) {
            slice.visited = true;
            return true;
        }
        self.directory.put(key, Arc::new(()));
        self.slices.insert(key, Modelled { bytes, visited: false });
        let (away, moment) = (self.ghosts.take(key), self.ghosts.moment(self.held));
        let slices = &mut self.slices;
        self.queue.insert(key, moment, away, |other| {
            slices.get_mut(&other).is_some_and(|slice| std::mem::take(&mut slice.visited))
        });
        self.held += bytes;
        self.make_room(key);
        // A request looks a slice up right after it loaded it.
        if let Some(slice) = self.slices.get_mut(&key) {
            slice.visited = true;
        }
        false
    }

    fn make_room(&mut self, needed: SliceKey) {
        while self.bytes() > self.bytes_max && self.queue.len() > SLICES_MIN {
            let (steps, slices) = (self.queue.len() * 2, &mut self.slices);
            let now = self.ghosts.now();
            let leaves = self.queue.evict(steps, now, |key| {
                let Some(slice) = slices.get_mut(&key) else { return Look::Absent };
                if key == needed {
                    return Look::Busy;
                }
                if std::mem::take(&mut slice.visited) { Look::Used } else { Look::Cold(key) }
            });
            let Some(key) = leaves else { return };
            let Some(slice) = self.slices.remove(&key) else { return };
            self.directory.take_out(key);
            self.ghosts.insert(key, slice.bytes, self.queue.len());
            self.held -= slice.bytes;
        }
    }

    /// What the cache would take, in bytes.
    pub fn bytes(&self) -> u64 {
        allocation(size_of::<Store>() + ARC_COUNTS)
            + self.directory.footprint()
            + self.queue.footprint()
            + self.ghosts.footprint()
            + self.held
    }
}
