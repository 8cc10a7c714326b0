//! One operation: what is asked of the kernel, with everything it points to.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use memory::{ForeignBytes, IoBuf, IoVec};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags,
};
use smallvec::SmallVec;

/// A descriptor that stays open as long as an operation on it is in flight.
pub(crate) type Fd = Arc<OwnedFd>;

/// Most parts that one vectored call takes (the kernel's UIO_MAXIOV); the rest is a short transfer.
pub(crate) const PARTS_MAX: usize = 1024;

/// Most bytes that one call moves (the kernel's MAX_RW_COUNT for 4 KiB pages).
pub(crate) const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// Most descriptors that are taken with one message: one is what is meant, the rest is room.
pub(crate) const DESCRIPTORS_MAX: usize = 16;

/// Takes the result of an operation that no task awaits, on the loop that started it.
pub(crate) type Reported = Box<dyn FnOnce(std::io::Result<()>) + Send>;

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
    /// A read into memory of others.
    ReadInto {
        fd: Fd,
        offset: u64,
        memory: ForeignBytes,
    },
    /// A write of memory of others.
    WriteFrom {
        fd: Fd,
        offset: u64,
        memory: ForeignBytes,
    },
    Sync {
        fd: Fd,
        data_only: bool,
        /// Who is notified of its end although no task awaits it.
        reported: Option<Reported>,
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
    Accept {
        fd: Fd,
    },
    /// Nothing but the wait until something has arrived, or the peer has ended its side.
    Readable {
        fd: Fd,
    },
    /// The wait until a socket takes more.
    Writable {
        fd: Fd,
    },
    /// Ends when the peer of a socket is gone in both directions, or the socket has failed.
    HangUp {
        fd: Fd,
    },
    /// A command of a device, for rings alone: 8 bytes of its own, and behind them the address of `buf`, or 0.
    Command {
        fd: Fd,
        op: u32,
        head: [u8; 8],
        buf: Option<IoBuf>,
    },
    Call(Box<dyn FnOnce() + Send>),
    /// A call that has been made.
    Called,
}

impl Work {
    /// Whether it may wait for a peer for ever: such an operation is cancelled when its future is dropped.
    pub(crate) fn waits_for_peer(&self) -> bool {
        matches!(
            self,
            Work::Recv { .. }
                | Work::Accept { .. }
                | Work::HangUp { .. }
                | Work::Readable { .. }
                | Work::Writable { .. }
                | Work::Command { .. }
        )
    }

    /// The same operation with a buffer of its own, where the kernel writes to the buffer. It tells of the end in place of this one.
    pub(crate) fn substitute(&mut self) -> Work {
        match self {
            Work::Read { fd, offset, buf } => {
                Work::Read { fd: Arc::clone(fd), offset: *offset, buf: IoBuf::zeroed(buf.len()) }
            }
            Work::Recv { fd, buf, poll_first } => {
                Work::Recv { fd: Arc::clone(fd), buf: IoBuf::zeroed(buf.len()), poll_first: *poll_first }
            }
            Work::Write { fd, offset, data } => {
                Work::Write { fd: Arc::clone(fd), offset: *offset, data: data.clone() }
            }
            // There is no other memory to give: the operation has failed, and its owner is held for ever.
            Work::ReadInto { fd, offset, memory } => {
                Work::ReadInto { fd: Arc::clone(fd), offset: *offset, memory: memory.clone() }
            }
            Work::WriteFrom { fd, offset, memory } => {
                Work::WriteFrom { fd: Arc::clone(fd), offset: *offset, memory: memory.clone() }
            }
            Work::Sync { fd, data_only, reported } => {
                Work::Sync { fd: Arc::clone(fd), data_only: *data_only, reported: reported.take() }
            }
            Work::Fallocate { fd, mode, offset, len } => {
                Work::Fallocate { fd: Arc::clone(fd), mode: *mode, offset: *offset, len: *len }
            }
            Work::Accept { fd } => Work::Accept { fd: Arc::clone(fd) },
            Work::Readable { fd } => Work::Readable { fd: Arc::clone(fd) },
            Work::Writable { fd } => Work::Writable { fd: Arc::clone(fd) },
            Work::HangUp { fd } => Work::HangUp { fd: Arc::clone(fd) },
            Work::Command { fd, op, head, buf } => {
                let buf = buf.as_ref().map(|buf| IoBuf::zeroed(buf.len()));
                Work::Command { fd: Arc::clone(fd), op: *op, head: *head, buf }
            }
            Work::Call(_) | Work::Called => Work::Called,
        }
    }

    /// Does it on this thread. Sockets never block: `-EAGAIN` says that they would. Gives the
    /// count of bytes (the descriptor, for an accept) or a negative errno, as the kernel's rings do.
    pub(crate) fn perform(&mut self) -> i32 {
        let result = match self {
            Work::Read { fd, offset, buf } => read(fd, *offset, buf),
            Work::Write { fd, offset, data } => write(fd, *offset, data),
            Work::ReadInto { fd, offset, memory } => crate::foreign::read(fd, *offset, memory),
            Work::WriteFrom { fd, offset, memory } => crate::foreign::write(fd, *offset, memory),
            Work::Sync { fd, data_only: true, .. } => rustix::fs::fdatasync(&*fd).map(|()| 0),
            Work::Sync { fd, data_only: false, .. } => rustix::fs::fsync(&*fd).map(|()| 0),
            Work::Fallocate { fd, mode, offset, len } => fallocate(fd, *mode, *offset, *len),
            Work::Recv { fd, buf, .. } => recv_now(&*fd, buf),
            Work::Accept { fd } => accept(fd),
            Work::Readable { .. } | Work::Writable { .. } => Ok(0),
            Work::HangUp { fd } => {
                is_hung_up(fd).and_then(|gone| if gone { Ok(0) } else { Err(Errno::AGAIN) })
            }
            // There is no system call for it.
            Work::Command { .. } => Err(Errno::OPNOTSUPP),
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
            Work::ReadInto { .. } => "ReadInto",
            Work::WriteFrom { .. } => "WriteFrom",
            Work::Sync { .. } => "Sync",
            Work::Fallocate { .. } => "Fallocate",
            Work::Recv { .. } => "Recv",
            Work::Accept { .. } => "Accept",
            Work::Readable { .. } => "Readable",
            Work::Writable { .. } => "Writable",
            Work::HangUp { .. } => "HangUp",
            Work::Command { .. } => "Command",
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

/// The same with the descriptors that came along, which are added to `fds`; the kernel closes those beyond
/// [`DESCRIPTORS_MAX`].
pub(crate) fn recv_with_fds_now(
    socket: impl AsFd,
    buf: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            // The space for them is rounded up, and the kernel fills it.
            fds.extend(passed.take(DESCRIPTORS_MAX));
        }
    }
    Ok(received.bytes)
}

/// As much as a socket takes without waiting.
pub(crate) fn send_now(socket: impl AsFd, data: &IoVec) -> rustix::io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &slices(data), &mut SendAncillaryBuffer::default(), flags)
}

/// `data` with `fds`, as much as a socket takes without waiting.
pub(crate) fn send_with_fds_now(
    socket: impl AsFd,
    data: &[u8],
    fds: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(data)], &mut control, flags)
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

/// Whether the peer is gone in both directions: no flag is asked for, so that only POLLHUP and POLLERR are reported.
pub(crate) fn is_hung_up(fd: &Fd) -> rustix::io::Result<bool> {
    let mut fds = [PollFd::new(&**fd, PollFlags::empty())];
    Ok(rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
}

fn accept(fd: &Fd) -> rustix::io::Result<usize> {
    let accepted = rustix::net::accept_with(fd, SocketFlags::CLOEXEC)?;
    usize::try_from(accepted.into_raw_fd()).map_err(|_| Errno::BADF)
}
