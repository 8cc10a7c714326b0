//! Data and holes, and the discard of device blocks: calls that have no place in a ring.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Kind, Shared};
use crate::{Extent, ExtentKind};

impl Shared {
    pub(super) async fn extent(&self, offset: u64, len: u64) -> io::Result<Extent> {
        let length = self.length();
        let end = offset.saturating_add(len).min(length);
        if offset >= end {
            let message = format!("{len} bytes at {offset} are beyond the length, {length}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if self.kind == Kind::BlockDevice {
            return Ok(Extent { len: end - offset, kind: ExtentKind::Data });
        }
        let fd = Arc::clone(self.file.fd());
        // Finding the extents of a file may read its metadata from the disk.
        reactor::blocking(move || Ok(seek(&fd, offset, end))).await
    }
}

/// Where the file system cannot tell, everything is data.
fn seek(fd: impl AsFd, offset: u64, end: u64) -> Extent {
    let (at, kind) = match rustix::fs::seek(&fd, SeekFrom::Data(offset)) {
        Ok(data) if data > offset => (data, ExtentKind::Hole),
        Err(Errno::NXIO) => (end, ExtentKind::Hole),
        Ok(_) => (rustix::fs::seek(&fd, SeekFrom::Hole(offset)).unwrap_or(end), ExtentKind::Data),
        Err(_) => (end, ExtentKind::Data),
    };
    // A neighbour may have changed the file between two calls: an extent is never empty.
    Extent { len: at.clamp(offset + 1, end) - offset, kind }
}

/// The BLKDISCARD request of linux/fs.h.
const BLKDISCARD: libc::c_ulong = 0x1277;

/// Gives the blocks of a device back. Offset and length in bytes, whole sectors.
pub(super) fn discard_blocks(fd: &impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 from the address, which outlives the call; the descriptor is open.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
