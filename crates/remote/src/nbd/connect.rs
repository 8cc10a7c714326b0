//! From a server's place to a connection in transmission.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use memory::{IoBuf, IoBytes, IoVec};
use net::dial::line::Unflushed;
use net::dial::{Address, Target};
use net::tls::{ClientTls, Inbox, TlsStream, Transport};
use reactor::net::Stream;
use wire::nbd::client::{ExportRequest, Handshake, Negotiated, Step};
use wire::nbd::limits::REQUEST_BYTES_MAX;
use wire::nbd::{
    BlockSizes, ChunkKind, CommandFlags, Decoded, Dialect, ExportFlags, ReplyHead, RequestHeader,
    command_number, decode_chunk, decode_reply, limits,
};

use crate::nbd::ask::{Ask, What};
use crate::nbd::connection::{Connection, Outgoing, ToSend};
use crate::nbd::errors::Error;
use crate::nbd::incoming::{Broken, Incoming};
use crate::nbd::name::Server;

/// The largest minimum block that the protocol has.
const MINIMUM_BLOCK_MAX: u32 = 64 << 10;
/// What an idle TCP connection is asked after, and the longest that sent bytes stay unconfirmed before it counts as lost.
const TCP_SILENCE: Duration = Duration::from_secs(30);

/// A server, and what is asked of it.
#[derive(Clone, Debug)]
pub(crate) struct ExportInfo {
    /// For messages.
    pub(crate) name: String,
    place: Place,
    pub(crate) export: String,
    /// The context of a bitmap that is asked for instead of `base:allocation`.
    bitmap: Option<String>,
    /// With it nothing is said of an export, and nothing of a disk sent, before the connection is encrypted.
    tls: Option<ClientTls>,
}

/// Where connections come from.
#[derive(Clone, Debug)]
enum Place {
    /// They are made.
    Made(Target),
    /// There is one, which was handed over under this name.
    Passed(String),
}

/// Whether this process may connect to `server`. Nothing is connected.
///
/// # Errors
/// A [`net::dial::Forbidden`], which names the option that allows it; when the host's name is none.
pub fn check_reachable(server: &Server) -> io::Result<()> {
    match place_of(server)? {
        Place::Made(target) => net::dial::check(&target),
        Place::Passed(_) => Ok(()),
    }
}

fn place_of(server: &Server) -> io::Result<Place> {
    match server {
        Server::Passed(name) => Ok(Place::Passed(name.clone())),
        Server::Unix(path) => Ok(Place::Made(Target::unix(path))),
        Server::Abstract(name) => Ok(Place::Made(Target::Abstract(name.clone()))),
        Server::Tcp { host, port } => {
            let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
            Address::new(host, *port).map(|address| Place::Made(Target::Tcp(address))).map_err(wrong)
        }
    }
}

impl ExportInfo {
    /// An export of `server`, which connections are made to from now on. Its name is looked up for each.
    ///
    /// # Errors
    /// When the host's name is none.
    pub(crate) fn new(
        server: &Server,
        export: &str,
        bitmap: Option<String>,
        tls: Option<ClientTls>,
    ) -> Result<Self, Error> {
        let name = server.to_string();
        let place = place_of(server).map_err(|error| connect_error(&name, &error))?;
        if let Place::Made(target) = &place {
            net::dial::name(target.clone());
        }
        Ok(Self { name, place, export: export.to_owned(), bitmap, tls })
    }

    /// Whether a second connection can be made.
    pub(crate) fn is_made_again(&self) -> bool {
        matches!(self.place, Place::Made(_))
    }

    /// Whether nothing is asked in the clear.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) async fn socket(&self, timeout: Duration) -> io::Result<Stream> {
        let target = match &self.place {
            Place::Made(target) => target,
            Place::Passed(name) => return Ok(Stream::from_fd(net::dial::take_passed(name)?)),
        };
        let stream = net::dial::connect(target, timeout).await?;
        if target.address().is_some() {
            notice_silence(&stream)?;
        }
        Ok(stream)
    }

    /// Connects and shakes hands within `timeout`. The connection's tasks run on this loop.
    ///
    /// # Errors
    /// When that fails, or what the server says of the export makes no sense.
    pub(crate) async fn connect(
        &self,
        unflushed: &Arc<Unflushed<What>>,
        timeout: Duration,
    ) -> Result<Arc<Connection>, Error> {
        let shaken = reactor::within(timeout, self.shake_hands(timeout)).await;
        let (negotiated, transport, inbox) = shaken.unwrap_or_else(|| Err(self.silent(timeout)))?;
        let socket = transport.stream().as_fd().try_clone_to_owned();
        let socket = socket.map_err(|error| connect_error(&self.name, &error))?;
        let connection = Arc::new(Connection::new(negotiated, Arc::clone(unflushed), socket));
        let transport = Rc::new(transport);
        reactor::spawn(send(Arc::clone(&connection), Rc::clone(&transport))).detach();
        let receiving = Receiving(Arc::clone(&connection));
        let received = receive(Arc::clone(&connection), transport, inbox);
        reactor::spawn(async move {
            let _receiving = receiving;
            received.await;
        })
        .detach();
        Ok(connection)
    }

    pub(crate) fn silent(&self, timeout: Duration) -> Error {
        Error::Silent { server: self.name.clone(), seconds: timeout.as_secs().max(1) }
    }

    async fn shake_hands(&self, timeout: Duration) -> Result<(Negotiated, Transport, Inbox), Error> {
        let failed = |error: io::Error| connect_error(&self.name, &error);
        let stream = Arc::new(self.socket(timeout).await.map_err(failed)?);
        let mut transport = Transport::Plain(Arc::clone(&stream));
        let mut inbox = Inbox::default();
        let mut handshake = Handshake::new(ExportRequest {
            export: self.export.clone(),
            tls: self.tls.is_some(),
            dialect: Dialect::Extended,
            contexts: vec![self.bitmap.clone().unwrap_or_else(|| "base:allocation".to_owned())],
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
                    let tls = self.start_tls(&stream, &inbox).await?;
                    transport = Transport::Tls(Box::new(tls));
                    let mut first = Vec::new();
                    handshake.tls_started(&mut first);
                    transport.send_all(IoBytes::copy_from(&first).into()).await.map_err(failed)?;
                }
                Step::Ready(negotiated) => {
                    self.check(&negotiated)
                        .map_err(|what| Error::Export { server: self.name.clone(), what })?;
                    return Ok((negotiated, transport, inbox));
                }
            }
        }
    }

    fn check(&self, negotiated: &Negotiated) -> Result<(), String> {
        match &self.bitmap {
            Some(bitmap) if negotiated.contexts.is_empty() => {
                Err(format!("the export has no metadata context {bitmap:?}"))
            }
            _ => check(negotiated),
        }
    }

    /// Encrypts a connection whose server agreed to it.
    pub(crate) async fn start_tls(&self, stream: &Arc<Stream>, inbox: &Inbox) -> Result<TlsStream, Error> {
        let wrong = |what: &str| Error::Export { server: self.name.clone(), what: what.to_owned() };
        let tls = self.tls.as_ref().ok_or_else(|| wrong("it starts TLS, which was not asked for"))?;
        // Anybody on the way could have sent it.
        if !inbox.bytes().is_empty() {
            return Err(wrong("something was sent in the clear behind its agreement to TLS"));
        }
        let begun = TlsStream::connect(Arc::clone(stream), tls).await;
        begun.map_err(|error| Error::Tls { server: self.name.clone(), reason: error.to_string() })
    }
}

/// The task that receives ends with its loop: then the connection does, too.
struct Receiving(Arc<Connection>);

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.end(Error::LoopEnded);
    }
}

pub(crate) fn connect_error(server: &str, error: &io::Error) -> Error {
    Error::Connect { server: server.to_owned(), reason: error.to_string(), kind: error.kind() }
}

/// A server whose machine is gone is noticed.
fn notice_silence(stream: &Stream) -> io::Result<()> {
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

/// Sends what there is to send, until the connection is lost or not used any more.
async fn send(connection: Arc<Connection>, transport: Rc<Transport>) {
    loop {
        let (data, last) = match connection.to_send().await {
            ToSend::Requests(requests) => (joined(&requests), false),
            ToSend::Goodbye => (goodbye(&connection), true),
            ToSend::Nothing => return,
        };
        if let Err(error) = transport.send_all(data).await {
            return connection.lose(&error.to_string());
        }
        if last {
            transport.close().await;
            return connection.lose("it was closed");
        }
    }
}

/// One message of many: their headers in one piece of memory, payloads as they are.
fn joined(requests: &[Outgoing]) -> IoVec {
    let mut headers = IoBuf::uninit(requests.iter().map(|request| request.header.len()).sum());
    let mut at = 0;
    for Outgoing { header, .. } in requests {
        if let Some(place) = headers.get_mut(at..at + header.len()) {
            place.copy_from_slice(header);
        }
        at += header.len();
    }
    let headers = headers.freeze();
    let (mut data, mut from, mut at) = (IoVec::new(), 0, 0);
    for Outgoing { header, payload } in requests {
        at += header.len();
        if !payload.is_empty() {
            data.push(headers.slice(from, at));
            data.append(payload.clone());
            from = at;
        }
    }
    data.push(headers.slice(from, at));
    data
}

fn goodbye(connection: &Connection) -> IoVec {
    let number = command_number::DISCONNECT;
    let header = RequestHeader { flags: CommandFlags::NONE, number, cookie: 0, offset: 0, len: 0 };
    memory::IoBytes::copy_from(&header.encode(connection.negotiated.dialect)).into()
}

/// Longest payload of a chunk that is no data: a status with as many extents as there may be.
const OTHER_BYTES_MAX: usize = 16 * limits::EXTENTS_MAX + 64;

/// Why nothing more is received.
#[derive(Debug)]
enum End {
    Broken(Broken),
    Io(io::Error),
}

impl From<Broken> for End {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Receives replies until the connection ends.
async fn receive(connection: Arc<Connection>, transport: Rc<Transport>, inbox: Inbox) {
    let mut receiver = Receiver { connection: &connection, transport: &transport, inbox };
    let reason = loop {
        match receiver.reply().await {
            Ok(()) => {}
            Err(End::Io(error)) => break error.to_string(),
            Err(End::Broken(what)) => break format!("the server breaks the protocol: {what}"),
        }
    };
    connection.lose(&reason);
}

struct Receiver<'a> {
    connection: &'a Connection,
    transport: &'a Transport,
    inbox: Inbox,
}

impl Receiver<'_> {
    /// Takes one simple reply, or one chunk.
    async fn reply(&mut self) -> Result<(), End> {
        match self.head().await? {
            ReplyHead::Simple { cookie, result } => self.simple(cookie, result).await,
            ReplyHead::Chunk { cookie, kind, done, payload_bytes, .. } => {
                let bytes = usize::try_from(payload_bytes).unwrap_or(usize::MAX);
                match kind {
                    ChunkKind::OffsetData => self.data(cookie, bytes).await?,
                    ChunkKind::None if !done => {
                        Err("a reply that continues after it said nothing".to_owned())?
                    }
                    _ => self.other(cookie, kind, bytes).await?,
                }
                if done { Ok(self.connection.answered(cookie)?) } else { Ok(()) }
            }
        }
    }

    async fn head(&mut self) -> Result<ReplyHead, End> {
        loop {
            let decoded = decode_reply(self.connection.negotiated.dialect, self.inbox.bytes());
            match decoded.map_err(|error| error.to_string())? {
                Decoded::Head { bytes, head } => {
                    self.inbox.consume(bytes);
                    return Ok(head);
                }
                Decoded::Need(more) => self.inbox.receive(self.transport, more).await?,
            }
        }
    }

    /// A reply without chunks; a read that succeeded brings its data that way in the simple dialect only.
    async fn simple(&mut self, cookie: u64, result: Result<(), wire::nbd::ErrorCode>) -> Result<(), End> {
        match result {
            Err(code) => self.connection.arrived(cookie, |_, incoming| {
                incoming.fail(code, b"");
                Ok(())
            })?,
            Ok(()) => {
                let data = self.connection.arrived(cookie, |ask, _| {
                    Ok((ask.kind == What::Read).then_some((ask.offset, ask.len)))
                })?;
                match data {
                    Some(_) if self.connection.negotiated.dialect != wire::nbd::Dialect::Simple => {
                        Err("data outside of a chunk".to_owned())?;
                    }
                    Some((offset, len)) => self.payload(cookie, offset, len).await?,
                    None => {}
                }
            }
        }
        Ok(self.connection.answered(cookie)?)
    }

    async fn data(&mut self, cookie: u64, payload_bytes: usize) -> Result<(), End> {
        const OFFSET_BYTES: usize = 8;
        while self.inbox.bytes().len() < OFFSET_BYTES.min(payload_bytes) {
            self.inbox.receive(self.transport, OFFSET_BYTES - self.inbox.bytes().len()).await?;
        }
        let offset = self.inbox.bytes().first_chunk::<OFFSET_BYTES>().map(|bytes| u64::from_be_bytes(*bytes));
        let len = payload_bytes.checked_sub(OFFSET_BYTES);
        let (Some(offset), Some(len)) = (offset, len) else {
            return Err(End::Broken("data without a place".to_owned()));
        };
        self.inbox.consume(OFFSET_BYTES);
        self.payload(cookie, offset, len as u64).await
    }

    async fn payload(&mut self, cookie: u64, offset: u64, len: u64) -> Result<(), End> {
        let (buf, at) =
            self.connection.arrived(cookie, |ask, incoming| incoming.take_buf(ask, offset, len))?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let buf = self.inbox.take(self.transport, buf, at, len).await?;
        Ok(self.connection.arrived(cookie, |_, incoming| {
            incoming.put_back(buf);
            Ok(())
        })?)
    }

    async fn other(&mut self, cookie: u64, kind: ChunkKind, payload_bytes: usize) -> Result<(), End> {
        if payload_bytes > OTHER_BYTES_MAX {
            let what = format!("a {kind:?} chunk has {payload_bytes} bytes; allowed are {OTHER_BYTES_MAX}");
            return Err(End::Broken(what));
        }
        let payload = IoBuf::uninit(payload_bytes);
        let payload = self.inbox.take(self.transport, payload, 0, payload_bytes).await?;
        let chunk = decode_chunk(kind, &payload).map_err(|error| error.to_string())?;
        let context = self.connection.allocation_context();
        let take = |ask: &Ask, incoming: &mut Incoming| incoming.take_chunk(ask, &chunk, context);
        Ok(self.connection.arrived(cookie, take)?)
    }
}
