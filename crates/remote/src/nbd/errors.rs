//! What can go wrong with a server.

use std::io;
use std::sync::Arc;

use wire::nbd::ErrorCode;
use wire::nbd::client::HandshakeError;

/// Why an export cannot be used, or a request of it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no connection.
    #[error("cannot connect to {server}: {reason}")]
    Connect {
        /// Where.
        server: String,
        /// The system's words.
        reason: String,
        /// The system's kind.
        kind: io::ErrorKind,
    },
    /// The server and this client do not come to terms.
    #[error("{server}: {source}")]
    Handshake {
        /// Which server.
        server: String,
        /// Its answer.
        source: HandshakeError,
    },
    /// The connection cannot be encrypted; nothing was sent in the clear instead.
    #[error("{server}: TLS: {reason}")]
    Tls {
        /// Which server.
        server: String,
        /// What is wrong, with the server's certificate mostly.
        reason: String,
    },
    /// What the server says of the export makes no sense.
    #[error("{server}: {what}")]
    Export {
        /// Which server.
        server: String,
        /// Found and allowed.
        what: String,
    },
    /// The export is only read.
    #[error("{server}: the export is read-only")]
    ReadOnly {
        /// Which server.
        server: String,
    },
    /// Nothing came of it in time.
    #[error("{server}: no answer within {seconds} s")]
    Silent {
        /// Which server.
        server: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The connection ended while the request was on its way.
    #[error("the connection to the NBD server is lost: {0}")]
    Lost(Arc<str>),
    /// The loop that had the connection ended; the server did not.
    #[error("the event loop of the connection to the NBD server ended")]
    LoopEnded,
    /// The server refuses the request.
    #[error("the NBD server answers: {code}{}", words(.message))]
    Refused {
        /// Its number.
        code: ErrorCode,
        /// Its words, cut and cleaned of control characters.
        message: String,
    },
    /// Writes were acknowledged, not flushed, and may be gone.
    #[error(
        "the connection to the NBD server was lost with writes that were not flushed: they may be gone \
         (reconnect-delay makes the driver keep and repeat them)"
    )]
    Unflushed,
    /// Beyond the end of an export, whose size is fixed.
    #[error("the export has {length} bytes and cannot grow to {wanted}")]
    PastEnd {
        /// Bytes of the export.
        length: u64,
        /// Bytes that it would need.
        wanted: u64,
    },
    /// The server cannot do it.
    #[error("the NBD server cannot {0}")]
    Unsupported(&'static str),
}

fn words(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Connect { kind, .. } => *kind,
            Error::Handshake { .. } | Error::Tls { .. } | Error::Export { .. } => io::ErrorKind::InvalidData,
            Error::ReadOnly { .. } => io::ErrorKind::ReadOnlyFilesystem,
            Error::Silent { .. } => io::ErrorKind::TimedOut,
            Error::Lost(_) | Error::LoopEnded | Error::Unflushed => io::ErrorKind::ConnectionAborted,
            Error::Refused { code, .. } => kind_of(*code),
            Error::PastEnd { .. } => io::ErrorKind::StorageFull,
            Error::Unsupported(_) => io::ErrorKind::Unsupported,
        };
        io::Error::new(kind, error)
    }
}

fn kind_of(code: ErrorCode) -> io::ErrorKind {
    match code {
        ErrorCode::Perm => io::ErrorKind::PermissionDenied,
        ErrorCode::NoMem => io::ErrorKind::OutOfMemory,
        ErrorCode::Inval | ErrorCode::Overflow => io::ErrorKind::InvalidInput,
        ErrorCode::NoSpc => io::ErrorKind::StorageFull,
        ErrorCode::NotSup => io::ErrorKind::Unsupported,
        ErrorCode::Shutdown => io::ErrorKind::ConnectionAborted,
        ErrorCode::Io => io::ErrorKind::Other,
    }
}
