//! Listening, and the loops that connections live on.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use event_listener::Event;
use futures_util::future::select;
use parking_lot::Mutex;
use reactor::net::{Listener, Stream};
use reactor::{Backend, Reactor};
use tracing::Instrument;

use crate::budget::Budget;
use crate::exports::Exports;
use crate::limits::{ACCEPT_PAUSE, HANDSHAKES_MAX, PROCESS_BYTES_MAX};
use crate::local_event::LocalEvent;
use crate::options::{ServerOptions, TlsPolicy};
use crate::shutdown::Shutdown;
use crate::{connection, peer};

/// What all loops share.
#[derive(Debug)]
pub struct Server {
    exports: Exports,
    options: ServerOptions,
    shutdown: Shutdown,
    budget: Arc<Budget>,
    handshakes: Arc<AtomicUsize>,
    loops: Vec<Lane>,
}

/// One loop as the others see it.
#[derive(Debug, Default)]
struct Lane {
    /// Connections that live there or are on their way.
    connections: AtomicUsize,
    /// Connections on their way.
    arriving: Mutex<Vec<Arrival>>,
    arrived: Event,
}

/// A connection on its way to its loop.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: Stream,
    pub(crate) slot: HandshakeSlot,
    /// Of the socket that it came in by.
    pub(crate) tls: TlsPolicy,
}

/// A place among the connections that have not chosen an export; given back by dropping.
#[derive(Debug)]
pub(crate) struct HandshakeSlot(Arc<AtomicUsize>);

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    /// A server of `exports` on `loops` event loops (at least one) that stops at `shutdown`.
    pub fn new(exports: Exports, options: ServerOptions, shutdown: Shutdown, loops: usize) -> Arc<Self> {
        Arc::new(Self {
            exports,
            options,
            shutdown,
            budget: Arc::new(Budget::new(PROCESS_BYTES_MAX)),
            handshakes: Arc::default(),
            loops: (0..loops.max(1)).map(|_| Lane::default()).collect(),
        })
    }

    /// What is served.
    pub fn exports(&self) -> &Exports {
        &self.exports
    }

    /// Clients that are connected now, on all loops.
    pub fn connections(&self) -> usize {
        self.loops.iter().map(|lane| lane.connections.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn options(&self) -> &ServerOptions {
        &self.options
    }

    pub(crate) fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    pub(crate) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Serves as loop number `index`, on the event loop of this thread, until the shutdown is
    /// triggered and every connection of this loop has ended. Requests in flight are finished and
    /// answered, however long the disk takes; a client that does not read its answers is waited
    /// for as long as the options say.
    ///
    /// # Panics
    /// If there are not that many loops, or outside of a running [`Reactor`].
    pub async fn run_loop(self: &Arc<Self>, index: usize, listeners: &[Listener]) {
        let lane = Rc::new(LocalLane::new(self, index));
        let mut tasks: Vec<_> = listeners
            .iter()
            .map(|listener| {
                let tls = self.options.tls.clone();
                reactor::spawn(Arc::clone(self).accept(listener.clone(), tls, usize::MAX))
            })
            .collect();
        tasks.push(reactor::spawn(Rc::clone(&lane).take_arriving()));
        self.shutdown.wait().await;
        for task in tasks {
            task.cancel().await;
        }
        self.loops[index].arriving.lock().clear();
        lane.end().await;
        for export in self.exports.entries_and_removed() {
            export.disk().idle().await;
        }
    }

    /// Accepts clients at `listener` for ever, as long as there are fewer than `most`, and gives each to the loop that
    /// has the fewest. Runs on any event loop, also one that serves nobody; dropping it ends the listening.
    pub async fn accept(self: Arc<Self>, listener: Listener, tls: TlsPolicy, most: usize) {
        loop {
            match listener.accept().await {
                Ok(stream) if self.connections() >= most => {
                    tracing::warn!(peer = peer::name(&stream), most, "too many connections; one is closed");
                }
                Ok(stream) => match self.handshake_slot() {
                    Some(slot) => self.hand_over(Arrival { stream, slot, tls: tls.clone() }),
                    None => {
                        tracing::warn!(peer = peer::name(&stream), "too many handshakes; connection closed");
                    }
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    reactor::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// To the loop with the fewest connections.
    fn hand_over(&self, arrival: Arrival) {
        let load = |lane: &&Lane| lane.connections.load(Ordering::Relaxed);
        let Some(lane) = self.loops.iter().min_by_key(load) else { return };
        lane.connections.fetch_add(1, Ordering::Relaxed);
        lane.arriving.lock().push(arrival);
        lane.arrived.notify(1);
    }

    fn handshake_slot(&self) -> Option<HandshakeSlot> {
        let slot = HandshakeSlot(Arc::clone(&self.handshakes));
        (self.handshakes.fetch_add(1, Ordering::Relaxed) < HANDSHAKES_MAX).then_some(slot)
    }
}

/// Serves on `loops` threads, each with an event loop over `backend`, until the server's shutdown
/// is triggered and every connection has ended. Blocks the caller.
///
/// # Errors
/// If an event loop cannot be made; the others then end as if the shutdown were triggered.
///
/// # Panics
/// If a loop does; the others end first.
pub fn run(server: &Arc<Server>, listeners: &[Listener], backend: Backend) -> io::Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..server.loops.len())
            .map(|index| {
                let name = format!("cowhand-nbd-{index}");
                let body = move || {
                    let _others_end_too = TriggerOnDrop(&server.shutdown);
                    Reactor::new(backend).map(|reactor| reactor.run(server.run_loop(index, listeners)))
                };
                let thread = std::thread::Builder::new().name(name).spawn_scoped(scope, body);
                if thread.is_err() {
                    server.shutdown.trigger();
                }
                thread
            })
            .collect();
        let mut result = Ok(());
        for thread in threads {
            match thread?.join() {
                Ok(ended) => result = result.and(ended),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    })
}

/// A loop that ends for any reason ends the server: half of it would be a server that hangs.
struct TriggerOnDrop<'a>(&'a Shutdown);

impl Drop for TriggerOnDrop<'_> {
    fn drop(&mut self) {
        self.0.trigger();
    }
}

/// One loop as its own thread sees it.
struct LocalLane {
    server: Arc<Server>,
    index: usize,
    /// Sockets of the connections that live here.
    streams: RefCell<HashMap<u64, Weak<Stream>>>,
    next_key: Cell<u64>,
    ended: LocalEvent,
}

impl LocalLane {
    fn new(server: &Arc<Server>, index: usize) -> Self {
        Self {
            server: Arc::clone(server),
            index,
            streams: RefCell::default(),
            next_key: Cell::new(0),
            ended: LocalEvent::default(),
        }
    }

    fn lane(&self) -> &Lane {
        &self.server.loops[self.index]
    }

    async fn take_arriving(self: Rc<Self>) {
        loop {
            let arrived = self.lane().arrived.listen();
            let arrivals = std::mem::take(&mut *self.lane().arriving.lock());
            if arrivals.is_empty() {
                arrived.await;
            }
            for arrival in arrivals {
                self.start(arrival);
            }
        }
    }

    fn start(self: &Rc<Self>, Arrival { stream, slot, tls }: Arrival) {
        let span = tracing::info_span!("nbd", peer = peer::name(&stream));
        let (stream, key) = (Rc::new(stream), self.next_key.get());
        self.next_key.set(key + 1);
        self.streams.borrow_mut().insert(key, Rc::downgrade(&stream));
        let lane = Rc::clone(self);
        let served = async move {
            connection::serve(Arc::clone(&lane.server), stream, slot, &tls).await;
            lane.streams.borrow_mut().remove(&key);
            lane.lane().connections.fetch_sub(1, Ordering::Relaxed);
            lane.ended.wake();
        };
        reactor::spawn(served.instrument(span)).detach();
    }

    /// Ends every connection: first only its reading side, so that what is in flight is answered.
    async fn end(&self) {
        self.shut(std::net::Shutdown::Read);
        let all_ended = || self.streams.borrow().is_empty();
        let grace = reactor::sleep(self.server.options.shutdown_grace);
        select(pin!(self.ended.until(all_ended)), grace).await;
        if !all_ended() {
            tracing::warn!("clients do not read their replies; their connections are cut");
            self.shut(std::net::Shutdown::Both);
        }
        self.ended.until(all_ended).await;
    }

    fn shut(&self, how: std::net::Shutdown) {
        for stream in self.streams.borrow().values().filter_map(Weak::upgrade) {
            // Fails where the peer was faster.
            let _ = stream.shutdown(how);
        }
    }
}
