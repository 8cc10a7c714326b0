//! The event loops that serve clients: made once for a process, shared by all its doors.

mod lane;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use event_listener::Event;
use parking_lot::Mutex;
use reactor::{Backend, Reactor};

use self::lane::OwnLane;
pub use self::lane::Seat;
use crate::budget::Budget;
use crate::clients::Clients;
use crate::exports::Exports;
use crate::limits::{PROCESS_BYTES_MAX, SHUTDOWN_GRACE_DEFAULT};
use crate::repeats;
use crate::shutdown::Shutdown;

/// The loops of a process, and what the clients of all its doors share: the account of what they hold, and the end.
#[derive(Debug)]
pub struct Loops {
    lanes: Vec<Lane>,
    shutdown: Shutdown,
    grace: Duration,
    budget: Arc<Budget>,
    /// What the doors offer: no loop ends while something of it is at work.
    offered: Mutex<Vec<Weak<Exports>>>,
}

/// One loop as the others see it.
#[derive(Default)]
struct Lane {
    /// Clients that live there or are on their way.
    clients: AtomicUsize,
    arriving: Mutex<Arriving>,
    arrived: Event,
}

#[derive(Default)]
struct Arriving {
    /// Clients and tasks on their way.
    queue: Vec<Arrival>,
    /// The loop is ending: clients and tasks that arrive go away again.
    is_closed: bool,
    /// Signs of life that are asked for.
    asked: Vec<AnswerOnDrop>,
    /// The loop has ended: no sign of life is to be expected.
    is_over: bool,
}

/// Starts what arrives, on its loop.
type Arrival = Box<dyn FnOnce(&Rc<OwnLane>) + Send>;

/// How a client is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing more is taken in; what is in flight is finished and answered.
    InOrder,
    /// As `InOrder`, and the connection stays open: another process serves it from then on. A client that cannot be given away ends in order.
    HandOver,
    /// Whatever waits for the client ends, too.
    AtOnce,
}

/// The handle by which a client is asked to end.
pub trait HangUp {
    /// Has the client's work end. It may be asked twice, and when the client is gone.
    fn hang_up(&self, how: Ending);
}

impl<T: HangUp + ?Sized> HangUp for Arc<T> {
    fn hang_up(&self, how: Ending) {
        (**self).hang_up(how);
    }
}

impl<T: HangUp + ?Sized> HangUp for Rc<T> {
    fn hang_up(&self, how: Ending) {
        (**self).hang_up(how);
    }
}

/// A stream ends by its halves: when nothing more comes in, its reader ends in order.
impl HangUp for reactor::net::Stream {
    fn hang_up(&self, how: Ending) {
        let halves = match how {
            Ending::InOrder | Ending::HandOver => std::net::Shutdown::Read,
            Ending::AtOnce => std::net::Shutdown::Both,
        };
        // Fails where the peer was faster.
        let _ = self.shutdown(halves);
    }
}

/// A client on its loop.
pub struct Served {
    /// How it is asked to end.
    pub hang_up: Rc<dyn HangUp>,
    /// Serves it to its end. A client that is asked to end ends by itself: its work is never dropped before.
    pub work: Pin<Box<dyn Future<Output = ()>>>,
}

impl Loops {
    /// `count` loops (at least one), which end at `shutdown`.
    pub fn new(count: usize, shutdown: Shutdown) -> Arc<Self> {
        Self::with_grace(count, shutdown, SHUTDOWN_GRACE_DEFAULT)
    }

    /// As [`Loops::new`]; clients that take no answers are cut off `grace` after the shutdown.
    pub fn with_grace(count: usize, shutdown: Shutdown, grace: Duration) -> Arc<Self> {
        Arc::new(Self {
            lanes: (0..count.max(1)).map(|_| Lane::default()).collect(),
            shutdown,
            grace,
            budget: Arc::new(Budget::new(PROCESS_BYTES_MAX)),
            offered: Mutex::default(),
        })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Triggered when they are to end: doors admit no client any more, clients end in order.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// What the clients of all doors may hold.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Serves on a thread for each loop over `backend`, until the shutdown is triggered and every client has ended.
    /// Requests in flight are finished and answered, however long the disk takes; a client that does not take its
    /// answers is waited for as long as the grace says. Blocks the caller.
    ///
    /// # Errors
    /// If an event loop cannot be made; the others then end as if the shutdown were triggered.
    ///
    /// # Panics
    /// If a loop does; the others end first.
    pub fn run(self: &Arc<Self>, backend: Backend) -> io::Result<()> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.lanes.len())
                .map(|index| {
                    // Also if there is no thread.
                    let others_end_too = EndOnDrop { loops: self, index };
                    let body = move || {
                        let _others_end_too = others_end_too;
                        Reactor::new(backend).map(|reactor| reactor.run(self.run_loop(index)))
                    };
                    std::thread::Builder::new().name(thread_name(index)).spawn_scoped(scope, body)
                })
                .collect();
            let mut result = Ok(());
            for thread in threads {
                match thread?.join() {
                    Ok(ended) => result = result.and(ended),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            repeats::end();
            result
        })
    }

    async fn run_loop(self: &Arc<Self>, index: usize) {
        let own = Rc::new(OwnLane::new(self, index));
        let taking = reactor::spawn(Rc::clone(&own).take_arriving());
        self.shutdown.wait().await;
        taking.cancel().await;
        let answering = reactor::spawn(Rc::clone(&own).answer());
        own.take_last();
        own.end_tasks().await;
        self.lanes[index].close();
        own.end_clients(self.grace).await;
        let offered: Vec<_> = self.offered.lock().iter().filter_map(Weak::upgrade).collect();
        for export in offered.iter().flat_map(|exports| exports.entries_and_removed()) {
            export.disk().idle().await;
        }
        answering.cancel().await;
    }

    /// No loop ends before the disks of `exports` are idle.
    pub(crate) fn wait_for(&self, exports: &Arc<Exports>) {
        let mut offered = self.offered.lock();
        offered.retain(|exports| exports.strong_count() > 0);
        offered.push(Arc::downgrade(exports));
    }

    /// Asks every loop for a sign of life, also those that are ending.
    pub fn ask_all(&self) -> Answers {
        let ask = |lane: &Lane| {
            let given = Arc::new(AtomicBool::new(false));
            lane.ask(AnswerOnDrop(Arc::clone(&given)));
            given
        };
        Answers { given: self.lanes.iter().map(ask).collect() }
    }

    /// The loop with the fewest clients.
    pub fn least_busy(&self) -> usize {
        let load = |&index: &usize| self.lanes[index].clients.load(Ordering::Relaxed);
        (0..self.lanes.len()).min_by_key(load).unwrap_or_default()
    }

    /// Starts a client on loop number `index`. It counts among `clients` until it has ended.
    pub(crate) fn give(
        self: &Arc<Self>,
        index: usize,
        clients: &Arc<Clients>,
        begin: impl FnOnce(&Seat) -> Served + Send + 'static,
    ) {
        let counted = Counted::new(self, index, clients);
        self.lanes[index].send(Box::new(move |own| own.seat(counted, begin)));
    }

    /// Runs what `make` gives on loop number `index` until the shutdown.
    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        index: usize,
        make: impl FnOnce() -> F + Send + 'static,
    ) {
        self.lanes[index].send(Box::new(move |own| own.run_task(make())));
    }
}

impl Lane {
    fn send(&self, arrival: Arrival) {
        let mut arriving = self.arriving.lock();
        if arriving.is_closed {
            drop(arriving);
            return drop(arrival);
        }
        arriving.queue.push(arrival);
        drop(arriving);
        self.arrived.notify(1);
    }

    fn ask(&self, answer: AnswerOnDrop) {
        let mut arriving = self.arriving.lock();
        if !arriving.is_over {
            arriving.asked.push(answer);
        }
        drop(arriving);
        self.arrived.notify(1);
    }

    /// Gives the signs of life that were asked for.
    fn answer(&self) {
        drop(std::mem::take(&mut self.arriving.lock().asked));
    }

    fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut self.arriving.lock().queue)
    }

    fn close(&self) {
        self.arriving.lock().is_closed = true;
        drop(self.take());
    }

    fn end(&self) {
        self.close();
        self.arriving.lock().is_over = true;
        self.answer();
    }
}

/// What the loops answered to [`Loops::ask_all`].
#[derive(Debug)]
pub struct Answers {
    given: Vec<Arc<AtomicBool>>,
}

impl Answers {
    /// The names of the threads whose loops have not answered. One that has ended counts as one that has.
    pub fn missing(&self) -> Vec<String> {
        let missing = self.given.iter().enumerate().filter(|(_, given)| !given.load(Ordering::Acquire));
        missing.map(|(index, _)| thread_name(index)).collect()
    }
}

/// The answer of one loop, given when the loop takes it, and when the loop has ended.
struct AnswerOnDrop(Arc<AtomicBool>);

impl Drop for AnswerOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn thread_name(index: usize) -> String {
    format!("cowhand-loop-{index}")
}

/// A client counted on its loop and at its door, from its way there to its end.
struct Counted {
    loops: Arc<Loops>,
    index: usize,
    at_door: Arc<Clients>,
}

impl Counted {
    fn new(loops: &Arc<Loops>, index: usize, at_door: &Arc<Clients>) -> Self {
        loops.lanes[index].clients.fetch_add(1, Ordering::Relaxed);
        at_door.enter();
        Self { loops: Arc::clone(loops), index, at_door: Arc::clone(at_door) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.loops.lanes[self.index].clients.fetch_sub(1, Ordering::Relaxed);
        self.at_door.leave();
    }
}

/// A loop that ends for any reason ends all of them: some of them would be a program that hangs. No client arrives there
/// any more.
struct EndOnDrop<'a> {
    loops: &'a Loops,
    index: usize,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.loops.shutdown.trigger();
        self.loops.lanes[self.index].end();
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({} clients)", self.clients.load(Ordering::Relaxed))
    }
}
