//! Listening, and what all connections share.

use std::net::Shutdown;
use std::rc::Rc;
use std::sync::Arc;

use export::{ClientCosts, Departure, Door, Exports, Loops, Room, Served, peer};
use parking_lot::Mutex;
use reactor::net::{Listener, Stream};
use tracing::Instrument;

use crate::handed::{HandedClient, NotResumed};
use crate::limits::HANDSHAKES_MAX;
use crate::newcomers::{NewcomerSlot, Newcomers};
use crate::options::{Admission, ServerOptions};
use crate::{catalogue, connection};

/// What all connections share.
#[derive(Debug)]
pub struct Server {
    door: Door,
    options: ServerOptions,
    newcomers: Arc<Newcomers>,
    /// Clients that no loop serves any more, for another process.
    handed: Mutex<Vec<HandedClient>>,
}

impl Server {
    /// A server of `exports` whose clients live on `loops`, as long as these run.
    pub fn new(exports: Exports, options: ServerOptions, loops: &Arc<Loops>) -> Arc<Self> {
        Arc::new(Self {
            door: Door::new(loops, exports),
            options,
            newcomers: Arc::default(),
            handed: Mutex::default(),
        })
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

    /// All clients are admitted, as the options say.
    pub fn admission(&self) -> Admission {
        Admission {
            tls: self.options.tls.clone(),
            authorization: None,
            clients_max: self.options.clients_max,
            handshake_timeout: Some(self.options.handshake_timeout),
        }
    }

    /// Accepts clients at `listener` on every loop, with the TLS of the options.
    pub fn listen(self: &Arc<Self>, listener: &Listener) {
        let (server, listener) = (Arc::clone(self), listener.clone());
        self.door.on_every_loop(move || {
            let admission = server.admission();
            Arc::clone(&server).accept(listener.clone(), admission)
        });
    }

    /// Accepts clients at `listener` for ever, as far as `admission` goes, and gives each to the loop that has the fewest. Runs on any event loop, also one that serves no client; dropping it ends the listening.
    pub async fn accept(self: Arc<Self>, listener: Listener, admission: Admission) {
        let room = Room { waits_from: admission.clients_max, refused_from: self.options.connections_max };
        let welcome = |stream| {
            let stream = Arc::new(stream);
            let (slot, replaced) = self.newcomers.enter(&stream);
            if let Some(replaced) = replaced {
                let why =
                    format!("it has chosen no export, and {HANDSHAKES_MAX} clients after it have not either");
                self.door.refuse(&replaced, "handshakes", &why);
                // Fails where its client was faster.
                let _ = replaced.shutdown(Shutdown::Both);
            }
            self.begin(stream, slot, admission.clone());
        };
        self.door.accept(&listener, room, welcome).await;
    }

    fn begin(self: &Arc<Self>, stream: Arc<Stream>, slot: NewcomerSlot, admission: Admission) {
        let server = Arc::clone(self);
        self.door.give(move |seat| {
            let span = tracing::info_span!("nbd", peer = peer::name(&*stream));
            let seat = seat.clone();
            let departure = Departure::new(Arc::clone(&stream));
            let hang_up = Rc::clone(&departure);
            let served = async move {
                connection::serve(server, &seat, (stream, departure), (slot, &admission)).await;
            };
            Served { hang_up, work: Box::pin(served.instrument(span)) }
        });
    }

    /// Resumes a client that another server has given away. It is served when the loops run.
    ///
    /// # Errors
    /// When its export is not here, or is not what the client knows: the client stays as it is.
    pub fn resume(self: &Arc<Self>, client: &HandedClient) -> Result<(), NotResumed> {
        let most = self.options.connections_per_export.max(1);
        let entry = self.exports().find(&client.export)?;
        let session = client.session(entry, most, |entry| catalogue::describe(entry, most))?;
        let socket = client.socket.try_clone().map_err(NotResumed::Io)?;
        let (server, begun) = (Arc::clone(self), client.begun.clone());
        self.door.give(move |seat| {
            let stream = Arc::new(Stream::from_fd(socket));
            let span = tracing::info_span!("nbd", peer = peer::name(&*stream));
            let departure = Departure::new(Arc::clone(&stream));
            // Also before its work has begun: the next process may fail, and one more come at once.
            departure.can_be_given();
            let (seat, hang_up) = (seat.clone(), Rc::clone(&departure));
            let work = async move {
                connection::resume(&server, &seat, (stream, departure), session, &begun).await;
            };
            Served { hang_up, work: Box::pin(work.instrument(span)) }
        });
        Ok(())
    }

    /// The clients that were given away when the loops ended ([`export::Shutdown::hand_over`]).
    pub fn take_handed(&self) -> Vec<HandedClient> {
        std::mem::take(&mut self.handed.lock())
    }

    pub(crate) fn hand(&self, client: HandedClient) {
        self.handed.lock().push(client);
    }
}
