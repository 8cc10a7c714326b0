//! Which refcount blocks are in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Block;

/// Refcount blocks in memory, by index.
#[derive(Debug, Default)]
pub(super) struct Residents {
    /// Ordered, so that the same requests always evict the same blocks.
    blocks: BTreeMap<u64, Arc<Block>>,
    /// With so many blocks or fewer, it was tried before and no more could leave: the others are dirty.
    stuck: usize,
}

impl Residents {
    pub(super) fn get(&self, index: u64) -> Option<&Arc<Block>> {
        self.blocks.get(&index)
    }

    pub(super) fn insert(&mut self, block: Arc<Block>) {
        self.blocks.insert(block.index(), block);
    }

    pub(super) fn remove(&mut self, index: u64) {
        self.blocks.remove(&index);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Lowest index first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Block>> {
        self.blocks.values()
    }

    /// Drops clean blocks for which `leaves` holds.
    pub(super) fn drop_if(&mut self, leaves: impl Fn(&Block) -> bool) {
        self.blocks.retain(|_, block| !leaves(block) || !block.evict());
    }

    /// Lets clean blocks leave until no more than `blocks_max` are there, or only dirty ones are. In the latter
    /// case nothing is tried before there are a quarter more, or looking at each of them for every block that
    /// comes would take the square of their number.
    pub(super) fn trim(&mut self, blocks_max: usize) {
        if self.len() <= self.stuck {
            return;
        }
        self.stuck = 0;
        while self.len() > blocks_max {
            let Some(victim) = self.blocks.values().find(|block| block.evict()) else {
                self.stuck = self.len() + self.len() / 4;
                return;
            };
            let index = victim.index();
            self.blocks.remove(&index);
        }
    }

    /// Dirty blocks became clean: they may leave.
    pub(super) fn try_again(&mut self) {
        self.stuck = 0;
    }
}
