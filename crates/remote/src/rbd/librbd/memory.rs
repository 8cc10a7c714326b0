//! The memory that a worker shares with its parent.

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// A memory file, mapped until the process ends: the library may fill it at any time until then. No task makes references to its bytes, since the
/// parent reads and writes them too.
#[derive(Clone, Copy, Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
}

impl SharedMemory {
    /// Maps the first `len` bytes of `file`.
    ///
    /// # Errors
    /// When the file is shorter, or cannot be mapped.
    pub fn map(file: &OwnedFd, len: usize) -> io::Result<Self> {
        let found = rustix::fs::fstat(file)?.st_size;
        if usize::try_from(found).is_ok_and(|found| found < len) {
            return Err(io::Error::other(format!("the shared memory has {found} bytes; must be {len}")));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of no given place touches no memory that is in use.
        let start = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Where `len` bytes from `at` on begin, if all of them are inside.
    pub(super) fn part(&self, at: usize, len: usize) -> Option<*mut u8> {
        let end = at.checked_add(len)?;
        (end <= self.len).then(|| self.start.as_ptr().wrapping_add(at))
    }
}
