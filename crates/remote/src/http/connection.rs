//! A connection to a server: one request and its answer at a time.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::{IoBuf, IoBytes};
use net::dial::{Address, Target};
use net::tls::{ClientTls, Inbox, TlsStream, Transport};
use wire::http::{Answer, AnswerError, Length, Origin, Scheme, Url, next_piece};

use crate::http::proxy::Way;

/// A body is received in pieces of this many bytes, each within the timeout: the slowest server that is borne with.
const PIECE_BYTES: usize = 64 << 10;
/// Answers before the one that counts, at most: servers send one if any.
const INFORMATIONAL_MAX: usize = 8;
/// A body that no task wants is received up to so many bytes, to keep the connection; beyond, a new one costs less.
const UNWANTED_BYTES_MAX: u64 = 16 << 10;

/// What ended a connection.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The other side, or the way to it.
    Lost(io::Error),
    /// Nothing came within the timeout.
    Silent,
    /// What it sent is no HTTP.
    Broken(AnswerError),
}

/// A connection without a request on its way.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) origin: Origin,
    transport: Transport,
    inbox: Inbox,
    timeout: Duration,
    /// Since when nothing was asked over it.
    pub(crate) idle_since: Instant,
    /// It leads to a proxy that reads requests.
    pub(crate) proxy: Option<Way>,
}

/// What `work` gives, unless it takes longer than `timeout`.
async fn within<T>(timeout: Duration, work: impl Future<Output = io::Result<T>>) -> Result<T, Ended> {
    reactor::within(timeout, work).await.ok_or(Ended::Silent)?.map_err(Ended::Lost)
}

impl Connection {
    /// Connects to a server, or to `proxy` on the way there. Each step of it, and of what is asked later, takes `timeout` at most.
    pub(crate) async fn open(origin: &Origin, proxy: Option<Way>, timeout: Duration) -> Result<Self, Ended> {
        // A proxy leads nowhere that this process may not connect to.
        net::dial::check(&address_of(origin).map_err(Ended::Lost)?).map_err(Ended::Lost)?;
        let address =
            address_of(proxy.as_ref().map_or(origin, |way| &way.proxy.origin)).map_err(Ended::Lost)?;
        let connected = net::dial::connect(&address, timeout).await;
        let stream = connected.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Ended::Silent,
            _ => Ended::Lost(error),
        })?;
        let mut connection = Self {
            origin: origin.clone(),
            transport: Transport::Plain(Arc::new(stream)),
            inbox: Inbox::default(),
            timeout,
            idle_since: Instant::now(),
            proxy,
        };
        if origin.scheme == Scheme::Https {
            connection.lead_through().await?;
        }
        Ok(connection)
    }

    /// Has the proxy pass on what follows (RFC 9110, 9.3.6).
    async fn lead_through(&mut self) -> Result<(), Ended> {
        let Some(way) = self.proxy.take() else { return Ok(()) };
        self.send(&way.connect_to(&self.origin), &IoBytes::zeroed(0)).await?;
        let refused =
            |what: &str| Ended::Lost(io::Error::other(format!("the proxy {} {what}", way.proxy.origin)));
        match self.answer().await?.status {
            200..300 if self.inbox.bytes().is_empty() => Ok(()),
            200..300 => Err(refused("sends more than its answer")),
            407 => Err(refused("wants a user and a password, or others")),
            status => Err(refused(&format!("answers {status}"))),
        }
    }

    /// Encrypts it, before anything is asked.
    pub(crate) async fn encrypt(mut self, tls: &ClientTls) -> Result<Self, Ended> {
        let Transport::Plain(stream) = &self.transport else { return Ok(self) };
        let stream = within(self.timeout, TlsStream::connect(Arc::clone(stream), tls)).await?;
        self.transport = Transport::Tls(Box::new(stream));
        Ok(self)
    }

    /// Whether it can take a request: the server has not ended it, nor sent what was not requested.
    pub(crate) fn is_usable(&self) -> bool {
        let mut byte = [0];
        self.inbox.bytes().is_empty() && matches!(self.transport.stream().try_recv(&mut byte), Ok(None))
    }

    /// Sends a request and receives the head of its answer.
    pub(crate) async fn ask(&mut self, head: &[u8], body: &IoBytes) -> Result<Answer, Ended> {
        match self.send(head, body).await {
            // A server that refuses a request need not wait for its body: then the answer is there.
            Err(ended @ Ended::Lost(_)) if !body.is_empty() => self.answer().await.map_err(|_| ended),
            sent => {
                sent?;
                self.answer().await
            }
        }
    }

    async fn send(&self, head: &[u8], body: &IoBytes) -> Result<(), Ended> {
        within(self.timeout, self.transport.send_all(IoBytes::copy_from(head).into())).await?;
        for at in (0..body.len()).step_by(PIECE_BYTES) {
            let piece = body.slice(at, (at + PIECE_BYTES).min(body.len()));
            within(self.timeout, self.transport.send_all(piece.into())).await?;
        }
        Ok(())
    }

    async fn answer(&mut self) -> Result<Answer, Ended> {
        let mut informational = 0;
        loop {
            match Answer::parse(self.inbox.bytes()).map_err(Ended::Broken)? {
                Some((bytes, answer)) => {
                    self.inbox.consume(bytes);
                    if !answer.is_informational() {
                        return Ok(answer);
                    }
                    informational += 1;
                }
                None => within(self.timeout, self.inbox.receive(&self.transport, 1)).await?,
            }
            if informational > INFORMATIONAL_MAX {
                return Err(Ended::Broken(AnswerError::TooLong));
            }
        }
    }

    /// Receives `len` bytes of a body into the start of `buf`.
    pub(crate) async fn body(&mut self, mut buf: IoBuf, len: usize) -> Result<IoBuf, Ended> {
        let mut at = 0;
        while at < len {
            let piece = PIECE_BYTES.min(len - at);
            buf = within(self.timeout, self.inbox.take(&self.transport, buf, at, piece)).await?;
            at += piece;
        }
        Ok(buf)
    }

    /// Receives a short body that is no part of a file; `None` if it is long, and then the connection is of no use.
    pub(crate) async fn short_body(&mut self, length: Length) -> Option<Vec<u8>> {
        self.whole_body(length, UNWANTED_BYTES_MAX).await.ok()
    }

    /// Receives a body of `bytes_max` bytes at most.
    pub(crate) async fn whole_body(&mut self, length: Length, bytes_max: u64) -> Result<Vec<u8>, Ended> {
        let too_long = || Ended::Broken(AnswerError::TooLong);
        match length {
            Length::Bytes(len) if len <= bytes_max => {
                let len = usize::try_from(len).map_err(|_| too_long())?;
                Ok(self.body(IoBuf::uninit(len), len).await?.to_vec())
            }
            Length::Pieces => self.body_of_pieces(bytes_max).await,
            Length::Bytes(_) | Length::UntilClosed => Err(too_long()),
        }
    }

    /// Receives a body that comes in pieces, and what stands behind the last of them.
    async fn body_of_pieces(&mut self, bytes_max: u64) -> Result<Vec<u8>, Ended> {
        let mut body = Vec::new();
        loop {
            let Some((head, len)) = next_piece(self.inbox.bytes()).map_err(Ended::Broken)? else {
                within(self.timeout, self.inbox.receive(&self.transport, 1)).await?;
                continue;
            };
            self.inbox.consume(head);
            if len > bytes_max - body.len() as u64 {
                return Err(Ended::Broken(AnswerError::TooLong));
            }
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            // A line break stands behind each piece; what may stand behind the last one is never sent.
            let piece = self.body(IoBuf::uninit(len + 2), len + 2).await?;
            body.extend(piece.iter().take(len));
            if len == 0 {
                return Ok(body);
            }
        }
    }
}

/// Whether this process may connect to the server of `url`. Nothing is connected.
///
/// # Errors
/// A [`net::dial::Forbidden`], which names the option that allows it; when the host's name is none.
pub fn check_reachable(url: &Url) -> io::Result<()> {
    net::dial::check(&address_of(url.origin())?)
}

/// Where a server listens.
pub(crate) fn address_of(origin: &Origin) -> io::Result<Target> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, format!("{origin} is no {error}"));
    Address::new(&origin.host, origin.port).map(Target::Tcp).map_err(wrong)
}
