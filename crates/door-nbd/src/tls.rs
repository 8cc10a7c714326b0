//! TLS over a stream of the event loop.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use buffer::{IoBuf, IoBytes, IoVec};
use reactor::net::Stream;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

/// Received ciphertext is taken in pieces of this many bytes: four records of the largest size.
const WIRE_BYTES: usize = 64 << 10;

/// Plaintext is encrypted in pieces of this many bytes, so that memory for ciphertext is bounded: it is there up to three
/// times, in the session and twice on its way to the socket.
const ENCRYPT_BYTES_MAX: usize = 64 << 10;

/// Where a server's certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Certificates that a client's must be signed by, PEM; without it, clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Why a server has no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    /// A file cannot be read, or holds nothing of what it should.
    #[error("{path}: {cause}", path = path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        cause: rustls::pki_types::pem::Error,
    },
    /// A client CA that can verify nobody.
    #[error("{path}: {cause}", path = path.display())]
    ClientCa {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        cause: rustls::server::VerifierBuilderError,
    },
    /// Certificate and key cannot be used.
    #[error("certificate and key: {0}")]
    Unusable(#[from] rustls::Error),
}

/// Reads certificate, key and client CA.
pub fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsConfigError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|cause| TlsConfigError::File { path: files.key.clone(), cause })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let refused = |cause| TlsConfigError::ClientCa { path: path.clone(), cause };
            builder.with_client_cert_verifier(verifier.map_err(refused)?)
        }
    };
    Ok(Arc::new(builder.with_single_cert(chain, key)?))
}

/// Whether the first certificate in a file is for `name`: a host name, or an address. `false` if there is none to be read.
pub fn certificate_names(file: &Path, name: &str) -> bool {
    let Ok(name) = ServerName::try_from(name.to_owned()) else { return false };
    let certificates = certificates(file).unwrap_or_default();
    let parsed = certificates.first().and_then(|certificate| ParsedCertificate::try_from(certificate).ok());
    parsed.is_some_and(|certificate| verify_server_name(&certificate, &name).is_ok())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let failed = |cause| TlsConfigError::File { path: path.to_owned(), cause };
    CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
}

/// The encrypted side of a connection.
#[derive(Debug)]
pub(crate) struct TlsStream {
    stream: Rc<Stream>,
    session: RefCell<ServerConnection>,
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
    /// Shakes hands on a fresh connection.
    pub(crate) async fn accept(stream: Rc<Stream>, config: Arc<ServerConfig>) -> io::Result<Self> {
        let mut session = ServerConnection::new(config).map_err(io::Error::other)?;
        // Plaintext is handed over in bounded pieces, each encrypted at once.
        session.set_buffer_limit(None);
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
                    // The alert tells the client why; whether it arrives makes no difference here.
                    let _ = tls.flush().await;
                    return Err(error);
                }
            };
            if !fed && tls.fill().await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the client leaves in the middle"));
            }
        }
        tls.flush().await?;
        Ok(tls)
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) async fn recv(&self, mut buf: IoBuf) -> (io::Result<usize>, IoBuf) {
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

    pub(crate) async fn send_all(&self, data: IoVec) -> io::Result<()> {
        for part in data.parts() {
            for piece in part.chunks(ENCRYPT_BYTES_MAX) {
                self.session.borrow_mut().writer().write_all(piece)?;
                self.flush().await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn close(&self) {
        self.session.borrow_mut().send_close_notify();
        // The client may be gone already.
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
