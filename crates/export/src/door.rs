//! One door at the loops: its exports, and its clients.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use reactor::net::{Listener, Stream};

use crate::clients::Clients;
use crate::exports::Exports;
use crate::limits::ACCEPT_PAUSE;
use crate::loops::{Loops, Seat, Served};
use crate::peer;
use crate::repeats::{self, Level};

/// A door's part of the loops that it shares with others.
#[derive(Debug)]
pub struct Door {
    loops: Arc<Loops>,
    exports: Arc<Exports>,
    clients: Arc<Clients>,
    /// Clients sent away because they took nothing, or sent nothing, for too long.
    stalled: AtomicU64,
    /// Clients sent away at once, for there were too many.
    refused: AtomicU64,
}

/// How many clients a door has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// With so many clients the next one waits in the listener's queue until one has left; at least 1.
    pub waits_from: usize,
    /// With so many clients the next one's connection is closed.
    pub refused_from: usize,
}

/// What clients cost, and what a door did about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCosts {
    /// Bytes that requests in flight and replies that wait hold now, of the clients of all doors.
    pub held_bytes: u64,
    /// The most that it ever was.
    pub held_bytes_most: u64,
    /// What it may be ([`crate::limits::PROCESS_BYTES_MAX`]).
    pub held_bytes_max: u64,
    /// Clients of the door sent away because they read none of their replies, or sent nothing of a payload, for too long.
    pub stalled: u64,
    /// Connections to the door closed because there were too many.
    pub refused: u64,
}

impl Door {
    /// A door to `exports` whose clients live on `loops`.
    pub fn new(loops: &Arc<Loops>, exports: Exports) -> Self {
        let exports = Arc::new(exports);
        loops.wait_for(&exports);
        Self {
            loops: Arc::clone(loops),
            exports,
            clients: Arc::default(),
            stalled: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// What it leads to.
    pub fn exports(&self) -> &Exports {
        &self.exports
    }

    /// The loops that its clients live on.
    pub fn loops(&self) -> &Arc<Loops> {
        &self.loops
    }

    /// Its clients now, on all loops and on their way there.
    pub fn clients(&self) -> usize {
        self.clients.count()
    }

    /// What they cost.
    pub fn costs(&self) -> ClientCosts {
        let budget = self.loops.budget();
        ClientCosts {
            held_bytes: budget.used(),
            held_bytes_most: budget.most(),
            held_bytes_max: budget.limit(),
            stalled: self.stalled.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// A client was sent away because it took nothing, or sent nothing, for too long.
    pub fn count_stalled(&self) {
        self.stalled.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a client to the loop that has the fewest: `begin` starts it there. After the shutdown it is dropped.
    pub fn give(&self, begin: impl FnOnce(&Seat) -> Served + Send + 'static) {
        self.give_to(self.loops.least_busy(), begin);
    }

    /// Gives a client to loop number `index`: for one that must be beside another, or apart from it.
    ///
    /// # Panics
    /// If there are not that many loops.
    pub fn give_to(&self, index: usize, begin: impl FnOnce(&Seat) -> Served + Send + 'static) {
        self.loops.give(index, &self.clients, begin);
    }

    /// Runs a task on each loop until the shutdown: it is cancelled before the clients are asked to end.
    pub fn on_every_loop<F: Future<Output = ()> + 'static>(
        &self,
        make: impl Fn() -> F + Clone + Send + 'static,
    ) {
        (0..self.loops.count()).for_each(|index| self.loops.spawn(index, make.clone()));
    }

    /// Accepts connections at `listener` for ever, and hands each to `welcome` while the door has room. Runs on any event loop, also one that
    /// serves no client; dropping it ends the listening.
    pub async fn accept(&self, listener: &Listener, room: Room, mut welcome: impl FnMut(Stream)) {
        loop {
            self.clients.fewer_than(room.waits_from).await;
            match listener.accept().await {
                Ok(stream) if self.clients() >= room.refused_from => {
                    let why = format!("{} clients are connected", room.refused_from);
                    self.refuse(&stream, "connections", &why);
                }
                Ok(stream) => welcome(stream),
                Err(error) => {
                    let text = format!("cannot accept a connection: {error}");
                    repeats::tell(Level::Warn, "accept", "", &text);
                    reactor::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Counts and tells of a connection that is closed because there are too many. `kind` is what such messages are counted by.
    pub fn refuse(&self, stream: &Stream, kind: &'static str, why: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let text = format!("{}: closed: {why}", peer::name(stream));
        repeats::tell(Level::Warn, kind, "", &text);
    }
}
