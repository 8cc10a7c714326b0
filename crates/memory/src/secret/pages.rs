//! Pages of their own: locked, left out of core dumps, overwritten at the end.

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::c_void;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::OnceLock;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use zeroize::Zeroize;

/// What lengths are multiples of. Where pages are larger, the kernel rounds up: the rest of a mapping is not owned.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Why pages could not be locked; set once.
static UNLOCKED: OnceLock<io::ErrorKind> = OnceLock::new();

/// Why some secret may be swapped: its pages could not be locked, most often because of RLIMIT_MEMLOCK (`ulimit -l`). `None`: all were.
pub fn why_unlocked() -> Option<io::ErrorKind> {
    UNLOCKED.get().copied()
}

/// Whole pages, zeroed at first. Nothing else is in them.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: they are memory that this value alone owns, as a `Box<[u8]>` does.
unsafe impl Send for Pages {}
// SAFETY: what is shared gives shared references only.
unsafe impl Sync for Pages {}

impl Pages {
    /// Room for `bytes`. Pages that cannot be locked are used all the same ([`why_unlocked`]).
    pub fn zeroed(bytes: usize) -> Self {
        // A length beyond all memory is refused by the kernel.
        let len = bytes.max(1).checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX - PAGE_BYTES + 1);
        // SAFETY: a mapping at a place of the kernel's choice overlaps nothing.
        let mapped =
            unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
        let start = mapped.ok().and_then(|start| NonNull::new(start.cast::<u8>()));
        let Some(start) = start else {
            handle_alloc_error(Layout::from_size_align(len, PAGE_BYTES).unwrap_or(Layout::new::<u8>()));
        };
        let pages = Self { start, len };
        pages.keep_to_ourselves();
        pages
    }

    fn keep_to_ourselves(&self) {
        // SAFETY: the range is our mapping, and the advice changes no byte of it.
        let dumped = unsafe { madvise(self.address(), self.len, Advice::LinuxDontDump) };
        // SAFETY: the range is our mapping.
        let locked = unsafe { mlock(self.address(), self.len) };
        if let Err(error) = dumped.and(locked) {
            UNLOCKED.get_or_init(|| io::Error::from(error).kind());
        }
    }

    fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }

    /// The first byte: at the start of a page.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes from `start` on are mapped as long as this value lives, and hold initialised bytes: the kernel's zeroes, or
        // what was written through `bytes_mut`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All of it, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the reference to this value is the only one.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        // SAFETY: the mapping is ours, and no code has a reference to it any more. What is unmapped is unlocked.
        let unmapped = unsafe { munmap(self.address(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours is unmapped once");
    }
}
