//! One queue on its loop: takes requests from its ring, starts them, tells the driver of those that are done.
//!
//! Three tasks: one waits for the driver's kicks, one takes requests and starts each, one wakes the driver, once for all that became done
//! in a turn of the loop. A request is a task of its own, unless it can be answered at once. The driver is asked to kick only before the loop
//! sleeps: until then the ring is looked at. When the ring is stopped nothing more is taken, and what was taken is finished.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use export::merge::REQUESTS_MAX;
use export::repeats::{self, Level};
use export::{Budget, Ending, HangUp, InFlight, LocalEvent, Pace, Permit, Seat, Served};
use futures_util::future::select;
use reactor::{Look, Seen};
use smallvec::SmallVec;

use crate::device::{Device, Run};
use crate::ledger::{Ledger, Offer, Ticket};
use crate::memory::Memory;
use crate::request::{Request, Status};
use crate::ring::RingFault;

/// A request that was taken, with its place among those in flight.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) request: Request,
    pub(crate) ticket: Ticket,
    pub(crate) permit: Permit,
    pub(crate) memory: Arc<Memory>,
}

/// Requests of fewer the driver is not called before a batch has ended: another interrupt costs more than it gains.
const CALL_MIN: usize = 4;

/// Of so many the driver is called, however many are still to be done.
const CALL_MAX: usize = 16;

/// How a batch ended.
enum Batch {
    /// Some were started; there may be more.
    Started,
    /// Nothing is there.
    Nothing,
    /// The next one has to wait for a place with so many bytes.
    NoPlace(u64),
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) device: Arc<Device>,
    run: Arc<Run>,
    pub(crate) pace: Pace,
    pub(crate) in_flight: Rc<InFlight>,
    ledger: RefCell<Option<Ledger>>,
    look: Signal,
    call: Signal,
    /// Requests that are done since the driver was last called, if it wanted to be.
    unreported: Cell<usize>,
}

/// Something to do, for one task of the loop.
#[derive(Debug, Default)]
struct Signal {
    set: Cell<bool>,
    event: LocalEvent,
}

impl Signal {
    fn set(&self) {
        self.set.set(true);
        self.event.wake();
    }

    async fn taken(&self) {
        self.event.until(|| self.set.replace(false)).await;
    }
}

impl Look for Queue {
    fn is_there(&self) -> bool {
        // A broken ring is found by who takes the next request.
        self.ledger.borrow().as_ref().is_some_and(|ledger| ledger.is_more().unwrap_or(true))
    }
}

/// Stops a ring when its loop ends.
struct StopRun(Arc<Run>);

impl HangUp for StopRun {
    fn hang_up(&self, _how: Ending) {
        self.0.stop.trigger();
    }
}

/// Tells the connection that the queue touches nothing any more, also if it never began.
pub(crate) struct EndOnDrop(pub(crate) Arc<Run>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        // After an end in order this changes nothing.
        self.0.end_if_not_ended();
    }
}

/// Begins to work on a ring, on the loop of this thread.
pub(crate) fn begin(device: Arc<Device>, end: EndOnDrop, seat: &Seat, budget: Arc<Budget>) -> Served {
    let run = Arc::clone(&end.0);
    let queue = Rc::new(Queue {
        pace: seat.pace(&device.export.entry),
        device,
        run: Arc::clone(&run),
        in_flight: InFlight::new(budget),
        ledger: RefCell::default(),
        look: Signal::default(),
        call: Signal::default(),
        unreported: Cell::new(0),
    });
    let work = async move {
        queue.serve().await;
        drop(end);
    };
    Served { hang_up: Rc::new(StopRun(run)), work: Box::pin(work) }
}

impl Queue {
    async fn serve(self: Rc<Self>) {
        let begun = Ledger::new(&self.device, &self.run);
        match begun {
            Ok(ledger) => *self.ledger.borrow_mut() = Some(ledger),
            Err(fault) => self.fail(&fault),
        }
        self.look.set();
        let tasks = [
            reactor::spawn(Rc::clone(&self).hear_kicks()),
            reactor::spawn(Rc::clone(&self).hear_changes()),
            reactor::spawn(Rc::clone(&self).call_driver()),
        ];
        select(pin!(self.take_requests()), pin!(self.run.stop.wait())).await;
        self.in_flight.drained().await;
        for task in tasks {
            task.cancel().await;
        }
        self.call_now();
        let next = self.ledger.borrow().as_ref().map_or(self.run.base, Ledger::base);
        self.run.end(next);
    }

    async fn hear_kicks(self: Rc<Self>) {
        loop {
            if let Err(error) = self.run.kick.rung().await {
                return self.fail(&error);
            }
            self.look.set();
        }
    }

    /// Enabled, or a new way to call: both may have been waited for.
    async fn hear_changes(self: Rc<Self>) {
        loop {
            let changed = self.run.changed();
            self.look.set();
            if self.run.take_called_anew()
                && let Err(error) = self.run.call_driver()
            {
                self.fail(&error);
            }
            changed.await;
        }
    }

    async fn call_driver(self: Rc<Self>) {
        loop {
            self.call.taken().await;
            self.call_now();
        }
    }

    /// Wakes the driver if it wants to know of what was answered since the last time.
    pub(crate) fn call_now(&self) {
        if self.unreported.replace(0) == 0 {
            return;
        }
        let wanted = self.ledger.borrow_mut().as_mut().map_or(Ok(false), Ledger::take_call);
        match wanted {
            Ok(true) => {
                if let Err(error) = self.run.call_driver() {
                    self.fail(&error);
                }
            }
            Ok(false) => {}
            Err(fault) => self.fail(&fault),
        }
    }

    /// Takes requests for ever, as long as the ring is sound and enabled.
    async fn take_requests(self: &Rc<Self>) {
        loop {
            self.look.taken().await;
            while self.run.is_enabled() && !self.run.is_broken() {
                match self.batch() {
                    // Who never waits lets others go first.
                    Ok(Batch::Started) => reactor::yield_now().await,
                    Ok(Batch::NoPlace(bytes)) => {
                        self.call_now();
                        drop(self.in_flight.admit(bytes).await);
                    }
                    Ok(Batch::Nothing) => {
                        self.call_now();
                        let seen = reactor::watch(Rc::clone(self) as Rc<dyn Look>).await;
                        if seen == Seen::AboutToSleep && !self.is_more_without_kick() {
                            break;
                        }
                    }
                    Err(fault) => self.fail(&fault),
                }
            }
            self.call_now();
        }
    }

    /// Asks the driver to kick. Whether something has come already, or the ring is broken.
    fn is_more_without_kick(&self) -> bool {
        let log = self.device.dirty_log();
        let asked =
            self.ledger.borrow().as_ref().map_or(Ok(false), |ledger| ledger.ask_for_kick(log.as_deref()));
        asked.unwrap_or_else(|fault| {
            self.fail(&fault);
            true
        })
    }

    /// Takes what is there, as much as goes together, and starts it.
    fn batch(self: &Rc<Self>) -> Result<Batch, RingFault> {
        let mut taken = SmallVec::new();
        // What was taken before something was found wrong is carried out all the same.
        let end = self.take_some(&mut taken);
        if self.device.is_anything_lost() {
            // Rings, headers and data may have been read as zeroes.
            taken.into_iter().for_each(|one| self.complete(one, Status::IoError, 0));
            return Err(RingFault::Lost);
        }
        if !taken.is_empty() {
            crate::work::start(self, taken);
        }
        end
    }

    /// Calls the driver if it is worth it, while `left` requests are still to be started and there may be more in the ring. A driver that is notified late has
    /// nothing to do, and the next requests come late; one that is notified of each request costs a wake-up each.
    pub(crate) fn call_in_time(&self, left: usize) {
        let unreported = self.unreported.get();
        let is_last = || left == 0 && !self.is_there();
        if unreported >= CALL_MIN && (unreported >= left || unreported >= CALL_MAX)
            || unreported > 0 && is_last()
        {
            self.call_now();
        }
    }

    fn take_some(&self, taken: &mut SmallVec<[Taken; 4]>) -> Result<Batch, RingFault> {
        let mut ledger = self.ledger.borrow_mut();
        let Some(ledger) = ledger.as_mut() else { return Ok(Batch::Nothing) };
        ledger.refresh(&self.device, &self.run)?;
        let takes = self.device.takes();
        while taken.len() < REQUESTS_MAX {
            let Some(Offer { chain, descriptors }) = ledger.next()? else {
                return Ok(if taken.is_empty() { Batch::Nothing } else { Batch::Started });
            };
            let request = Request::of(chain, ledger.memory(), &takes)?;
            let bytes = request.bytes();
            let Some(permit) = self.in_flight.try_admit(bytes) else {
                return Ok(if taken.is_empty() { Batch::NoPlace(bytes) } else { Batch::Started });
            };
            let ticket = ledger.take(request.head, &descriptors)?;
            taken.push(Taken { request, ticket, permit, memory: Arc::clone(ledger.memory()) });
        }
        Ok(Batch::Started)
    }

    /// Tells the driver of a request that is done, and wakes it at the end of this turn of the loop.
    pub(crate) fn complete(&self, taken: Taken, status: Status, written: u64) {
        self.complete_uncalled(taken, status, written);
        self.call.set();
    }

    /// Tells the driver of a request that is done: its status, then that it is used. Its place is given back. The caller wakes the driver.
    pub(crate) fn complete_uncalled(&self, taken: Taken, status: Status, written: u64) {
        let Taken { request, ticket, permit, memory } = taken;
        let log = self.device.dirty_log();
        // Its data came from or went to memory that is no longer the guest's: it is not what was asked for.
        let is_lost = memory.is_lost();
        let status = if is_lost { Status::IoError } else { status };
        if let Err(outside) = memory.write(request.status_at, &[status.byte()]) {
            self.fail(&outside);
        }
        if let Some(log) = &log {
            log.mark(request.status_at, 1);
        }
        // A request has at most 32 MiB; the status is one byte more.
        let written = u32::try_from(written + 1).unwrap_or(u32::MAX);
        let reported = match self.ledger.borrow_mut().as_mut() {
            Some(ledger) => ledger
                .refresh(&self.device, &self.run)
                .and_then(|()| ledger.done(ticket, written, log.as_deref())),
            None => Ok(()),
        };
        // The driver sees the answer before it hears that the ring is of no use.
        if let Err(fault) = reported.and(if is_lost { Err(RingFault::Lost) } else { Ok(()) }) {
            self.fail(&fault);
        }
        self.unreported.set(self.unreported.get() + 1);
        drop(permit);
    }

    /// The ring is of no use any more: its guest is notified, other guests do not notice.
    fn fail(&self, fault: &dyn std::fmt::Display) {
        if !self.run.fail(fault) {
            return;
        }
        let entry = &self.device.export.entry;
        entry.counters().refused();
        let text = format!("export {:?}: queue {} stops: {fault}", entry.name(), self.run.ring);
        repeats::tell(Level::Warn, "vhost-user-blk", entry.name(), &text);
        if let Some(err) = &*self.run.err.load() {
            // A failure has no receiver.
            let _ = err.ring();
        }
    }
}
