//! Requests, submitted to a queue.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cowhand::{ForeignBytes, Request, ZeroOptions};

use crate::failure::{Failure, call};
use crate::pointers;
use crate::queue::{CowhandQueue, QueueOfC};

/// The request is durable when it completes. Of writes and of zeroes.
pub const COWHAND_REQ_FUA: u32 = 1;
/// Space stays reserved. Of zeroes.
pub const COWHAND_REQ_NO_UNMAP: u32 = 2;
/// Fails with -EOPNOTSUPP rather than write zeroes one by one. Of zeroes.
pub const COWHAND_REQ_NO_FALLBACK: u32 = 4;

/// Flags with their names.
const FLAGS: [(u32, &str); 3] = [
    (COWHAND_REQ_FUA, "COWHAND_REQ_FUA"),
    (COWHAND_REQ_NO_UNMAP, "COWHAND_REQ_NO_UNMAP"),
    (COWHAND_REQ_NO_FALLBACK, "COWHAND_REQ_NO_FALLBACK"),
];

/// Flags of a request, all of which are among `allowed`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flags(u32);

impl Flags {
    pub(crate) fn none(flags: u32) -> Result<(), Failure> {
        Self::among(flags, 0).map(drop)
    }

    pub(crate) fn of_write(flags: u32) -> Result<Self, Failure> {
        Self::among(flags, COWHAND_REQ_FUA)
    }

    pub(crate) fn of_zeroes(flags: u32) -> Result<Self, Failure> {
        Self::among(flags, COWHAND_REQ_FUA | COWHAND_REQ_NO_UNMAP | COWHAND_REQ_NO_FALLBACK)
    }

    fn among(flags: u32, allowed: u32) -> Result<Self, Failure> {
        if flags & !allowed == 0 {
            return Ok(Self(flags));
        }
        let names: Vec<_> =
            FLAGS.iter().filter(|(flag, _)| allowed & flag != 0).map(|(_, name)| *name).collect();
        let allowed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Err(Failure::invalid(format!("the flags of the request are {flags:#x}; allowed: {allowed}")))
    }

    pub(crate) fn fua(self) -> bool {
        self.0 & COWHAND_REQ_FUA != 0
    }

    pub(crate) fn zero_options(self) -> ZeroOptions {
        let has = |flag| self.0 & flag != 0;
        ZeroOptions { unmap: !has(COWHAND_REQ_NO_UNMAP), fast_only: has(COWHAND_REQ_NO_FALLBACK) }
    }
}

/// Submits what `make` makes.
fn submit(
    queue: *mut CowhandQueue,
    user_data: u64,
    make: impl FnOnce(&Arc<()>) -> Result<Request, Failure>,
) -> c_int {
    call(|| {
        let queue = QueueOfC::of(queue)?;
        let mut inner = queue.enter()?;
        let request = make(&inner.owner)?;
        inner.queue.submit(request, user_data)?;
        Ok(0)
    })
}

fn read(offset: u64, memory: ForeignBytes, flags: u32) -> Result<Request, Failure> {
    Flags::none(flags)?;
    Ok(Request::ReadInto { offset, memory })
}

fn write(offset: u64, memory: ForeignBytes, flags: u32) -> Result<Request, Failure> {
    Ok(Request::WriteFrom { offset, memory, fua: Flags::of_write(flags)?.fua() })
}

/// Submits a read of len bytes at offset into buf. user_data comes back with its completion. After a failed read any
/// byte of buf may have changed. flags must be 0. Returns -EAGAIN while the queue is full: take completions first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_read(
    queue: *mut CowhandQueue,
    offset: u64,
    buf: *mut c_void,
    len: usize,
    user_data: u64,
    flags: u32,
) -> c_int {
    submit(queue, user_data, |owner| {
        // SAFETY: the header requires of the caller that the buffer stays until the completion was taken.
        read(offset, unsafe { pointers::buffer(buf.cast(), len, owner) }?, flags)
    })
}

/// Submits a write of len bytes from buf at offset. Durable once a flush that was submitted after its completion has
/// completed, or with COWHAND_REQ_FUA when it completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_write(
    queue: *mut CowhandQueue,
    offset: u64,
    buf: *const c_void,
    len: usize,
    user_data: u64,
    flags: u32,
) -> c_int {
    submit(queue, user_data, |owner| {
        // SAFETY: as for a read. The bytes of a write are only read.
        write(offset, unsafe { pointers::buffer(buf.cast_mut().cast(), len, owner) }?, flags)
    })
}

/// As cowhand_read, into iovcnt buffers one after the other; at most 1024.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_readv(
    queue: *mut CowhandQueue,
    offset: u64,
    iov: *const libc::iovec,
    iovcnt: c_int,
    user_data: u64,
    flags: u32,
) -> c_int {
    submit(queue, user_data, |owner| {
        // SAFETY: the header requires of the caller that the buffers stay until the completion was taken.
        read(offset, unsafe { pointers::buffers(iov, iovcnt, owner) }?, flags)
    })
}

/// As cowhand_write, from iovcnt buffers one after the other; at most 1024.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_writev(
    queue: *mut CowhandQueue,
    offset: u64,
    iov: *const libc::iovec,
    iovcnt: c_int,
    user_data: u64,
    flags: u32,
) -> c_int {
    submit(queue, user_data, |owner| {
        // SAFETY: as for a read. The bytes of a write are only read.
        write(offset, unsafe { pointers::buffers(iov, iovcnt, owner) }?, flags)
    })
}

/// Submits a flush: what completed before it was submitted is durable when it completes. flags must be 0.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_flush(queue: *mut CowhandQueue, user_data: u64, flags: u32) -> c_int {
    submit(queue, user_data, |_| Flags::none(flags).map(|()| Request::Flush))
}

/// Submits a discard: the bytes are of no use any more. A disk that was opened with the property discard gives their
/// space back. flags must be 0.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_discard(
    queue: *mut CowhandQueue,
    offset: u64,
    len: u64,
    user_data: u64,
    flags: u32,
) -> c_int {
    submit(queue, user_data, |_| Flags::none(flags).map(|()| Request::Discard { offset, len }))
}

/// Submits a request after which the bytes read as zeroes. Space may be given back, unless flags has
/// COWHAND_REQ_NO_UNMAP.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_write_zeroes(
    queue: *mut CowhandQueue,
    offset: u64,
    len: u64,
    user_data: u64,
    flags: u32,
) -> c_int {
    submit(queue, user_data, |_| {
        let flags = Flags::of_zeroes(flags)?;
        Ok(Request::WriteZeroes { offset, len, options: flags.zero_options(), fua: flags.fua() })
    })
}
