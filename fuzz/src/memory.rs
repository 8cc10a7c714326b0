//! Heap bytes that a thread holds, a bound on them, and large requests that are refused on purpose.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// A request that takes a thread beyond this is refused, and the process aborts: something was
/// allocated in proportion to a field that was not checked.
const HARD_BYTES_MAX: usize = 1 << 30;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
    static REFUSAL: Cell<Option<Refusal>> = const { Cell::new(None) };
}

/// Which requests to refuse.
#[derive(Clone, Copy)]
struct Refusal {
    /// Smaller ones do not count.
    bytes_min: usize,
    /// Which of the others, from 1.
    nth: u64,
    seen: u64,
}

/// The system's allocator, counting what each thread holds. A case runs on one thread, so what
/// others do beside it does not count.
#[derive(Debug)]
pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts `bytes` more; says whether they are still within the bound.
fn take(bytes: usize) -> bool {
    if is_refused(bytes) {
        return false;
    }
    let within = HELD.try_with(|held| {
        let now = held.get().saturating_add(bytes);
        if now > HARD_BYTES_MAX {
            return false;
        }
        held.set(now);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now)));
        true
    });
    // A thread that is going away is not counted.
    within.unwrap_or(true)
}

/// Whether this is the request that is to fail.
fn is_refused(bytes: usize) -> bool {
    let counted = REFUSAL.try_with(|refusal| {
        let Some(Refusal { bytes_min, nth, seen }) = refusal.get() else { return false };
        if bytes < bytes_min {
            return false;
        }
        refusal.set(Some(Refusal { bytes_min, nth, seen: seen + 1 }));
        seen + 1 == nth
    });
    counted.unwrap_or(false)
}

fn give(bytes: usize) {
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(bytes)));
}

// SAFETY: every request goes to the system's allocator as it came, or is refused with null; the
// counters are plain cells that neither allocate nor unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise on `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise on `layout` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: `block` came from the system's allocator with this layout, as all blocks do.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return std::ptr::null_mut();
        }
        give(layout.size());
        // SAFETY: `block` came from the system's allocator with this layout, as all blocks do.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Runs `case` and gives the most heap bytes that this thread held during it, beyond those before.
pub fn peak_of(case: impl FnOnce()) -> usize {
    let before = HELD.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    case();
    PEAK.with(Cell::get).saturating_sub(before)
}

/// Runs `case` on this thread; its `nth` request for `bytes_min` bytes or more is refused. Gives also how many such
/// requests there were.
pub fn refusing<T>(bytes_min: usize, nth: u64, case: impl FnOnce() -> T) -> (T, u64) {
    REFUSAL.set(Some(Refusal { bytes_min, nth, seen: 0 }));
    let result = case();
    (result, REFUSAL.replace(None).map_or(0, |refusal| refusal.seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_at_once_is_counted_and_what_was_given_back_is_not() {
        let peak = peak_of(|| {
            for _ in 0..10 {
                drop(std::hint::black_box(vec![1u8; 1 << 20]));
            }
        });
        assert!((1 << 20..2 << 20).contains(&peak), "{peak}");
    }

    #[test]
    fn only_the_large_request_that_was_meant_is_refused() {
        let reserve = |bytes| Vec::<u8>::new().try_reserve_exact(std::hint::black_box(bytes)).is_ok();
        let case = || [reserve(100), reserve(5000), reserve(4999), reserve(6000), reserve(5000)];
        assert_eq!(refusing(5000, 2, case), ([true, true, true, false, true], 3));
    }
}
