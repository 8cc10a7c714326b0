//! Requests that were taken, on their way to the disk and back.

use std::rc::Rc;

use export::merge::{self, Candidate, Direction, Group, Limits};
use export::{Error, ErrorKind, Hints, ReadKind, RequestCount, RequestKind, ZeroFlags};
use memory::ForeignBytes;
use smallvec::SmallVec;

use crate::limits::{CHAIN_DESCRIPTORS_MAX, INLINE_BYTES_MAX, MERGED_BYTES_MAX};
use crate::memory::Outside;
use crate::queue::{Queue, Taken};
use crate::request::{Ask, Range, Status};
use crate::ring::Segment;

/// What requests become that are merged.
const MERGED: Limits = Limits { bytes_max: MERGED_BYTES_MAX, segments_max: CHAIN_DESCRIPTORS_MAX - 2 };

/// Requests that go to the disk as one.
type Together = SmallVec<[Taken; 1]>;

/// Starts all of `taken`, which came together.
pub(crate) fn start(queue: &Rc<Queue>, taken: SmallVec<[Taken; 4]>) {
    let export = &queue.device.export;
    // Under limits each request is charged as its guest sent it.
    let merges = export.options.merge
        && merge::are_any_contiguous(
            taken.iter().filter_map(moved).map(|(direction, offset, _, len)| (direction, offset, len)),
        )
        && !export.entry.disk().holds_back();
    if !merges {
        return begin_all(queue, taken.len(), taken.into_iter().map(alone));
    }
    let (mut candidates, mut moving, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for one in taken {
        match candidate(&one) {
            Some(candidate) => {
                candidates.push(candidate);
                moving.push(Some(one));
            }
            None => others.push(one),
        }
    }
    let groups = merge::groups(&candidates, MERGED);
    let count = groups.len() + others.len();
    let merged = groups.iter().map(|group| members(group, &mut moving));
    begin_all(queue, count, merged.chain(others.into_iter().map(alone)));
}

fn alone(one: Taken) -> Together {
    Together::from_iter([one])
}

/// Starts all `count` of them one after the other.
fn begin_all(queue: &Rc<Queue>, count: usize, all: impl Iterator<Item = Together>) {
    let mut inline = Inline::default();
    for (number, together) in all.enumerate() {
        begin(queue, together, &mut inline);
        queue.call_in_time(count - number - 1);
    }
    if inline.reads > 0 {
        queue.device.export.entry.counters().read_inline(inline.reads, inline.bytes);
    }
}

/// Reads that were answered without waiting, of one batch.
#[derive(Debug, Default)]
struct Inline {
    reads: u64,
    bytes: u64,
}

fn members(group: &Group, moving: &mut [Option<Taken>]) -> Together {
    group.iter().filter_map(|&at| moving.get_mut(at).and_then(Option::take)).collect()
}

/// What merging is to know of a request; nothing of one that moves no bytes, or names bytes that are no memory: it fails alone.
fn candidate(taken: &Taken) -> Option<Candidate> {
    let (direction, offset, data, len) = moved(taken)?;
    let segments = taken.memory.foreign(ranges(data)).ok()?.parts().len();
    Some(Candidate { direction, offset, len, segments })
}

/// Which bytes of the disk a request moves, and from or to which memory; nothing of one that moves none.
fn moved(taken: &Taken) -> Option<(Direction, u64, &[Segment], u64)> {
    let (direction, offset, data, len) = match &taken.request.ask {
        Ask::Read { offset, data, len } => (Direction::Read, *offset, data, *len),
        Ask::Write { offset, data, len } => (Direction::Write, *offset, data, *len),
        Ask::Flush | Ask::Discard(_) | Ask::Zero(_) | Ask::Id { .. } | Ask::Answered(_) => return None,
    };
    (len > 0).then_some((direction, offset, data, len))
}

fn ranges(data: &[Segment]) -> impl Iterator<Item = (u64, u64)> {
    data.iter().map(|segment| (segment.address, u64::from(segment.len)))
}

/// Starts one request, or several as one; what is known already is answered at once.
fn begin(queue: &Rc<Queue>, mut together: Together, inline: &mut Inline) {
    let known = match together.first().map(|first| &first.request.ask) {
        Some(Ask::Answered(status)) => {
            queue.device.export.entry.counters().refused();
            Some((*status, 0))
        }
        Some(Ask::Read { len: 0, .. } | Ask::Write { len: 0, .. }) => Some((Status::Ok, 0)),
        Some(Ask::Id { .. }) => together.first().map(|first| put_id(queue, first)),
        Some(Ask::Read { .. } | Ask::Write { .. } | Ask::Flush | Ask::Discard(_) | Ask::Zero(_)) | None => {
            None
        }
    };
    match known {
        Some((status, written)) => {
            together.drain(..).for_each(|taken| queue.complete(taken, status, written));
        }
        None => {
            let hints = Hints { more_waiting: queue.in_flight.requests() as usize > together.len() };
            if read_now(queue, &together, hints, inline) {
                together.drain(..).for_each(|taken| complete_read(queue, taken, inline));
                return;
            }
            let queue = Rc::clone(queue);
            reactor::spawn_now(async move { perform(&queue, together, hints).await }).detach();
        }
    }
}

/// Carries out reads of one range if nothing has to be waited for, and says whether it did.
fn read_now(queue: &Queue, together: &Together, hints: Hints, inline: &Inline) -> bool {
    let Some(Ask::Read { offset, .. }) = together.first().map(|first| &first.request.ask) else {
        return false;
    };
    let bytes: u64 = together.iter().map(|taken| taken.request.bytes()).sum();
    if inline.bytes + bytes > INLINE_BYTES_MAX {
        return false;
    }
    // A lack of memory is reported by the waiting request.
    let Ok(data) = memory(together) else { return false };
    match queue.device.export.entry.disk().try_read_into(*offset, &data, hints) {
        None => return false,
        Some(ReadKind::Zeroes) => data.fill_with_zeroes(0, data.len()),
        Some(ReadKind::Data) => {}
    }
    if together.len() > 1 {
        queue.device.export.entry.counters().merged(Direction::Read, together.len() as u64 - 1);
    }
    true
}

/// Tells the driver of a read that was carried out.
fn complete_read(queue: &Queue, taken: Taken, inline: &mut Inline) {
    let len = taken.request.bytes();
    if let Ask::Read { data, .. } = &taken.request.ask {
        ranges(data).for_each(|(address, len)| log(queue, address, len));
    }
    inline.reads += 1;
    inline.bytes += len;
    queue.complete_uncalled(taken, Status::Ok, len);
}

fn put_id(queue: &Queue, taken: &Taken) -> (Status, u64) {
    let Ask::Id { data } = &taken.request.ask else { return (Status::IoError, 0) };
    let id = queue.device.id();
    let mut rest = &id[..];
    for segment in data {
        let (part, after) = rest.split_at(rest.len().min(segment.len as usize));
        if taken.memory.write(segment.address, part).is_err() {
            return (Status::IoError, 0);
        }
        log(queue, segment.address, part.len() as u64);
        rest = after;
    }
    // A place too short for it has a part of it.
    (Status::Ok, (id.len() - rest.len()) as u64)
}

fn log(queue: &Queue, address: u64, len: u64) {
    if let Some(log) = queue.device.dirty_log() {
        log.mark(address, len);
    }
}

/// Has the disk carry out requests that go together, and answers each.
async fn perform(queue: &Rc<Queue>, together: Together, hints: Hints) {
    let entry = &queue.device.export.entry;
    let _counted: SmallVec<[RequestCount; 1]> = together.iter().map(|_| RequestCount::new(entry)).collect();
    let (kind, result) = match together.first().map(|first| &first.request.ask) {
        Some(Ask::Read { offset, .. }) => (RequestKind::Read, read(queue, &together, *offset, hints).await),
        Some(Ask::Write { offset, .. }) => {
            (RequestKind::Write, write(queue, &together, *offset, hints).await)
        }
        Some(Ask::Flush) => (RequestKind::Flush, entry.disk().flush().await),
        Some(Ask::Discard(ranges)) => (RequestKind::Discard, discard(queue, ranges).await),
        Some(Ask::Zero(ranges)) => (RequestKind::Zero, zero(queue, ranges).await),
        Some(Ask::Id { .. } | Ask::Answered(_)) | None => return,
    };
    if let Err(error) = &result {
        error.log();
    }
    if together.len() > 1 {
        let direction = if kind == RequestKind::Read { Direction::Read } else { Direction::Write };
        entry.counters().merged(direction, together.len() as u64 - 1);
    }
    let status = result.as_ref().map_or_else(|error| status_of(error.kind()), |()| Status::Ok);
    for taken in together {
        entry.counters().ended(kind, result.is_ok(), bytes_of(&taken.request.ask));
        let written = match &taken.request.ask {
            Ask::Read { data, len, .. } => {
                ranges(data).for_each(|(address, len)| log(queue, address, len));
                if result.is_ok() { *len } else { 0 }
            }
            _ => 0,
        };
        queue.complete(taken, status, written);
    }
}

fn bytes_of(ask: &Ask) -> u64 {
    match ask {
        Ask::Read { len, .. } | Ask::Write { len, .. } => *len,
        Ask::Discard(ranges) | Ask::Zero(ranges) => ranges.iter().map(|range| range.len).sum(),
        Ask::Flush | Ask::Id { .. } | Ask::Answered(_) => 0,
    }
}

/// The memory of all data, in order.
fn memory(together: &Together) -> Result<ForeignBytes, Error> {
    let Some(first) = together.first() else { return Err(ErrorKind::Invalid.into()) };
    let data = together.iter().flat_map(|taken| match &taken.request.ask {
        Ask::Read { data, .. } | Ask::Write { data, .. } => &data[..],
        Ask::Flush | Ask::Discard(_) | Ask::Zero(_) | Ask::Id { .. } | Ask::Answered(_) => &[],
    });
    let data = data.map(|segment| (segment.address, u64::from(segment.len)));
    // The guest's own fault: nothing for the log.
    first.memory.foreign(data).map_err(|Outside { .. }| ErrorKind::Invalid.into())
}

async fn read(queue: &Queue, together: &Together, offset: u64, hints: Hints) -> Result<(), Error> {
    let data = memory(together)?;
    queue.device.export.entry.disk().read_into(offset, data, hints, &queue.pace).await.map(drop)
}

async fn write(queue: &Queue, together: &Together, offset: u64, hints: Hints) -> Result<(), Error> {
    let (data, durable) = (memory(together)?, queue.device.is_durable_at_once());
    queue.device.export.entry.disk().write_from(offset, data, durable, hints, &queue.pace).await?;
    settle(queue, durable).await
}

/// The guest goes on when this process is killed, and repeats nothing that was answered: so an answer means that the next process finds it.
/// What was made durable is found.
async fn settle(queue: &Queue, durable: bool) -> Result<(), Error> {
    if durable { Ok(()) } else { queue.device.export.entry.disk().hand_to_kernel().await }
}

async fn discard(queue: &Queue, ranges: &[Range]) -> Result<(), Error> {
    let durable = queue.device.is_durable_at_once();
    for range in ranges.iter().filter(|range| range.len > 0) {
        queue.device.export.entry.disk().discard(range.offset, range.len, durable, &queue.pace).await?;
    }
    settle(queue, durable).await
}

async fn zero(queue: &Queue, ranges: &[Range]) -> Result<(), Error> {
    let fua = queue.device.is_durable_at_once();
    for range in ranges.iter().filter(|range| range.len > 0) {
        let flags = ZeroFlags { unmap: range.unmap, fast_only: false, fua };
        queue.device.export.entry.disk().zero(range.offset, range.len, flags, &queue.pace).await?;
    }
    settle(queue, fua).await
}

/// The protocol's word for a failure: it has no others.
fn status_of(kind: ErrorKind) -> Status {
    match kind {
        ErrorKind::NotSupported => Status::Unsupported,
        ErrorKind::NoSpace
        | ErrorKind::ReadOnly
        | ErrorKind::PastEnd
        | ErrorKind::Invalid
        | ErrorKind::Io
        | ErrorKind::NoMemory
        | ErrorKind::Corrupt
        | ErrorKind::ShuttingDown => Status::IoError,
    }
}
