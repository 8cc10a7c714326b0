//! One refcount block in memory.

use std::sync::Arc;

use sync::Mutex;

/// The bytes of one refcount block, as they lie in the file, and whether the file has them.
#[derive(Debug)]
pub(crate) struct Block {
    index: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    modified: u64,
    written: u64,
    evicted: bool,
}

/// A copy of a dirty block.
#[derive(Debug)]
pub(crate) struct DirtyBlock {
    block: Arc<Block>,
    modified: u64,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

impl DirtyBlock {
    pub(crate) fn index(&self) -> u64 {
        self.block.index
    }

    /// Says that the file holds this copy.
    pub(crate) fn written(&self) {
        let mut state = self.block.state.lock();
        state.written = state.written.max(self.modified);
    }
}

impl Block {
    /// A block as the file has it.
    pub(crate) fn new(index: u64, bytes: Vec<u8>) -> Self {
        Self { index, state: Mutex::new(State { bytes, modified: 0, written: 0, evicted: false }) }
    }

    /// A block that the file does not have yet.
    pub(crate) fn new_dirty(index: u64, bytes: Vec<u8>) -> Self {
        Self { index, state: Mutex::new(State { bytes, modified: 1, written: 0, evicted: false }) }
    }

    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        read(&self.state.lock().bytes)
    }

    /// Changes the bytes; `None` if the block has left the cache and must be looked up again.
    pub(crate) fn modify<T>(&self, modify: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut state = self.state.lock();
        if state.evicted {
            return None;
        }
        state.modified += 1;
        Some(modify(&mut state.bytes))
    }

    pub(crate) fn is_dirty(&self) -> bool {
        let state = self.state.lock();
        state.modified != state.written
    }

    pub(crate) fn copy_if_dirty(self: &Arc<Self>) -> Option<DirtyBlock> {
        let state = self.state.lock();
        (state.modified != state.written).then(|| DirtyBlock {
            block: Arc::clone(self),
            modified: state.modified,
            bytes: state.bytes.clone(),
        })
    }

    /// Marks the block as gone unless it is dirty. Returns whether it is gone.
    pub(crate) fn evict(&self) -> bool {
        let mut state = self.state.lock();
        state.evicted |= state.modified == state.written;
        state.evicted
    }
}
