//! Reads and writes that came together, and go to the disk as one where they are contiguous.
//!
//! A request is held back only while the next request is in the inbox already, and nothing is waited for meanwhile: the client that is about to
//! wait starts them first. So none is late, and none is lost when its client goes.

use std::rc::Rc;

use export::merge::{self, Candidate, Direction, Limits, REQUESTS_MAX};
use export::{Hints, Permit, STEP_BYTES};
use memory::{IoBytes, IoVec};
use wire::nbd::{ErrorCode, RequestHeader, done_reply};

use super::{End, Transmission, asked};
use crate::client::{Client, PendingRequest, What};
use crate::limits::LARGE_WRITE_BYTES_MIN;
use crate::requests::{Request, Work};

/// What requests become that are merged: a step of a loop's time, and as many parts as the kernel takes in one call.
const MERGED: Limits = Limits { bytes_max: STEP_BYTES, segments_max: 1024 };

/// A request that may be merged with others.
#[derive(Debug)]
pub(super) struct Delayed {
    cookie: u64,
    offset: u64,
    moves: Moves,
    permit: Permit,
}

/// What a request moves.
#[derive(Debug)]
enum Moves {
    /// Bytes that are asked for.
    Read(u32),
    Write(IoBytes),
}

impl Delayed {
    fn candidate(&self) -> Candidate {
        let (direction, len) = match &self.moves {
            Moves::Read(len) => (Direction::Read, u64::from(*len)),
            Moves::Write(data) => (Direction::Write, data.len() as u64),
        };
        Candidate { direction, offset: self.offset, len, segments: 1 }
    }
}

impl Transmission {
    /// Holds a read that has to wait for the disk, and says whether it did: it may go together with the next request, which is there already.
    /// Costs a place of those in flight; where there is none, or others wait for one, nothing is held any more.
    pub(super) fn hold_read(&mut self, head: &RequestHeader, len: u32) -> bool {
        let more = !self.inbox.bytes().is_empty();
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        let merges = (more || !self.held.is_empty()) && self.line.is_empty() && self.may_merge(size, false);
        let permit = if merges { self.client.in_flight.try_admit(u64::from(len)) } else { None };
        let Some(permit) = permit else {
            self.start_held();
            return false;
        };
        self.hold(head, Moves::Read(len), permit);
        if !more {
            self.start_held();
        }
        true
    }

    /// Takes the payload of a write, and starts it, or holds it.
    pub(super) async fn write(
        &mut self,
        head: &RequestHeader,
        offset: u64,
        len: u32,
        fua: bool,
    ) -> Result<(), End> {
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        self.last_write_was_large = size >= LARGE_WRITE_BYTES_MIN;
        let merges = self.may_merge(size, fua);
        if !merges || self.inbox.bytes().len() < size {
            self.start_held();
        }
        let permit = self.admit(u64::from(len)).await;
        let Some(data) = self.payload(size).await? else {
            self.refuse(head, ErrorCode::NoMem);
            return Ok(());
        };
        let data = data.freeze();
        if len == 0 {
            let done = done_reply(self.client.dialect, head.cookie, offset);
            self.client.outbox.push_small(&done, Some(permit));
            return Ok(());
        }
        let more = !self.inbox.bytes().is_empty();
        if merges && (more || !self.held.is_empty()) {
            self.hold(head, Moves::Write(data), permit);
        } else {
            let work = Work::Write { offset, data: data.into(), fua, hints: self.hints(1) };
            self.client.start(asked(head, What::Perform(work)), permit);
        }
        if !more {
            self.start_held();
        }
        Ok(())
    }

    /// Whether a request of `size` bytes may wait for the next request: it is there already. Limits charge requests as they were sent, so
    /// under limits none is merged; a large one gains nothing.
    fn may_merge(&self, size: usize, fua: bool) -> bool {
        let large = size as u64 > STEP_BYTES / 2;
        self.merges && !fua && !large && !self.client.entry.disk().holds_back()
    }

    /// Holds a request, until others came that go with it or nothing more is there.
    fn hold(&mut self, head: &RequestHeader, moves: Moves, permit: Permit) {
        self.held.push(Delayed { cookie: head.cookie, offset: head.offset, moves, permit });
        if self.held.len() == REQUESTS_MAX {
            self.start_held();
        }
    }

    /// Starts the requests that are held, those that are contiguous as one.
    pub(super) fn start_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        if held.len() < 2 {
            return held.into_iter().for_each(|one| alone(&self.client, one, self.hints(1)));
        }
        let candidates: Vec<Candidate> = held.iter().map(Delayed::candidate).collect();
        let mut held: Vec<Option<Delayed>> = held.into_iter().map(Some).collect();
        for group in merge::groups(&candidates, MERGED) {
            let mut members = group.iter().filter_map(|&at| held.get_mut(at).and_then(Option::take));
            match group.len() {
                1 => members.for_each(|one| alone(&self.client, one, self.hints(1))),
                _ => as_one(&self.client, members.by_ref().collect(), self.hints(group.len() as u32)),
            }
        }
    }
}

fn alone(client: &Rc<Client>, Delayed { cookie, offset, moves, permit }: Delayed, hints: Hints) {
    let what = match moves {
        Moves::Read(len) => What::Read { len, hints },
        Moves::Write(data) => What::Perform(Work::Write { offset, data: data.into(), fua: false, hints }),
    };
    client.start(PendingRequest { cookie, offset, what }, permit);
}

/// All have one direction.
fn as_one(client: &Rc<Client>, held: Vec<Delayed>, hints: Hints) {
    let offset = held.first().map_or(0, |first| first.offset);
    let (mut data, mut reads, mut writes) = (IoVec::new(), Vec::new(), Vec::new());
    for one in held {
        let request = Request::new(client, (one.cookie, one.offset), one.permit);
        match one.moves {
            Moves::Read(len) => reads.push((request, len)),
            Moves::Write(bytes) => {
                writes.push((request, bytes.len() as u64));
                data.push(bytes);
            }
        }
    }
    if writes.is_empty() {
        client.start_reads((offset, hints), reads);
    } else {
        client.start_writes((offset, data, hints), writes);
    }
}
