//! Data and holes, the discard of device blocks, and who shares extents: calls that have no place in a ring.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::Shared;
use super::kind::Kind;
use crate::{Extent, ExtentKind};

impl Shared {
    pub(super) async fn extent(&self, offset: u64, len: u64) -> io::Result<Extent> {
        let length = self.length();
        let end = offset.saturating_add(len).min(length);
        if offset >= end {
            let message = format!("{len} bytes at {offset} are beyond the length, {length}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if self.kind != Kind::Regular {
            return Ok(Extent { len: end - offset, kind: ExtentKind::Data });
        }
        let fd = Arc::clone(self.file.fd());
        // Finding the extents of a file may read its metadata from the disk.
        let extent: Extent = reactor::blocking(move || io::Result::Ok(seek(&fd, offset, end))).await?;
        if extent.kind == ExtentKind::Hole {
            self.tried.tells_holes.note(true);
        }
        Ok(extent)
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

/// The BLKROGET request of linux/fs.h.
const BLKROGET: libc::c_ulong = 0x125e;

/// Whether a device takes no writes, whatever it was opened for: the kernel may open it for writing, and refuses each write.
pub(super) fn is_read_only(fd: &impl AsFd) -> bool {
    let mut read_only: libc::c_int = 0;
    // SAFETY: BLKROGET writes one int to the address; the descriptor is open.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), BLKROGET, &raw mut read_only) };
    result >= 0 && read_only != 0
}

/// The FIDEDUPERANGE request of linux/fs.h.
const FIDEDUPERANGE: libc::c_ulong = 0xc018_9436;

/// Bytes of a request without destinations: offset, length, and how many destinations (`struct file_dedupe_range`).
const DEDUPE_BYTES: usize = 24;

/// Whether the file system knows how to let files share extents. A request to share nothing with no file tells: it touches no file and waits for
/// nothing, not even for a file system that is frozen, and needs no right to write.
pub(super) fn has_remapping(fd: &impl AsFd) -> io::Result<bool> {
    let mut request = [0_u64; DEDUPE_BYTES / 8];
    // SAFETY: FIDEDUPERANGE reads a header of 24 bytes, aligned as a u64, that names no destination, and writes no more than that; the descriptor is open.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), FIDEDUPERANGE, request.as_mut_ptr()) };
    if result >= 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY)) => Ok(false),
        error => Err(error),
    }
}

/// The XFS_IOC_FSGEOMETRY_V1 request of xfs_fs.h.
const XFS_GEOMETRY: libc::c_ulong = 0x8070_5864;

/// Bytes that it writes.
const XFS_GEOMETRY_BYTES: usize = 112;

/// Which 32-bit word of them has the flags, and the flag of a file system that was made for reflinks.
const XFS_FLAGS_WORD: usize = 23;
const XFS_REFLINK: u32 = 1 << 20;

/// Whether a file system, which is XFS, was made for sharing extents.
pub(super) fn xfs_has_reflink(fd: &impl AsFd) -> io::Result<bool> {
    let mut geometry = [0_u64; XFS_GEOMETRY_BYTES / 8];
    // SAFETY: XFS_IOC_FSGEOMETRY_V1 writes 112 bytes, aligned as a u64, to the address; the descriptor is open.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), XFS_GEOMETRY, geometry.as_mut_ptr()) } {
        0.. => {
            let bytes: Vec<u8> = geometry.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let word = bytes.chunks_exact(4).nth(XFS_FLAGS_WORD).and_then(|word| word.try_into().ok());
            Ok(word.is_some_and(|word| u32::from_ne_bytes(word) & XFS_REFLINK != 0))
        }
        _ => Err(io::Error::last_os_error()),
    }
}
