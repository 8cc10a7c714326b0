//! Listening, and what all connections share.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use export::{ClientCosts, Door, Exports, Loops, Served, peer};
use reactor::net::{Listener, Stream};
use tracing::Instrument;

use crate::connection;
use crate::limits::HANDSHAKES_MAX;
use crate::options::{ServerOptions, TlsPolicy};

/// What all connections share.
#[derive(Debug)]
pub struct Server {
    door: Door,
    options: ServerOptions,
    handshakes: Arc<AtomicUsize>,
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
    /// A server of `exports` whose clients live on `loops`, as long as these run.
    pub fn new(exports: Exports, options: ServerOptions, loops: &Arc<Loops>) -> Arc<Self> {
        Arc::new(Self { door: Door::new(loops, exports), options, handshakes: Arc::default() })
    }

    /// What is served.
    pub fn exports(&self) -> &Exports {
        self.door.exports()
    }

    /// Clients that are connected now, on all loops.
    pub fn connections(&self) -> usize {
        self.door.clients()
    }

    /// What its clients cost.
    pub fn client_costs(&self) -> ClientCosts {
        self.door.costs()
    }

    /// The loops that its clients live on.
    pub fn loops(&self) -> &Arc<Loops> {
        self.door.loops()
    }

    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    pub(crate) fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// Accepts clients at `listener` on every loop, with the TLS of the options.
    pub fn listen(self: &Arc<Self>, listener: &Listener) {
        let (server, listener) = (Arc::clone(self), listener.clone());
        self.door.on_every_loop(move || {
            let tls = server.options.tls.clone();
            Arc::clone(&server).accept(listener.clone(), tls, usize::MAX)
        });
    }

    /// Accepts clients at `listener` for ever, as long as there are fewer than `most`, and gives each to the loop that
    /// has the fewest. Runs on any event loop, also one that serves nobody; dropping it ends the listening.
    pub async fn accept(self: Arc<Self>, listener: Listener, tls: TlsPolicy, most: usize) {
        let most = most.min(self.options.connections_max);
        let welcome = |stream| match self.handshake_slot() {
            Some(slot) => self.begin(stream, slot, tls.clone()),
            None => {
                let why = format!("{HANDSHAKES_MAX} clients have chosen no export yet");
                self.door.refuse(&stream, "handshakes", &why);
            }
        };
        self.door.accept(&listener, most, welcome).await;
    }

    fn begin(self: &Arc<Self>, stream: Stream, slot: HandshakeSlot, tls: TlsPolicy) {
        let server = Arc::clone(self);
        self.door.give(move |seat| {
            let span = tracing::info_span!("nbd", peer = peer::name(&stream));
            let (stream, seat) = (Arc::new(stream), seat.clone());
            let hang_up = Rc::new(Arc::clone(&stream));
            let served = async move { connection::serve(server, &seat, stream, (slot, &tls)).await };
            Served { hang_up, work: Box::pin(served.instrument(span)) }
        });
    }

    fn handshake_slot(&self) -> Option<HandshakeSlot> {
        let slot = HandshakeSlot(Arc::clone(&self.handshakes));
        (self.handshakes.fetch_add(1, Ordering::Relaxed) < HANDSHAKES_MAX).then_some(slot)
    }
}
