//! What the queues of one device share with its connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use event_listener::{Event, EventListener};
use export::Shutdown;
use parking_lot::Mutex;
use reactor::Doorbell;

use crate::allowance::Allowance;
use crate::features::device;
use crate::inflight::Inflight;
use crate::mapping::is_any_lost;
use crate::memory::{DirtyLog, Memory};
use crate::message::RingAddress;
use crate::request::{ID_BYTES, SECTOR_BYTES, Takes};
use crate::ring::RingFeatures;
use crate::shown_disk::VhostExport;

/// One front-end's device. The connection changes it; queues look at it for each request.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) export: Arc<VhostExport>,
    pub(crate) memory: ArcSwap<Memory>,
    pub(crate) log: ArcSwapOption<DirtyLog>,
    /// Those that the driver uses.
    pub(crate) features: AtomicU64,
    pub(crate) inflight: ArcSwapOption<Inflight>,
    /// What the front-end may have mapped.
    pub(crate) allowance: Allowance,
    cache: WriteCache,
}

/// Whether the driver has the write cache on.
#[derive(Debug)]
struct WriteCache(AtomicU8);

/// It was not said yet: it is on, as a driver that begins finds it.
const PRESUMED: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

impl Device {
    pub(crate) fn new(export: &Arc<VhostExport>, allowance: Allowance) -> Self {
        let cache = match *export.cache.lock() {
            None if export.entry.disk().writes_through() => OFF,
            None => PRESUMED,
            Some(true) => ON,
            Some(false) => OFF,
        };
        Self {
            export: Arc::clone(export),
            memory: ArcSwap::from_pointee(Memory::new(allowance.clone())),
            log: ArcSwapOption::empty(),
            features: AtomicU64::new(0),
            inflight: ArcSwapOption::empty(),
            allowance,
            cache: WriteCache(AtomicU8::new(cache)),
        }
    }

    fn uses(&self, feature: u64) -> bool {
        self.features.load(Ordering::Acquire) & feature != 0
    }

    pub(crate) fn ring_features(&self) -> RingFeatures {
        RingFeatures {
            indirect: self.uses(device::INDIRECT_DESC),
            event_index: self.uses(device::EVENT_IDX),
            packed: self.uses(device::RING_PACKED),
        }
    }

    /// The log, while pages that are written are logged.
    pub(crate) fn dirty_log(&self) -> Option<Arc<DirtyLog>> {
        if self.uses(device::LOG_ALL) { self.log.load_full() } else { None }
    }

    /// Whether the write cache is on.
    pub(crate) fn cache(&self) -> bool {
        self.cache.0.load(Ordering::Acquire) != OFF
    }

    /// The driver turned the write cache on or off.
    pub(crate) fn set_cache(&self, on: bool) {
        self.cache.0.store(if on { ON } else { OFF }, Ordering::Release);
        self.remember_cache();
    }

    /// Whether some of what the front-end shares was lost: what was read of it may not be what was written.
    pub(crate) fn is_anything_lost(&self) -> bool {
        is_any_lost()
            && (self.memory.load().is_lost()
                || self.inflight.load().as_ref().is_some_and(|records| records.is_lost())
                // Pages that are marked there are not copied.
                || self.dirty_log().is_some_and(|log| log.is_lost()))
    }

    /// Takes over what records of an earlier back-end say.
    pub(crate) fn take_over(&self, inflight: Inflight) {
        if let Some(on) = inflight.cache() {
            self.cache.0.store(if on { ON } else { OFF }, Ordering::Release);
        }
        self.inflight.store(Some(Arc::new(inflight)));
        if self.cache.0.load(Ordering::Acquire) != PRESUMED {
            self.remember_cache();
        }
    }

    /// A ring begins, and its guest has worked before or not. Where it is unknown whether its driver turned the cache off it may have: then
    /// each write is made durable. One that has not has a driver that has read the configuration.
    pub(crate) fn ring_begins(&self, in_use: bool) {
        let to = if in_use { OFF } else { PRESUMED };
        let _ = self.cache.0.compare_exchange(PRESUMED, to, Ordering::AcqRel, Ordering::Acquire);
        self.remember_cache();
    }

    fn remember_cache(&self) {
        let on = self.cache();
        *self.export.cache.lock() = Some(on);
        if let Some(inflight) = &*self.inflight.load() {
            inflight.set_cache(on);
        }
    }

    /// Whether each change is made durable before its answer: the driver turned the cache off, or cannot flush.
    pub(crate) fn is_durable_at_once(&self) -> bool {
        !self.cache() || !self.uses(device::FLUSH)
    }

    pub(crate) fn takes(&self) -> Takes {
        let disk = self.export.entry.disk();
        let (read_only, can) = (disk.read_only(), disk.abilities());
        let size = disk.size();
        Takes { size: size - size % SECTOR_BYTES, read_only, discard: can.discard, zero: can.zero }
    }

    /// The disk's name as the guest has it.
    pub(crate) fn id(&self) -> [u8; ID_BYTES] {
        let mut id = [0; ID_BYTES];
        id.iter_mut().zip(self.export.options.serial.bytes()).for_each(|(place, byte)| *place = byte);
        id
    }
}

/// One ring from its start to its stop. The connection steers it, a queue on some loop works on it.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) ring: usize,
    pub(crate) entries: u32,
    /// As a message says it.
    pub(crate) base: u32,
    pub(crate) kick: Doorbell,
    pub(crate) address: ArcSwap<RingAddress>,
    call: ArcSwapOption<Doorbell>,
    pub(crate) err: ArcSwapOption<Doorbell>,
    enabled: AtomicBool,
    called_anew: AtomicBool,
    /// Nothing more is to be taken.
    pub(crate) stop: Shutdown,
    changed: Event,
    ended: Shutdown,
    next: AtomicU32,
    fault: Mutex<Option<String>>,
}

/// What a ring is started with.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) ring: usize,
    pub(crate) entries: u32,
    /// As a message says it.
    pub(crate) base: u32,
    pub(crate) kick: Doorbell,
    pub(crate) address: RingAddress,
    pub(crate) call: Option<Arc<Doorbell>>,
    pub(crate) err: Option<Arc<Doorbell>>,
}

impl Run {
    pub(crate) fn new(start: Start) -> Arc<Self> {
        let Start { ring, entries, base, kick, address, call, err } = start;
        Arc::new(Self {
            ring,
            entries,
            base,
            kick,
            address: ArcSwap::from_pointee(address),
            call: ArcSwapOption::new(call),
            err: ArcSwapOption::new(err),
            enabled: AtomicBool::new(true),
            called_anew: AtomicBool::new(false),
            stop: Shutdown::new(),
            changed: Event::new(),
            ended: Shutdown::new(),
            next: AtomicU32::new(base),
            fault: Mutex::default(),
        })
    }

    /// Calls the driver, if it can be.
    pub(crate) fn call_driver(&self) -> std::io::Result<()> {
        self.call.load().as_ref().map_or(Ok(()), |call| call.ring())
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    pub(crate) fn enable(&self, on: bool) {
        self.enabled.store(on, Ordering::Release);
        self.changed.notify(usize::MAX);
    }

    /// The driver is called by `call` from now on.
    pub(crate) fn set_call(&self, call: Option<Arc<Doorbell>>) {
        self.call.store(call);
        self.called_anew.store(true, Ordering::Release);
        self.changed.notify(usize::MAX);
    }

    /// Whether the driver may wait for a call that another thread was to make: it was given since the last time, or the ring has been in use
    /// before.
    pub(crate) fn take_called_anew(&self) -> bool {
        self.called_anew.swap(false, Ordering::AcqRel)
    }

    /// The ring goes on where another back-end left it, which may have been killed before a call.
    pub(crate) fn resumes(&self) {
        self.called_anew.store(true, Ordering::Release);
    }

    /// Ends with the next change after this call.
    pub(crate) fn changed(&self) -> EventListener {
        self.changed.listen()
    }

    /// The queue has nothing in flight any more, and touches nothing; `next` is the entry that comes next.
    pub(crate) fn end(&self, next: u32) {
        self.next.store(next, Ordering::Release);
        self.ended.trigger();
    }

    /// The queue is gone without an end in order, or never began.
    pub(crate) fn end_if_not_ended(&self) {
        self.ended.trigger();
    }

    /// Ends the ring in order, and gives the entry that comes next.
    pub(crate) async fn stopped(&self) -> u32 {
        self.stop.trigger();
        self.ended.wait().await;
        self.next.load(Ordering::Acquire)
    }

    /// Notes what is wrong with the ring; the first thing counts. Whether it was.
    pub(crate) fn fail(&self, fault: &dyn std::fmt::Display) -> bool {
        let mut noted = self.fault.lock();
        let first = noted.is_none();
        noted.get_or_insert_with(|| fault.to_string());
        first
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.fault.lock().is_some()
    }
}
