//! Reads and writes of memory of others, on this thread.

use std::os::fd::{AsFd, AsRawFd};

use memory::ForeignBytes;
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::work::PARTS_MAX;

/// The parts as the kernel takes them; with more than [`PARTS_MAX`] the transfer is a short one.
pub(crate) fn addresses(memory: &ForeignBytes) -> impl Iterator<Item = libc::iovec> {
    let parts = memory.parts().iter().take(PARTS_MAX);
    parts.map(|part| libc::iovec { iov_base: part.start().as_ptr().cast(), iov_len: part.len() })
}

/// Fills `memory` from `offset`, as one `preadv` does.
pub(crate) fn read(fd: impl AsFd, offset: u64, memory: &ForeignBytes) -> rustix::io::Result<usize> {
    read_with(fd, offset, memory, 0)
}

/// As [`read`], if that needs no waiting; otherwise fails with EAGAIN (or EOPNOTSUPP), or is short.
pub(crate) fn read_without_waiting(
    fd: impl AsFd,
    offset: u64,
    memory: &ForeignBytes,
) -> rustix::io::Result<usize> {
    read_with(fd, offset, memory, libc::RWF_NOWAIT)
}

fn read_with(
    fd: impl AsFd,
    offset: u64,
    memory: &ForeignBytes,
    flags: libc::c_int,
) -> rustix::io::Result<usize> {
    let parts: SmallVec<[libc::iovec; 8]> = addresses(memory).collect();
    let (fd, offset) = (fd.as_fd().as_raw_fd(), signed(offset)?);
    // SAFETY: the parts are mapped and writable for as long as `memory` lives, which the call does not outlive.
    result(unsafe { libc::preadv2(fd, parts.as_ptr(), parts.len() as libc::c_int, offset, flags) })
}

/// Writes `memory` at `offset`, as one `pwritev` does.
pub(crate) fn write(fd: impl AsFd, offset: u64, memory: &ForeignBytes) -> rustix::io::Result<usize> {
    let parts: SmallVec<[libc::iovec; 8]> = addresses(memory).collect();
    let (fd, offset) = (fd.as_fd().as_raw_fd(), signed(offset)?);
    // SAFETY: the parts are mapped and readable for as long as `memory` lives, which the call does not outlive.
    result(unsafe { libc::pwritev(fd, parts.as_ptr(), parts.len() as libc::c_int, offset) })
}

fn signed(offset: u64) -> rustix::io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)
}

fn result(count: libc::ssize_t) -> rustix::io::Result<usize> {
    usize::try_from(count).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}
