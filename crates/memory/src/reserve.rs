//! Memory for the moment in which there is none.
//!
//! What a client's request needs is asked for with [`crate::IoBuf::try_uninit`]: without memory that request fails. Everything else a program
//! does takes small pieces that cannot be refused, and a program that cannot have one ends, with all its clients. So a server keeps a
//! reserve: when an allocation fails that cannot be refused, the whole reserve is given up for it. Until it is there again, requests are
//! refused; where only a part of it can be had, small requests are served.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The reserve is this many parts, so that a part of it can be had: all of them are what a server takes between two large requests, and the
/// largest cluster some times over.
const PARTS: usize = 4;
const PART_BYTES: usize = 4 << 20;
const RESERVE_BYTES: usize = PARTS * PART_BYTES;

/// Where addresses lie on a page of their own they are given back to the system.
const RESERVE_ALIGNMENT: usize = 4096;

static RESERVE: [AtomicPtr<u8>; PARTS] = [const { AtomicPtr::new(null_mut()) }; PARTS];
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
    match Layout::from_size_align(PART_BYTES, RESERVE_ALIGNMENT) {
        Ok(layout) => layout,
        Err(_) => panic!("a part of the reserve is no size"),
    }
}

fn release() {
    for part in &RESERVE {
        let part = part.swap(null_mut(), Ordering::AcqRel);
        if !part.is_null() {
            // SAFETY: it came from `System.alloc` with this layout, and the swap made us its owner.
            unsafe { System.dealloc(part, layout()) };
        }
    }
}

/// Whether the first `parts` are there, if need be again.
fn acquire(parts: usize) -> bool {
    RESERVE.iter().take(parts).all(acquire_part)
}

fn acquire_part(part: &AtomicPtr<u8>) -> bool {
    if !part.load(Ordering::Acquire).is_null() {
        return true;
    }
    // SAFETY: the layout is not empty.
    let memory = unsafe { System.alloc(layout()) };
    if memory.is_null() {
        return false;
    }
    if part.compare_exchange(null_mut(), memory, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: as above; another thread was faster, and nothing else knows of this one.
        unsafe { System.dealloc(memory, layout()) };
    }
    true
}

/// Keeps a reserve from now on, in a program whose allocator is [`WithReserve`]. It takes addresses, and memory only when it is used.
pub fn keep_reserve() {
    KEEPS.store(true, Ordering::Release);
    acquire(PARTS);
}

/// What `allocate` gives for `bytes` that can be refused: nothing unless as much of the reserve is there, or there is none to be kept.
/// What is missing of the reserve comes after small requests.
pub(crate) fn beside_reserve<T>(bytes: usize, allocate: impl FnOnce() -> Option<T>) -> Option<T> {
    if !KEEPS.load(Ordering::Relaxed) {
        return refusable(allocate);
    }
    if !acquire(bytes.div_ceil(PART_BYTES).clamp(1, PARTS)) {
        return None;
    }
    let allocated = refusable(allocate);
    acquire(PARTS);
    allocated
}

/// What `allocate` gives, which can be refused.
fn refusable<T>(allocate: impl FnOnce() -> T) -> T {
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
        let parts = || RESERVE.iter().filter(|part| !part.load(Ordering::Relaxed).is_null()).count();
        keep_reserve();
        assert_eq!(parts(), PARTS);
        assert!(or_again(RESERVE_BYTES, fails_once()).is_null(), "it would not be enough");
        assert_eq!(parts(), PARTS);
        assert!(!or_again(100, fails_once()).is_null());
        assert_eq!(parts(), 0);
        assert_eq!(beside_reserve(100, || Some(parts())), Some(1), "it does not wait for all of the reserve");
        assert_eq!(parts(), PARTS);
        release();
        assert_eq!(beside_reserve(PART_BYTES + 1, || Some(parts())), Some(2));
        assert_eq!(beside_reserve(100, || Some(or_again(100, fails_once()).is_null())), Some(true));
        assert_eq!(parts(), PARTS, "it is kept for what cannot be refused");
    }
}
