//! How a server treats its clients.

use std::sync::Arc;
use std::time::Duration;

use crate::limits::{
    CONNECTIONS_MAX, CONNECTIONS_PER_EXPORT_DEFAULT, HANDSHAKE_TIMEOUT_DEFAULT, STALL_TIMEOUT_DEFAULT,
};

/// Whether connections are encrypted.
#[derive(Clone, Debug, Default)]
pub enum TlsPolicy {
    /// Never.
    #[default]
    Off,
    /// If the client asks for it.
    Allowed(Arc<net::tls::ServerConfig>),
    /// Always: nothing is reported to a client before.
    Required(Arc<net::tls::ServerConfig>),
}

/// Which clients that come in at one listener are admitted.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Whether they are encrypted.
    pub tls: TlsPolicy,
    /// Which of those with a certificate; `None`: all.
    pub authorization: Option<net::tls::Authorization>,
    /// Clients of the whole server at a time: the next one waits until one has left.
    pub clients_max: usize,
    /// How long each may take to choose an export; `None`: as long as there is room for it ([`crate::limits::HANDSHAKES_MAX`]).
    pub handshake_timeout: Option<Duration>,
}

/// How a server treats its clients.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Connections that each export serves at a time; at least 1.
    pub connections_per_export: u32,
    /// How long a client may take to choose an export.
    pub handshake_timeout: Duration,
    /// Clients of all exports at a time, those included that have not chosen one: the next one's connection is closed.
    pub connections_max: usize,
    /// The same, but the next one waits until one has left.
    pub clients_max: usize,
    /// How long a client may read no reply that waits for it, or send nothing of a payload that it began.
    pub stall_timeout: Duration,
    /// Whether connections are encrypted.
    pub tls: TlsPolicy,
    /// Contiguous writes that came together go to the disk as one.
    pub merge: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections_per_export: CONNECTIONS_PER_EXPORT_DEFAULT,
            handshake_timeout: HANDSHAKE_TIMEOUT_DEFAULT,
            connections_max: CONNECTIONS_MAX,
            clients_max: usize::MAX,
            stall_timeout: STALL_TIMEOUT_DEFAULT,
            tls: TlsPolicy::Off,
            merge: true,
        }
    }
}
