//! Disks without bytes, clients that always ask for more, and a clock to run them on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use block::pace::Unpaced;
use futures_executor::{LocalPool, LocalSpawner};
use futures_util::future::{AbortHandle, Abortable};
use futures_util::task::LocalSpawnExt;
use parking_lot::Mutex;
use throttle::{Limits, Options, Request, Setting, Time, Weight};

use crate::front::{Charge, Clock, Front, Groups, Kind, Sleep};
use crate::options::ThrottleOptions;

pub const SECOND: Duration = Duration::from_secs(1);

/// A clock that a test sets.
#[derive(Debug, Default)]
pub struct Simulated {
    now: AtomicU64,
    late: u64,
    timers: AtomicU64,
    sleepers: Mutex<BTreeMap<(u64, u64), Waker>>,
}

/// What the front holds: sleeps need the clock by handle.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Simulated>);

impl Clock for Handle {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.now.load(SeqCst))
    }

    fn sleep_until(&self, at: Time) -> Sleep {
        let number = self.0.timers.fetch_add(1, SeqCst);
        Box::pin(Sleeper { clock: Arc::clone(&self.0), key: (at.as_nanos() + self.0.late, number) })
    }
}

struct Sleeper {
    clock: Arc<Simulated>,
    key: (u64, u64),
}

impl Future for Sleeper {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.clock.now.load(SeqCst) >= self.key.0 {
            return Poll::Ready(());
        }
        self.clock.sleepers.lock().insert(self.key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.clock.sleepers.lock().remove(&self.key);
    }
}

/// A front with nothing behind it.
#[derive(Debug)]
pub struct Disk {
    pub front: Front,
    pub order: RefCell<Vec<u64>>,
    done: Cell<u64>,
    stopped: Cell<bool>,
}

impl Disk {
    /// Requests that have ended.
    pub fn done(&self) -> u64 {
        self.done.get()
    }

    /// Its clients ask for no more.
    pub fn stop(&self) {
        self.stopped.set(true);
    }
}

/// Disks, their clients and their time.
pub struct World {
    pub groups: Groups,
    clock: Arc<Simulated>,
    pool: LocalPool,
    spawner: LocalSpawner,
    polls: Rc<Cell<u64>>,
    disks: RefCell<Vec<Rc<Disk>>>,
}

impl World {
    pub fn new() -> Self {
        Self::late(Duration::ZERO)
    }

    /// A world whose timers are so late.
    pub fn late(late: Duration) -> Self {
        let clock = Arc::new(Simulated { late: late.as_nanos() as u64, ..Simulated::default() });
        let pool = LocalPool::new();
        Self {
            groups: Groups::new(Arc::new(Handle(Arc::clone(&clock)))),
            clock,
            spawner: pool.spawner(),
            pool,
            polls: Rc::default(),
            disks: RefCell::default(),
        }
    }

    /// A disk with limits as old drive lines write them.
    pub fn disk(&self, given: &str) -> Rc<Disk> {
        let front = Front::new(self.groups.clone(), &options(given));
        let (done, stopped) = (Cell::new(0), Cell::new(false));
        Rc::new(Disk { front, order: RefCell::default(), done, stopped })
    }

    /// Clients that keep `depth` requests on their way, each of which takes `latency` behind the front.
    pub fn load(&self, disk: &Rc<Disk>, depth: u64, latency: Duration, request: fn(u64) -> Request) {
        self.disks.borrow_mut().push(Rc::clone(disk));
        for client in 0..depth {
            let (disk, clock) = (Rc::clone(disk), self.groups.clock().clone());
            self.spawn(async move {
                let mut number = client;
                while !disk.stopped.get() {
                    let request = request(number);
                    let kind = match request.direction {
                        throttle::Direction::Read => Kind::Read,
                        throttle::Direction::Write => Kind::Write,
                    };
                    let inside = disk.front.begin(kind, Charge::Whole(request), &Unpaced).await;
                    if !latency.is_zero() {
                        clock.sleep_until(clock.now().after(latency)).await;
                    }
                    let _: Result<(), ()> = inside.end(Ok(()), request.bytes);
                    disk.done.set(disk.done.get() + 1);
                    number += depth;
                }
            });
        }
    }

    /// One request; dropped when its handle says so.
    pub fn request(&self, disk: &Rc<Disk>, kind: Kind, charge: Charge, number: u64) -> AbortHandle {
        let (handle, registration) = AbortHandle::new_pair();
        let disk = Rc::clone(disk);
        let request = async move {
            let inside = disk.front.begin(kind, charge, &Unpaced).await;
            let bytes = match charge {
                Charge::Free => 0,
                Charge::Whole(request) | Charge::Pieces(request) => request.bytes,
            };
            let _: Result<(), ()> = inside.end(Ok(()), bytes);
            disk.order.borrow_mut().push(number);
            disk.done.set(disk.done.get() + 1);
        };
        self.spawn(async move {
            // Whether it was given up shows in the figures.
            let _ = Abortable::new(request, registration).await;
        });
        handle
    }

    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let mut future = Box::pin(future);
        let polls = Rc::clone(&self.polls);
        let counted = std::future::poll_fn(move |cx| {
            polls.set(polls.get() + 1);
            future.as_mut().poll(cx)
        });
        self.spawner.spawn_local(counted).expect("the pool is there");
    }

    /// No client asks for more.
    pub fn stop(&self) {
        self.disks.borrow().iter().for_each(|disk| disk.stop());
    }

    /// Does everything that can be done without time passing.
    pub fn settle(&mut self) {
        self.pool.run_until_stalled();
    }

    /// Lets time pass, with everything that happens meanwhile.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.clock.now.load(SeqCst) + time.as_nanos() as u64;
        loop {
            self.pool.run_until_stalled();
            let next = self.clock.sleepers.lock().first_key_value().map(|(key, _)| key.0);
            match next.filter(|&next| next <= end) {
                Some(next) => self.set(next),
                None => break,
            }
        }
        self.set(end);
        self.pool.run_until_stalled();
    }

    /// Advances the clock; tasks are not polled meanwhile.
    pub fn advance(&self, time: Duration) {
        self.set(self.clock.now.load(SeqCst) + time.as_nanos() as u64);
    }

    fn set(&self, now: u64) {
        self.clock.now.store(now, SeqCst);
        loop {
            let due = {
                let mut sleepers = self.clock.sleepers.lock();
                let first = sleepers.first_entry().filter(|entry| entry.key().0 <= now);
                first.map(|entry| entry.remove())
            };
            match due {
                Some(waker) => waker.wake(),
                None => return,
            }
        }
    }

    /// How often a task was looked at.
    pub fn polls(&self) -> u64 {
        self.polls.get()
    }

    /// Timers that were set.
    pub fn timers(&self) -> u64 {
        self.clock.timers.load(SeqCst)
    }
}

/// Limits as old drive lines write them.
pub fn limits(given: &str) -> Limits {
    options(given).limits.unwrap_or_default()
}

pub fn options(given: &str) -> ThrottleOptions {
    let mut options = Options::new();
    for part in given.split(',').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').expect("name=value");
        match Setting::from_name(name).expect("a name") {
            Setting::Limit(parameter) => _ = options.set(parameter, value.parse().expect("a number")),
            Setting::Group => options.group = Some(value.to_owned()),
            Setting::Weight => options.weight = Weight::new(value.parse().expect("a number")).ok(),
        }
    }
    let limits = options.check().expect("limits that hold");
    ThrottleOptions {
        limits: (!limits.is_unlimited()).then_some(limits),
        group: options.group,
        weight: options.weight.unwrap_or_default(),
        ..ThrottleOptions::default()
    }
}
