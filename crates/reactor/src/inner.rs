//! The loop's state, shared by its futures.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use async_task::Runnable;

use crate::backend::{Backend, warn_of_fallback};
use crate::look::Watching;
use crate::op::Place;
use crate::poll::Poll;
use crate::pool;
use crate::remote::Remote;
use crate::ring::{Ring, Wait};
use crate::slots::{Landing, Slots};
use crate::task::Tasks;
use crate::timers::Timers;
use crate::work::Work;

/// What a loop has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Turns of the loop.
    pub turns: u64,
    /// System calls that submitted or waited (`io_uring_enter`, `poll`).
    pub calls: u64,
    /// Operations started.
    pub started: u64,
    /// Operations completed.
    pub completed: u64,
}

enum Driver {
    Ring(Box<Ring>),
    Poll(Poll),
}

/// Everything of a loop. No borrow of a cell lasts while foreign code (a waker, a destructor, a
/// future) runs: that code may come back here.
pub(crate) struct Inner {
    pub(crate) remote: Arc<Remote>,
    pub(crate) ready: RefCell<VecDeque<Runnable>>,
    pub(crate) tasks: RefCell<Tasks>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) watching: RefCell<Watching>,
    /// The loop has looked for something to do, and those that watch have been notified that it is about to sleep.
    has_looked: Cell<bool>,
    slots: RefCell<Slots>,
    driver: RefCell<Driver>,
    landings: Cell<Vec<Landing>>,
    stats: Cell<Stats>,
    inline_left: Cell<u32>,
}

/// Calls that tasks may make on the loop's thread in one turn ([`crate::fs::may_call_inline`]): enough for a
/// batch of requests, little enough that sockets and timers are served in between.
const INLINE_CALLS_MAX: u32 = 64;

/// How long a loop rests when `poll` fails (the kernel has no memory for it): it must not spin.
const POLL_PAUSE: Duration = Duration::from_millis(10);

thread_local! {
    static CURRENT: RefCell<Option<Rc<Inner>>> = const { RefCell::new(None) };
}

/// Makes a loop the current one of its thread, until dropped.
pub(crate) struct Entered {
    before: Option<Rc<Inner>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        let left = CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), before));
        drop(left);
    }
}

impl Inner {
    pub(crate) fn new(backend: Backend) -> io::Result<Self> {
        let remote = Arc::new(Remote::new()?);
        let poll = || Driver::Poll(Poll::new(remote.event()));
        let driver = match backend {
            Backend::Ring => Ring::new().map_or_else(
                |error| {
                    warn_of_fallback(&error);
                    poll()
                },
                |ring| Driver::Ring(Box::new(ring)),
            ),
            Backend::Threads => poll(),
        };
        Ok(Self {
            remote,
            ready: RefCell::default(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            watching: RefCell::default(),
            has_looked: Cell::new(false),
            slots: RefCell::new(Slots::new()),
            driver: RefCell::new(driver),
            landings: Cell::default(),
            stats: Cell::default(),
            inline_left: Cell::new(INLINE_CALLS_MAX),
        })
    }

    pub(crate) fn enter(self: &Rc<Self>) -> Entered {
        let before = CURRENT.with(|current| current.borrow_mut().replace(Rc::clone(self)));
        Entered { before }
    }

    /// The loop that runs on this thread.
    ///
    /// # Panics
    /// If none does.
    pub(crate) fn current() -> Rc<Inner> {
        #[expect(clippy::expect_used, reason = "I/O outside of a loop is a bug of the caller")]
        CURRENT.with(|current| current.borrow().clone()).expect("no reactor runs on this thread")
    }

    /// Whether a loop runs on this thread.
    pub(crate) fn is_entered() -> bool {
        CURRENT.with(|current| current.borrow().is_some())
    }

    /// The loop that `remote` belongs to, if it runs on this thread.
    pub(crate) fn current_of(remote: &Arc<Remote>) -> Option<Rc<Inner>> {
        let same = |inner: &&Rc<Inner>| Arc::ptr_eq(&inner.remote, remote);
        CURRENT.try_with(|current| current.borrow().as_ref().filter(same).cloned()).ok().flatten()
    }

    pub(crate) fn backend(&self) -> Backend {
        match *self.driver.borrow() {
            Driver::Ring(_) => Backend::Ring,
            Driver::Poll(_) => Backend::Threads,
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats.get()
    }

    fn count(&self, add: impl FnOnce(&mut Stats)) {
        let mut stats = self.stats.get();
        add(&mut stats);
        self.stats.set(stats);
    }

    /// Whether this turn has room for one more call on the loop's own thread; takes it.
    pub(crate) fn take_inline(&self) -> bool {
        let left = self.inline_left.get();
        self.inline_left.set(left.saturating_sub(1));
        left > 0
    }

    pub(crate) fn start(&self, work: Work, place: Place) -> usize {
        self.count(|stats| stats.started += 1);
        let mut slots = self.slots.borrow_mut();
        let mut driver = self.driver.borrow_mut();
        let here = place == Place::Loop
            && match *driver {
                Driver::Ring(_) => !matches!(work, Work::Call(_)),
                Driver::Poll(_) => Poll::takes(&work),
            };
        let key = slots.insert(work);
        if !here {
            let lent = slots.lend(key);
            drop((slots, driver));
            if let Some(work) = lent {
                pool::start(&self.remote, key, work);
            }
            return key;
        }
        if let Some((work, vectors)) = slots.work(key) {
            match &mut *driver {
                Driver::Ring(ring) => match ring.start(key, work, vectors) {
                    Ok(calls) => self.count(|stats| stats.calls += u64::from(calls)),
                    Err(error) => self.lose_ring(&mut driver, &mut slots, &error),
                },
                Driver::Poll(poll) => poll.start(key, work),
            }
        }
        key
    }

    /// The kernel does not take this loop's ring any more: it goes on over threads. What was in flight on the ring
    /// fails, the kernel may yet carry it out: the ring, and what the kernel may touch, stay in memory for ever.
    fn lose_ring(&self, driver: &mut Driver, slots: &mut Slots, error: &io::Error) {
        tracing::error!(%error, "io_uring has failed; requests in flight on it fail, later ones use threads");
        let poll = Driver::Poll(Poll::new(self.remote.event()));
        std::mem::forget(std::mem::replace(driver, poll));
        let mut landings = self.landings.take();
        landings.extend(slots.fail_all());
        self.landings.set(landings);
    }

    pub(crate) fn poll_op(&self, key: usize, cx: &Context<'_>) -> Option<(Work, i32)> {
        self.slots.borrow_mut().poll(key, cx)
    }

    pub(crate) fn abandon(&self, key: usize) {
        let (cancel, mut landing) = self.slots.borrow_mut().abandon(key);
        if cancel {
            self.cancel(key);
        }
        landing.clear();
    }

    pub(crate) fn cancel(&self, key: usize) {
        let mut driver = self.driver.borrow_mut();
        match &mut *driver {
            Driver::Ring(ring) => {
                if let Err(error) = ring.cancel(key) {
                    self.lose_ring(&mut driver, &mut self.slots.borrow_mut(), &error);
                }
            }
            Driver::Poll(poll) => poll.cancel(key),
        }
    }

    /// Takes in what other threads sent.
    pub(crate) fn take_remote(&self) {
        let Some(inbox) = self.remote.take() else { return };
        self.ready.borrow_mut().extend(inbox.runnables);
        if inbox.returned.is_empty() {
            return;
        }
        let mut landings = self.landings.take();
        let mut slots = self.slots.borrow_mut();
        landings.extend(
            inbox.returned.into_iter().map(|done| slots.land(done.key, done.result, Some(done.work))),
        );
        drop(slots);
        self.finish(landings);
    }

    /// Runs the tasks that are ready now; those that become ready meanwhile have their turn next.
    pub(crate) fn run_ready(&self) {
        self.inline_left.set(INLINE_CALLS_MAX);
        self.count(|stats| stats.turns += 1);
        let batch = self.ready.borrow().len();
        for _ in 0..batch {
            let Some(runnable) = self.ready.borrow_mut().pop_front() else { return };
            runnable.run();
        }
    }

    /// Wakes whose time has come.
    pub(crate) fn expire(&self) {
        if self.timers.borrow().next().is_none() {
            return;
        }
        let now = Instant::now();
        loop {
            let due = self.timers.borrow_mut().expire(now);
            let Some(waker) = due else { return };
            waker.wake();
        }
    }

    /// Submits what the tasks started and takes in what has completed; with nothing else to do,
    /// looks for something, and then sleeps until there is something.
    pub(crate) fn turn(&self, idle: bool) {
        let has_looked = self.has_looked.replace(false);
        if !idle {
            self.drive(Wait::No);
            self.tell_watching(false);
            return;
        }
        if !has_looked {
            let found = || self.remote.is_notified() || self.watching.borrow().is_there();
            self.drive(Wait::Look(self.time_left(), &found));
            let idle = self.ready.borrow().is_empty() && !self.remote.is_notified();
            // What is notified now has something to do before the loop sleeps.
            if self.tell_watching(idle) || !idle {
                return self.has_looked.set(idle);
            }
        }
        if !self.remote.park() {
            return self.drive(Wait::No);
        }
        self.drive(Wait::Until(self.time_left()));
        self.remote.unpark();
    }

    /// Until the next timer.
    fn time_left(&self) -> Option<Duration> {
        let next = self.timers.borrow().next();
        next.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Wakes those that watch and have found something; if the loop is about to sleep, all. Whether there were any.
    fn tell_watching(&self, about_to_sleep: bool) -> bool {
        if self.watching.borrow().is_empty() {
            return false;
        }
        let wakers = self.watching.borrow_mut().take(about_to_sleep);
        let any = !wakers.is_empty();
        wakers.into_iter().for_each(std::task::Waker::wake);
        any
    }

    fn drive(&self, wait: Wait<'_>) {
        let mut landings = self.landings.take();
        let mut slots = self.slots.borrow_mut();
        let mut driver = self.driver.borrow_mut();
        // What a lost ring left is to be handled before the loop sleeps.
        let wait = if landings.is_empty() { wait } else { Wait::No };
        let driven = match &mut *driver {
            Driver::Ring(ring) => {
                let armed = match wait {
                    Wait::Until(_) => ring.arm(self.remote.event()),
                    Wait::No | Wait::Look(..) => Ok(()),
                };
                armed.and_then(|()| ring.turn(&mut slots, wait, &mut landings))
            }
            Driver::Poll(poll) => poll.turn(&mut slots, wait, &mut landings),
        };
        match (driven, &*driver) {
            (Ok(calls), _) => self.count(|stats| stats.calls += u64::from(calls)),
            (Err(error), Driver::Ring(_)) => self.lose_ring(&mut driver, &mut slots, &error),
            (Err(error), Driver::Poll(_)) => {
                tracing::error!(%error, "cannot wait for sockets, they are looked at again");
                std::thread::sleep(POLL_PAUSE);
            }
        }
        drop((slots, driver));
        landings.extend(self.landings.take());
        self.finish(landings);
    }

    fn finish(&self, mut landings: Vec<Landing>) {
        self.count(|stats| stats.completed += landings.len() as u64);
        for mut landing in landings.drain(..) {
            landing.clear();
            if let Some(waker) = landing.waker {
                waker.wake();
            }
        }
        self.landings.set(landings);
    }

    /// Drops every task. Their operations stay in flight.
    pub(crate) fn cancel_tasks(&self) {
        loop {
            let wakers = self.tasks.borrow().wakers();
            wakers.into_iter().for_each(std::task::Waker::wake);
            let mut runnables: Vec<Runnable> = self.ready.borrow_mut().drain(..).collect();
            runnables.extend(self.remote.close());
            if runnables.is_empty() {
                return;
            }
            drop(runnables);
        }
    }

    /// Cancels and awaits everything in flight: afterwards neither the kernel nor the pool holds
    /// an address of ours.
    pub(crate) fn drain(&self) -> io::Result<()> {
        /// Between looks at the pool's results, should a notice get lost.
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        let flying = self.slots.borrow().flying_keys();
        flying.into_iter().for_each(|key| self.cancel(key));
        while self.slots.borrow().flying() > 0 {
            let wait = if self.remote.park() { Wait::Until(Some(LOOK_AGAIN)) } else { Wait::No };
            self.drive(wait);
            self.remote.unpark();
            self.take_remote();
        }
        if let Driver::Ring(ring) = &mut *self.driver.borrow_mut()
            && ring.armed()
        {
            ring.disarm()?;
            while ring.armed() {
                ring.turn(&mut self.slots.borrow_mut(), Wait::Until(Some(LOOK_AGAIN)), &mut Vec::new())?;
            }
        }
        Ok(())
    }

    /// Gives up on operations that cannot be awaited: their memory must then stay for ever.
    pub(crate) fn leak(&self) {
        std::mem::forget(std::mem::replace(&mut *self.slots.borrow_mut(), Slots::new()));
        let poll = Driver::Poll(Poll::new(self.remote.event()));
        std::mem::forget(std::mem::replace(&mut *self.driver.borrow_mut(), poll));
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("stats", &self.stats.get()).finish_non_exhaustive()
    }
}
