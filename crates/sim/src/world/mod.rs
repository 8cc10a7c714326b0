//! The simulated machine: disks, held I/O, faults, the clock of events and the clock of time.

mod disk;
mod fault;
mod io_future;
mod lock;
mod machine;
mod medium;
mod shortage;
mod timer;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use storage::Capabilities;

use crate::content::Content;
use crate::crash::Recording;
use crate::request::{IoKind, Request, Tick};
use machine::Machine;

pub use disk::SimStorage;
pub(crate) use fault::random_part;
pub use fault::{Fault, FaultKind, Persistence};
pub use lock::{DiskLock, UnlockedDisk};
pub use shortage::Shortage;
pub use timer::Sleep;

/// In which order requests end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each request ends when it is issued, before its future is first polled.
    Immediate,
    /// Requests are held; the executor completes them in a random order decided by the seed. Some
    /// are kept back until nothing else can go on.
    Shuffled,
}

/// One simulated machine. Clones are handles of the same one.
///
/// Everything in it is decided by its seed and by the order of the calls made to it.
#[derive(Clone, Debug)]
pub struct World {
    machine: Arc<Mutex<Machine>>,
}

/// What reached the disks of a world so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Requests of any kind.
    pub all: u64,
    /// Reads answered without waiting; they are not requests.
    pub inline_reads: u64,
    /// Faults that were met, by kind of the request that failed.
    pub faults: std::collections::BTreeMap<IoKind, u64>,
}

impl World {
    /// A machine without disks.
    pub fn new(seed: u64, order: Order) -> Self {
        Self { machine: Arc::new(Mutex::new(Machine::new(seed, order))) }
    }

    /// Adds a disk with the given content, all of it durable, and opens it. Disks are numbered
    /// from 0 in the order they are added.
    pub fn add_disk(&self, name: &str, capabilities: Capabilities, content: Content) -> SimStorage {
        let disk = self.machine.lock().add_disk(name, capabilities, content);
        self.open(disk)
    }

    /// Opens a disk (again): the new handle does not remember failed flushes of older ones. It takes the length now;
    /// afterwards it knows of no change of length but its own.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn open(&self, disk: usize) -> SimStorage {
        let (name, capabilities, length) = {
            let machine = self.machine.lock();
            let disk = machine.disk(disk);
            (disk.name.clone(), disk.capabilities, disk.current.length())
        };
        SimStorage::new(self.clone(), disk, name, capabilities, length)
    }

    /// What a disk was called when it was added.
    pub fn disk_name(&self, disk: usize) -> String {
        self.machine.lock().disk(disk).name.clone()
    }

    /// How many disks there are.
    pub fn disks(&self) -> usize {
        self.machine.lock().disks.len()
    }

    /// Another machine whose disks hold what these hold, and whose requests end at once.
    pub fn copy(&self, seed: u64) -> World {
        let copy = World::new(seed, Order::Immediate);
        for disk in &self.machine.lock().disks {
            copy.add_disk(&disk.name, disk.capabilities, disk.current.clone());
        }
        copy
    }

    /// Changes what happens to requests issued from now on.
    pub fn set_order(&self, order: Order) {
        self.machine.lock().order = order;
    }

    /// Replaces the planned faults; counting starts anew.
    pub fn set_faults(&self, faults: Vec<Fault>) {
        self.machine.lock().faults.plan(faults);
    }

    /// Replaces the planned shortages of room; counting starts anew.
    pub fn set_shortages(&self, shortages: Vec<Shortage>) {
        let mut machine = self.machine.lock();
        let Machine { shortages: planned, disks, .. } = &mut *machine;
        planned.plan(shortages, disks);
    }

    /// What a disk promises.
    pub fn capabilities(&self, disk: usize) -> Capabilities {
        self.machine.lock().disk(disk).capabilities
    }

    /// Who writes a disk makes it long enough first: a write that reaches beyond the end, rounded up to `unit`, is a
    /// breach unless something fails.
    pub fn expect_room_first(&self, disk: usize, unit: u64) {
        self.machine.lock().disk_mut(disk).room_first = Some(unit);
    }

    /// The most bytes a disk can be long; requests beyond fail with ENOSPC and change nothing.
    pub fn set_capacity(&self, disk: usize, bytes: Option<u64>) {
        self.machine.lock().disk_mut(disk).capacity = bytes;
    }

    /// Every request from now on for which `which` is true is held until [`World::release`],
    /// whatever the order. Gets the number of the disk and the request.
    pub fn hold(&self, which: impl Fn(usize, &Request) -> bool + Send + 'static) {
        self.machine.lock().hold = Some(Box::new(which));
    }

    /// Every request with this number (counted from 1 over all disks) is held until [`World::release`].
    pub fn hold_number(&self, number: u64) {
        self.machine.lock().hold_numbers.push(number);
    }

    /// Ends all holding: held requests complete as the order says, and no more are held.
    pub fn release(&self) {
        let wakers = self.machine.lock().release();
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    /// How many requests are held by [`World::hold`].
    pub fn held(&self) -> usize {
        self.machine.lock().held()
    }

    /// Requests that have not ended, as text.
    pub fn in_flight(&self) -> Vec<String> {
        self.machine.lock().in_flight()
    }

    /// Counts one event and gives its number: later than every event before, earlier than every one after.
    pub fn tick(&self) -> Tick {
        self.machine.lock().next_tick()
    }

    /// Virtual time since the world began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.machine.lock().now_nanos)
    }

    /// Waits until the virtual clock has advanced by `duration`; only the executor advances it.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(self.clone(), duration)
    }

    /// Counters so far.
    pub fn counts(&self) -> IoCounts {
        let machine = self.machine.lock();
        IoCounts {
            all: machine.issued,
            inline_reads: machine.inline_reads,
            faults: machine.faults.fired.clone(),
        }
    }

    /// Breaches of the contract by the caller, such as a write to a read-only disk.
    pub fn violations(&self) -> Vec<String> {
        self.machine.lock().violations.clone()
    }

    /// The bytes as a reader sees them now.
    pub fn current(&self, disk: usize) -> Content {
        let mut machine = self.machine.lock();
        let disk = machine.disk_mut(disk);
        disk.current.settle();
        disk.current.clone()
    }

    /// The bytes that survive any crash: what completed flushes covered.
    pub fn durable(&self, disk: usize) -> Content {
        let mut machine = self.machine.lock();
        let disk = machine.disk_mut(disk);
        disk.durable.settle();
        disk.durable.clone()
    }

    /// From now on every change and flush is kept. What the disks hold now counts as durable.
    pub fn start_recording(&self) {
        self.machine.lock().start_recording();
    }

    /// Everything since [`World::start_recording`], requests in flight included; recording goes on.
    pub fn recording(&self) -> Recording {
        self.machine.lock().recording()
    }

    /// Completes one request that may complete, chosen by the seed; says whether there was one.
    /// Those kept back are taken only when `also_slow`.
    pub(crate) fn complete_one(&self, also_slow: bool) -> bool {
        let done = self.machine.lock().complete_one(also_slow);
        let any = done.is_some();
        if let Some(Some(waker)) = done {
            waker.wake();
        }
        any
    }

    /// How many requests could complete now.
    pub(crate) fn completable(&self) -> usize {
        self.machine.lock().completable()
    }

    /// Completes everything that is not held, including requests whose futures were dropped.
    pub fn drain(&self) {
        while self.complete_one(true) {}
    }

    /// Moves the clock; wakes the timers that are due.
    pub(crate) fn advance(&self, by: Duration) {
        let wakers = self.machine.lock().advance(by);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    /// Moves the clock to the next timer; false if there is none.
    pub(crate) fn advance_to_next_timer(&self) -> bool {
        let next = self.machine.lock().next_timer();
        next.inspect(|by| self.advance(*by)).is_some()
    }
}
