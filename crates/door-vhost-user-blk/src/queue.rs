//! One queue on its loop: takes requests from its ring, starts them, tells the driver of those that are done.
//!
//! Three tasks: one waits for the driver's kicks, one takes requests and starts each, one wakes the driver, once for all that became done
//! in a turn of the loop. A request is a task of its own. When the ring is stopped nothing more is taken, and what was taken is finished.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use export::merge::REQUESTS_MAX;
use export::repeats::{self, Level};
use export::{Budget, Ending, HangUp, InFlight, LocalEvent, Pace, Permit, Seat, Served};
use futures_util::future::select;
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
                    Ok(Batch::NoPlace(bytes)) => drop(self.in_flight.admit(bytes).await),
                    Ok(Batch::Nothing) => break,
                    Err(fault) => self.fail(&fault),
                }
            }
        }
    }

    /// Takes what is there, as much as goes together, and starts it.
    fn batch(self: &Rc<Self>) -> Result<Batch, RingFault> {
        let mut taken = SmallVec::new();
        // What was taken before something was found wrong is carried out all the same.
        let end = self.take_some(&mut taken);
        if !taken.is_empty() {
            crate::work::start(self, taken);
        }
        end
    }

    fn take_some(&self, taken: &mut SmallVec<[Taken; 4]>) -> Result<Batch, RingFault> {
        let mut ledger = self.ledger.borrow_mut();
        let Some(ledger) = ledger.as_mut() else { return Ok(Batch::Nothing) };
        ledger.refresh(&self.device, &self.run)?;
        let takes = self.device.takes();
        while taken.len() < REQUESTS_MAX {
            let Some(Offer { chain, descriptors }) = ledger.next()? else {
                if !taken.is_empty() {
                    return Ok(Batch::Started);
                }
                let more = ledger.ask_for_kick(self.device.dirty_log().as_deref())?;
                return Ok(if more { Batch::Started } else { Batch::Nothing });
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

    /// Tells the driver of a request that is done: its status, then that it is used. Its place is given back.
    pub(crate) fn complete(&self, taken: Taken, status: Status, written: u64) {
        let Taken { request, ticket, permit, memory } = taken;
        let log = self.device.dirty_log();
        if let Err(outside) = memory.write(request.status_at, &[status.byte()]) {
            self.fail(&outside);
        }
        if let Some(log) = &log {
            log.mark(request.status_at, 1);
        }
        // A request has at most 32 MiB; the status is one byte more.
        let written = u32::try_from(written + 1).unwrap_or(u32::MAX);
        let told = match self.ledger.borrow_mut().as_mut() {
            Some(ledger) => ledger
                .refresh(&self.device, &self.run)
                .and_then(|()| ledger.done(ticket, written, log.as_deref())),
            None => Ok(()),
        };
        if let Err(fault) = told {
            self.fail(&fault);
        }
        self.call.set();
        drop(permit);
    }

    /// The ring is of no use any more: its guest is told, nobody else notices.
    fn fail(&self, fault: &dyn std::fmt::Display) {
        if !self.run.fail(fault) {
            return;
        }
        let entry = &self.device.export.entry;
        entry.counters().refused();
        let lost = if self.device.memory.load().is_lost() { " (its memory was cut)" } else { "" };
        let text = format!("export {:?}: queue {} stops: {fault}{lost}", entry.name(), self.run.ring);
        repeats::tell(Level::Warn, "vhost-user-blk", entry.name(), &text);
        if let Some(err) = &*self.run.err.load() {
            // Nobody is left to tell if it fails.
            let _ = err.ring();
        }
    }
}
