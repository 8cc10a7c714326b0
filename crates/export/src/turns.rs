//! A loop's time, shared between clients by bytes.
//!
//! What a step costs a loop is the copying of its bytes, at the moment it is started. Each turn of the loop starts
//! steps of [`TURN_BYTES`] at most; then sockets and timers are looked at. Where more are asked for they wait, and go in
//! the order of [`round`]. A step that was started holds nothing: a disk that hangs keeps no other client from starting.

mod round;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use block::pace::STEP_BYTES;

pub(crate) use self::round::Party;
use self::round::{Round, Ticket};

/// What a step costs beyond its bytes: as much of a loop's time as copying so many.
const STEP_OVERHEAD_BYTES: u64 = 4 << 10;

/// What the largest step costs.
const STEP_COST_MAX: u64 = STEP_BYTES + STEP_OVERHEAD_BYTES;

/// What the steps cost that one turn of a loop starts: one of the largest, about a millisecond.
const TURN_BYTES: u64 = STEP_COST_MAX;

/// The turns of one loop.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    round: Round,
    /// Steps that wait. One that is not here may go.
    waiting: HashMap<Ticket, Option<Waker>>,
    next: Ticket,
    /// The turn of the loop that `left` is of.
    turn: u64,
    left: u64,
    /// A task gives out turns.
    is_giving: bool,
}

impl Turns {
    /// Ends when `party` may start a step of `bytes`.
    async fn step(self: &Rc<Self>, party: Party, bytes: u64) {
        let cost = (bytes + STEP_OVERHEAD_BYTES).min(STEP_COST_MAX);
        if self.state.borrow_mut().try_take(reactor::stats().turns, cost) {
            return;
        }
        let ticket = self.state.borrow_mut().queue(party, cost);
        if !std::mem::replace(&mut self.state.borrow_mut().is_giving, true) {
            reactor::spawn(Rc::clone(self).give()).detach();
        }
        Waiting { turns: self, party, ticket }.await;
    }

    /// Gives out turns until no client waits.
    async fn give(self: Rc<Self>) {
        loop {
            reactor::yield_now().await;
            let wakers = self.state.borrow_mut().give(reactor::stats().turns);
            wakers.into_iter().for_each(Waker::wake);
            let mut state = self.state.borrow_mut();
            if state.round.is_empty() {
                state.is_giving = false;
                return;
            }
        }
    }
}

impl State {
    fn enter(&mut self, turn: u64) {
        if self.turn != turn {
            (self.turn, self.left) = (turn, TURN_BYTES);
        }
    }

    fn try_take(&mut self, turn: u64, cost: u64) -> bool {
        self.enter(turn);
        let goes = self.round.is_empty() && cost <= self.left;
        self.left -= if goes { cost } else { 0 };
        goes
    }

    fn queue(&mut self, party: Party, cost: u64) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        self.waiting.insert(ticket, None);
        self.round.push(party, ticket, cost);
        ticket
    }

    /// Lets as many go as this turn has room for; gives their wakers.
    fn give(&mut self, turn: u64) -> Vec<Waker> {
        self.enter(turn);
        let mut wakers = Vec::new();
        while let Some((ticket, cost)) = self.round.take(self.left) {
            self.left -= cost;
            wakers.extend(self.waiting.remove(&ticket).flatten());
        }
        wakers
    }
}

/// A step in line. Dropped before its turn, it leaves the line.
struct Waiting<'a> {
    turns: &'a Turns,
    party: Party,
    ticket: Ticket,
}

impl Future for Waiting<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.turns.state.borrow_mut().waiting.get_mut(&self.ticket) {
            None => Poll::Ready(()),
            Some(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.borrow_mut();
        if let Some(waker) = state.waiting.remove(&self.ticket) {
            state.round.cancel(self.party, self.ticket);
            drop(state);
            drop(waker);
        }
    }
}

/// When the steps of one client's requests may begin. A clone is for one request, and learns when that is admitted.
#[derive(Debug)]
pub struct Pace {
    turns: Rc<Turns>,
    party: Party,
    is_admitted: Cell<bool>,
}

impl Clone for Pace {
    fn clone(&self) -> Self {
        Self::new(&self.turns, self.party)
    }
}

impl Pace {
    pub(crate) fn new(turns: &Rc<Turns>, party: Party) -> Self {
        Self { turns: Rc::clone(turns), party, is_admitted: Cell::new(false) }
    }

    /// Whether a request with this pace is past the limits of its disk: it runs, and must not be dropped.
    pub fn is_admitted(&self) -> bool {
        self.is_admitted.get()
    }

    /// Ends when `bytes` more may be read or written; at most [`STEP_BYTES`] at a time.
    pub async fn step(&self, bytes: u64) {
        self.turns.step(self.party, bytes).await;
    }
}

impl block::pace::Pace for Pace {
    fn step(&self, bytes: u64) -> impl Future<Output = ()> {
        self.turns.step(self.party, bytes)
    }

    fn admitted(&self) {
        self.is_admitted.set(true);
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_large_steps_the_loop_turns_and_a_small_client_is_served() {
        let reactor = reactor::Reactor::new(reactor::Backend::Threads).expect("a loop");
        let turns = Rc::new(Turns::default());
        let log = Rc::new(RefCell::new(Vec::new()));
        let work = |connection: u64, disk, bytes, count| {
            let pace = Pace::new(&turns, Party { disk, connection });
            let log = Rc::clone(&log);
            reactor::spawn(async move {
                for _ in 0..count {
                    pace.step(bytes).await;
                    log.borrow_mut().push((connection, reactor::stats().turns));
                }
            })
        };
        reactor.run(async {
            let mut tasks: Vec<_> = (0..16).map(|connection| work(connection, 1, STEP_BYTES, 4)).collect();
            tasks.push(work(99, 2, 4096, 4));
            for task in tasks {
                task.await;
            }
        });
        let log = log.borrow();
        let large: Vec<u64> = log.iter().filter(|(who, _)| *who != 99).map(|&(_, turn)| turn).collect();
        assert!(large.windows(2).all(|two| two[0] < two[1]), "two large steps in one turn: {log:?}");
        let last_small = log.iter().rposition(|(who, _)| *who == 99).expect("it was served");
        assert!(last_small <= 12, "the small client waited for {last_small} steps of others: {log:?}");
        assert!(turns.state.borrow().round.is_empty() && turns.state.borrow().waiting.is_empty());
    }

    #[test]
    fn a_step_that_is_dropped_leaves_the_line() {
        let reactor = reactor::Reactor::new(reactor::Backend::Threads).expect("a loop");
        let turns = Rc::new(Turns::default());
        let pace = Pace::new(&turns, Party { disk: 1, connection: 1 });
        reactor.run(async {
            pace.step(STEP_BYTES).await;
            let waiting = reactor::spawn({
                let pace = pace.clone();
                async move { pace.step(STEP_BYTES).await }
            });
            let mut second = std::pin::pin!(pace.step(STEP_BYTES));
            assert!(second.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            waiting.cancel().await;
            second.await;
        });
        assert!(turns.state.borrow().waiting.is_empty());
    }
}
