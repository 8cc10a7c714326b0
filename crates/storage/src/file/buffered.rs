//! Reads and writes of any alignment, through the page cache.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use buffer::{IoBuf, IoVec};
use reactor::fs::may_call_inline;
use rustix::io::ReadWriteFlags;
use smallvec::SmallVec;

use super::{Shared, check_range};
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
            // The end of the file, or only of what is in memory: the length tells, where nobody else can change it.
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

    /// Writes all of `data`. The range was checked.
    ///
    /// A write is made here and now, unless writes take long here and more requests wait: then it is made beside the loop.
    pub(super) async fn write_buffered(
        self: &Arc<Self>,
        offset: u64,
        data: IoVec,
        hints: Hints,
    ) -> io::Result<()> {
        let end = offset + data.len() as u64;
        if data.len() > INLINE_BYTES_MAX {
            self.write_by_workers(offset, data).await?;
        } else {
            let done = self.try_write(offset, &data, hints);
            if done < data.len() {
                let rest = if done == 0 { data } else { data.slice(done, data.len()) };
                self.write_queued(offset + done as u64, rest).await?;
            }
        }
        self.grown_to(end);
        Ok(())
    }

    /// Writes `data` by the kernel's workers, going on after short writes.
    async fn write_by_workers(&self, offset: u64, data: IoVec) -> io::Result<()> {
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
        Ok(())
    }

    /// Writes into the page cache on this thread, unless that would hold it up. Gives the count of
    /// bytes written; what stopped it shows when the rest is written.
    fn try_write(&self, offset: u64, data: &IoVec, hints: Hints) -> usize {
        let is_long = self.inline.are_long();
        if !self.inline.pays() || is_long && hints.more_waiting || !may_call_inline() {
            return 0;
        }
        if !is_long {
            return self.write_timed(offset, data).unwrap_or(0);
        }
        let Some(_alone) = self.queue.enter_alone() else { return 0 };
        self.write_timed(offset, data).unwrap_or(0)
    }

    /// Writes as much as one call does, on this thread, and notes how long that took.
    pub(super) fn write_timed(&self, offset: u64, data: &IoVec) -> io::Result<usize> {
        self.timed(|| write_now(self.file.fd(), offset, data))
    }

    /// Makes a write on this thread, and notes how long that took.
    pub(super) fn timed(&self, write: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        let start = Instant::now();
        let written = write();
        self.inline.note(start.elapsed());
        written
    }
}

/// Writes as much of `data` as one call does, on this thread.
fn write_now(fd: impl AsFd, offset: u64, data: &IoVec) -> io::Result<usize> {
    let parts: SmallVec<[IoSlice<'_>; 8]> =
        data.parts().iter().take(PARTS_MAX).map(|part| IoSlice::new(part)).collect();
    Ok(rustix::io::pwritev2(fd, &parts, offset, ReadWriteFlags::empty())?)
}

/// Larger writes are left to the kernel's workers: copying takes them longer than a loop's other
/// tasks should wait.
pub(super) const INLINE_BYTES_MAX: usize = 128 << 10;

/// Most parts that one vectored call takes (the kernel's UIO_MAXIOV).
const PARTS_MAX: usize = 1024;

/// A write that took longer than this met something else than memory: a page to be read first, or
/// the kernel's throttling of writers that dirty pages faster than the disk takes them.
const SLOW: Duration = Duration::from_millis(1);

/// Writes that are made beside the loop after a slow one.
const PAUSE: u32 = 64;

/// A write that takes longer than this is worth handing to another thread when others come with it; the
/// handing over costs some 4 microseconds of CPU time. Where the page cache holds small folios a write of 4 KiB
/// takes 4 microseconds, where it holds the largest (a file written in one go) 12.
const LONG: Duration = Duration::from_micros(8);

/// How far the count of long writes goes: few enough to follow a change soon, enough not to be
/// moved by a write during which the thread lost its processor.
const LONG_VOTES_MAX: u32 = 32;

/// Whether writing to the page cache on the loop's own thread pays.
///
/// No file system here lets io_uring write to the page cache without one of its worker threads
/// (ext4 and tmpfs answer EOPNOTSUPP to RWF_NOWAIT), and a worker costs far more than the write. 4 KiB
/// random writes in microseconds, wall and CPU time: ext4 at depth 1 27 and 36 by a worker, 7.8 and
/// 7.7 here; at depth 16 7.6 and 15 against 7.4 and 7.4; tmpfs at depth 1 20 and 23 against 1.1 and
/// 1.1. 64 KiB on ext4 at depth 1: 169 and 153 against 8.4 and 8.3; 1 MiB: 213 and 194 against 141
/// and 141 (`cargo run --release -p cowhand-storage --example io_loop -- FILE write DEPTH COUNT`).
#[derive(Debug, Default)]
pub(super) struct InlineWrites {
    skip: AtomicU32,
    /// Goes up with every long write and down with every other.
    long: AtomicU32,
}

impl InlineWrites {
    pub(super) fn pays(&self) -> bool {
        // Threads may disagree by a few: it is a guess anyway.
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip == 0
    }

    /// Whether more than half of the latest writes took long.
    fn are_long(&self) -> bool {
        self.long.load(Ordering::Relaxed) > LONG_VOTES_MAX / 2
    }

    fn note(&self, taken: Duration) {
        let long = self.long.load(Ordering::Relaxed);
        let next = if taken > LONG { (long + 1).min(LONG_VOTES_MAX) } else { long.saturating_sub(1) };
        if next != long {
            self.long.store(next, Ordering::Relaxed);
        }
        if taken > SLOW {
            self.skip.store(PAUSE, Ordering::Relaxed);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_write_among_short_ones_changes_nothing_and_many_do() {
        let inline = InlineWrites::default();
        inline.note(Duration::from_micros(900));
        assert!(!inline.are_long());
        for _ in 0..LONG_VOTES_MAX {
            inline.note(Duration::from_micros(20));
        }
        assert!(inline.are_long());
        for _ in 0..LONG_VOTES_MAX {
            inline.note(Duration::from_micros(4));
        }
        assert!(!inline.are_long());
    }

    #[test]
    fn after_a_slow_write_a_number_of_them_are_made_elsewhere() {
        let inline = InlineWrites::default();
        inline.note(Duration::from_micros(30));
        assert!(inline.pays());
        inline.note(Duration::from_millis(5));
        for _ in 0..PAUSE {
            assert!(!inline.pays());
        }
        assert!(inline.pays());
    }
}
