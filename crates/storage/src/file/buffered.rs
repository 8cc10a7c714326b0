//! Reads and writes of any alignment, through the page cache.

use std::io::{self, IoSliceMut};
use std::sync::atomic::Ordering;

use buffer::{IoBuf, IoVec};
use rustix::io::{Errno, ReadWriteFlags};

use super::{Shared, check_range};

impl Shared {
    /// Reads from the page cache without waiting, on this thread.
    pub(super) fn try_read(&self, offset: u64, buf: &mut [u8]) -> bool {
        if self.no_try_read.load(Ordering::Relaxed) || check_range(offset, buf.len() as u64).is_err() {
            return false;
        }
        let fd = self.file.fd();
        match rustix::io::preadv2(fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT) {
            Ok(count) if count == buf.len() => true,
            Ok(count) if offset + count as u64 >= self.length() => {
                buf[count..].fill(0);
                true
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.no_try_read.store(true, Ordering::Relaxed);
                false
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// Fills `buf`, going on after short reads; zeroes beyond the end. The range was checked.
    pub(super) async fn read_buffered(&self, offset: u64, mut buf: IoBuf) -> (io::Result<()>, IoBuf) {
        let mut done = 0;
        while done < buf.len() {
            let rest = buf.split_off(done);
            let (result, rest) = self.file.read_at(offset + done as u64, rest).await;
            buf.unsplit(rest);
            match result {
                Ok(0) => {
                    buf[done..].fill(0);
                    break;
                }
                Ok(count) => done += count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes all of `data`, going on after short writes. The range was checked.
    pub(super) async fn write_buffered(&self, offset: u64, data: IoVec) -> io::Result<()> {
        let end = offset + data.len() as u64;
        let mut done = 0;
        while done < data.len() {
            let rest = if done == 0 { data.clone() } else { data.slice(done, data.len()) };
            match self.file.write_at(offset + done as u64, rest).await {
                Ok(0) => return Err(no_progress(offset + done as u64)),
                Ok(count) => done += count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.grown_to(end);
        Ok(())
    }
}

/// Errors after which the same call is simply made again.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

/// The system took no byte and gave no reason.
pub(super) fn no_progress(offset: u64) -> io::Error {
    io::Error::new(io::ErrorKind::WriteZero, format!("no byte could be written at {offset}"))
}
