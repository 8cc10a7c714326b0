//! One request that has to wait for the disk, from its start to its reply.

use std::ops::Range;
use std::rc::Rc;

use export::merge::Direction;
use export::{Error, ErrorKind, Hints, Pace, Permit, ReadKind, RequestCount, RequestKind, ZeroFlags};
use memory::{IoBuf, IoBytes, IoVec};
use wire::nbd::{Dialect, ErrorCode, done_reply, error_reply, hole_reply, part_head, part_hole, read_head};

use crate::block_status::{self, Question};
use crate::client::Client;
use crate::outbox::Outbox;

/// Zeroes of so many bytes, at a multiple of that, are a hole of a reply.
const HOLE_BYTES: u64 = 64 << 10;

/// The parts of what was read at `offset`, each with whether it is zeroes; none where there are no holes in it, or nothing else.
fn parts(bytes: &IoBytes, offset: u64) -> Vec<(Range<usize>, bool)> {
    let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        // At most HOLE_BYTES.
        let to_next = (HOLE_BYTES - (offset + at as u64) % HOLE_BYTES) as usize;
        let end = bytes.len().min(at + to_next);
        let is_zero = (end - at) as u64 == HOLE_BYTES && bytes.slice(at, end).is_zero();
        match parts.last_mut() {
            Some((part, same)) if *same == is_zero => part.end = end,
            _ => parts.push((at..end, is_zero)),
        }
        at = end;
    }
    if parts.len() > 1 { parts } else { Vec::new() }
}

/// Work on the disk whose reply has no data.
#[derive(Debug)]
pub(crate) enum Work {
    Write { offset: u64, data: IoVec, fua: bool, hints: Hints },
    Flush,
    Discard { offset: u64, len: u64, fua: bool },
    Zero { offset: u64, len: u64, flags: ZeroFlags },
    Prefetch { offset: u64, len: u64 },
}

impl Work {
    /// The bytes that it changes.
    pub(crate) fn changes(&self) -> Option<Range<u64>> {
        let (offset, len) = match self {
            Self::Write { offset, data, .. } => (*offset, data.len() as u64),
            Self::Discard { offset, len, .. } | Self::Zero { offset, len, .. } => (*offset, *len),
            Self::Flush | Self::Prefetch { .. } => return None,
        };
        Some(offset..offset.saturating_add(len))
    }
}

/// What a reply needs beyond the result.
#[derive(Debug)]
pub(crate) struct Request {
    client: Rc<Client>,
    cookie: u64,
    offset: u64,
    _counted: RequestCount,
    permit: Permit,
}

impl Request {
    pub(crate) fn new(client: &Rc<Client>, (cookie, offset): (u64, u64), permit: Permit) -> Self {
        let counted = RequestCount::new(&client.entry);
        Self { client: Rc::clone(client), cookie, offset, _counted: counted, permit }
    }

    fn dialect(&self) -> Dialect {
        self.client.dialect
    }

    fn outbox(&self) -> Rc<Outbox> {
        Rc::clone(&self.client.outbox)
    }

    pub(crate) async fn read(self, len: u32, hints: Hints) {
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        self.client.entry.after_those_left_behind(self.offset, u64::from(len)).await;
        self.client.before_memory(u64::from(len)).await;
        let Some(mut buf) = IoBuf::try_uninit(size) else {
            self.count(RequestKind::Read, false, u64::from(len));
            return self.fail(RequestKind::Read, &ErrorKind::NoMemory.into());
        };
        buf.truncate(size);
        let (result, buf) = self.client.entry.disk().read(self.offset, buf, hints, &self.client.pace).await;
        self.count(RequestKind::Read, result.is_ok(), u64::from(len));
        match result {
            Ok(content) => self.answer_read(content, len, buf.freeze()),
            Err(error) => self.fail(RequestKind::Read, &error),
        }
    }

    fn answer_read(self, content: ReadKind, len: u32, bytes: IoBytes) {
        let hole = match content {
            ReadKind::Zeroes => hole_reply(self.dialect(), self.cookie, self.offset, len),
            ReadKind::Data => None,
        };
        if let Some(hole) = hole {
            return self.outbox().push_small(&hole, Some(self.permit));
        }
        let parts = match self.dialect() {
            Dialect::Simple => Vec::new(),
            _ if self.client.wants_whole_reads.get() => Vec::new(),
            _ => parts(&bytes, self.offset),
        };
        if !parts.is_empty() {
            return self.answer_in_parts(parts, &bytes);
        }
        let head = read_head(self.dialect(), self.cookie, self.offset, len);
        self.outbox().push(&head, bytes, Some(self.permit));
    }

    /// Holes inside a read are reported as such: the client need not look for them, and they need not be sent.
    fn answer_in_parts(self, parts: Vec<(Range<usize>, bool)>, bytes: &IoBytes) {
        let (outbox, of, last) = (self.outbox(), (self.cookie, self.offset), parts.len() - 1);
        let mut permit = Some(self.permit);
        for (place, (part, is_zero)) in parts.into_iter().enumerate() {
            // No longer than the request.
            let (at, len) = (of.1 + part.start as u64, u32::try_from(part.len()).unwrap_or(u32::MAX));
            let done = place == last;
            let permit = if done { permit.take() } else { None };
            match is_zero {
                true => outbox.push_small(&part_hole(self.client.dialect, of, at, len, done), permit),
                false => {
                    let head = part_head(self.client.dialect, of, at, len, done);
                    outbox.push(&head, bytes.slice(part.start, part.end), permit);
                }
            }
        }
    }

    /// Reads from `offset` on what all `requests` ask for in order, and answers each. If that fails each is read alone, so that those fail alone
    /// whose bytes cannot be read. The replies share their memory, at most a step's, until the last one is sent.
    pub(crate) async fn read_as_one(
        client: Rc<Client>,
        (offset, hints): (u64, Hints),
        requests: Vec<(Self, u32)>,
    ) {
        let bytes: u64 = requests.iter().map(|(_, len)| u64::from(*len)).sum();
        client.entry.after_those_left_behind(offset, bytes).await;
        // At most a step.
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        let read = match IoBuf::try_uninit(size) {
            Some(mut buf) => {
                buf.truncate(size);
                let (result, buf) = client.entry.disk().read(offset, buf, hints, &client.pace).await;
                result.ok().map(|content| (content, buf))
            }
            None => None,
        };
        let Some((content, mut buf)) = read else {
            for (request, len) in requests {
                request.read(len, hints).await;
            }
            return;
        };
        client.entry.counters().merged(Direction::Read, requests.len() as u64 - 1);
        for (request, len) in requests {
            request.count(RequestKind::Read, true, u64::from(len));
            let part = buf.split_to(usize::try_from(len).unwrap_or(usize::MAX));
            request.answer_read(content, len, part.freeze());
        }
    }

    pub(crate) async fn perform(self, work: Work, pace: &Pace) {
        let disk = self.client.entry.disk();
        if let Some(range) = work.changes() {
            self.client.entry.after_those_left_behind(range.start, range.end - range.start).await;
        }
        let (result, kind, bytes) = match work {
            Work::Write { offset, data, fua, hints } => {
                let bytes = data.len() as u64;
                (disk.write(offset, data, fua, hints, pace).await, RequestKind::Write, bytes)
            }
            Work::Flush => (disk.flush().await, RequestKind::Flush, 0),
            Work::Discard { offset, len, fua } => {
                (disk.discard(offset, len, fua, pace).await, RequestKind::Discard, len)
            }
            Work::Zero { offset, len, flags } => {
                (disk.zero(offset, len, flags, pace).await, RequestKind::Zero, len)
            }
            Work::Prefetch { offset, len } => {
                (disk.prefetch(offset, len, pace).await, RequestKind::Prefetch, len)
            }
        };
        self.count(kind, result.is_ok(), bytes);
        match result {
            Ok(()) => {
                let reply = done_reply(self.dialect(), self.cookie, self.offset);
                self.outbox().push_small(&reply, Some(self.permit));
            }
            Err(error) => self.fail(kind, &error),
        }
    }

    /// Writes `data`, which is that of all `requests` in order, and answers each.
    pub(crate) async fn write_as_one(
        client: Rc<Client>,
        pace: Rc<Pace>,
        (offset, data, hints): (u64, IoVec, Hints),
        requests: Vec<(Self, u64)>,
    ) {
        client.entry.after_those_left_behind(offset, data.len() as u64).await;
        let result = client.entry.disk().write(offset, data, false, hints, &pace).await;
        client.entry.counters().merged(Direction::Write, requests.len() as u64 - 1);
        for (request, bytes) in requests {
            request.count(RequestKind::Write, result.is_ok(), bytes);
            match &result {
                Ok(()) => {
                    let reply = done_reply(request.dialect(), request.cookie, request.offset);
                    request.outbox().push_small(&reply, Some(request.permit));
                }
                Err(error) => request.fail(RequestKind::Write, error),
            }
        }
    }

    pub(crate) async fn block_status(self, question: Question) {
        self.client.entry.after_those_left_behind(question.offset, question.len).await;
        let answer =
            block_status::answer(self.client.entry.disk().as_ref(), &question, &self.client.pace).await;
        self.count(RequestKind::BlockStatus, answer.is_ok(), question.len);
        match answer {
            Ok(reply) => self.outbox().push(&[], IoBytes::copy_from(&reply), Some(self.permit)),
            Err(error) => self.fail(RequestKind::BlockStatus, &error),
        }
    }

    fn count(&self, kind: RequestKind, succeeded: bool, bytes: u64) {
        self.client.entry.counters().ended(kind, succeeded, bytes);
    }

    /// The log gets the whole story, the client the code.
    fn fail(self, kind: RequestKind, error: &Error) {
        error.log();
        let code = nbd_error(error.kind(), kind);
        let _connection = self.client.outbox.span().enter();
        tracing::debug!(%code, offset = self.offset, export = self.client.entry.name(), "request failed");
        let mut reply = Vec::new();
        let message = code.to_string();
        error_reply(&mut reply, self.dialect(), (self.cookie, self.offset), code, &message, None);
        self.outbox().push_small(&reply, Some(self.permit));
    }
}

/// What a client receives whose request, of this kind, has failed.
fn nbd_error(failed: ErrorKind, request: RequestKind) -> ErrorCode {
    match failed {
        ErrorKind::NoSpace => ErrorCode::NoSpc,
        ErrorKind::ReadOnly => match request {
            // Bytes that are not in a snapshot: QEMU says the same.
            RequestKind::Read | RequestKind::BlockStatus => ErrorCode::Inval,
            _ => ErrorCode::Perm,
        },
        // Data past the end finds no place (ENOSPC, as the protocol has it): a disk can be made smaller while a client goes
        // by the size that it received.
        ErrorKind::PastEnd => match request {
            RequestKind::Write | RequestKind::Zero => ErrorCode::NoSpc,
            RequestKind::Read
            | RequestKind::Flush
            | RequestKind::Discard
            | RequestKind::Prefetch
            | RequestKind::BlockStatus => ErrorCode::Inval,
        },
        ErrorKind::NotSupported => ErrorCode::NotSup,
        ErrorKind::Invalid => ErrorCode::Inval,
        ErrorKind::Io | ErrorKind::Corrupt => ErrorCode::Io,
        ErrorKind::NoMemory => ErrorCode::NoMem,
        ErrorKind::ShuttingDown => ErrorCode::Shutdown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_units_of_zeroes_are_holes_and_nothing_else() {
        let unit = HOLE_BYTES as usize;
        let mut bytes = vec![0; 4 * unit];
        bytes[unit + 5] = 1;
        let of = |bytes: &[u8], offset: u64| parts(&IoBytes::copy_from(bytes), offset);
        assert_eq!(of(&bytes, 0), [(0..unit, true), (unit..2 * unit, false), (2 * unit..4 * unit, true)]);
        // Parts of units are data, whatever they hold.
        assert_eq!(
            of(&bytes, 512),
            [
                (0..2 * unit - 512, false),
                (2 * unit - 512..4 * unit - 512, true),
                (4 * unit - 512..4 * unit, false)
            ]
        );
        assert_eq!(of(&[0; 4096], 0), []);
        assert_eq!(of(&vec![0; 4 * unit], 0), []);
        assert_eq!(of(&vec![1; 4 * unit], 0), []);
    }

    /// A disk was made smaller, and clients go on by the old size.
    #[test]
    fn what_finds_no_place_is_reported_as_no_space_and_what_reads_there_is_invalid() {
        for kind in [RequestKind::Write, RequestKind::Zero] {
            assert_eq!(nbd_error(ErrorKind::PastEnd, kind), ErrorCode::NoSpc);
        }
        for kind in [RequestKind::Read, RequestKind::Discard, RequestKind::Prefetch, RequestKind::BlockStatus]
        {
            assert_eq!(nbd_error(ErrorKind::PastEnd, kind), ErrorCode::Inval);
        }
    }

    #[test]
    fn what_may_not_be_read_is_invalid_and_what_may_not_be_written_not_permitted() {
        assert_eq!(nbd_error(ErrorKind::ReadOnly, RequestKind::Read), ErrorCode::Inval);
        assert_eq!(nbd_error(ErrorKind::ReadOnly, RequestKind::Write), ErrorCode::Perm);
    }

    #[test]
    fn an_end_of_the_program_and_a_slow_zero_have_words_of_their_own() {
        assert_eq!(nbd_error(ErrorKind::ShuttingDown, RequestKind::Write), ErrorCode::Shutdown);
        assert_eq!(nbd_error(ErrorKind::NotSupported, RequestKind::Zero), ErrorCode::NotSup);
    }
}
