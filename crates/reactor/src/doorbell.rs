//! Eventfds shared with another process: it wakes us, or we wake it.

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::{Errno, ReadWriteFlags};

use crate::op::{Op, Place};
use crate::work::Work;

/// How long is rested when a descriptor was reported readable and was not: another task reads it, or it is none that can be read.
const PAUSE: Duration = Duration::from_millis(10);

/// Stands for the current position in `preadv2`: an eventfd has no other.
const NO_OFFSET: u64 = u64::MAX;

/// One eventfd. The other process may do with it what it likes: no call here waits for it.
#[derive(Clone, Debug)]
pub struct Doorbell {
    fd: Arc<OwnedFd>,
}

impl Doorbell {
    /// Takes over a descriptor that was made elsewhere.
    ///
    /// # Errors
    /// When it cannot be read without waiting: it is no eventfd.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        // For those who write: the counter may be full.
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd: Arc::new(fd) })
    }

    /// The descriptor.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Ends when it was rung since the last time. One task waits at a time; a dropped wait loses nothing.
    ///
    /// # Errors
    /// When the descriptor cannot be waited for.
    pub async fn rung(&self) -> io::Result<()> {
        loop {
            let (waited, _) = Op::start(Work::Readable { fd: Arc::clone(&self.fd) }, Place::Loop).await;
            match waited {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Ok(_) | Err(_) => {}
            }
            if self.take()? {
                return Ok(());
            }
            crate::sleep(PAUSE).await;
        }
    }

    /// Whether it was rung since the last time. Does not wait.
    ///
    /// # Errors
    /// When the descriptor is no eventfd.
    pub fn take(&self) -> io::Result<bool> {
        let mut count = [0; 8];
        let slices = &mut [IoSliceMut::new(&mut count)];
        match rustix::io::preadv2(&*self.fd, slices, NO_OFFSET, ReadWriteFlags::NOWAIT) {
            Ok(8) => Ok(true),
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Wakes the other process. Nothing is lost where it has not looked at the last call yet.
    ///
    /// # Errors
    /// When the descriptor cannot be written.
    pub fn ring(&self) -> io::Result<()> {
        match rustix::io::write(&*self.fd, &1u64.to_ne_bytes()) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
