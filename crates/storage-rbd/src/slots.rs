//! The requests that are on their way to one worker, and what came back of each.

use std::task::Waker;

use crate::ask::Ask;
use crate::errors::Error;
use crate::message::{Answer, Malformed, SLOTS};

/// A request that is on its way.
#[derive(Debug)]
struct Waiting {
    ask: Ask,
    /// What a flush covers when it succeeds.
    mark: u64,
    waker: Option<Waker>,
    /// No task awaits it any more.
    is_abandoned: bool,
}

#[derive(Debug)]
enum State {
    Free,
    Waiting(Box<Waiting>),
    Answered(Answer),
}

#[derive(Debug)]
struct Slot {
    /// How often it was used: an answer to an earlier request is not taken for one to this.
    round: u32,
    state: State,
}

/// The table of them.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// How many wait for an answer.
    waiting: usize,
    is_lost: bool,
}

/// A request that ended.
pub(crate) struct Ended {
    pub(crate) ask: Ask,
    pub(crate) mark: u64,
    pub(crate) waker: Option<Waker>,
}

impl Slots {
    /// All free.
    pub(crate) fn new() -> Self {
        let slots = (0..SLOTS).map(|_| Slot { round: 0, state: State::Free });
        Self { slots: slots.collect(), free: (0..SLOTS).rev().collect(), waiting: 0, is_lost: false }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Whether an answer is to come, also one that no task awaits any more.
    pub(crate) fn awaits_answers(&self) -> bool {
        self.waiting > 0
    }

    /// Takes a slot and gives its cookie; `None` if all are taken.
    ///
    /// # Errors
    /// When the worker is lost.
    pub(crate) fn enter(&mut self, ask: &Ask, mark: u64) -> Result<Option<u64>, Error> {
        if self.is_lost {
            return Err(Error::Lost);
        }
        let Some(index) = self.free.pop() else { return Ok(None) };
        let Some(slot) = self.slots.get_mut(index as usize) else { return Ok(None) };
        slot.round = slot.round.wrapping_add(1);
        let waiting = Waiting { ask: ask.clone(), mark, waker: None, is_abandoned: false };
        slot.state = State::Waiting(Box::new(waiting));
        self.waiting += 1;
        Ok(Some(u64::from(slot.round) << 32 | u64::from(index)))
    }

    /// The slot of a request, unless another one has it by now.
    fn of(&mut self, cookie: u64) -> Option<&mut Slot> {
        let index = usize::try_from(cookie & u64::from(u32::MAX)).ok()?;
        self.slots.get_mut(index).filter(|slot| u64::from(slot.round) == cookie >> 32)
    }

    /// The answer, if there is one; otherwise `waker` is notified of it. The slot stays taken until [`Slots::leave`].
    ///
    /// # Errors
    /// When the worker is lost.
    pub(crate) fn poll(&mut self, cookie: u64, waker: &Waker) -> Result<Option<Answer>, Error> {
        let is_lost = self.is_lost;
        match self.of(cookie).map(|slot| &mut slot.state) {
            Some(State::Answered(answer)) => Ok(Some(*answer)),
            Some(State::Waiting(waiting)) if !is_lost => {
                waiting.waker = Some(waker.clone());
                Ok(None)
            }
            _ => Err(Error::Lost),
        }
    }

    /// No task awaits it any more. The slot is free, once the worker has done with its memory.
    pub(crate) fn leave(&mut self, cookie: u64) {
        let Some(slot) = self.of(cookie) else { return };
        match &mut slot.state {
            State::Waiting(waiting) => waiting.is_abandoned = true,
            State::Answered(_) => self.give_back(cookie),
            State::Free => {}
        }
    }

    fn give_back(&mut self, cookie: u64) {
        if let Some(slot) = self.of(cookie) {
            slot.state = State::Free;
            self.free.push(u32::try_from(cookie & u64::from(u32::MAX)).unwrap_or_default());
        }
    }

    /// An answer arrived.
    ///
    /// # Errors
    /// When it answers nothing that is on its way.
    pub(crate) fn answered(&mut self, answer: Answer) -> Result<Ended, Malformed> {
        let unknown = Malformed("a request that is not on its way");
        let slot = self.of(answer.cookie).ok_or(unknown)?;
        if !matches!(slot.state, State::Waiting(_)) {
            return Err(unknown);
        }
        let state = std::mem::replace(&mut slot.state, State::Answered(answer));
        let State::Waiting(waiting) = state else { return Err(unknown) };
        let Waiting { ask, mark, waker, is_abandoned } = *waiting;
        self.waiting -= 1;
        if is_abandoned {
            self.give_back(answer.cookie);
        }
        Ok(Ended { ask, mark, waker })
    }

    /// Who waits for answers.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        let waker = |slot: &mut Slot| match &mut slot.state {
            State::Waiting(waiting) => waiting.waker.take(),
            State::Free | State::Answered(_) => None,
        };
        self.slots.iter_mut().filter_map(waker).collect()
    }

    /// No more answers come: gives those who wait.
    pub(crate) fn lose(&mut self) -> Vec<Waker> {
        self.is_lost = true;
        self.take_wakers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Kind;

    fn answer(cookie: u64) -> Answer {
        Answer { cookie, error: 0, is_data: false, value: 0 }
    }

    /// A worker that answers twice had the second answer taken for one to the next request in the slot.
    #[test]
    fn an_answer_is_taken_once_and_only_for_a_request_on_its_way() {
        let mut slots = Slots::new();
        let ask = Ask::new(Kind::Read, 0, 512);
        let cookie = slots.enter(&ask, 0).unwrap().unwrap();
        let waker = Waker::noop();
        assert_eq!(slots.poll(cookie, waker), Ok(None));
        assert!(slots.awaits_answers());
        assert!(slots.answered(answer(cookie ^ 1)).is_err());
        assert!(slots.answered(answer(cookie + (1 << 32))).is_err());
        assert!(slots.answered(answer(u64::MAX)).is_err());
        assert!(slots.answered(answer(cookie)).is_ok());
        assert!(slots.answered(answer(cookie)).is_err());
        assert_eq!(slots.poll(cookie, waker), Ok(Some(answer(cookie))));
        assert!(!slots.awaits_answers());
        slots.leave(cookie);
        let next = slots.enter(&ask, 0).unwrap().unwrap();
        assert_ne!(next, cookie);
        assert!(slots.answered(answer(cookie)).is_err());
        assert_eq!(slots.poll(next, waker), Ok(None));
    }

    #[test]
    fn a_slot_that_was_given_up_is_used_again_after_its_answer_only() {
        let mut slots = Slots::new();
        let ask = Ask::new(Kind::Write, 0, 512);
        let cookies: Vec<u64> = (0..SLOTS).map(|_| slots.enter(&ask, 0).unwrap().unwrap()).collect();
        assert_eq!(slots.enter(&ask, 0), Ok(None));
        slots.leave(cookies[3]);
        assert_eq!(slots.enter(&ask, 0), Ok(None));
        assert!(slots.awaits_answers());
        assert!(slots.answered(answer(cookies[3])).is_ok());
        assert!(slots.enter(&ask, 0).unwrap().is_some());
        slots.lose();
        assert_eq!(slots.enter(&ask, 0), Err(Error::Lost));
        assert_eq!(slots.poll(cookies[4], Waker::noop()), Err(Error::Lost));
    }
}
