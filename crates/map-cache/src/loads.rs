//! Single flight: one load a slice, however many wait for it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use sync::{Arc, Event, EventListener, Mutex, OnceLock};

use crate::slice::SliceKey;

/// Loads under way. `E` is the error that a failed load hands to all who wait for it.
#[derive(Debug)]
pub(crate) struct Loads<E> {
    under_way: Mutex<HashMap<SliceKey, Arc<Flight<E>>>>,
}

#[derive(Debug)]
struct Flight<E> {
    landed: Event,
    failure: OnceLock<E>,
}

impl<E: Clone> Loads<E> {
    pub(crate) fn new() -> Self {
        Self { under_way: Mutex::new(HashMap::new()) }
    }

    /// Joins the load of `key`, or becomes the one who does it.
    pub(crate) fn join(&self, key: SliceKey) -> Load<'_, E> {
        match self.lead(key) {
            Ok(ticket) => Load::Lead(ticket),
            Err(waiting) => Load::Wait(waiting),
        }
    }

    /// Becomes the one who loads `key`, if nobody does.
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
                let flight = Arc::new(Flight { landed: Event::new(), failure: OnceLock::new() });
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
    /// Somebody reads it: wait, then look again.
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

    /// Ends the load with an error, which everybody who waits for it gets too.
    pub fn fail(self, error: E) {
        // A flight has one ticket and this consumes it, so the cell is empty.
        let _ = self.flight.failure.set(error);
    }
}

impl<E: Clone> Drop for LoadTicket<'_, E> {
    fn drop(&mut self) {
        self.loads.under_way.lock().remove(&self.key);
        self.flight.landed.notify(usize::MAX);
    }
}

impl<E: Clone> fmt::Debug for LoadTicket<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadTicket({:?})", self.key)
    }
}

/// Somebody else's load.
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
