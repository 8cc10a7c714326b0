//! Reads and writes of any alignment, through the page cache.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use memory::IoBuf;
use reactor::fs::may_call_inline;
use rustix::io::ReadWriteFlags;

use super::Shared;
use super::calls::{check_range, is_transient};
use super::write_queue::{CALL_BYTES_MAX, Data};
use crate::{Answer, Hints};

impl Shared {
    /// Reads from the page cache without waiting, on this thread.
    pub(super) fn try_read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Some(flags) = self.no_waiting() else { return false };
        if check_range(offset, buf.len() as u64).is_err() {
            return false;
        }
        match rustix::io::preadv2(self.file.fd(), &mut [IoSliceMut::new(buf)], offset, flags) {
            Ok(count) if count == buf.len() => true,
            // The end of the file, or only of what is in memory: the length tells, where no other process can change it.
            Ok(count) if self.alone && offset + count as u64 >= self.length() => {
                buf[count..].fill(0);
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// What a read that must not wait is asked with; `None` where all may wait.
    pub(super) fn no_waiting(&self) -> Option<ReadWriteFlags> {
        match self.asked.reads_without_waiting {
            _ if self.direct.is_some() => None,
            Answer::No if self.asked.is_memory() => Some(ReadWriteFlags::empty()),
            Answer::No => None,
            Answer::Yes | Answer::NotTried => Some(ReadWriteFlags::NOWAIT),
        }
    }

    /// Fills `buf`, going on after short reads; zeroes beyond the end. The range was checked.
    pub(super) async fn read_buffered(&self, offset: u64, mut buf: IoBuf) -> (io::Result<()>, IoBuf) {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let result = if self.asked.is_memory() && may_call_inline() {
                // A ring leaves such reads to the thread that makes the writes, one after another.
                rustix::io::pread(self.file.fd(), &mut buf[done..], at).map_err(io::Error::from)
            } else {
                let rest = buf.split_off(done);
                let (result, rest) = self.file.read_at(at, rest).await;
                buf.rejoin(rest);
                result
            };
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

    /// Writes all of `data`, and notes the new length. The range was checked.
    pub(super) async fn write_buffered(
        self: &Arc<Self>,
        offset: u64,
        data: Data,
        hints: Hints,
    ) -> io::Result<()> {
        let end = offset + data.len() as u64;
        match data {
            small if small.len() <= CALL_BYTES_MAX => self.write_small(offset, small, hints).await?,
            // Copying takes longer than a loop's other tasks should wait.
            large => self.write_queued(offset, large).await?,
        }
        self.grown_to(end);
        Ok(())
    }
}
