//! One refcount block in memory.

use std::sync::Arc;

use std::ops::Range;

use map_cache::Charge;
use sync::Mutex;

/// Pieces of the largest block.
const PIECES_MAX: usize = (2 << 20) / PIECE_BYTES;

/// What of a block is written, and has its room, as a whole. The rest may be holes.
const PIECE_BYTES: usize = 4096;

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
    /// Pieces that differ from the file's, a bit each.
    changed: [u64; PIECES_MAX / 64],
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
    changed: [u64; PIECES_MAX / 64],
}

impl DirtyBlock {
    pub(crate) fn index(&self) -> u64 {
        self.block.index
    }

    /// What the file does not have: runs of pieces, each with its offset in the block.
    pub(crate) fn changed(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let pieces = self.bytes.len().div_ceil(PIECE_BYTES);
        let changed =
            |piece: usize| self.changed.get(piece / 64).is_some_and(|word| word >> (piece % 64) & 1 == 1);
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = (next..pieces).find(|&piece| changed(piece))?;
            let end = (first..pieces).find(|&piece| !changed(piece)).unwrap_or(pieces);
            next = end;
            let bytes = first * PIECE_BYTES..(end * PIECE_BYTES).min(self.bytes.len());
            Some((bytes.start as u64, self.bytes.get(bytes)?))
        })
    }

    /// Says that the file holds this copy.
    pub(crate) fn written(&self) {
        let mut state = self.block.state.lock();
        state.written = state.written.max(self.modified);
        if state.modified == state.written {
            state.changed = [0; PIECES_MAX / 64];
        }
    }
}

impl Block {
    /// A block as the file has it.
    pub(crate) fn new(index: u64, bytes: Vec<u8>, charge: Charge) -> Self {
        let state = State {
            bytes,
            modified: 0,
            written: 0,
            changed: [0; PIECES_MAX / 64],
            evicted: false,
            used: true,
        };
        Self { index, state: Mutex::new(state), _charge: charge }
    }

    /// A block that the file does not have yet.
    pub(crate) fn new_dirty(index: u64, bytes: Vec<u8>, charge: Charge) -> Self {
        let state = State {
            bytes,
            modified: 1,
            written: 0,
            changed: [u64::MAX; PIECES_MAX / 64],
            evicted: false,
            used: true,
        };
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

    /// Changes bytes in `range`; `None` if the block has left the cache and must be looked up again.
    pub(crate) fn modify<T>(&self, range: Range<usize>, modify: impl FnOnce(&mut [u8]) -> T) -> Option<T> {
        let mut state = self.state.lock();
        if state.evicted {
            return None;
        }
        state.modified += 1;
        for piece in range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES) {
            if let Some(word) = state.changed.get_mut(piece / 64) {
                *word |= 1 << (piece % 64);
            }
        }
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
            changed: state.changed,
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
