//! The requests in flight over one connection, and what came back of each.
//!
//! A slot is free again when its reply has come and no task has a use for it: of a request whose future is dropped, once the reply is
//! there. Until then what the driver keeps of the request stays, its buffer too.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use event_listener::Event;
use parking_lot::{Mutex, MutexGuard};

use super::ask::{Ask, Kind};
use super::unflushed::Unflushed;

/// What a driver keeps of a connection, and of each request that is in flight over it.
pub trait Protocol: Debug {
    /// What is asked.
    type Kind: Kind;
    /// What is kept of a request, beside what was asked, until its reply is complete.
    type Request: Debug;
    /// What became of a request.
    type Reply: Debug;
    /// Why a connection is lost.
    type Error: Clone + Debug;
    /// What else is under the lock of the table.
    type Shared: Debug + Default;
    /// Most requests in flight over one connection.
    const IN_FLIGHT_MAX: usize;

    /// The reply to a request whose connection is lost.
    fn lost(request: Self::Request, error: Self::Error) -> Self::Reply;
}

/// A request whose reply is to come.
#[derive(Debug)]
struct Waiting<P: Protocol> {
    ask: Ask<P::Kind>,
    /// What a flush covers when it succeeds.
    mark: u64,
    request: P::Request,
    waker: Option<Waker>,
    /// No task awaits it any more.
    is_abandoned: bool,
}

#[derive(Debug)]
enum State<P: Protocol> {
    Free,
    Waiting(Box<Waiting<P>>),
    Answered(P::Reply),
    /// The reply was taken; a task still uses what belongs to the slot.
    Taken,
}

#[derive(Debug)]
struct Slot<P: Protocol> {
    /// How often it was used: a reply to an earlier request is not taken for one to this.
    round: u32,
    state: State<P>,
}

/// The table of them.
#[derive(Debug)]
pub struct Table<P: Protocol> {
    slots: Vec<Slot<P>>,
    free: Vec<usize>,
    waiting: usize,
    lost: Option<P::Error>,
    unflushed: Arc<Unflushed<P::Kind>>,
    /// What else the driver has under the same lock.
    pub shared: P::Shared,
}

fn cookie(round: u32, index: usize) -> u64 {
    u64::from(round) << 32 | index as u64
}

impl<P: Protocol> Table<P> {
    /// Requests whose replies are to come, also those that no task awaits any more.
    pub fn in_flight(&self) -> usize {
        self.waiting
    }

    /// Why no more requests are taken, if that is so.
    pub fn lost(&self) -> Option<&P::Error> {
        self.lost.as_ref()
    }

    /// Takes a slot, and gives the cookie for the reply: the number of the slot in the lower half. `None` if all are taken.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn enter(
        &mut self,
        ask: &Ask<P::Kind>,
        request: impl FnOnce() -> P::Request,
    ) -> Result<Option<u64>, P::Error> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < P::IN_FLIGHT_MAX => {
                self.slots.push(Slot { round: 0, state: State::Free });
                self.slots.len() - 1
            }
            None => return Ok(None),
        };
        let Some(slot) = self.slots.get_mut(index) else { return Ok(None) };
        let is_flush = ask.kind == P::Kind::FLUSH && !ask.is_repeat;
        let mark = if is_flush { self.unflushed.mark() } else { 0 };
        let (ask, request) = (ask.clone(), request());
        slot.round = slot.round.wrapping_add(1);
        slot.state =
            State::Waiting(Box::new(Waiting { ask, mark, request, waker: None, is_abandoned: false }));
        self.waiting += 1;
        Ok(Some(cookie(slot.round, index)))
    }

    /// The slot of a request, unless another one has it by now.
    fn of(&mut self, cookie: u64) -> Option<(usize, &mut State<P>)> {
        let index = usize::try_from(cookie & u64::from(u32::MAX)).ok()?;
        let slot = self.slots.get_mut(index).filter(|slot| u64::from(slot.round) == cookie >> 32)?;
        Some((index, &mut slot.state))
    }

    /// The request with this cookie, if its reply is to come.
    pub fn waiting(&mut self, cookie: u64) -> Option<(&Ask<P::Kind>, &mut P::Request)> {
        match self.of(cookie)?.1 {
            State::Waiting(waiting) => Some((&waiting.ask, &mut waiting.request)),
            State::Free | State::Answered(_) | State::Taken => None,
        }
    }

    /// Takes the reply, if it is there; otherwise `waker` is notified of it. The slot stays taken.
    pub fn poll(&mut self, cookie: u64, waker: &Waker) -> Option<P::Reply> {
        let (_, state) = self.of(cookie)?;
        match state {
            State::Waiting(waiting) => {
                match &mut waiting.waker {
                    Some(known) => known.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                None
            }
            State::Answered(_) => match std::mem::replace(state, State::Taken) {
                State::Answered(reply) => Some(reply),
                _ => None,
            },
            State::Free | State::Taken => None,
        }
    }

    /// No task has a use for the slot any more. It is free once the reply is there.
    fn leave(&mut self, cookie: u64) {
        let Some((index, state)) = self.of(cookie) else { return };
        match state {
            State::Waiting(waiting) => (waiting.is_abandoned, waiting.waker) = (true, None),
            State::Answered(_) | State::Taken => {
                *state = State::Free;
                self.free.push(index);
            }
            State::Free => {}
        }
    }

    /// Gives a request its reply; `None` if no such request waits for one. `counts`, which comes with the reply, says that a flush makes
    /// it durable, or that it is a flush that has done so.
    fn answer(
        &mut self,
        cookie: u64,
        reply: impl FnOnce(P::Request) -> (P::Reply, bool),
    ) -> Option<Option<Waker>> {
        let (index, state) = self.of(cookie)?;
        let waiting = match std::mem::replace(state, State::Free) {
            State::Waiting(waiting) => waiting,
            other => {
                *state = other;
                return None;
            }
        };
        let Waiting { ask, mark, request, waker, is_abandoned } = *waiting;
        let (reply, counts) = reply(request);
        match is_abandoned {
            true => self.free.push(index),
            false => *state = State::Answered(reply),
        }
        self.waiting -= 1;
        // Before a request is answered: its client may flush then. And before the connection may be lost: what another one repeats has this write.
        if counts && ask.kind == P::Kind::FLUSH {
            self.unflushed.flushed(mark);
        } else if counts && ask.is_to_be_flushed() {
            self.unflushed.acknowledged(ask);
        }
        Some(waker)
    }

    /// No more requests are taken, and all in flight are answered with `error`; gives the tasks that await them.
    pub fn lose(&mut self, error: P::Error) -> Vec<Waker> {
        let slots = self.slots.iter().enumerate();
        let waiting = slots.filter(|(_, slot)| matches!(slot.state, State::Waiting(_)));
        let cookies: Vec<u64> = waiting.map(|(index, slot)| cookie(slot.round, index)).collect();
        let lost = |cookie| self.answer(cookie, |request| (P::lost(request, error.clone()), false));
        let wakers = cookies.into_iter().filter_map(lost).flatten().collect();
        self.lost = Some(error);
        wakers
    }

    /// The tasks that await replies: they ask again.
    pub fn take_wakers(&mut self) -> Vec<Waker> {
        let waker = |slot: &mut Slot<P>| match &mut slot.state {
            State::Waiting(waiting) => waiting.waker.take(),
            State::Free | State::Answered(_) | State::Taken => None,
        };
        self.slots.iter_mut().filter_map(waker).collect()
    }
}

/// The table, and the tasks that wait for a free slot in it.
#[derive(Debug)]
pub struct InFlight<P: Protocol> {
    table: Mutex<Table<P>>,
    /// A slot is free, or the connection is lost.
    room: Event,
}

impl<P: Protocol> InFlight<P> {
    /// None yet. What is acknowledged and not flushed is added to `unflushed`.
    pub fn new(unflushed: Arc<Unflushed<P::Kind>>) -> Self {
        let (slots, free, shared) = (Vec::new(), Vec::new(), P::Shared::default());
        let table = Table { slots, free, waiting: 0, lost: None, unflushed, shared };
        Self { table: Mutex::new(table), room: Event::new() }
    }

    /// The table, locked.
    pub fn lock(&self) -> MutexGuard<'_, Table<P>> {
        self.table.lock()
    }

    /// The slot whose cookie `enter` gives, once there is one.
    ///
    /// # Errors
    /// Those of `enter`.
    pub async fn entered(
        &self,
        mut enter: impl FnMut() -> Result<Option<u64>, P::Error>,
    ) -> Result<Taken<'_, P>, P::Error> {
        let mut room = None;
        loop {
            if let Some(cookie) = enter()? {
                return Ok(Taken { in_flight: self, cookie, is_over: false });
            }
            match room.take() {
                // What becomes free from here on is notified.
                None => room = Some(self.room.listen()),
                Some(room) => room.await,
            }
        }
    }

    /// The reply to a request is complete: `reply` makes it of what was kept, and says whether a flush makes the request durable, or that it is
    /// a flush that has done so. False if no such request is in flight.
    pub fn answered(
        &self,
        mut table: MutexGuard<'_, Table<P>>,
        cookie: u64,
        reply: impl FnOnce(P::Request) -> (P::Reply, bool),
    ) -> bool {
        let Some(waker) = table.answer(cookie, reply) else { return false };
        drop(table);
        match waker {
            Some(waker) => waker.wake(),
            // No task waits: the slot may be free already.
            None => _ = self.room.notify(1),
        }
        true
    }

    /// Wakes all tasks: those of `wakers`, and those that wait for a slot.
    pub fn wake(&self, wakers: impl IntoIterator<Item = Waker>) {
        wakers.into_iter().for_each(Waker::wake);
        self.room.notify(usize::MAX);
    }
}

/// A slot that is taken, until this is dropped; then until the reply has come. Awaited, it gives the reply, and the slot is free at once.
#[derive(Debug)]
#[must_use = "dropped, no task awaits the reply"]
pub struct Taken<'a, P: Protocol> {
    in_flight: &'a InFlight<P>,
    cookie: u64,
    /// The slot may be another task's.
    is_over: bool,
}

impl<P: Protocol> Taken<'_, P> {
    /// What comes back with the reply.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }
}

impl<P: Protocol> Future for Taken<'_, P> {
    type Output = P::Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<P::Reply> {
        if self.is_over {
            return Poll::Pending;
        }
        let mut table = self.in_flight.lock();
        let Some(reply) = table.poll(self.cookie, cx.waker()) else { return Poll::Pending };
        table.leave(self.cookie);
        drop(table);
        self.is_over = true;
        self.in_flight.room.notify(1);
        Poll::Ready(reply)
    }
}

impl<P: Protocol> Drop for Taken<'_, P> {
    fn drop(&mut self) {
        if !self.is_over {
            self.in_flight.lock().leave(self.cookie);
            self.in_flight.room.notify(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use futures_util::FutureExt;

    use super::super::unflushed::UnflushedMode;
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    enum What {
        Write,
        Flush,
    }

    impl Kind for What {
        const FLUSH: Self = Self::Flush;

        fn writes(&self) -> bool {
            *self == Self::Write
        }
    }

    #[derive(Debug)]
    struct Plain;

    type Answer = Result<u64, &'static str>;

    impl Protocol for Plain {
        type Kind = What;
        /// A buffer.
        type Request = Arc<()>;
        type Reply = Answer;
        type Error = &'static str;
        type Shared = ();
        const IN_FLIGHT_MAX: usize = 4;

        fn lost(_: Arc<()>, error: &'static str) -> Answer {
            Err(error)
        }
    }

    fn none() -> InFlight<Plain> {
        InFlight::new(Arc::new(Unflushed::new(UnflushedMode::Forget)))
    }

    fn enter(all: &InFlight<Plain>, buffer: &Arc<()>) -> Result<Option<u64>, &'static str> {
        all.lock().enter(&Ask::new(What::Write, 0, 512), || Arc::clone(buffer))
    }

    /// Those that fit.
    fn full(all: &InFlight<Plain>) -> [Taken<'_, Plain>; 4] {
        [(); 4].map(|()| all.entered(|| enter(all, &Arc::default())).now_or_never().unwrap().unwrap())
    }

    fn answer(all: &InFlight<Plain>, cookie: u64) -> bool {
        all.answered(all.lock(), cookie, |_| (Ok(7), true))
    }

    /// The reply, if it is there. The slot stays taken.
    fn reply(all: &InFlight<Plain>, cookie: u64) -> Option<Answer> {
        all.lock().poll(cookie, Waker::noop())
    }

    /// A peer that answers twice had the second answer taken for one to the next request in the slot.
    #[test]
    fn an_answer_is_taken_once_and_only_for_a_request_on_its_way() {
        let (all, buffer) = (none(), Arc::default());
        let cookie = enter(&all, &buffer).unwrap().unwrap();
        assert_eq!((reply(&all, cookie), all.lock().in_flight()), (None, 1));
        for wrong in [cookie ^ 1, cookie + (1 << 32), u64::MAX] {
            assert!(!answer(&all, wrong));
        }
        assert!(answer(&all, cookie) && !answer(&all, cookie));
        assert_eq!((reply(&all, cookie), all.lock().in_flight()), (Some(Ok(7)), 0));
        all.lock().leave(cookie);
        let next = enter(&all, &buffer).unwrap().unwrap();
        assert_ne!(next, cookie);
        assert!(!answer(&all, cookie));
        assert_eq!(reply(&all, next), None);
    }

    /// What the peer still sent was received into memory that had gone with the future.
    #[test]
    fn the_buffer_and_the_slot_of_a_dropped_request_stay_until_its_answer() {
        let (all, buffer) = (none(), Arc::default());
        let taken = all.entered(|| enter(&all, &buffer)).now_or_never().unwrap().unwrap();
        let cookie = taken.cookie();
        drop(taken);
        assert_eq!((Arc::strong_count(&buffer), all.lock().in_flight()), (2, 1));
        assert!(answer(&all, cookie));
        assert_eq!((Arc::strong_count(&buffer), all.lock().in_flight()), (1, 0));
        let next = enter(&all, &buffer).unwrap().unwrap();
        assert_eq!(next & u64::from(u32::MAX), cookie & u64::from(u32::MAX));
    }

    /// What a reply brings may lie in memory that belongs to the slot: a second request there would change it.
    #[test]
    fn a_slot_whose_reply_was_taken_is_free_when_its_task_leaves_it() {
        let all = none();
        let [_a, taken, _b, _c] = full(&all);
        assert!(answer(&all, taken.cookie()));
        assert_eq!(reply(&all, taken.cookie()), Some(Ok(7)));
        assert_eq!(enter(&all, &Arc::default()), Ok(None));
        drop(taken);
        assert!(enter(&all, &Arc::default()).unwrap().is_some());
    }

    #[test]
    fn tasks_get_free_slots_in_the_order_in_which_they_came() {
        let all = none();
        let [_a, mut taken, _b, _c] = full(&all);
        assert_eq!((&mut taken).now_or_never(), None);
        let mut waiting = [(); 2].map(|()| Box::pin(all.entered(|| enter(&all, &Arc::default()))));
        assert!(waiting.iter_mut().all(|entered| entered.now_or_never().is_none()));
        assert!(answer(&all, taken.cookie()));
        assert_eq!((&mut taken).now_or_never(), Some(Ok(7)));
        let [first, second] = &mut waiting;
        assert!(second.now_or_never().is_none());
        assert!(first.now_or_never().is_some());
    }

    /// Who waited for a slot was not woken when the reply to a dropped request freed one: only the task that had dropped it was.
    #[test]
    fn the_slot_of_a_dropped_request_goes_to_a_task_that_waits_for_one() {
        #[derive(Default)]
        struct Woken(AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let (all, woken) = (none(), Arc::new(Woken::default()));
        let [mut dropped, _a, _b, _c] = full(&all);
        let cookie = dropped.cookie();
        assert_eq!((&mut dropped).now_or_never(), None);
        drop(dropped);
        let mut waiting = pin!(all.entered(|| enter(&all, &Arc::default())));
        let waker = Waker::from(Arc::clone(&woken));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(answer(&all, cookie));
        assert!(woken.0.load(Ordering::Relaxed));
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn a_lost_connection_answers_what_is_in_flight_and_takes_nothing_more() {
        let all = none();
        let [answered, mut waits, _a, _b] = full(&all);
        assert!(answer(&all, answered.cookie()));
        assert_eq!((&mut waits).now_or_never(), None);
        let late = all.entered(|| enter(&all, &Arc::default()));
        let wakers = all.lock().lose("lost");
        assert_eq!(wakers.len(), 1);
        all.wake(wakers);
        assert_eq!(all.lock().in_flight(), 0);
        assert_eq!((answered.now_or_never(), waits.now_or_never()), (Some(Ok(7)), Some(Err("lost"))));
        assert_eq!(late.now_or_never().unwrap().err(), Some("lost"));
    }
}
