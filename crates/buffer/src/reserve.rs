//! Memory for the moment in which there is none.
//!
//! What a client's request needs is asked for with [`crate::IoBuf::try_uninit`]: without memory that request fails. Everything else a program
//! does takes small pieces that cannot be refused, and a program that cannot have one ends, with all its clients. So a server keeps a
//! reserve: when an allocation fails that cannot be refused, the reserve is given up for it, and requests are refused until it is there again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Bytes of the reserve: all that a server takes between two large requests, and the largest cluster some times over.
const RESERVE_BYTES: usize = 16 << 20;

/// Where addresses lie on a page of their own they are given back to the system.
const RESERVE_ALIGNMENT: usize = 4096;

static RESERVE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The process keeps a reserve, or wants it back.
static KEEPS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// An allocation at work that can be refused: it is no reason to give the reserve up.
    static CAN_BE_REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator with a reserve behind it. It costs a comparison.
#[derive(Debug)]
pub struct WithReserve;

// SAFETY: all memory is the system allocator's, with the layouts that were asked for.
unsafe impl GlobalAlloc for WithReserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        or_again(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        or_again(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise; a call that fails leaves the memory as it was.
        or_again(size, || unsafe { System.realloc(pointer, layout, size) })
    }
}

#[inline]
fn or_again(bytes: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let pointer = allocate();
    if pointer.is_null() { without_reserve(bytes, allocate) } else { pointer }
}

#[cold]
fn without_reserve(bytes: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    if bytes >= RESERVE_BYTES || CAN_BE_REFUSED.try_with(Cell::get).unwrap_or(false) {
        return null_mut();
    }
    // Another thread may have released it just now.
    release();
    allocate()
}

const fn layout() -> Layout {
    match Layout::from_size_align(RESERVE_BYTES, RESERVE_ALIGNMENT) {
        Ok(layout) => layout,
        Err(_) => panic!("the reserve is no size"),
    }
}

fn release() {
    let reserve = RESERVE.swap(null_mut(), Ordering::AcqRel);
    if !reserve.is_null() {
        // SAFETY: it came from `System.alloc` with this layout, and the swap made us its owner.
        unsafe { System.dealloc(reserve, layout()) };
    }
}

fn acquire() -> bool {
    if !RESERVE.load(Ordering::Acquire).is_null() {
        return true;
    }
    // SAFETY: the layout is not empty.
    let reserve = unsafe { System.alloc(layout()) };
    if reserve.is_null() {
        return false;
    }
    if RESERVE.compare_exchange(null_mut(), reserve, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: as above; another thread was faster, and nothing else knows of this one.
        unsafe { System.dealloc(reserve, layout()) };
    }
    true
}

/// Keeps a reserve from now on, in a program whose allocator is [`WithReserve`]. It takes addresses, and memory only when it is used.
pub fn keep_reserve() {
    KEEPS.store(true, Ordering::Release);
    acquire();
}

/// Whether there is memory for what can be refused: the reserve is there, or there is none to be kept.
pub(crate) fn has_reserve() -> bool {
    !KEEPS.load(Ordering::Relaxed) || acquire()
}

/// What `allocate` gives, which can be refused.
pub(crate) fn refusable<T>(allocate: impl FnOnce() -> T) -> T {
    let _ = CAN_BE_REFUSED.try_with(|refused| refused.set(true));
    let allocated = allocate();
    let _ = CAN_BE_REFUSED.try_with(|refused| refused.set(false));
    allocated
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's write of 32 MiB ended the server where memory was limited: the next small allocation failed.
    #[test]
    fn the_reserve_is_given_up_for_what_cannot_be_refused_and_taken_back() {
        let fails_once = || {
            let failed = Cell::new(false);
            move || if failed.replace(true) { std::ptr::dangling_mut() } else { null_mut() }
        };
        keep_reserve();
        assert!(has_reserve());
        assert!(or_again(RESERVE_BYTES, fails_once()).is_null(), "it would not be enough");
        assert!(!RESERVE.load(Ordering::Relaxed).is_null());
        assert!(!or_again(100, fails_once()).is_null());
        assert!(RESERVE.load(Ordering::Relaxed).is_null());
        assert!(has_reserve() && !RESERVE.load(Ordering::Relaxed).is_null());
        refusable(|| or_again(100, fails_once()));
        assert!(!RESERVE.load(Ordering::Relaxed).is_null(), "it is kept for what cannot be refused");
    }
}
