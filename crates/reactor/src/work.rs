//! One operation: what is asked of the kernel, with everything it points to.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use buffer::{IoBuf, IoVec};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags};
use smallvec::SmallVec;

/// A descriptor that stays open as long as an operation on it is in flight.
pub(crate) type Fd = Arc<OwnedFd>;

/// Most parts that one vectored call takes (the kernel's UIO_MAXIOV); the rest is a short transfer.
pub(crate) const PARTS_MAX: usize = 1024;

/// Most bytes that one call moves (the kernel's MAX_RW_COUNT for 4 KiB pages).
pub(crate) const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// An operation and what it owns until it has completed.
pub(crate) enum Work {
    Read {
        fd: Fd,
        offset: u64,
        buf: IoBuf,
    },
    Write {
        fd: Fd,
        offset: u64,
        data: IoVec,
    },
    Sync {
        fd: Fd,
        data_only: bool,
    },
    Fallocate {
        fd: Fd,
        mode: u32,
        offset: u64,
        len: u64,
    },
    Recv {
        fd: Fd,
        buf: IoBuf,
        poll_first: bool,
    },
    Send {
        fd: Fd,
        data: IoVec,
    },
    Accept {
        fd: Fd,
    },
    Call(Box<dyn FnOnce() + Send>),
    /// A call that has been made.
    Called,
}

impl Work {
    /// Whether it may wait for a peer for ever: such an operation is cancelled when its future is dropped.
    pub(crate) fn waits_for_peer(&self) -> bool {
        matches!(self, Work::Recv { .. } | Work::Send { .. } | Work::Accept { .. })
    }

    /// Does it on this thread. Sockets never block: `-EAGAIN` says that they would. Gives the
    /// count of bytes (the descriptor, for an accept) or a negative errno, as the kernel's rings do.
    pub(crate) fn perform(&mut self) -> i32 {
        let result = match self {
            Work::Read { fd, offset, buf } => read(fd, *offset, buf),
            Work::Write { fd, offset, data } => write(fd, *offset, data),
            Work::Sync { fd, data_only: true } => rustix::fs::fdatasync(&*fd).map(|()| 0),
            Work::Sync { fd, data_only: false } => rustix::fs::fsync(&*fd).map(|()| 0),
            Work::Fallocate { fd, mode, offset, len } => fallocate(fd, *mode, *offset, *len),
            Work::Recv { fd, buf, .. } => recv_now(&*fd, buf),
            Work::Send { fd, data } => send_now(&*fd, data),
            Work::Accept { fd } => accept(fd),
            Work::Call(_) => {
                if let Work::Call(call) = std::mem::replace(self, Work::Called) {
                    call();
                }
                Ok(0)
            }
            Work::Called => Ok(0),
        };
        match result {
            Ok(count) => i32::try_from(count).unwrap_or(i32::MAX),
            Err(errno) => -errno.raw_os_error(),
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Work::Read { .. } => "Read",
            Work::Write { .. } => "Write",
            Work::Sync { .. } => "Sync",
            Work::Fallocate { .. } => "Fallocate",
            Work::Recv { .. } => "Recv",
            Work::Send { .. } => "Send",
            Work::Accept { .. } => "Accept",
            Work::Call(_) | Work::Called => "Call",
        })
    }
}

/// The first parts of `data`, as a vectored call takes them.
pub(crate) fn slices(data: &IoVec) -> SmallVec<[IoSlice<'_>; 8]> {
    data.parts().iter().take(PARTS_MAX).map(|part| IoSlice::new(part)).collect()
}

/// What has arrived on a socket, without waiting.
pub(crate) fn recv_now(socket: impl AsFd, buf: &mut [u8]) -> rustix::io::Result<usize> {
    rustix::net::recv(socket, buf, RecvFlags::DONTWAIT).map(|(count, _)| count)
}

/// As much as a socket takes without waiting.
pub(crate) fn send_now(socket: impl AsFd, data: &IoVec) -> rustix::io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &slices(data), &mut SendAncillaryBuffer::default(), flags)
}

fn read(fd: &Fd, offset: u64, buf: &mut [u8]) -> rustix::io::Result<usize> {
    rustix::io::preadv2(fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::empty())
}

fn write(fd: &Fd, offset: u64, data: &IoVec) -> rustix::io::Result<usize> {
    rustix::io::pwritev2(fd, &slices(data), offset, ReadWriteFlags::empty())
}

fn fallocate(fd: &Fd, mode: u32, offset: u64, len: u64) -> rustix::io::Result<usize> {
    let mode = rustix::fs::FallocateFlags::from_bits_retain(mode);
    rustix::fs::fallocate(fd, mode, offset, len).map(|()| 0)
}

fn accept(fd: &Fd) -> rustix::io::Result<usize> {
    let accepted = rustix::net::accept_with(fd, SocketFlags::CLOEXEC)?;
    usize::try_from(accepted.into_raw_fd()).map_err(|_| Errno::BADF)
}
