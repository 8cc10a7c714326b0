//! Writes to the page cache: small ones on the loop's own thread, or one after another on a thread beside the loops.
//!
//! The kernel lets one write into a file at a time, so more threads would only wait for each other. One beside
//! the loop, though, leaves it free to receive and reply while the writes are made.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use memory::{ForeignBytes, IoVec};
use reactor::fs::may_call_inline;
use rustix::io::ReadWriteFlags;
use smallvec::SmallVec;

use super::Shared;
use super::calls::{is_transient, no_progress};
use super::outcome::{Outcome, Reported};
use super::turns::{TOGETHER_MAX, Turns};
use crate::Hints;

/// Short writes made before their callers are notified: telling each alone would wake a loop that waits for
/// them once a write, which costs as much as the write.
const TOLD_TOGETHER: usize = TOGETHER_MAX;

/// Bytes of one call. The kernel keeps what a call wrote in pieces of the page cache that are as large as it, and a small write
/// into a large piece later looks through all of it: on ext4 4 KiB cost 2 to 7 microseconds after calls of up to 128 KiB, 25 after 1 MiB, 58
/// after 4 MiB. Large calls gain nothing: 512 MiB take 65 ms of CPU in calls of 128 KiB, and more in larger ones
/// (`fio --ioengine=psync --rw=write --bs=SIZE --invalidate=0`, then `--rw=randwrite --bs=4k`; Linux 6.18).
pub(super) const CALL_BYTES_MAX: usize = 128 << 10;

/// The writes that wait for their turn.
pub(super) type WriteQueue = Turns<Queued>;

pub(super) struct Queued {
    offset: u64,
    data: Data,
    outcome: Arc<Outcome<()>>,
}

/// What is written.
pub(super) enum Data {
    Own(IoVec),
    /// Memory of others.
    Foreign(ForeignBytes),
}

impl Data {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(data) => data.len(),
            Self::Foreign(memory) => memory.len(),
        }
    }

    /// As much of the beginning as one call takes.
    fn first_call(&self) -> Self {
        let len = self.len().min(CALL_BYTES_MAX);
        match self {
            Self::Own(data) if data.len() == len => Self::Own(data.clone()),
            Self::Own(data) => Self::Own(data.slice(0, len)),
            Self::Foreign(memory) => Self::Foreign(memory.slice(0, len)),
        }
    }

    /// What stands behind the first `done` bytes.
    fn rest(self, done: usize) -> Self {
        match self {
            whole if done == 0 => whole,
            Self::Own(data) => Self::Own(data.slice(done, data.len())),
            Self::Foreign(memory) => Self::Foreign(memory.slice(done, memory.len())),
        }
    }
}

impl Shared {
    /// Writes all of `data`, which is little: on this thread unless that would hold it up, otherwise behind the writes that
    /// wait already. The range was checked.
    pub(super) async fn write_small(
        self: &Arc<Self>,
        offset: u64,
        data: Data,
        hints: Hints,
    ) -> io::Result<()> {
        // What stopped it shows when the rest is written.
        let done = self.try_write(offset, &data, hints);
        if done == data.len() {
            return Ok(());
        }
        self.write_queued(offset + done as u64, data.rest(done)).await
    }

    /// Writes on this thread, unless that would hold it up. Gives the count of bytes written.
    ///
    /// A long write that comes alone is made here also while another loop writes: both wait for the file's lock, which costs
    /// no more than handing the write over.
    fn try_write(&self, offset: u64, data: &Data, hints: Hints) -> usize {
        let is_held_up = || self.inline.are_long() && (hints.more_waiting || self.queue.is_busy());
        if !self.inline.pays() || !may_call_inline() || is_held_up() {
            return 0;
        }
        self.write_timed(offset, data).unwrap_or(0)
    }

    /// Writes as much as one call does, on this thread, and notes how long that took.
    fn write_timed(&self, offset: u64, data: &Data) -> io::Result<usize> {
        let start = Instant::now();
        let written = match data {
            Data::Own(data) => write_now(self.file.fd(), offset, data),
            Data::Foreign(memory) => self.file.write_from_now(offset, memory),
        };
        self.inline.note(start.elapsed());
        written
    }

    /// Writes all of `data` behind the writes that wait already. The range was checked.
    pub(super) fn write_queued(self: &Arc<Self>, offset: u64, data: Data) -> Reported<()> {
        let (outcome, reported) = Outcome::new();
        if self.queue.push(Queued { offset, data, outcome }) {
            let shared = Arc::clone(self);
            reactor::start_blocking(move || shared.drain_writes());
        }
        reported
    }

    /// Writes all of `data`, in calls of bounded length and going on after short writes.
    fn write_all(&self, mut offset: u64, mut data: Data) -> io::Result<()> {
        while data.len() > 0 {
            match self.write_timed(offset, &data.first_call()) {
                Ok(0) => return Err(no_progress(offset)),
                Ok(count) => {
                    offset += count as u64;
                    data = data.rest(count);
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn drain_writes(&self) {
        while let Some(writes) = self.queue.next(TOLD_TOGETHER) {
            let mut done: SmallVec<[_; TOLD_TOGETHER]> = SmallVec::new();
            let mut bytes = 0;
            for Queued { offset, data, outcome } in writes {
                bytes += data.len();
                done.push((outcome, self.write_all(offset, data)));
                if bytes >= CALL_BYTES_MAX {
                    done.drain(..).for_each(|(outcome, result)| outcome.tell(result));
                    bytes = 0;
                }
            }
            done.into_iter().for_each(|(outcome, result)| outcome.tell(result));
        }
    }
}

/// Writes as much of `data` as one call does, on this thread.
fn write_now(fd: impl AsFd, offset: u64, data: &IoVec) -> io::Result<usize> {
    let parts: SmallVec<[IoSlice<'_>; 8]> =
        data.parts().iter().take(PARTS_MAX).map(|part| IoSlice::new(part)).collect();
    Ok(rustix::io::pwritev2(fd, &parts, offset, ReadWriteFlags::empty())?)
}

/// Most parts that one vectored call takes (the kernel's UIO_MAXIOV).
const PARTS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use memory::IoBytes;
    use reactor::{Backend, Reactor};

    use super::*;
    use crate::{FileOptions, FileStorage};

    const LEN: usize = 4096;

    #[test]
    fn queued_writes_of_both_kinds_are_made_in_order_also_those_whose_callers_left() {
        let dir = tempfile::tempdir().unwrap();
        let (name, options) = (
            dir.path().join("image"),
            FileOptions { direct: false, read_only: false, no_flush: false, aio: Backend::Ring },
        );
        let storage = FileStorage::create_new(&name, &options).unwrap();
        let data = |number: u8| {
            let bytes = [number + 1; LEN];
            if number.is_multiple_of(2) {
                return Data::Own(IoBytes::copy_from(&bytes).into());
            }
            let memory = ForeignBytes::zeroed(LEN);
            memory.copy_from(0, &bytes);
            Data::Foreign(memory)
        };
        Reactor::new(Backend::Ring).unwrap().run(async {
            let reported = (0..40).map(|number| {
                (number, storage.shared.write_queued(u64::from(number) * LEN as u64, data(number)))
            });
            for (number, reported) in reported.collect::<Vec<_>>() {
                if number % 3 != 1 {
                    reported.await.unwrap();
                }
            }
        });
        let expected: Vec<u8> = (0..40).flat_map(|number| [number + 1; LEN]).collect();
        assert!(std::fs::read(name).unwrap() == expected);
    }
}
