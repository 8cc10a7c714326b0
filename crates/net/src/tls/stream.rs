//! A TLS session over a stream of the event loop.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::sync::Arc;

use memory::{IoBuf, IoBytes, IoVec};
use reactor::net::Stream;
use rustls::{ClientConnection, Connection, ServerConfig, ServerConnection};

use crate::tls::client::ClientTls;
use crate::tls::distinguished_name::subject;

/// Received ciphertext is taken in pieces of this many bytes: four records of the largest size.
const WIRE_BYTES: usize = 64 << 10;

/// Plaintext is encrypted in pieces of this many bytes, so that memory for ciphertext is bounded: it is there up to three
/// times, in the session and twice on its way to the socket.
const ENCRYPT_BYTES_MAX: usize = 64 << 10;

/// The encrypted side of a connection.
///
/// One receive and one [`TlsStream::send_all`] at a time; they may overlap each other.
#[derive(Debug)]
pub struct TlsStream {
    stream: Arc<Stream>,
    session: RefCell<Connection>,
    wire: RefCell<Wire>,
}

/// Ciphertext that was received and not decrypted yet.
#[derive(Debug)]
struct Wire {
    buf: Option<IoBuf>,
    start: usize,
    end: usize,
}

impl TlsStream {
    /// Shakes hands as the server of a fresh connection.
    ///
    /// # Errors
    /// When the client leaves, breaks the protocol, or shows no certificate that `config` asks for.
    pub async fn accept(stream: Arc<Stream>, config: Arc<ServerConfig>) -> io::Result<Self> {
        let mut session = ServerConnection::new(config).map_err(io::Error::other)?;
        // Plaintext is handed over in bounded pieces, each encrypted at once.
        session.set_buffer_limit(None);
        Self::begin(stream, session.into()).await
    }

    /// Shakes hands as the client of a fresh connection.
    ///
    /// # Errors
    /// When the server leaves or breaks the protocol, or its certificate is not what `tls` asks for. What a server says of
    /// the client's certificate may come with the first receive only.
    pub async fn connect(stream: Arc<Stream>, tls: &ClientTls) -> io::Result<Self> {
        let session = ClientConnection::new(Arc::clone(&tls.config), tls.server.clone());
        let mut session = session.map_err(io::Error::other)?;
        session.set_buffer_limit(None);
        Self::begin(stream, session.into()).await
    }

    async fn begin(stream: Arc<Stream>, session: Connection) -> io::Result<Self> {
        let wire = Wire { buf: Some(IoBuf::uninit(WIRE_BYTES)), start: 0, end: 0 };
        let tls = Self { stream, session: RefCell::new(session), wire: RefCell::new(wire) };
        while tls.session.borrow().is_handshaking() {
            tls.flush().await?;
            if !tls.session.borrow().wants_read() {
                continue;
            }
            let fed = match tls.feed() {
                Ok(fed) => fed,
                Err(error) => {
                    // The alert tells the peer why; whether it arrives makes no difference here.
                    let _ = tls.flush().await;
                    return Err(error);
                }
            };
            if !fed && tls.fill().await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer leaves in the middle"));
            }
        }
        tls.flush().await?;
        Ok(tls)
    }

    /// The stream below.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The name of the subject of the peer's certificate (RFC 4514, in the order of the certificate), if it has shown one.
    pub fn peer_name(&self) -> Option<String> {
        subject(self.session.borrow().peer_certificates()?.first()?)
    }

    /// Receives into `buf`: the count of bytes, 0 at the end.
    pub async fn recv(&self, mut buf: IoBuf) -> (io::Result<usize>, IoBuf) {
        loop {
            let read = self.session.borrow_mut().reader().read(&mut buf);
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return (result, buf),
            }
            match self.feed() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    // The alert says why; whether it arrives makes no difference here.
                    let _ = self.flush().await;
                    return (Err(error), buf);
                }
            }
            match self.fill().await {
                Ok(0) => return (Ok(0), buf),
                Ok(_) => {}
                Err(error) => return (Err(error), buf),
            }
        }
    }

    /// Sends all of `data`.
    ///
    /// # Errors
    /// When the peer is gone. The session is of no use then.
    pub async fn send_all(&self, data: IoVec) -> io::Result<()> {
        for part in data.parts() {
            for piece in part.chunks(ENCRYPT_BYTES_MAX) {
                self.session.borrow_mut().writer().write_all(piece)?;
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Says goodbye.
    pub async fn close(&self) {
        self.session.borrow_mut().send_close_notify();
        // The peer may be gone already.
        let _ = self.flush().await;
    }

    /// Decrypts what was received; false if there is nothing.
    fn feed(&self) -> io::Result<bool> {
        let mut wire = self.wire.borrow_mut();
        let Wire { buf: Some(buf), start, end } = &mut *wire else { return Ok(false) };
        if start == end {
            return Ok(false);
        }
        let mut session = self.session.borrow_mut();
        let taken = session.read_tls(&mut &buf[*start..*end])?;
        *start += taken;
        session.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(true)
    }

    /// Receives ciphertext: the count of bytes, 0 at the end.
    async fn fill(&self) -> io::Result<usize> {
        let Some(buf) = self.wire.borrow_mut().buf.take() else {
            return Err(io::Error::other("two receives at a time"));
        };
        let (received, buf) = self.stream.recv(buf).await;
        let end = received?;
        *self.wire.borrow_mut() = Wire { buf: Some(buf), start: 0, end };
        Ok(end)
    }

    /// Sends what the session has to say.
    async fn flush(&self) -> io::Result<()> {
        let mut ciphertext = Vec::new();
        {
            let mut session = self.session.borrow_mut();
            while session.wants_write() {
                session.write_tls(&mut ciphertext)?;
            }
        }
        if ciphertext.is_empty() {
            return Ok(());
        }
        self.stream.send_all(IoBytes::copy_from(&ciphertext).into()).await
    }
}
