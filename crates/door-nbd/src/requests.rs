//! One request that has to wait for the disk, from its start to its reply.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buffer::{IoBuf, IoBytes, IoVec};
use nbd_wire::{Dialect, ErrorCode, done_reply, error_reply, hole_reply, read_head};
use qcow2::ReadKind;

use crate::block_status::{self, Question};
use crate::budget::Permit;
use crate::counters::{Counters, Kind};
use crate::export::ZeroFlags;
use crate::exports::ExportEntry;
use crate::outbox::Outbox;

/// Work on the disk whose reply has no data.
#[derive(Debug)]
pub(crate) enum Work {
    Write { offset: u64, data: IoVec, fua: bool },
    Flush,
    Trim { offset: u64, len: u64, fua: bool },
    Zero { offset: u64, len: u64, flags: ZeroFlags },
    Cache { offset: u64, len: u64 },
}

/// What a reply needs beyond the result.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) entry: Arc<ExportEntry>,
    pub(crate) outbox: Rc<Outbox>,
    pub(crate) dialect: Dialect,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    in_flight: InFlightCount,
    permit: Permit,
}

/// Counts one request among those in flight of its export.
#[derive(Debug)]
struct InFlightCount(Arc<ExportEntry>);

impl Drop for InFlightCount {
    fn drop(&mut self) {
        self.0.counters().in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Request {
    pub(crate) fn new(
        entry: &Arc<ExportEntry>,
        outbox: &Rc<Outbox>,
        (dialect, cookie, offset): (Dialect, u64, u64),
        permit: Permit,
    ) -> Self {
        entry.counters().in_flight.fetch_add(1, Ordering::Relaxed);
        let in_flight = InFlightCount(Arc::clone(entry));
        let (entry, outbox) = (Arc::clone(entry), Rc::clone(outbox));
        Self { entry, outbox, dialect, cookie, offset, in_flight, permit }
    }

    pub(crate) async fn read(self, len: u32) {
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let mut buf = IoBuf::uninit(size);
        buf.truncate(size);
        let (result, buf) = self.entry.disk().read(self.offset, buf).await;
        self.count(|counters| &counters.read, result.is_ok(), u64::from(len));
        match result {
            Ok(content) => {
                let hole = match content {
                    ReadKind::Zeroes => hole_reply(self.dialect, self.cookie, self.offset, len),
                    ReadKind::Data => None,
                };
                if let Some(hole) = hole {
                    return self.outbox.push_small(&hole, Some(self.permit));
                }
                let head = read_head(self.dialect, self.cookie, self.offset, len);
                self.outbox.push(&head, buf.freeze(), Some(self.permit));
            }
            Err(code) => self.fail(code),
        }
    }

    pub(crate) async fn perform(self, work: Work) {
        let disk = self.entry.disk();
        let (result, kind, bytes) = match work {
            Work::Write { offset, data, fua } => {
                let bytes = data.len() as u64;
                (disk.write(offset, data, fua).await, Counts::Write, bytes)
            }
            Work::Flush => (disk.flush().await, Counts::Flush, 0),
            Work::Trim { offset, len, fua } => (disk.trim(offset, len, fua).await, Counts::Trim, len),
            Work::Zero { offset, len, flags } => (disk.zero(offset, len, flags).await, Counts::Zero, len),
            Work::Cache { offset, len } => (disk.cache(offset, len).await, Counts::Cache, len),
        };
        self.count(|counters| kind.of(counters), result.is_ok(), bytes);
        match result {
            Ok(()) => {
                let reply = done_reply(self.dialect, self.cookie, self.offset);
                self.outbox.push_small(&reply, Some(self.permit));
            }
            Err(code) => self.fail(code),
        }
    }

    pub(crate) async fn block_status(self, question: Question) {
        let answer = block_status::answer(self.entry.disk().as_ref(), &question).await;
        self.count(|counters| &counters.block_status, answer.is_ok(), question.len);
        match answer {
            Ok(reply) => self.outbox.push(&[], IoBytes::copy_from(&reply), Some(self.permit)),
            Err(code) => self.fail(code),
        }
    }

    fn count(&self, kind: impl Fn(&Counters) -> &Kind, succeeded: bool, bytes: u64) {
        kind(self.in_flight.0.counters()).ended(succeeded, bytes);
    }

    fn fail(self, code: ErrorCode) {
        let _connection = self.outbox.span().enter();
        tracing::debug!(%code, offset = self.offset, export = self.entry.name(), "request failed");
        let mut reply = Vec::new();
        let message = code.to_string();
        error_reply(&mut reply, self.dialect, (self.cookie, self.offset), code, &message, None);
        self.outbox.push_small(&reply, Some(self.permit));
    }
}

/// Where a piece of [`Work`] is counted.
#[derive(Clone, Copy)]
enum Counts {
    Write,
    Flush,
    Trim,
    Zero,
    Cache,
}

impl Counts {
    fn of(self, counters: &Counters) -> &Kind {
        match self {
            Counts::Write => &counters.write,
            Counts::Flush => &counters.flush,
            Counts::Trim => &counters.trim,
            Counts::Zero => &counters.zero,
            Counts::Cache => &counters.cache,
        }
    }
}
