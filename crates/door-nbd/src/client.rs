//! What everything shares that works for one connection in transmission.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use export::{ExportEntry, Hints, InFlight, Landing, Pace, Permit, STEP_BYTES};
use memory::IoVec;
use wire::nbd::{Dialect, Selected};

use crate::block_status::Question;
use crate::gone::Gone;
use crate::limits::STATUS_REQUEST_BYTES;
use crate::outbox::Outbox;
use crate::requests::{Request, Work};

/// One connection's client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) entry: Arc<ExportEntry>,
    pub(crate) dialect: Dialect,
    /// Its reads are answered in one chunk each.
    pub(crate) wants_whole_reads: Cell<bool>,
    pub(crate) contexts: Rc<[Selected]>,
    pub(crate) outbox: Rc<Outbox>,
    pub(crate) in_flight: Rc<InFlight>,
    pub(crate) gone: Rc<Gone>,
    pub(crate) pace: Pace,
    pub(crate) at_work: Rc<AtWork>,
    /// What it left at work when it went.
    pub(crate) landing: RefCell<Option<Landing>>,
}

/// A request that was taken in whole.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) what: What,
}

/// What is asked for.
#[derive(Debug)]
pub(crate) enum What {
    Read { len: u32, hints: Hints },
    Perform(Work),
    Status(Question),
}

impl PendingRequest {
    /// The bytes that it needs while it is at work, beyond its bookkeeping. A write has its payload already.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.what {
            What::Read { len, .. } => u64::from(*len),
            What::Perform(_) => 0,
            What::Status(_) => STATUS_REQUEST_BYTES,
        }
    }
}

/// When a request goes whose client is gone.
#[derive(Debug)]
enum Droppable {
    Always,
    /// As long as a limit of the disk holds it back, as its pace knows.
    InLine(Rc<Pace>),
    Never,
}

impl Client {
    /// Starts a request for which there is room. One that changes nothing is given up when the client is gone; one
    /// that changes the disk was taken in whole and is carried out, unless a limit holds it back: it would keep
    /// the place of others, for hours.
    pub(crate) fn start(
        self: &Rc<Self>,
        PendingRequest { cookie, offset, what }: PendingRequest,
        permit: Permit,
    ) {
        let request = Request::new(self, (cookie, offset), permit);
        match what {
            // It is known to wait, so it is a task from the start.
            What::Read { len, hints } => {
                let read =
                    self.while_wanted(Droppable::Always, 1, async move { request.read(len, hints).await });
                reactor::spawn_now(read).detach();
            }
            What::Status(question) => {
                self.run(Droppable::Always, None, async move { request.block_status(question).await })
            }
            What::Perform(work) => {
                let (pace, range) = (Rc::new(self.pace.clone()), work.changes());
                let droppable = match &work {
                    Work::Prefetch { .. } => Droppable::Always,
                    Work::Flush => Droppable::Never,
                    _ => Droppable::InLine(Rc::clone(&pace)),
                };
                self.run(droppable, range, async move { request.perform(work, &pace).await });
            }
        }
    }

    /// Starts writes that go to the disk as one; each with its bytes.
    pub(crate) fn start_writes(self: &Rc<Self>, all: (u64, IoVec, Hints), requests: Vec<(Request, u64)>) {
        let (offset, data, _) = &all;
        let range = *offset..offset.saturating_add(data.len() as u64);
        let pace = Rc::new(self.pace.clone());
        let writes = Request::write_as_one(Rc::clone(self), Rc::clone(&pace), all, requests);
        self.run(Droppable::InLine(pace), Some(range), writes);
    }

    /// Starts reads that go to the disk as one; each with its bytes.
    pub(crate) fn start_reads(self: &Rc<Self>, all: (u64, Hints), requests: Vec<(Request, u32)>) {
        let count = requests.len() as u64;
        let reads = Request::read_as_one(Rc::clone(self), all, requests);
        reactor::spawn_now(self.while_wanted(Droppable::Always, count, reads)).detach();
    }

    /// Runs `request` as far as it gets without waiting; gives it a task if it has to wait. It changes the bytes of `range`.
    fn run(
        self: &Rc<Self>,
        droppable: Droppable,
        range: Option<Range<u64>>,
        request: impl Future<Output = ()> + 'static,
    ) {
        let mut request: Pin<Box<dyn Future<Output = ()>>> = Box::pin(request);
        // The task polls again at once, with a waker of its own: no wake-up is lost to this one.
        if let Poll::Ready(()) = request.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return;
        }
        let change = range.map(|range| self.at_work.begin(range));
        let wanted = self.while_wanted(droppable, 1, request);
        let to_its_end = async move {
            wanted.await;
            drop(change);
        };
        reactor::spawn(to_its_end).detach();
    }

    /// `count` is how many requests of the client's `request` is.
    fn while_wanted(
        self: &Rc<Self>,
        droppable: Droppable,
        count: u64,
        request: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()> + 'static {
        let client = Rc::clone(self);
        let held_back = self.entry.disk().holds_back();
        async move {
            let gone = Rc::clone(&client.gone);
            let ended = match droppable {
                Droppable::Always => gone.unless(held_back, None, request).await,
                Droppable::InLine(pace) if held_back && !pace.is_admitted() => {
                    gone.unless(true, Some(&pace), request).await
                }
                Droppable::InLine(_) | Droppable::Never => {
                    request.await;
                    true
                }
            };
            match ended {
                true => client.outbox.nudge(),
                false => client.count_dropped(count),
            }
        }
    }

    /// Waits for a turn before `bytes` of fresh memory are taken, if these are more than a step: the system clears them.
    pub(crate) async fn before_memory(&self, bytes: u64) {
        if bytes > STEP_BYTES {
            self.pace.step(STEP_BYTES).await;
        }
    }

    /// The client is gone: nothing more is begun for it, and others come after what it has at work.
    pub(crate) fn go(&self) {
        if !self.gone.is_declared() {
            *self.landing.borrow_mut() = self.entry.leave_behind(self.at_work.ranges());
            self.gone.declare();
        }
    }

    /// The client is gone: replies go nowhere.
    pub(crate) fn abandon(&self) {
        self.go();
        self.outbox.abandon();
    }

    /// Nothing of it is at work any more.
    pub(crate) fn landed(&self) {
        self.landing.take();
    }

    /// Counts requests that were given up because no task awaits them.
    pub(crate) fn count_dropped(&self, requests: u64) {
        self.entry.counters().dropped(requests);
    }
}

/// The changes of one connection that had to wait for the disk.
#[derive(Debug, Default)]
pub(crate) struct AtWork {
    ranges: RefCell<BTreeMap<u64, Range<u64>>>,
    next: Cell<u64>,
}

/// One of them, at work until this is dropped.
#[derive(Debug)]
struct Change {
    at_work: Rc<AtWork>,
    number: u64,
}

impl AtWork {
    /// A change of these bytes begins.
    fn begin(self: &Rc<Self>, range: Range<u64>) -> Change {
        let number = self.next.get();
        self.next.set(number + 1);
        self.ranges.borrow_mut().insert(number, range);
        Change { at_work: Rc::clone(self), number }
    }

    /// The bytes of those that are at work.
    fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges.borrow().values().cloned().collect()
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.at_work.ranges.borrow_mut().remove(&self.number);
    }
}
