//! The requests that are on their way over one connection, and what came back of each.

use std::task::Waker;

use buffer::IoBuf;
use nbd_wire::{Chunk, Descriptor, ErrorCode};

use crate::ask::{Ask, What};
use crate::coverage::Coverage;
use crate::errors::Error;

/// Most requests on their way over one connection: more would only wait at the server.
pub(crate) const IN_FLIGHT_MAX: usize = 128;

/// Most chunks of one reply that bring an error: one tells everything.
const ERRORS_MAX: u32 = 16;

/// What became of a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) result: Result<(), Error>,
    /// Of a read: its buffer, filled if it succeeded. None if it went with the connection.
    pub(crate) buf: Option<IoBuf>,
    /// Of a status: from the request's offset on.
    pub(crate) extents: Vec<Descriptor>,
}

/// What the server sends cannot be.
pub(crate) type Broken = String;

/// A request that is on its way.
#[derive(Debug)]
struct Waiting {
    ask: Ask,
    /// What a flush covers when it succeeds.
    mark: u64,
    buf: Option<IoBuf>,
    coverage: Coverage,
    extents: Vec<Descriptor>,
    failure: Option<Error>,
    errors: u32,
    waker: Option<Waker>,
    /// No task awaits it any more.
    abandoned: bool,
}

#[derive(Debug)]
enum State {
    Free,
    Waiting(Box<Waiting>),
    Answered(Reply),
}

#[derive(Debug)]
struct Slot {
    /// How often it was used: a reply to an earlier request is not taken for one to this.
    round: u32,
    state: State,
}

/// The table of them.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

/// A request that ended.
pub(crate) struct Ended {
    pub(crate) ask: Ask,
    pub(crate) mark: u64,
    pub(crate) succeeded: bool,
    pub(crate) waker: Option<Waker>,
}

impl Slots {
    /// How many are on their way.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a slot; None if all are taken.
    pub(crate) fn enter(
        &mut self,
        ask: Ask,
        mark: u64,
        buf: Option<IoBuf>,
    ) -> Result<(usize, u64), Option<IoBuf>> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < IN_FLIGHT_MAX => {
                self.slots.push(Slot { round: 0, state: State::Free });
                self.slots.len() - 1
            }
            None => return Err(buf),
        };
        let Some(slot) = self.slots.get_mut(index) else { return Err(buf) };
        slot.round = slot.round.wrapping_add(1);
        slot.state = State::Waiting(Box::new(Waiting {
            ask,
            mark,
            buf,
            coverage: Coverage::default(),
            extents: Vec::new(),
            failure: None,
            errors: 0,
            waker: None,
            abandoned: false,
        }));
        Ok((index, u64::from(slot.round) << 32 | index as u64))
    }

    /// The answer, if there is one: the slot is free then. Otherwise `waker` is notified of it.
    pub(crate) fn poll(&mut self, index: usize, waker: &Waker) -> Option<Reply> {
        let slot = self.slots.get_mut(index)?;
        match &mut slot.state {
            State::Waiting(waiting) => {
                match &mut waiting.waker {
                    Some(known) => known.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                None
            }
            State::Answered(_) => match std::mem::replace(&mut slot.state, State::Free) {
                State::Answered(reply) => {
                    self.free.push(index);
                    Some(reply)
                }
                _ => None,
            },
            State::Free => None,
        }
    }

    /// No task awaits it any more. The slot is free once the reply is there.
    pub(crate) fn abandon(&mut self, index: usize) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        match &mut slot.state {
            State::Waiting(waiting) => waiting.abandoned = true,
            State::Answered(_) => {
                slot.state = State::Free;
                self.free.push(index);
            }
            State::Free => {}
        }
    }

    fn waiting(&mut self, cookie: u64) -> Result<(usize, &mut Waiting), Broken> {
        let unknown = || format!("a reply has cookie {cookie:#x}, which no request on its way has");
        let index = usize::try_from(cookie & u64::from(u32::MAX)).map_err(|_| unknown())?;
        match self.slots.get_mut(index) {
            Some(Slot { round, state: State::Waiting(waiting) }) if u64::from(*round) == cookie >> 32 => {
                Ok((index, waiting))
            }
            _ => Err(unknown()),
        }
    }

    /// What data follows a simple reply that says success: where it begins in the export, and its bytes.
    pub(crate) fn simple_data(&mut self, cookie: u64) -> Result<Option<(u64, u64)>, Broken> {
        let Ask { what, offset, len, .. } = &self.waiting(cookie)?.1.ask;
        Ok(matches!(what, What::Read).then_some((*offset, *len)))
    }

    /// Where in its buffer `len` bytes for `offset` belong, with the buffer, which must come back by [`Slots::put_back`].
    pub(crate) fn take_buf(&mut self, cookie: u64, offset: u64, len: u64) -> Result<(IoBuf, usize), Broken> {
        let (_, waiting) = self.waiting(cookie)?;
        let at = waiting.arrives(offset, len)?;
        let buf = waiting.buf.take().ok_or("data for a request that is no read")?;
        Ok((buf, at))
    }

    pub(crate) fn put_back(&mut self, cookie: u64, buf: IoBuf) -> Result<(), Broken> {
        self.waiting(cookie)?.1.buf = Some(buf);
        Ok(())
    }

    /// A chunk other than data.
    pub(crate) fn take_chunk(
        &mut self,
        cookie: u64,
        chunk: &Chunk<'_>,
        context: Option<u32>,
    ) -> Result<(), Broken> {
        let (_, waiting) = self.waiting(cookie)?;
        match chunk {
            Chunk::None => Ok(()),
            Chunk::Data { .. } => Err("data in the wrong place".to_owned()),
            Chunk::Hole { offset, len } => waiting.hole(*offset, u64::from(*len)),
            Chunk::BlockStatus { context: found, descriptors } => {
                if Some(*found) != context
                    || !matches!(waiting.ask.what, What::Status)
                    || !waiting.extents.is_empty()
                {
                    return Err(format!("a status of context {found}, which was not asked for"));
                }
                waiting.extents = descriptors.iter().collect();
                Ok(())
            }
            Chunk::Error { code, message, .. } => {
                waiting.errors += 1;
                if waiting.errors > ERRORS_MAX {
                    return Err(format!("more than {ERRORS_MAX} errors for one request"));
                }
                waiting.fail(*code, message);
                Ok(())
            }
        }
    }

    pub(crate) fn fail(&mut self, cookie: u64, code: ErrorCode) -> Result<(), Broken> {
        self.waiting(cookie)?.1.fail(code, b"");
        Ok(())
    }

    /// The reply is complete.
    pub(crate) fn end(&mut self, cookie: u64) -> Result<Ended, Broken> {
        let (index, waiting) = self.waiting(cookie)?;
        waiting.check_whole()?;
        let result = waiting.failure.take().map_or(Ok(()), Err);
        Ok(self.answer(index, result))
    }

    /// Nothing on its way is answered any more; gives the waiting requests.
    pub(crate) fn end_all(&mut self, error: &Error) -> Vec<Waker> {
        let waiting = |slot: &Slot| matches!(slot.state, State::Waiting(_));
        let indices: Vec<usize> =
            self.slots.iter().enumerate().filter(|(_, slot)| waiting(slot)).map(|(index, _)| index).collect();
        indices.into_iter().filter_map(|index| self.answer(index, Err(error.clone())).waker).collect()
    }

    fn answer(&mut self, index: usize, result: Result<(), Error>) -> Ended {
        let succeeded = result.is_ok();
        let empty = || Ended { ask: Ask::flush(), mark: 0, succeeded: false, waker: None };
        let Some(slot) = self.slots.get_mut(index) else { return empty() };
        let State::Waiting(waiting) = std::mem::replace(&mut slot.state, State::Free) else {
            debug_assert!(false, "a request was answered that was not on its way");
            return empty();
        };
        let Waiting { ask, mark, buf, extents, waker, abandoned, .. } = *waiting;
        if abandoned {
            self.free.push(index);
        } else {
            slot.state = State::Answered(Reply { result, buf, extents });
        }
        Ended { ask, mark, succeeded, waker }
    }
}

impl Waiting {
    /// Where in the buffer bytes for `offset` belong.
    fn arrives(&mut self, offset: u64, len: u64) -> Result<usize, Broken> {
        let outside = || {
            format!("{len} bytes at {offset} answer a request for {} at {}", self.ask.len, self.ask.offset)
        };
        let start = offset.checked_sub(self.ask.offset).ok_or_else(outside)?;
        let end = start.checked_add(len).filter(|&end| end <= self.ask.len).ok_or_else(outside)?;
        if !matches!(self.ask.what, What::Read) || !self.coverage.add(start..end) {
            return Err(outside());
        }
        usize::try_from(start).map_err(|_| "a read is longer than memory".to_owned())
    }

    fn hole(&mut self, offset: u64, len: u64) -> Result<(), Broken> {
        let at = self.arrives(offset, len)?;
        let end = at.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
        let buf = self.buf.as_mut().ok_or("a hole for a request that is no read")?;
        buf.get_mut(at..end).ok_or("a hole beyond the buffer")?.fill(0);
        Ok(())
    }

    fn fail(&mut self, code: ErrorCode, message: &[u8]) {
        let message = String::from_utf8_lossy(message).chars().filter(|c| !c.is_control()).collect();
        self.failure.get_or_insert(Error::Refused { code, message });
    }

    fn check_whole(&self) -> Result<(), Broken> {
        if self.failure.is_some() {
            return Ok(());
        }
        match &self.ask.what {
            What::Read if !self.coverage.is_whole(self.ask.len) => {
                Err(format!("the reply to a read of {} bytes lacks some of them", self.ask.len))
            }
            What::Status if self.extents.is_empty() => Err("the reply to a status has no extents".to_owned()),
            _ => Ok(()),
        }
    }
}
