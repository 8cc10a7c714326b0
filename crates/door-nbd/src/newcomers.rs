//! Clients that have not chosen an export yet: a bounded number of them. One more takes the place of the one that has been there longest,
//! which had the most time to choose: clients that never choose keep no other client out.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use reactor::net::Stream;

use crate::limits::HANDSHAKES_MAX;

/// All of a server.
#[derive(Debug, Default)]
pub(crate) struct Newcomers(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// How many have come so far: no two have one number, also when the first of them is gone.
    came: u64,
    streams: BTreeMap<u64, Weak<Stream>>,
}

/// A place among them; given back by dropping.
#[derive(Debug)]
pub(crate) struct NewcomerSlot {
    newcomers: Arc<Newcomers>,
    number: u64,
}

impl Newcomers {
    /// Gives a client a place, and the connection whose place it was, if all were taken.
    pub(crate) fn enter(self: &Arc<Self>, stream: &Arc<Stream>) -> (NewcomerSlot, Option<Arc<Stream>>) {
        let mut waiting = self.0.lock();
        waiting.came += 1;
        let number = waiting.came;
        let is_full = waiting.streams.len() >= HANDSHAKES_MAX;
        let first = if is_full { waiting.streams.pop_first() } else { None };
        waiting.streams.insert(number, Arc::downgrade(stream));
        drop(waiting);
        let slot = NewcomerSlot { newcomers: Arc::clone(self), number };
        (slot, first.and_then(|(_, stream)| stream.upgrade()))
    }
}

impl Drop for NewcomerSlot {
    fn drop(&mut self) {
        self.newcomers.0.lock().streams.remove(&self.number);
    }
}
