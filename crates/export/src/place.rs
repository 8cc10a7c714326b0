//! Places of clients at an export.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use event_listener::Event;

use crate::exports::ExportEntry;
use crate::few_names::shortened;

/// Stands for a number of connections: no client may connect any more.
const CLOSED: u32 = u32::MAX;

/// How many clients use an export.
#[derive(Debug, Default)]
pub(crate) struct Places {
    connections: AtomicU32,
    /// There was one; [`Place::take`] says so.
    were_taken: AtomicBool,
    /// The last connection has ended.
    left: Event,
}

impl Places {
    pub(crate) fn taken(&self) -> u32 {
        match self.connections.load(Ordering::SeqCst) {
            CLOSED => 0,
            connections => connections,
        }
    }

    /// Ends when no client has a place.
    pub(crate) async fn all_free(&self) {
        loop {
            let left = self.left.listen();
            if self.taken() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Ends when a client had a place and no client has one.
    pub(crate) async fn all_left(&self) {
        loop {
            let left = self.left.listen();
            if self.were_taken.load(Ordering::SeqCst) && self.taken() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Takes the places away if no client has one; otherwise says how many have.
    pub(crate) fn close_if_free(&self) -> Result<(), u32> {
        self.connections.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst).map(|_| ())
    }
}

/// Why a client cannot use an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// It was removed while the client was choosing.
    #[error("export {:?} has been taken away", shortened(.0))]
    TakenAway(String),
    /// As many use it as may.
    #[error("export {name:?} has {connections} connections; at most {most} are allowed")]
    Full {
        /// Its name.
        name: String,
        /// How many use it.
        connections: u32,
        /// How many may.
        most: u32,
    },
}

/// A client's place among the connections of an export; given back by dropping.
#[derive(Debug)]
pub struct Place {
    entry: Arc<ExportEntry>,
}

impl Place {
    /// A place at `entry`, where at most `most` may be.
    ///
    /// # Errors
    /// When there are as many, or the export was removed.
    pub fn take(entry: Arc<ExportEntry>, most: u32) -> Result<Self, NoPlace> {
        let taken_away = |entry: &ExportEntry| Err(NoPlace::TakenAway(entry.name().to_owned()));
        let one_more = |connections: u32| (connections < most).then(|| connections + 1);
        match entry.places().connections.try_update(Ordering::SeqCst, Ordering::SeqCst, one_more) {
            Ok(_) => {
                entry.places().were_taken.store(true, Ordering::SeqCst);
                let place = Self { entry };
                // The removal sets its mark and then looks at the connections; we do it the other way round:
                // one of the two sees the other.
                if place.entry.leaving().is_triggered() { taken_away(&place.entry) } else { Ok(place) }
            }
            Err(CLOSED) => taken_away(&entry),
            Err(connections) => Err(NoPlace::Full { name: entry.name().to_owned(), connections, most }),
        }
    }

    /// Where it is.
    pub fn entry(&self) -> &Arc<ExportEntry> {
        &self.entry
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let places = self.entry.places();
        if places.connections.fetch_sub(1, Ordering::SeqCst) == 1 {
            places.left.notify(usize::MAX);
        }
    }
}
