//! An aligned allocation and the pool it comes from.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

use crate::reserve::beside_reserve;

/// Alignment of the first byte of every allocation: what O_DIRECT wants on every known device.
pub const ALIGNMENT: usize = 4096;

/// Size classes are powers of two between these; larger allocations are not pooled.
const POOLED_BYTES_MIN: usize = 4096;
const POOLED_BYTES_MAX: usize = 4 << 20;
const CLASSES: usize = (POOLED_BYTES_MAX / POOLED_BYTES_MIN).ilog2() as usize + 1;

/// Most bytes that one thread keeps for reuse in one size class: enough for 64 requests of the
/// common sizes, little enough that idle threads do not matter.
const CLASS_BYTES_MAX: usize = 8 << 20;

/// Initialised memory, aligned to [`ALIGNMENT`], length a multiple of it.
pub(crate) struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an Allocation is plain memory with no thread affinity; who may touch which bytes is
// decided by its views (IoBuf: exclusive, disjoint ranges; IoBytes: shared, read-only).
unsafe impl Send for Allocation {}
// SAFETY: as above; `&Allocation` gives out no reference to the bytes, only the pointer.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// Memory of at least `len` bytes. Pooled memory holds what its last owner left in it.
    pub(crate) fn take(len: usize) -> Self {
        let size = rounded(len);
        Self::pooled(size).unwrap_or_else(|| Self::fresh(size))
    }

    /// As [`Allocation::take`]; `None` if there is no memory.
    pub(crate) fn try_take(len: usize) -> Option<Self> {
        let size = rounded(Some(len).filter(|len| *len < isize::MAX as usize / 2)?);
        let layout = Layout::from_size_align(size, ALIGNMENT).ok()?;
        Self::pooled(size).or_else(|| beside_reserve(size, || Self::of(layout)))
    }

    fn pooled(size: usize) -> Option<Self> {
        if let Some(class) = class_of(size)
            && let Ok(Some(reused)) = POOL.try_with(|pool| pool.borrow_mut().classes[class].pop())
        {
            return Some(reused.into_allocation());
        }
        None
    }

    /// Memory of at least `len` bytes, all zero.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self::fresh(rounded(len))
    }

    fn fresh(size: usize) -> Self {
        #[expect(clippy::expect_used, reason = "a size beyond isize::MAX is a bug of the caller")]
        let layout = Layout::from_size_align(size, ALIGNMENT).expect("buffer size overflows");
        Self::of(layout).unwrap_or_else(|| handle_alloc_error(layout))
    }

    fn of(layout: Layout) -> Option<Self> {
        debug_assert!(layout.size() >= POOLED_BYTES_MIN);
        // SAFETY: the size is at least POOLED_BYTES_MIN, so the layout is not zero-sized.
        let pointer = unsafe { alloc_zeroed(layout) };
        Some(Self { start: NonNull::new(pointer)?, layout })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let kept = Retained { start: self.start, layout: self.layout };
        let Some(class) = class_of(self.layout.size()) else { return kept.free() };
        let mut kept = Some(kept);
        // Fails only while the thread is being torn down: then the memory is freed below.
        let _ = POOL.try_with(|pool| {
            let Pool { keeps, classes } = &mut *pool.borrow_mut();
            let list = &mut classes[class];
            if *keeps && list.len() < CLASS_BYTES_MAX / self.layout.size() {
                list.extend(kept.take());
            }
        });
        if let Some(kept) = kept {
            kept.free();
        }
    }
}

/// An allocation at rest in the pool.
struct Retained {
    start: NonNull<u8>,
    layout: Layout,
}

impl Retained {
    fn into_allocation(self) -> Allocation {
        Allocation { start: self.start, layout: self.layout }
    }

    fn free(self) {
        // SAFETY: `start` came from `alloc_zeroed` with this layout, and `self` was its last owner.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Memory that is dropped on this thread is freed from now on, not kept for reuse: for threads that end the life of buffers and
/// take none themselves, where what is kept would only pile up.
pub fn keep_none_on_this_thread() {
    POOL.with(|pool| {
        let mut pool = pool.borrow_mut();
        pool.keeps = false;
        pool.classes.iter_mut().for_each(|list| list.drain(..).for_each(Retained::free));
    });
}

struct Pool {
    /// What is dropped here is kept.
    keeps: bool,
    classes: [Vec<Retained>; CLASSES],
}

impl Drop for Pool {
    fn drop(&mut self) {
        for list in &mut self.classes {
            list.drain(..).for_each(Retained::free);
        }
    }
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { keeps: true, classes: [const { Vec::new() }; CLASSES] }) };
}

fn rounded(len: usize) -> usize {
    match len.max(POOLED_BYTES_MIN) {
        len if len <= POOLED_BYTES_MAX => len.next_power_of_two(),
        len => len.next_multiple_of(ALIGNMENT),
    }
}

fn class_of(size: usize) -> Option<usize> {
    (size.is_power_of_two() && size <= POOLED_BYTES_MAX).then(|| (size / POOLED_BYTES_MIN).ilog2() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_at_least_as_long_as_asked() {
        for len in [0, 1, 4095, 4096, 4097, 65536, 65537, 4 << 20, (4 << 20) + 1] {
            let allocation = Allocation::take(len);
            assert_eq!(allocation.start().as_ptr() as usize % ALIGNMENT, 0);
            assert!(allocation.len() >= len);
        }
    }

    #[test]
    fn a_thread_that_keeps_none_takes_fresh_memory() {
        let is_reused = || {
            let allocation = Allocation::take(8192);
            // SAFETY: the allocation has at least 8192 bytes, initialised, and one owner.
            let was = unsafe { allocation.start().as_ptr().replace(0xaa) };
            was == 0xaa
        };
        assert!(!is_reused() && is_reused());
        keep_none_on_this_thread();
        assert!(!is_reused() && !is_reused());
    }

    #[test]
    fn zeroed_memory_never_shows_what_a_reused_allocation_held() {
        let allocation = Allocation::take(4096);
        // SAFETY: the allocation has at least 4096 bytes and one owner.
        unsafe { allocation.start().as_ptr().write_bytes(0xaa, 4096) };
        drop(allocation);
        let zeroed = Allocation::zeroed(4096);
        // SAFETY: as above; the memory is initialised.
        let bytes = unsafe { std::slice::from_raw_parts(zeroed.start().as_ptr(), 4096) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}
