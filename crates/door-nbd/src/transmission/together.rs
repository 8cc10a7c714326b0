//! Writes that came together, and go to the disk as one where they are contiguous.
//!
//! A write is held back only while the next request is in the inbox already, and nothing is waited for meanwhile: whoever is about to
//! wait starts them first. So none is late, and none is lost when its client goes.

use std::rc::Rc;

use buffer::{IoBytes, IoVec};
use export::merge::{self, Candidate, Direction, Limits, REQUESTS_MAX};
use export::{Hints, Permit, STEP_BYTES};
use nbd_wire::{RequestHeader, done_reply};

use super::{End, Transmission, asked};
use crate::client::{Asked, Client, What};
use crate::limits::LARGE_WRITE_BYTES_MIN;
use crate::requests::{Request, Work};

/// What writes become that are merged: a step of a loop's time, and as many parts as the kernel takes in one call.
const MERGED: Limits = Limits { bytes_max: STEP_BYTES, segments_max: 1024 };

/// A write that may be merged with others.
#[derive(Debug)]
pub(super) struct Held {
    cookie: u64,
    offset: u64,
    data: IoBytes,
    permit: Permit,
}

impl Transmission {
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
        let data = self.payload(size).await?.freeze();
        if len == 0 {
            let done = done_reply(self.client.dialect, head.cookie, offset);
            self.client.outbox.push_small(&done, Some(permit));
            return Ok(());
        }
        let more = !self.inbox.bytes().is_empty();
        if merges && (more || !self.held.is_empty()) {
            self.hold(head, data, permit);
        } else {
            let work = Work::Write { offset, data: data.into(), fua, hints: self.hints(1) };
            self.client.start(asked(head, What::Perform(work)), permit);
        }
        if !more {
            self.start_held();
        }
        Ok(())
    }

    /// Whether a write of `size` bytes may wait for the next request: it is there already. Limits charge requests as they were sent, so
    /// under limits none is merged; a large one gains nothing.
    fn may_merge(&self, size: usize, fua: bool) -> bool {
        let large = size as u64 > STEP_BYTES / 2;
        self.merges && !fua && !large && !self.client.entry.disk().holds_back()
    }

    /// Holds a write, until others came that go with it or nothing more is there.
    fn hold(&mut self, head: &RequestHeader, data: IoBytes, permit: Permit) {
        self.held.push(Held { cookie: head.cookie, offset: head.offset, data, permit });
        if self.held.len() == REQUESTS_MAX {
            self.start_held();
        }
    }

    /// Starts the writes that are held, those that are contiguous as one.
    pub(super) fn start_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        if held.len() < 2 {
            return held.into_iter().for_each(|one| alone(&self.client, one, self.hints(1)));
        }
        let candidate = |one: &Held| Candidate {
            direction: Direction::Write,
            offset: one.offset,
            len: one.data.len() as u64,
            segments: 1,
        };
        let candidates: Vec<Candidate> = held.iter().map(candidate).collect();
        let mut held: Vec<Option<Held>> = held.into_iter().map(Some).collect();
        for group in merge::groups(&candidates, MERGED) {
            let mut members = group.iter().filter_map(|&at| held.get_mut(at).and_then(Option::take));
            match group.len() {
                1 => members.for_each(|one| alone(&self.client, one, self.hints(1))),
                _ => as_one(&self.client, members.by_ref().collect(), self.hints(group.len() as u32)),
            }
        }
    }
}

fn alone(client: &Rc<Client>, Held { cookie, offset, data, permit }: Held, hints: Hints) {
    let work = Work::Write { offset, data: data.into(), fua: false, hints };
    client.start(Asked { cookie, offset, what: What::Perform(work) }, permit);
}

fn as_one(client: &Rc<Client>, held: Vec<Held>, hints: Hints) {
    let offset = held.first().map_or(0, |first| first.offset);
    let (mut data, mut requests) = (IoVec::new(), Vec::new());
    for one in held {
        let bytes = one.data.len() as u64;
        data.push(one.data);
        requests.push((Request::new(client, (one.cookie, one.offset), one.permit), bytes));
    }
    client.start_writes((offset, data, hints), requests);
}
