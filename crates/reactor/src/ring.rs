//! Operations over io_uring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::{Fd as RingFd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use memory::{ForeignBytes, IoBuf, IoVec};

use crate::foreign::addresses;
use crate::rings;
use crate::slots::{Landing, Slots, Vectors};
use crate::spin::{Awaited, Spin};
use crate::work::{PARTS_MAX, TRANSFER_BYTES_MAX, Work};

/// File operations that are submitted together while a turn goes on. The device is at work on the first ones
/// while the rest of a batch is being prepared; submitting each alone costs a system call a request. 4 KiB
/// O_DIRECT reads through a socket, thousands a second and CPU microseconds each: at depth 64 79 and 4.5
/// when the whole turn was one submission, 107 and 5.2 one by one, 110 and 4.7 by fours; at depth 16 63 and
/// 5.4, 66 and 5.9, 67 and 5.8.
const FILES_TOGETHER: u32 = 4;

/// The read of the eventfd that other threads wake the loop with.
const WAKE: u64 = u64::MAX;
/// A cancellation; its own result is of no interest.
const CANCEL: u64 = u64::MAX - 1;

/// Tells the kernel not to try a receive that would find nothing (IORING_RECVSEND_POLL_FIRST).
const POLL_FIRST: u16 = 1;

/// How long a turn of the loop may wait for a completion.
#[derive(Clone, Copy)]
pub(crate) enum Wait<'a> {
    No,
    /// It looks for one a little, where that has paid lately, and ends when the function finds something else; a timer ends after this time.
    Look(Option<Duration>, &'a dyn Fn() -> bool),
    /// It sleeps, until a timer if there is one.
    Until(Option<Duration>),
}

/// One ring, used by the thread that made it.
pub(crate) struct Ring {
    ring: IoUring,
    /// Completions seen while there was no room for a submission.
    stash: Vec<(u64, i32)>,
    /// Where the kernel puts the eventfd's counter; boxed, so that it stays where it is.
    wake_count: Box<[u8; 8]>,
    wake_armed: bool,
    /// File operations queued and not submitted.
    queued_files: u32,
    spin: Spin,
}

impl Ring {
    pub(crate) fn new() -> io::Result<Self> {
        let mut ring = rings::take()?;
        try_entering(&mut ring)?;
        Ok(Self {
            ring,
            stash: Vec::new(),
            wake_count: Box::new([0; 8]),
            wake_armed: false,
            queued_files: 0,
            spin: Spin::default(),
        })
    }

    /// Queues the operation; it starts with the next [`Ring::turn`] at the latest. Gives the number of
    /// system calls.
    pub(crate) fn start(
        &mut self,
        key: usize,
        work: &mut Work,
        vectors: &mut Option<Vectors>,
    ) -> io::Result<u32> {
        self.push(entry(work, vectors).user_data(key as u64))?;
        self.queued_files += u32::from(!work.waits_for_peer());
        if self.queued_files < FILES_TOGETHER {
            return Ok(0);
        }
        self.submit()
    }

    /// Queues a cancellation, behind everything queued so far.
    pub(crate) fn cancel(&mut self, key: usize) -> io::Result<()> {
        self.push(opcode::AsyncCancel::new(key as u64).build().user_data(CANCEL))
    }

    /// Ends the read of the eventfd, so that nothing is in flight any more.
    pub(crate) fn disarm(&mut self) -> io::Result<()> {
        self.push(opcode::AsyncCancel::new(WAKE).build().user_data(CANCEL))
    }

    /// Whether the read of the eventfd is in flight.
    pub(crate) fn armed(&self) -> bool {
        self.wake_armed
    }

    /// Has the kernel wake the loop when `event` is written.
    pub(crate) fn arm(&mut self, event: &Arc<OwnedFd>) -> io::Result<()> {
        if self.wake_armed {
            return Ok(());
        }
        let (start, len) = (self.wake_count.as_mut_ptr(), self.wake_count.len() as u32);
        let read = opcode::Read::new(RingFd(event.as_raw_fd()), start, len).offset(u64::MAX);
        self.push(read.build().user_data(WAKE))?;
        self.wake_armed = true;
        Ok(())
    }

    /// Submits what is queued, waits as long as given if nothing has completed, and notes completions in
    /// `landings`. Gives the number of system calls it took.
    pub(crate) fn turn(
        &mut self,
        slots: &mut Slots,
        wait: Wait<'_>,
        landings: &mut Vec<Landing>,
    ) -> io::Result<u32> {
        let awaited = if slots.flying_files() > 0 { Awaited::Files } else { Awaited::Peers };
        let calls = self.enter(wait, awaited)?;
        self.reap();
        for (user_data, result) in self.stash.drain(..) {
            match user_data {
                WAKE => self.wake_armed = false,
                CANCEL => {}
                key => landings.push(slots.land(key as usize, result, None)),
            }
        }
        Ok(calls)
    }

    /// Starts what is queued, without looking for completions. Gives the number of system calls.
    fn submit(&mut self) -> io::Result<u32> {
        self.queued_files = 0;
        if self.ring.submission().is_empty() {
            return Ok(0);
        }
        match self.ring.submit() {
            Ok(_) => Ok(1),
            Err(error) if passes(&error) => Ok(1),
            Err(error) => Err(error),
        }
    }

    fn enter(&mut self, wait: Wait<'_>, awaited: Awaited) -> io::Result<u32> {
        let completed = !self.stash.is_empty() || !self.ring.completion().is_empty();
        let mut calls = 1;
        if let Wait::Look(time, found) = wait
            && !completed
        {
            // What is queued is submitted with the sleep.
            if !self.spin.pays(awaited, time) {
                return Ok(0);
            }
            calls += self.submit()?;
            self.spin.look(&mut self.ring, found);
        }
        self.queued_files = 0;
        let asleep = matches!(wait, Wait::Until(_)) && !completed && awaited == Awaited::Peers;
        let since = asleep.then(Instant::now);
        let result = match wait {
            Wait::Until(None) if !completed => self.ring.submit_and_wait(1),
            Wait::Until(Some(time)) if !completed => {
                let time = Timespec::from(time);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
            Wait::No | Wait::Look(..) | Wait::Until(_) => {
                let queue = self.ring.submission();
                if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                    return Ok(calls - 1);
                }
                drop(queue);
                self.ring.submit()
            }
        };
        if let Some(since) = since {
            self.spin.slept(since.elapsed());
        }
        match result {
            Ok(_) => Ok(calls),
            Err(error) if passes(&error) => Ok(calls),
            Err(error) => Err(error),
        }
    }

    fn reap(&mut self) {
        let completions = self.ring.completion();
        self.stash.extend(completions.map(|completion| (completion.user_data(), completion.result())));
    }

    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: what the entry points to is owned by its slot (or is `wake_count`), which stays
            // in place until the completion has been seen; the drop of the reactor waits for that.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
            self.reap();
        }
    }
}

/// Completes one operation that does nothing: a filter of system calls may let rings be made and refuse to
/// enter them.
fn try_entering(ring: &mut IoUring) -> io::Result<()> {
    let nop = opcode::Nop::new().build().user_data(CANCEL);
    // SAFETY: an operation that does nothing points to nothing.
    if unsafe { ring.submission().push(&nop) }.is_err() {
        return Err(io::Error::other("a fresh submission queue is full"));
    }
    while ring.completion().is_empty() {
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if passes(&error) => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("io_uring_enter: {error}"))),
        }
    }
    ring.completion().for_each(drop);
    Ok(())
}

/// Errors of a submission after which the loop just goes on: interrupted, timed out, or the kernel
/// wants completions to be taken first.
fn passes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN))
}

/// The submission of `work`, whose address lists go to `vectors`.
fn entry(work: &mut Work, vectors: &mut Option<Vectors>) -> squeue::Entry {
    match work {
        Work::Read { fd, offset, buf } => {
            let (start, len) = target(buf);
            opcode::Read::new(RingFd(fd.as_raw_fd()), start, len).offset(*offset).build()
        }
        Work::Write { fd, offset, data } => match data.parts() {
            [one] => {
                let len = transfer(one.len());
                opcode::Write::new(RingFd(fd.as_raw_fd()), one.as_ptr(), len).offset(*offset).build()
            }
            _ => {
                let list = vectors.insert(address_list(data));
                let (start, count) = (list.as_ptr(), list.len() as u32);
                opcode::Writev::new(RingFd(fd.as_raw_fd()), start, count).offset(*offset).build()
            }
        },
        Work::ReadInto { fd, offset, memory } => {
            let list = vectors.insert(foreign_list(memory));
            let (start, count) = (list.as_ptr(), list.len() as u32);
            opcode::Readv::new(RingFd(fd.as_raw_fd()), start, count).offset(*offset).build()
        }
        Work::WriteFrom { fd, offset, memory } => {
            let list = vectors.insert(foreign_list(memory));
            let (start, count) = (list.as_ptr(), list.len() as u32);
            opcode::Writev::new(RingFd(fd.as_raw_fd()), start, count).offset(*offset).build()
        }
        Work::Sync { fd, data_only, .. } => {
            let flags = if *data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
            opcode::Fsync::new(RingFd(fd.as_raw_fd())).flags(flags).build()
        }
        Work::Fallocate { fd, mode, offset, len } => {
            opcode::Fallocate::new(RingFd(fd.as_raw_fd()), *len).offset(*offset).mode(*mode as i32).build()
        }
        Work::Recv { fd, buf, poll_first } => {
            let (start, len) = target(buf);
            let hint = if *poll_first { POLL_FIRST } else { 0 };
            opcode::Recv::new(RingFd(fd.as_raw_fd()), start, len).ioprio(hint).build()
        }
        Work::Accept { fd } => {
            let (fd, none) = (RingFd(fd.as_raw_fd()), std::ptr::null_mut());
            opcode::Accept::new(fd, none, std::ptr::null_mut()).flags(libc::SOCK_CLOEXEC).build()
        }
        Work::Readable { fd } => {
            opcode::PollAdd::new(RingFd(fd.as_raw_fd()), u32::from(libc::POLLIN.cast_unsigned())).build()
        }
        Work::Writable { fd } => {
            opcode::PollAdd::new(RingFd(fd.as_raw_fd()), u32::from(libc::POLLOUT.cast_unsigned())).build()
        }
        // POLLHUP and POLLERR are reported without being asked for.
        Work::HangUp { fd } => opcode::PollAdd::new(RingFd(fd.as_raw_fd()), 0).build(),
        Work::Command { fd, op, head, buf } => {
            let mut command = [0; 16];
            command[..8].copy_from_slice(head);
            let address = buf.as_mut().map_or(0, |buf| buf.as_mut_ptr() as u64);
            command[8..].copy_from_slice(&address.to_ne_bytes());
            opcode::UringCmd16::new(RingFd(fd.as_raw_fd()), *op).cmd(command).build()
        }
        // Calls go to the pool; a ring that is given one has nothing to do.
        Work::Call(_) | Work::Called => opcode::Nop::new().build(),
    }
}

fn target(buf: &mut IoBuf) -> (*mut u8, u32) {
    (buf.as_mut_ptr(), transfer(buf.len()))
}

/// A longer transfer is a short one: the caller goes on.
fn transfer(len: usize) -> u32 {
    len.min(TRANSFER_BYTES_MAX) as u32
}

fn address_list(data: &IoVec) -> Vectors {
    let part = |part: &memory::IoBytes| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    };
    data.parts().iter().take(PARTS_MAX).map(part).collect()
}

fn foreign_list(memory: &ForeignBytes) -> Vectors {
    addresses(memory).collect()
}
