//! A request of a queue, from what the kernel says to what it is answered.

use export::{Error, ErrorKind, ReadKind, RequestCount, RequestKind, ZeroFlags};
use rustix::io::Errno;

use crate::abi::{Op, Request};
use crate::kernel::LargestBuf;
use crate::queue::Queue;

/// Carries a request out. Gives what the kernel receives: bytes that were moved, or a negative error number; and the buffer, with what was read.
pub(crate) async fn carry_out(queue: &Queue, request: Request, buf: LargestBuf) -> (i32, LargestBuf) {
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
    if moves && request.len > buf.bytes() as u64 {
        queue.export.entry().counters().refused();
        return (refusal(Errno::INVAL), buf);
    }
    let entry = queue.export.entry();
    let counted = RequestCount::new(entry);
    let (result, buf) = match request.op {
        Op::Read => read(queue, request, buf).await,
        Op::Write => write(queue, request, buf).await,
        _ => (without_data(queue, request).await, buf),
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

async fn read(queue: &Queue, request: Request, buf: LargestBuf) -> (Result<(), Error>, LargestBuf) {
    let (disk, hints, bytes) = (queue.export.entry().disk(), queue.hints(), buf.bytes());
    let mut buf = buf.into_buf();
    // Its length fits the buffer.
    let rest = buf.split_off(request.len as usize);
    let (result, mut buf) = match disk.try_read(request.offset, &mut buf, hints) {
        Some(kind) => (Ok(kind), buf),
        None => disk.read(request.offset, buf, hints, &queue.pace).await,
    };
    if let Ok(ReadKind::Zeroes) = result {
        buf.fill(0);
    }
    (result.map(drop), LargestBuf::joined(buf, rest, bytes))
}

async fn write(queue: &Queue, request: Request, buf: LargestBuf) -> (Result<(), Error>, LargestBuf) {
    let Request { fua, offset, len, .. } = request;
    let (disk, bytes) = (queue.export.entry().disk(), buf.bytes());
    if disk.read_only() {
        return (Err(ErrorKind::ReadOnly.into()), buf);
    }
    let whole = buf.into_buf().freeze();
    // Its length fits the buffer.
    let data = whole.slice(0, len as usize);
    let written = disk.write(offset, data.into(), fua, queue.hints(), &queue.pace).await;
    let result = settle(queue, written, fua).await;
    // What was written may be kept elsewhere.
    let buf = whole.thaw().map_or_else(|_| LargestBuf::new(bytes), |buf| LargestBuf::of(buf, bytes));
    (result, buf)
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
