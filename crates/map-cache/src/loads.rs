//! Single flight: one load a slice, however many wait for it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::ops::Range;

use sync::atomic::{AtomicBool, Ordering};
use sync::{Arc, Event, EventListener, Mutex, OnceLock};

use crate::directory::SliceKey;

/// Loads under way. `E` is the error that a failed load hands to all requests that wait for it.
#[derive(Debug)]
pub(crate) struct Loads<E> {
    under_way: Mutex<BTreeMap<SliceKey, Arc<Flight<E>>>>,
}

#[derive(Debug)]
struct Flight<E> {
    landed: Event,
    failure: OnceLock<E>,
    /// The table was forgotten after this load began: what it reads may be no part of the map any more.
    stale: AtomicBool,
}

impl<E: Clone> Loads<E> {
    pub(crate) fn new() -> Self {
        Self { under_way: Mutex::new(BTreeMap::new()) }
    }

    /// Loads of slices of these tables that are under way may not land. Who needs one of the slices from now on begins a
    /// load of its own.
    pub(crate) fn forget_tables(&self, tables: Range<u32>) {
        let first = |l1_index| SliceKey { l1_index, slice: 0 };
        let mut under_way = self.under_way.lock();
        let keys: Vec<_> =
            under_way.range(first(tables.start)..first(tables.end)).map(|(key, _)| *key).collect();
        for flight in keys.iter().filter_map(|key| under_way.remove(key)) {
            flight.stale.store(true, Ordering::Release);
        }
    }

    /// Joins the load of `key`, or becomes the task that does it.
    pub(crate) fn join(&self, key: SliceKey) -> Load<'_, E> {
        match self.lead(key) {
            Ok(ticket) => Load::Lead(ticket),
            Err(waiting) => Load::Wait(waiting),
        }
    }

    /// Becomes the task that loads `key`, if no other does.
    pub(crate) fn try_lead(&self, key: SliceKey) -> Option<LoadTicket<'_, E>> {
        self.lead(key).ok()
    }

    fn lead(&self, key: SliceKey) -> Result<LoadTicket<'_, E>, Waiting<E>> {
        match self.under_way.lock().entry(key) {
            Entry::Occupied(flight) => {
                let flight = Arc::clone(flight.get());
                Err(Waiting { listener: flight.landed.listen(), flight })
            }
            Entry::Vacant(vacant) => {
                let flight = Arc::new(Flight {
                    landed: Event::new(),
                    failure: OnceLock::new(),
                    stale: AtomicBool::new(false),
                });
                vacant.insert(Arc::clone(&flight));
                Ok(LoadTicket { loads: self, key, flight })
            }
        }
    }
}

/// What to do about a slice that is not in memory.
#[derive(Debug)]
pub enum Load<'a, E: Clone> {
    /// It is in memory after all: look again.
    Present,
    /// Read it and say how that ended ([`crate::MapCache::land`]).
    Lead(LoadTicket<'a, E>),
    /// A task reads it: wait, then look again.
    Wait(Waiting<E>),
}

/// The right and duty to load one slice. Dropping it without a word (a cancelled request) lets the
/// next in line try.
pub struct LoadTicket<'a, E: Clone> {
    loads: &'a Loads<E>,
    key: SliceKey,
    flight: Arc<Flight<E>>,
}

impl<E: Clone> LoadTicket<'_, E> {
    pub(crate) fn key(&self) -> SliceKey {
        self.key
    }

    /// Whether the table was forgotten since the load began. Asked under the lock under which slices are forgotten.
    pub(crate) fn is_stale(&self) -> bool {
        self.flight.stale.load(Ordering::Acquire)
    }

    /// Ends the load with an error, which all requests that wait for it get too.
    pub fn fail(self, error: E) {
        // A flight has one ticket and this consumes it, so the cell is empty.
        let _ = self.flight.failure.set(error);
    }
}

impl<E: Clone> Drop for LoadTicket<'_, E> {
    fn drop(&mut self) {
        let mut under_way = self.loads.under_way.lock();
        // A stale load is not there any more; a later one of the same slice may be.
        if under_way.get(&self.key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            under_way.remove(&self.key);
        }
        drop(under_way);
        self.flight.landed.notify(usize::MAX);
    }
}

impl<E: Clone> fmt::Debug for LoadTicket<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadTicket({:?})", self.key)
    }
}

/// Another task's load.
#[derive(Debug)]
pub struct Waiting<E> {
    listener: EventListener,
    flight: Arc<Flight<E>>,
}

impl<E: Clone> Waiting<E> {
    /// Waits until the load is over; an error is the load's.
    pub async fn landed(self) -> Result<(), E> {
        self.listener.await;
        match self.flight.failure.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}
