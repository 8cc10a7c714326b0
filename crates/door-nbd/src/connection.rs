//! The life of one connection: handshake, transmission, end.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use export::repeats::{self, Level};
use export::{Departure, Place, Seat, peer};
use futures_util::future::{Either, select};
use memory::IoBytes;
use net::tls::{TlsStream, Transport};
use reactor::net::Stream;
use wire::nbd::server::{Handshake, HandshakeError, Session, Step, Tls};

use crate::catalogue::Offered;
use crate::handed::HandedClient;
use crate::inbox::{Inbox, ReceiveError};
use crate::newcomers::NewcomerSlot;
use crate::options::{Admission, TlsPolicy};
use crate::server::Server;
use crate::transmission::{Means, Transmission};

/// Why a connection ended before transmission.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("client leaves")]
    Done,
    #[error("no export was chosen in time")]
    Timeout,
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("{0}")]
    NoTls(&'static str),
    #[error("its certificate is for a name that is not admitted: {0:?}")]
    NotAuthorized(String),
}

/// What a handshake leads to.
struct Agreed {
    session: Session<Place>,
    transport: Transport,
    inbox: Inbox,
}

/// Serves one client to its end.
pub(crate) async fn serve(
    server: Arc<Server>,
    seat: &Seat,
    (stream, departure): (Arc<Stream>, Rc<Departure>),
    (slot, admission): (NewcomerSlot, &Admission),
) {
    tracing::debug!("client connects");
    let timeout = pin!(async {
        match admission.handshake_timeout {
            Some(timeout) => reactor::sleep(timeout).await,
            None => std::future::pending().await,
        }
    });
    let agreed = match select(pin!(handshake(&server, Arc::clone(&stream), admission)), timeout).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => Err(Ended::Timeout),
    };
    drop(slot);
    match agreed {
        Err(Ended::Done) => tracing::debug!("client leaves before it has chosen an export"),
        Err(ended @ (Ended::Tls(_) | Ended::NoTls(_) | Ended::NotAuthorized(_))) => {
            let text = format!("client {} is refused: {ended}", peer::name(&*stream));
            repeats::tell(Level::Warn, "TLS", "", &text);
        }
        Err(ended) => tracing::info!(reason = %ended, "handshake fails"),
        Ok(agreed) => transmit(&server, seat, (stream, departure), agreed).await,
    }
}

/// Resumes a client that has chosen its export at another server; `begun` is the beginning of its next request.
pub(crate) async fn resume(
    server: &Arc<Server>,
    seat: &Seat,
    (stream, departure): (Arc<Stream>, Rc<Departure>),
    session: Session<Place>,
    begun: &[u8],
) {
    let agreed =
        Agreed { session, transport: Transport::Plain(Arc::clone(&stream)), inbox: Inbox::with(begun) };
    transmit(server, seat, (stream, departure), agreed).await;
}

/// Serves a client that has chosen its export.
async fn transmit(
    server: &Arc<Server>,
    seat: &Seat,
    (stream, departure): (Arc<Stream>, Rc<Departure>),
    Agreed { session, transport, inbox }: Agreed,
) {
    let name = session.chosen.entry().name().to_owned();
    let contexts = session.contexts.len();
    tracing::info!(export = name, dialect = ?session.dialect, contexts, "client uses export");
    if matches!(transport, Transport::Plain(_)) {
        departure.can_be_given();
    }
    let loops = server.loops();
    let means = Means {
        budget: loops.budget(),
        shutdown: loops.shutdown(),
        stall_timeout: server.options().stall_timeout,
        merges: server.options().merge,
        pace: seat.pace(session.chosen.entry()),
        departure,
    };
    let transmission = Transmission::new(&session, Rc::new(transport), inbox, means);
    let (end, begun) =
        match select(pin!(transmission.run()), pin!(session.chosen.entry().leaving().wait())).await {
            Either::Left((end, _)) => end,
            Either::Right((_, running)) => {
                // Whatever waits for this client, in either direction, ends.
                let _ = stream.shutdown(std::net::Shutdown::Both);
                running.await
            }
        };
    if let Some(begun) = begun {
        match HandedClient::new(&stream, &session, begun) {
            Ok(client) => server.hand(client),
            Err(error) => tracing::error!(%error, "a client cannot be given to another process"),
        }
    }
    if end.is_stall() {
        server.door().count_stalled();
        let text = format!("export {name:?}: client {} is sent away: {end}", peer::name(&*stream));
        repeats::tell(Level::Warn, "stalled", &name, &text);
    } else {
        tracing::info!(export = name, reason = %end, "connection ends");
    }
}

async fn handshake(
    server: &Arc<Server>,
    stream: Arc<Stream>,
    admission: &Admission,
) -> Result<Agreed, Ended> {
    let mut out = Vec::new();
    let tls = match admission.tls {
        TlsPolicy::Off => Tls::Off,
        TlsPolicy::Allowed(_) => Tls::Allowed,
        TlsPolicy::Required(_) => Tls::Required,
    };
    let mut handshake = Handshake::new(tls, &mut out);
    let agreed = negotiate(server, &stream, (&mut handshake, &mut out), admission).await;
    // What such a client does next, leaving mostly, says less.
    agreed.map_err(|ended| handshake.tls_refusal().map_or(ended, Ended::NoTls))
}

async fn negotiate(
    server: &Arc<Server>,
    stream: &Arc<Stream>,
    (handshake, out): (&mut Handshake, &mut Vec<u8>),
    admission: &Admission,
) -> Result<Agreed, Ended> {
    let mut transport = Transport::Plain(Arc::clone(stream));
    let mut inbox = Inbox::new();
    let offered = Offered { server, clients_max: admission.clients_max };
    loop {
        let step = handshake.step(inbox.bytes(), &offered, out);
        // Also before an end: it may be the answer to the last question.
        if !out.is_empty() {
            transport.send_all(IoBytes::copy_from(out).into()).await?;
            out.clear();
        }
        let (taken, step) = step?;
        inbox.consume(taken);
        match step {
            Step::Again => {}
            Step::Need(more) => {
                let wanted = inbox.bytes().len() + more;
                inbox.receive_at_least(&transport, wanted).await?;
            }
            Step::StartTls => {
                let tls = begin_tls(stream, admission).await?;
                transport = Transport::Tls(Box::new(tls));
                handshake.tls_started();
            }
            Step::Ready(session) => return Ok(Agreed { session, transport, inbox }),
            Step::Done => {
                transport.close().await;
                return Err(Ended::Done);
            }
        }
    }
}

/// Encrypts a fresh connection, and refuses a client whose certificate is for a name that is not admitted.
async fn begin_tls(stream: &Arc<Stream>, admission: &Admission) -> Result<TlsStream, Ended> {
    let (TlsPolicy::Allowed(config) | TlsPolicy::Required(config)) = &admission.tls else {
        return Err(io::Error::other("TLS is not configured").into());
    };
    let tls = TlsStream::accept(Arc::clone(stream), Arc::clone(config)).await.map_err(Ended::Tls)?;
    let Some(authorization) = &admission.authorization else { return Ok(tls) };
    match tls.peer_name() {
        Some(name) if authorization.admits(&name) => Ok(tls),
        name => {
            tls.close().await;
            Err(Ended::NotAuthorized(name.unwrap_or_else(|| "no certificate".to_owned())))
        }
    }
}
