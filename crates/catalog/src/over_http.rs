//! What drivers share that read over HTTP: how patient they are, and whose certificates they believe.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use luks::Secret;
use net::tls::{ClientCredentials, ClientFiles, Terms};
use remote::http::{Authorize, HttpStorage, READAHEAD_BYTES_MAX};
use storage::Storage;
use wire::http::{Scheme, Url};

use super::cached::{self, Caching, Remote};
use super::remote::OnRemoteError;
use super::store::{REMOTE_TIMEOUT_S, remote_timeout, seconds, wrong};
use super::tls_credentials::TlsCredentials;
use graph::drivers::Access;

/// How much is read, and how long is waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// `readahead`, in bytes.
    pub(super) readahead: u64,
    /// `timeout`, in seconds.
    pub(super) timeout_s: u32,
    /// `remote-timeout`, in seconds; 0 is any time. `None`: what follows from `on_remote_error`.
    pub(super) remote_timeout_s: Option<u32>,
    /// `on-remote-error`.
    pub(super) on_remote_error: OnRemoteError,
    /// What is kept of it on this machine.
    pub(super) cache: Caching,
}

impl Default for Reading {
    fn default() -> Self {
        // Both are QEMU's.
        Self {
            readahead: 256 << 10,
            timeout_s: 5,
            remote_timeout_s: None,
            on_remote_error: OnRemoteError::Report,
            cache: Caching::default(),
        }
    }
}

impl Reading {
    /// Refuses numbers that make no sense.
    pub(super) fn check(&self) -> io::Result<()> {
        let readahead = self.readahead;
        if readahead > READAHEAD_BYTES_MAX {
            let what =
                format!("option file.readahead is {readahead}; allowed: at most {READAHEAD_BYTES_MAX}");
            return Err(wrong(what));
        }
        match self.timeout_s {
            0 => Err(wrong("option file.timeout is 0; allowed: from 1 second on")),
            _ => Ok(()),
        }
    }

    /// For how long the server may be silent, and how long a request may take.
    pub(super) fn times(&self) -> (Duration, Option<Duration>) {
        (Duration::from_secs(self.timeout_s.into()), self.remote_timeout())
    }

    /// How long opening may take. Never unbounded where a store is silent, unless the option says so.
    pub(super) fn open_timeout(&self) -> Option<Duration> {
        seconds(self.remote_timeout_s.unwrap_or(REMOTE_TIMEOUT_S))
    }

    /// How long a read may take.
    fn remote_timeout(&self) -> Option<Duration> {
        remote_timeout(self.on_remote_error, self.remote_timeout_s)
    }
}

/// Whose certificates are believed, and which is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// `sslverify`.
    pub(super) sslverify: bool,
    /// `tls-creds`.
    pub(super) tls_creds: Option<String>,
    /// `tls-certificates`.
    pub(super) tls_certificates: Option<PathBuf>,
}

impl Default for Trust {
    fn default() -> Self {
        Self { sslverify: true, tls_creds: None, tls_certificates: None }
    }
}

impl Trust {
    /// The certificates for servers that are spoken to in `scheme`. From http it may lead to https, and need not.
    pub(super) async fn credentials(&self, scheme: Scheme) -> io::Result<Option<ClientCredentials>> {
        let (directory, verifies) = (self.tls_certificates.clone(), self.sslverify);
        if let Some(id) = &self.tls_creds {
            return TlsCredentials::default().get(id).map(Some).map_err(|error| wrong(error.to_string()));
        }
        let read = reactor::blocking(move || match directory {
            Some(directory) => ClientFiles::of_directory(&directory, verifies).read(),
            None if verifies => ClientCredentials::of_machine(),
            None => ClientFiles { authority: None, identity: None, terms: Terms::default() }.read(),
        });
        match (read.await, scheme) {
            (Ok(credentials), _) => Ok(Some(credentials)),
            (Err(_), Scheme::Http) => Ok(None),
            (Err(error), Scheme::Https) => Err(wrong(error.to_string())),
        }
    }
}

/// Opens a file on a server, which messages call `name`.
pub(super) async fn open(
    (name, url): (String, Url),
    (authorize, proxy_login): (Arc<dyn Authorize>, Option<Arc<Secret>>),
    reading: &Reading,
    trust: &Trust,
    access: Access,
) -> io::Result<Arc<dyn Storage>> {
    reading.check()?;
    let trace = cached::open_trace(&reading.cache)?;
    let tls = trust.credentials(url.origin().scheme).await?;
    let (timeout, remote_timeout) = reading.times();
    let full_name = url.name();
    let storage = HttpStorage::open(remote::http::Options {
        name,
        url,
        tls,
        authorize,
        proxy_login,
        timeout,
        open_timeout: reading.open_timeout(),
        remote_timeout,
        readahead: reading.readahead,
        writable: access.writable,
    });
    let storage = storage.await?;
    let version = storage.version();
    let remote = Remote { storage: Arc::new(storage), name: full_name, version, piece_bytes: 1 };
    cached::cached(remote, &reading.cache, trace).await
}
