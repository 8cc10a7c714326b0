//! A request of a queue, from what the kernel says to what it is answered.

use std::io;

use export::{Error, ErrorKind, Permit, ReadKind, RequestCount, RequestKind, ZeroFlags};
use memory::IoBuf;
use rustix::io::Errno;

use crate::abi::{Op, Request};
use crate::kernel::{LargestBuf, Place, copy_in, copy_out};
use crate::queue::Queue;

/// Carries a request out. Gives what the kernel receives: bytes that were moved, or a negative error number; and the buffer, with what was read. Without one the
/// data is copied from and to memory that the request has for as long as it takes.
pub(crate) async fn carry_out(
    queue: &Queue,
    place: Place,
    request: Request,
    buf: Option<LargestBuf>,
) -> (i32, Option<LargestBuf>) {
    let kind = match request.op {
        Op::Read => RequestKind::Read,
        Op::Write => RequestKind::Write,
        Op::Flush => RequestKind::Flush,
        Op::Discard => RequestKind::Discard,
        Op::Zero { .. } => RequestKind::Zero,
        Op::Unknown(_) => {
            queue.export.entry().counters().refused();
            return (refusal(Errno::OPNOTSUPP), buf);
        }
    };
    let moves = matches!(request.op, Op::Read | Op::Write);
    if moves && request.len > u64::from(queue.export.device.info().buffer_bytes) {
        queue.export.entry().counters().refused();
        return (refusal(Errno::INVAL), buf);
    }
    let entry = queue.export.entry();
    let counted = RequestCount::new(entry);
    let (result, buf) = match (request.op, buf) {
        (Op::Read, Some(buf)) => read(queue, request, buf).await,
        (Op::Write, Some(buf)) => write(queue, request, buf).await,
        (Op::Read, None) => (read_copied(queue, place, request).await, None),
        (Op::Write, None) => (write_copied(queue, place, request).await, None),
        (_, buf) => (without_data(queue, request).await, buf),
    };
    let bytes = if kind == RequestKind::Flush { 0 } else { request.len };
    entry.counters().ended(kind, result.is_ok(), bytes);
    drop(counted);
    match result {
        // At most a buffer's bytes.
        Ok(()) => (if moves { i32::try_from(request.len).unwrap_or(i32::MAX) } else { 0 }, buf),
        Err(error) => {
            error.log();
            (refusal(errno(error.kind())), buf)
        }
    }
}

async fn read(queue: &Queue, request: Request, buf: LargestBuf) -> (Result<(), Error>, Option<LargestBuf>) {
    let bytes = buf.bytes();
    let mut buf = buf.into_buf();
    // Its length fits the buffer.
    let rest = buf.split_off(request.len as usize);
    let (result, buf) = fill(queue, request.offset, buf).await;
    (result, Some(LargestBuf::joined(buf, rest, bytes)))
}

async fn read_copied(queue: &Queue, place: Place, request: Request) -> Result<(), Error> {
    let (_permit, buf) = memory(queue, request).await?;
    let (result, buf) = fill(queue, request.offset, buf).await;
    result?;
    copy_out(&queue.device, place, &buf).map_err(|error| not_copied(queue, error))
}

/// Memory for the data of a request, of that which the clients of all doors share.
async fn memory(queue: &Queue, request: Request) -> Result<(Permit, IoBuf), Error> {
    let permit = queue.admit(request.len).await;
    // Its length is that of the largest request at most.
    let buf = IoBuf::try_uninit(request.len as usize).ok_or(ErrorKind::NoMemory)?;
    Ok((permit, buf))
}

fn not_copied(queue: &Queue, error: io::Error) -> Error {
    Error::because(ErrorKind::Io, queue.export.entry().name(), error)
}

async fn fill(queue: &Queue, offset: u64, mut buf: IoBuf) -> (Result<(), Error>, IoBuf) {
    let (disk, hints) = (queue.export.entry().disk(), queue.hints());
    let (result, mut buf) = match disk.try_read(offset, &mut buf, hints) {
        Some(kind) => (Ok(kind), buf),
        None => disk.read(offset, buf, hints, &queue.pace).await,
    };
    if let Ok(ReadKind::Zeroes) = result {
        buf.fill(0);
    }
    (result.map(drop), buf)
}

async fn write_copied(queue: &Queue, place: Place, request: Request) -> Result<(), Error> {
    let Request { fua, offset, .. } = request;
    let disk = queue.export.entry().disk();
    if disk.read_only() {
        return Err(ErrorKind::ReadOnly.into());
    }
    let (_permit, mut buf) = memory(queue, request).await?;
    copy_in(&queue.device, place, &mut buf).map_err(|error| not_copied(queue, error))?;
    let written = disk.write(offset, buf.freeze().into(), fua, queue.hints(), &queue.pace).await;
    settle(queue, written, fua).await
}

async fn write(queue: &Queue, request: Request, buf: LargestBuf) -> (Result<(), Error>, Option<LargestBuf>) {
    let Request { fua, offset, len, .. } = request;
    let (disk, bytes) = (queue.export.entry().disk(), buf.bytes());
    if disk.read_only() {
        return (Err(ErrorKind::ReadOnly.into()), Some(buf));
    }
    let whole = buf.into_buf().freeze();
    // Its length fits the buffer.
    let data = whole.slice(0, len as usize);
    let written = disk.write(offset, data.into(), fua, queue.hints(), &queue.pace).await;
    let result = settle(queue, written, fua).await;
    // What was written may be kept elsewhere.
    let buf = whole.thaw().map_or_else(|_| LargestBuf::new(bytes), |buf| LargestBuf::of(buf, bytes));
    (result, Some(buf))
}

async fn without_data(queue: &Queue, request: Request) -> Result<(), Error> {
    let Request { op, fua, offset, len } = request;
    let disk = queue.export.entry().disk();
    match op {
        Op::Flush if disk.read_only() => Ok(()),
        Op::Flush => disk.flush().await,
        _ if disk.read_only() => Err(ErrorKind::ReadOnly.into()),
        Op::Discard => settle(queue, disk.discard(offset, len, fua, &queue.pace).await, fua).await,
        Op::Zero { unmap } => {
            let flags = ZeroFlags { unmap, fast_only: false, fua };
            settle(queue, disk.zero(offset, len, flags, &queue.pace).await, fua).await
        }
        Op::Read | Op::Write | Op::Unknown(_) => Err(ErrorKind::Invalid.into()),
    }
}

/// Programs go on when this process is killed, and repeat nothing that was answered: so an answer means that the next process finds it.
/// What was made durable is found.
async fn settle(queue: &Queue, changed: Result<(), Error>, durable: bool) -> Result<(), Error> {
    changed?;
    if durable { Ok(()) } else { queue.export.entry().disk().hand_to_kernel().await }
}

fn refusal(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

/// The kernel's word for a failure: those that it knows another of for block devices, and EIO.
fn errno(failed: ErrorKind) -> Errno {
    match failed {
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::NotSupported => Errno::OPNOTSUPP,
        ErrorKind::ReadOnly
        | ErrorKind::PastEnd
        | ErrorKind::Invalid
        | ErrorKind::Io
        | ErrorKind::NoMemory
        | ErrorKind::Corrupt
        | ErrorKind::ShuttingDown => Errno::IO,
    }
}
