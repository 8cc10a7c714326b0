//! The state of a world: which tasks wait for what, and what completing a request does.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use storage::{Extent, IoBuf};

use super::Order;
use super::fault::{Effect, Faults, no_space, random_part};
use super::medium::Disk;
use super::shortage::Shortages;
use super::timer::Timers;
use crate::content::Content;
use crate::crash::Recording;
use crate::request::{IoKind, Outcome, Part, Record, Request, Tick};
use crate::rng::Rng;

/// If set, every request that ends is printed.
const TRACE_VARIABLE: &str = "COWHAND_SIM_TRACE";

/// One request in so many is kept back until nothing else can go on: late landings are where the bugs are.
const SLOW_ONE_IN: u64 = 8;

type Hold = Box<dyn Fn(usize, &Request) -> bool + Send>;

pub(crate) struct Machine {
    pub order: Order,
    pub disks: Vec<Disk>,
    pub faults: Faults,
    pub shortages: Shortages,
    pub hold: Option<Hold>,
    pub hold_numbers: Vec<u64>,
    pub timers: Timers,
    pub now_nanos: u64,
    pub issued: u64,
    pub inline_reads: u64,
    pub violations: Vec<String>,
    tick: Tick,
    rng: Rng,
    slots: BTreeMap<u64, Slot>,
    ready: Vec<u64>,
    slow: Vec<u64>,
    /// Flushes that have ended, of which no caller has been notified yet.
    unreported: Vec<(Reported, io::Result<()>)>,
    history: Option<History>,
    trace: bool,
}

/// A request that has not been given back to its caller.
struct Slot {
    record: Record,
    buf: Option<IoBuf>,
    fault: Option<Effect>,
    /// Set when a flush through this handle fails: the error of writeback is returned to that one only, and later ones
    /// "succeed" without making anything durable.
    flush_failed: Arc<AtomicBool>,
    /// The waker that is notified of a flush that no client polls for.
    reported: Option<Reported>,
    held: bool,
    /// Its future was dropped: the request ends, and no caller is notified.
    abandoned: bool,
    ended: Option<io::Result<Option<Extent>>>,
    waker: Option<Waker>,
}

struct History {
    start: Vec<Content>,
    since: Tick,
    records: Vec<Arc<Record>>,
}

/// Takes the result of a flush.
pub(crate) type Reported = Box<dyn FnOnce(io::Result<()>) + Send>;

/// What a finished request gives back.
pub(crate) type Ended = (io::Result<Option<Extent>>, Option<IoBuf>);

impl Machine {
    pub fn new(seed: u64, order: Order) -> Self {
        Self {
            order,
            disks: Vec::new(),
            faults: Faults::default(),
            shortages: Shortages::default(),
            hold: None,
            hold_numbers: Vec::new(),
            timers: Timers::new(),
            now_nanos: 0,
            issued: 0,
            inline_reads: 0,
            violations: Vec::new(),
            tick: 0,
            rng: Rng::new(seed),
            slots: BTreeMap::new(),
            ready: Vec::new(),
            slow: Vec::new(),
            unreported: Vec::new(),
            history: None,
            trace: std::env::var_os(TRACE_VARIABLE).is_some(),
        }
    }

    pub fn next_tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    pub fn disk(&self, disk: usize) -> &Disk {
        &self.disks[disk]
    }

    pub fn disk_mut(&mut self, disk: usize) -> &mut Disk {
        &mut self.disks[disk]
    }

    /// Takes a request in; its number is the key to ask for it.
    pub fn issue(
        &mut self,
        disk: usize,
        request: Request,
        buf: Option<IoBuf>,
        flush_failed: &Arc<AtomicBool>,
        reported: Option<Reported>,
    ) -> u64 {
        self.issued += 1;
        let number = self.issued;
        self.shortages.count(&mut self.disks);
        let fault = self.faults.meet(disk, &request, &mut self.rng);
        let held = self.hold.as_ref().is_some_and(|hold| hold(disk, &request))
            || self.hold_numbers.contains(&number);
        let issued = self.next_tick();
        let length_before = self.disks[disk].current.length();
        self.judge_room(disk, &request);
        let request = self.decided(disk, request);
        let record = Record {
            number,
            disk,
            request,
            issued,
            completed: None,
            outcome: Outcome::Pending,
            length_before,
        };
        let flush_failed = Arc::clone(flush_failed);
        let slot = Slot {
            record,
            buf,
            fault,
            flush_failed,
            reported,
            held,
            abandoned: false,
            ended: None,
            waker: None,
        };
        self.slots.insert(number, slot);
        if !held {
            // No client can be waiting yet.
            drop(self.schedule(number));
        }
        number
    }

    /// Settles by the seed what the contract leaves open.
    fn decided(&mut self, disk: usize, request: Request) -> Request {
        match request {
            Request::Discard { offset, len, .. } => {
                use crate::request::Leaves::{Old, Poison, Zeroes};
                let promised = self.disks[disk].capabilities.discards_to_zero;
                let leaves = if promised { Zeroes } else { self.rng.pick(&[Zeroes, Old, Poison]) };
                Request::Discard { offset, len, leaves }
            }
            other => other,
        }
    }

    fn schedule(&mut self, number: u64) -> Option<Waker> {
        match self.order {
            Order::Immediate => return self.complete(number),
            Order::Shuffled if self.rng.chance(1, SLOW_ONE_IN) => self.slow.push(number),
            Order::Shuffled => self.ready.push(number),
        }
        None
    }

    pub fn release(&mut self) -> Vec<Waker> {
        self.hold = None;
        self.hold_numbers.clear();
        let held: Vec<u64> =
            self.slots.iter().filter(|(_, slot)| slot.held).map(|(number, _)| *number).collect();
        let mut wakers = Vec::new();
        for number in held {
            if let Some(slot) = self.slots.get_mut(&number) {
                slot.held = false;
            }
            wakers.extend(self.schedule(number));
        }
        wakers
    }

    pub fn held(&self) -> usize {
        self.slots.values().filter(|slot| slot.held).count()
    }

    pub fn in_flight(&self) -> Vec<String> {
        let waiting = self.slots.values().filter(|slot| slot.ended.is_none());
        waiting.map(|slot| format!("{}{}", slot.record, if slot.held { ", held" } else { "" })).collect()
    }

    pub fn completable(&self) -> usize {
        self.ready.len() + self.slow.len() + self.unreported.len()
    }

    pub fn complete_one(&mut self, also_slow: bool) -> Option<Option<Waker>> {
        if !self.unreported.is_empty() && self.rng.chance(1, 2) {
            let (reported, result) = self.unreported.swap_remove(self.rng.index(self.unreported.len()));
            reported(result);
            return Some(None);
        }
        let list = match (self.ready.is_empty(), also_slow) {
            (false, _) => &mut self.ready,
            (true, true) if !self.slow.is_empty() => &mut self.slow,
            (true, _) => {
                let (reported, result) = self.unreported.pop()?;
                reported(result);
                return Some(None);
            }
        };
        let number = list.swap_remove(self.rng.index(list.len()));
        Some(self.complete(number))
    }

    /// Lets a request take effect and end.
    fn complete(&mut self, number: u64) -> Option<Waker> {
        let mut slot = self.slots.remove(&number)?;
        let completed = self.next_tick();
        slot.record.completed = Some(completed);
        let (result, part) = self.perform(&mut slot);
        // A flush that succeeds after another got the error made nothing durable.
        let lies = part == Part::None;
        slot.record.outcome = if result.is_ok() && !lies { Outcome::Done } else { Outcome::Failed(part) };
        if self.trace {
            println!("{}: {}", slot.record, if result.is_ok() { "ok" } else { "failed" });
        }
        self.keep(slot.record.clone());
        if let Some(reported) = slot.reported.take() {
            let result = result.map(drop);
            match self.order {
                Order::Immediate => reported(result),
                // As it is with completions: the first task to wait may be woken last.
                Order::Shuffled => self.unreported.push((reported, result)),
            }
            return None;
        }
        if slot.abandoned {
            return None;
        }
        slot.ended = Some(result);
        let waker = slot.waker.take();
        self.slots.insert(number, slot);
        waker
    }

    fn perform(&mut self, slot: &mut Slot) -> (io::Result<Option<Extent>>, Part) {
        let request = &slot.record.request;
        let disk = &mut self.disks[slot.record.disk];
        if request.kind() == IoKind::Flush && slot.flush_failed.load(Ordering::Relaxed) {
            return (Ok(None), Part::None);
        }
        if let Some(effect) = &slot.fault {
            request.apply(&mut disk.current, &effect.part);
            if let (Some(buf), Request::Read { offset, .. }) = (&mut slot.buf, request) {
                let len = buf.len();
                disk.current.read(*offset, &mut buf[..len / 2]);
            }
            if request.kind() == IoKind::Flush {
                slot.flush_failed.store(true, Ordering::Relaxed);
            }
            return (Err(effect.error(request.kind())), effect.part.clone());
        }
        if disk.capacity.is_some_and(|most| request.grows_to().is_some_and(|end| end > most)) {
            return (Err(no_space()), Part::None);
        }
        if let Some(part) = disk.short_of_room(request) {
            request.apply(&mut disk.current, &part);
            *self.faults.fired.entry(request.kind()).or_default() += 1;
            return (Err(no_space()), part);
        }
        match request {
            Request::Read { offset, .. } => {
                if let Some(buf) = &mut slot.buf {
                    disk.current.read(*offset, buf);
                }
                (Ok(None), Part::All)
            }
            Request::Extent { offset, len } => (Ok(Some(disk.extent(*offset, *len))), Part::All),
            Request::Flush => {
                disk.make_durable(slot.record.issued);
                (Ok(None), Part::All)
            }
            Request::Write { .. }
            | Request::Zero { .. }
            | Request::Discard { .. }
            | Request::SetLength { .. }
            | Request::Allocate { .. } => {
                request.apply(&mut disk.current, &Part::All);
                (Ok(None), Part::All)
            }
        }
    }

    fn keep(&mut self, record: Record) {
        let record = Arc::new(record);
        if record.request.changes() && *record.part() != Part::None {
            self.disks[record.disk].unflushed.push(Arc::clone(&record));
        }
        if let Some(history) = &mut self.history
            && (record.request.changes() || record.request.kind() == IoKind::Flush)
        {
            history.records.push(record);
        }
    }

    /// Gives the result of an ended request, or remembers whom to wake.
    pub fn poll(&mut self, number: u64, waker: &Waker) -> Option<Ended> {
        let slot = self.slots.get_mut(&number)?;
        if slot.ended.is_none() {
            slot.waker = Some(waker.clone());
            return None;
        }
        let slot = self.slots.remove(&number)?;
        Some((slot.ended?, slot.buf))
    }

    /// The future of a request was dropped: it may never happen, in part, or later.
    pub fn abandon(&mut self, number: u64) {
        let Some(mut slot) = self.slots.remove(&number) else { return };
        if slot.ended.is_some() {
            return;
        }
        if self.rng.chance(1, 2) {
            slot.abandoned = true;
            slot.waker = None;
            self.slots.insert(number, slot);
            return;
        }
        self.ready.retain(|other| *other != number);
        self.slow.retain(|other| *other != number);
        let sectors = slot.record.request.sectors();
        let torn =
            matches!(slot.record.request.kind(), IoKind::Write | IoKind::Zero) && self.rng.chance(1, 2);
        let part = if torn { random_part(sectors, &mut self.rng) } else { Part::None };
        slot.record.request.apply(&mut self.disks[slot.record.disk].current, &part);
        slot.record.completed = Some(self.next_tick());
        slot.record.outcome = Outcome::Failed(part);
        self.keep(slot.record);
    }

    /// A read that need not wait: as if the range were in the page cache, or not, as the seed says.
    pub fn try_read(&mut self, disk: usize, offset: u64, buf: &mut [u8]) -> bool {
        if self.order == Order::Immediate || self.rng.chance(1, 2) {
            return false;
        }
        self.inline_reads += 1;
        self.disks[disk].current.read(offset, buf);
        true
    }

    pub fn start_recording(&mut self) {
        let start = self.disks.iter_mut().map(Disk::forget_unflushed).collect();
        self.history = Some(History { start, since: self.tick, records: Vec::new() });
    }

    pub fn recording(&mut self) -> Recording {
        let end = self.next_tick();
        let in_flight = self.slots.values().filter(|slot| slot.ended.is_none());
        let pending = in_flight.map(|slot| &slot.record).filter(|record| record.request.changes());
        let pending: Vec<Arc<Record>> = pending.cloned().map(Arc::new).collect();
        let (start, since, mut records) = match &self.history {
            Some(history) => (history.start.clone(), history.since, history.records.clone()),
            None => (Vec::new(), end, Vec::new()),
        };
        records.extend(pending);
        records.sort_by_key(|record| record.issued);
        let disks = self.disks.iter().map(|disk| (disk.name.clone(), disk.capabilities)).collect();
        Recording { disks, start, since, end, records }
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Machine({} disks, {} requests, tick {})", self.disks.len(), self.issued, self.tick)
    }
}
