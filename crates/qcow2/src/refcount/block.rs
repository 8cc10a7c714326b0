//! One refcount block in memory.

use std::sync::Arc;

use map_cache::Charge;
use sync::Mutex;

/// The bytes of one refcount block, as they lie in the file, and whether the file has them.
#[derive(Debug)]
pub(crate) struct Block {
    index: u64,
    state: Mutex<State>,
    /// Held for as long as the bytes are.
    _charge: Charge,
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    modified: u64,
    written: u64,
    evicted: bool,
    /// Read or changed since it was asked last.
    used: bool,
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
    pub(crate) fn new(index: u64, bytes: Vec<u8>, charge: Charge) -> Self {
        let state = State { bytes, modified: 0, written: 0, evicted: false, used: true };
        Self { index, state: Mutex::new(state), _charge: charge }
    }

    /// A block that the file does not have yet.
    pub(crate) fn new_dirty(index: u64, bytes: Vec<u8>, charge: Charge) -> Self {
        let state = State { bytes, modified: 1, written: 0, evicted: false, used: true };
        Self { index, state: Mutex::new(state), _charge: charge }
    }

    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&[u8]) -> T) -> T {
        let mut state = self.state.lock();
        state.used = true;
        read(&state.bytes)
    }

    /// Changes the bytes; `None` if the block has left the cache and must be looked up again.
    pub(crate) fn modify<T>(&self, modify: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut state = self.state.lock();
        if state.evicted {
            return None;
        }
        state.modified += 1;
        state.used = true;
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

    /// Whether it was read or changed since this was asked last.
    pub(crate) fn take_used(&self) -> bool {
        std::mem::take(&mut self.state.lock().used)
    }

    /// Marks the block as gone unless it is dirty. Returns whether it is gone.
    pub(crate) fn evict(&self) -> bool {
        let mut state = self.state.lock();
        state.evicted |= state.modified == state.written;
        state.evicted
    }
}
