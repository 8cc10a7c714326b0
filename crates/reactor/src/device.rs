//! Character devices: those that say when they can be read, such as /dev/fuse, and those that take commands.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memory::IoBuf;
use rustix::io::Errno;

use crate::op::{Op, Place};
use crate::work::Work;

/// A device whose reads each take one message. The loop waits until there is one, then reads without waiting: a message may be taken back in
/// between, and a read that waits for the next one would hold the whole loop.
#[derive(Clone, Debug)]
pub struct Device {
    fd: Arc<OwnedFd>,
}

impl Device {
    /// Takes over an open device; from here on its reads do not wait.
    ///
    /// # Errors
    /// When the descriptor cannot be changed.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd: Arc::new(fd) })
    }

    /// Ends when there may be something to read, or the device has failed. A dropped wait loses nothing.
    ///
    /// # Errors
    /// When the descriptor cannot be waited for.
    pub async fn readable(&self) -> io::Result<()> {
        loop {
            match Op::start(Work::Readable { fd: Arc::clone(&self.fd) }, Place::Loop).await {
                (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => {}
                (waited, _) => return waited.map(drop),
            }
        }
    }

    /// Reads one message into `parts`, in order: the count of its bytes, or None if there is none.
    ///
    /// # Errors
    /// As the device says.
    pub fn read_now(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::readv(&*self.fd, parts) {
                Ok(count) => return Ok(Some(count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes `parts` as one message. For devices that take each at once.
    ///
    /// # Errors
    /// As the device says.
    pub fn write_now(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            match rustix::io::writev(&*self.fd, parts) {
                Err(Errno::INTR) => {}
                written => return Ok(written?),
            }
        }
    }
}

/// A device that is asked by commands over the loop's ring (`IORING_OP_URING_CMD`), such as a queue of ublk. A loop over threads has none.
#[derive(Clone, Debug)]
pub struct CommandDevice {
    fd: Arc<OwnedFd>,
}

impl CommandDevice {
    /// Takes over an open device.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd) }
    }

    /// Gives the device command `op` with 16 bytes: `head`, and the address of `buf`, or 0. Ends with what the device says, and gives the buffer back.
    /// A command that is dropped goes on until the device ends it, and holds the buffer until then: so does its loop.
    ///
    /// # Errors
    /// As the device says; EOPNOTSUPP on a loop over threads.
    ///
    /// # Safety
    /// Until it ends the device may touch the bytes of `buf`, and must touch no other memory of this process.
    pub async unsafe fn command(
        &self,
        op: u32,
        head: [u8; 8],
        buf: Option<IoBuf>,
    ) -> (io::Result<usize>, Option<IoBuf>) {
        let work = Work::Command { fd: Arc::clone(&self.fd), op, head, buf };
        match Op::start(work, Place::Loop).await {
            (result, Work::Command { buf, .. }) => (result, buf),
            _ => unreachable!("a command comes back as one"),
        }
    }
}

impl AsFd for CommandDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
