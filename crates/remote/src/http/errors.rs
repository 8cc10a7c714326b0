//! What can go wrong with a server.

use std::io;
use std::time::Duration;

use wire::http::{Origin, Url};

/// Why a file cannot be used, or a read of it failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection.
    #[error("cannot connect to {server}: {reason}")]
    Connect {
        /// Where.
        server: Origin,
        /// The system's words.
        reason: String,
        /// The system's kind.
        kind: io::ErrorKind,
    },
    /// The connection cannot be encrypted; nothing was sent in the clear instead.
    #[error("{server}: TLS: {reason}")]
    Tls {
        /// Which server.
        server: Origin,
        /// What is wrong, with the server's certificate mostly.
        reason: String,
    },
    /// The connection ended while a request was on its way.
    #[error("the connection to {server} is lost: {reason}")]
    Lost {
        /// Which server.
        server: Origin,
        /// The system's words.
        reason: String,
    },
    /// Nothing came for too long.
    #[error("no answer of {server} within {} s ({option}){}", .waited.as_secs(), after(.last))]
    Silent {
        /// Which server.
        server: Origin,
        /// How long it was waited for.
        waited: Duration,
        /// Which option says so.
        option: &'static str,
        /// What became of the last attempt before.
        last: Option<Box<Error>>,
    },
    /// The server's answer makes no sense.
    #[error("{url}: {what}")]
    Broken {
        /// What was asked for.
        url: Url,
        /// What is wrong with the answer.
        what: String,
    },
    /// The server does not give the file.
    #[error("{url}: the server answers {status}{}", in_brackets(.words))]
    Refused {
        /// What was asked for.
        url: Url,
        /// The status of its answer.
        status: u16,
        /// What that means, or its own word for it.
        words: String,
    },
    /// The file is another one than that which was opened.
    #[error("{url} was changed while it was open: {what}")]
    Changed {
        /// Which file.
        url: Url,
        /// What differs.
        what: String,
    },
    /// The server sends whole files only.
    #[error("{url}: the server knows no ranges (it answers {status}); disks are read in parts")]
    NoRanges {
        /// Which file.
        url: Url,
        /// The status of its answer.
        status: u16,
    },
    /// A change of the file could not be seen.
    #[error(
        "{url}: the server names no version of the file (ETag or Last-Modified): a change would go unnoticed"
    )]
    NoVersion {
        /// Which file.
        url: Url,
    },
    /// It leads nowhere.
    #[error("{url}: {what}")]
    Redirect {
        /// What was asked for.
        url: Url,
        /// Where it led, and what is wrong with that.
        what: String,
    },
    /// There are no credentials, or none any more.
    #[error("{url}: no credentials: {reason}")]
    Credentials {
        /// What was asked for.
        url: Url,
        /// Where they were looked for, and why they are not there.
        reason: String,
    },
    /// The variable names no proxy.
    #[error("{variable} names no proxy that can be used; allowed: {allowed}")]
    Proxy {
        /// Which.
        variable: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// A credential that no request can have.
    #[error("{0}")]
    Field(#[from] wire::http::FieldError),
    /// It is only read.
    #[error("{url} is only read: open it with read-only=on, or as the backing file of an overlay")]
    ReadOnly {
        /// Which file.
        url: Url,
    },
}

impl Error {
    /// The server of `url` redirects to `location`, which is not http or https: nothing else is opened because a server says so.
    pub(crate) fn other_scheme(url: &Url, location: &str) -> Self {
        let scheme: String = Url::scheme_of(location).unwrap_or_default().chars().take(32).collect();
        let what = format!("it redirects to {scheme}:, and only http and https are followed");
        Self::Redirect { url: url.clone(), what }
    }
}

/// There is no connection to `server`.
pub(crate) fn connect_error(server: Origin, error: &io::Error) -> Error {
    Error::Connect { server, reason: error.to_string(), kind: error.kind() }
}

/// The connection to `server` cannot be encrypted.
pub(crate) fn tls_error(server: Origin, error: &io::Error) -> Error {
    Error::Tls { server, reason: error.to_string() }
}

fn after(last: &Option<Box<Error>>) -> String {
    last.as_ref().map_or_else(String::new, |last| format!("; the last attempt: {last}"))
}

fn in_brackets(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(" ({words})") }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Connect { kind, .. } => *kind,
            Error::Tls { .. } | Error::Broken { .. } | Error::Changed { .. } | Error::Redirect { .. } => {
                io::ErrorKind::InvalidData
            }
            Error::Lost { .. } => io::ErrorKind::ConnectionAborted,
            Error::Silent { .. } => io::ErrorKind::TimedOut,
            Error::Refused { status: 401 | 403, .. } => io::ErrorKind::PermissionDenied,
            Error::Refused { status: 404 | 410, .. } => io::ErrorKind::NotFound,
            Error::Refused { .. } => io::ErrorKind::Other,
            Error::NoRanges { .. } | Error::NoVersion { .. } => io::ErrorKind::Unsupported,
            Error::Credentials { .. } => io::ErrorKind::PermissionDenied,
            Error::Field(_) | Error::Proxy { .. } => io::ErrorKind::InvalidInput,
            Error::ReadOnly { .. } => io::ErrorKind::ReadOnlyFilesystem,
        };
        io::Error::new(kind, error)
    }
}
