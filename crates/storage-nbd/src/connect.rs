//! From a server's place to a connection in transmission.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buffer::IoBytes;
use futures_util::future::{Either, select};
use nbd_wire::client::{Handshake, Negotiated, Step, Wanted};
use nbd_wire::limits::REQUEST_BYTES_MAX;
use nbd_wire::{BlockSizes, Dialect, ExportFlags};
pub(crate) use reactor::net::Stream as Transport;

use crate::connection::Connection;
use crate::errors::Error;
use crate::inbox::Inbox;
use crate::name::Server;
use crate::unflushed::Unflushed;
use crate::{receive, send};

/// The largest minimum block that the protocol has.
const MINIMUM_BLOCK_MAX: u32 = 64 << 10;
/// What an idle TCP connection is asked after, and the longest that sent bytes stay unconfirmed before it counts as lost.
const TCP_SILENCE: Duration = Duration::from_secs(30);

/// A server whose name has been looked up.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// For messages.
    pub(crate) name: String,
    places: Places,
    pub(crate) export: String,
}

#[derive(Clone, Debug)]
enum Places {
    Unix(PathBuf),
    Tcp(Vec<SocketAddr>),
}

impl Found {
    /// Looks up the name of `server`. Later connections need no look-up.
    pub(crate) async fn look_up(server: &Server, export: &str) -> Result<Self, Error> {
        let name = server.to_string();
        let failed = |error: &io::Error| connect_error(&name, error);
        let places = match server {
            Server::Unix(path) => Places::Unix(path.clone()),
            Server::Tcp { host, port } => {
                let asked = (host.clone(), *port);
                let found = reactor::blocking(move || asked.to_socket_addrs().map(Iterator::collect)).await;
                Places::Tcp(found.map_err(|error| failed(&error))?)
            }
        };
        Ok(Self { name, places, export: export.to_owned() })
    }

    async fn socket(&self) -> io::Result<Transport> {
        let addresses = match &self.places {
            Places::Unix(path) => return Transport::connect_unix(path).await,
            Places::Tcp(addresses) => addresses,
        };
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match Transport::connect_tcp(*address).await {
                Ok(stream) => {
                    notice_silence(&stream)?;
                    return Ok(stream);
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Connects and shakes hands within `timeout`. The connection's tasks run on this loop.
    ///
    /// # Errors
    /// When that fails, or what the server says of the export makes no sense.
    pub(crate) async fn connect(
        &self,
        unflushed: &Arc<Unflushed>,
        timeout: Duration,
    ) -> Result<Arc<Connection>, Error> {
        let until = Instant::now() + timeout;
        match select(std::pin::pin!(self.shake_hands()), reactor::sleep_until(until)).await {
            Either::Left((shaken, _)) => {
                let (negotiated, transport, inbox) = shaken?;
                let socket = transport.as_fd().try_clone_to_owned();
                let socket = socket.map_err(|error| connect_error(&self.name, &error))?;
                let connection = Arc::new(Connection::new(negotiated, Arc::clone(unflushed), socket));
                let transport = Rc::new(transport);
                reactor::spawn(send::run(Arc::clone(&connection), Rc::clone(&transport))).detach();
                let receiving = Receiving(Arc::clone(&connection));
                let received = receive::run(Arc::clone(&connection), transport, inbox);
                reactor::spawn(async move {
                    let _receiving = receiving;
                    received.await;
                })
                .detach();
                Ok(connection)
            }
            Either::Right(_) => {
                Err(Error::Silent { server: self.name.clone(), seconds: timeout.as_secs().max(1) })
            }
        }
    }

    async fn shake_hands(&self) -> Result<(Negotiated, Transport, Inbox), Error> {
        let failed = |error: io::Error| connect_error(&self.name, &error);
        let transport = self.socket().await.map_err(failed)?;
        let mut inbox = Inbox::new();
        let mut handshake = Handshake::new(Wanted {
            export: self.export.clone(),
            tls: false,
            dialect: Dialect::Extended,
            contexts: vec!["base:allocation".to_owned()],
        });
        loop {
            let mut answer = Vec::new();
            let (taken, step) = handshake
                .step(inbox.bytes(), &mut answer)
                .map_err(|source| Error::Handshake { server: self.name.clone(), source })?;
            inbox.consume(taken);
            if !answer.is_empty() {
                transport.send_all(IoBytes::copy_from(&answer).into()).await.map_err(failed)?;
            }
            match step {
                Step::Need(more) => inbox.receive(&transport, more).await.map_err(failed)?,
                Step::Again => {}
                Step::StartTls => {
                    let what = "it starts TLS, which was not asked for".to_owned();
                    return Err(Error::Export { server: self.name.clone(), what });
                }
                Step::Ready(negotiated) => {
                    check(&negotiated).map_err(|what| Error::Export { server: self.name.clone(), what })?;
                    return Ok((negotiated, transport, inbox));
                }
            }
        }
    }
}

/// The task that receives ends with its loop: then the connection does, too.
struct Receiving(Arc<Connection>);

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.end(Error::LoopEnded);
    }
}

fn connect_error(server: &str, error: &io::Error) -> Error {
    Error::Connect { server: server.to_owned(), reason: error.to_string(), kind: error.kind() }
}

/// A server whose machine is gone is noticed.
fn notice_silence(stream: &Transport) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, TCP_SILENCE)?;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(TCP_SILENCE.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// What requests to a server must look like.
pub(crate) fn block_sizes(negotiated: &Negotiated) -> BlockSizes {
    let unsaid = BlockSizes { minimum: 1, preferred: 4096, maximum: REQUEST_BYTES_MAX };
    let said = negotiated.blocks.unwrap_or(unsaid);
    let maximum = said.maximum.min(REQUEST_BYTES_MAX);
    BlockSizes { maximum: maximum - maximum % said.minimum.max(1), ..said }
}

/// Whether the server's numbers can be true; otherwise what is wrong with them.
fn check(negotiated: &Negotiated) -> Result<(), String> {
    let size = negotiated.size;
    if i64::try_from(size).is_err() {
        return Err(format!("the export has {size} bytes; allowed are {}", i64::MAX));
    }
    let Some(BlockSizes { minimum, preferred, maximum }) = negotiated.blocks else { return Ok(()) };
    if !minimum.is_power_of_two() || minimum > MINIMUM_BLOCK_MAX {
        return Err(format!(
            "its minimum block is {minimum}; allowed: powers of two up to {MINIMUM_BLOCK_MAX}"
        ));
    }
    if !preferred.is_power_of_two() || preferred < minimum {
        return Err(format!("its preferred block is {preferred}; allowed: powers of two from {minimum} on"));
    }
    if maximum < minimum || (maximum != u32::MAX && !maximum.is_multiple_of(minimum)) {
        return Err(format!("its maximum block is {maximum}; allowed: multiples of {minimum}"));
    }
    if !size.is_multiple_of(u64::from(minimum)) {
        return Err(format!("the export has {size} bytes, no multiple of its minimum block of {minimum}"));
    }
    Ok(())
}

/// Whether several connections see one disk: what was written over one is read over the others, and a flush covers all.
pub(crate) fn shares(negotiated: &Negotiated) -> bool {
    negotiated.flags.has(ExportFlags::MULTI_CONN)
}
