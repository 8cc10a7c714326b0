//! How a server treats its clients.

use std::sync::Arc;
use std::time::Duration;

use crate::limits::{CONNECTIONS_PER_EXPORT_DEFAULT, HANDSHAKE_TIMEOUT_DEFAULT, SHUTDOWN_GRACE_DEFAULT};

/// Whether connections are encrypted.
#[derive(Clone, Debug, Default)]
pub enum TlsPolicy {
    /// Never.
    #[default]
    Off,
    /// If the client asks for it.
    Allowed(Arc<rustls::ServerConfig>),
    /// Always: nothing is told to a client before.
    Required(Arc<rustls::ServerConfig>),
}

/// How a server treats its clients.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Connections that each export serves at a time; at least 1.
    pub connections_per_export: u32,
    /// How long a client may take to choose an export.
    pub handshake_timeout: Duration,
    /// How long a shutdown waits for clients to read their last replies.
    pub shutdown_grace: Duration,
    /// Whether connections are encrypted.
    pub tls: TlsPolicy,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            connections_per_export: CONNECTIONS_PER_EXPORT_DEFAULT,
            handshake_timeout: HANDSHAKE_TIMEOUT_DEFAULT,
            shutdown_grace: SHUTDOWN_GRACE_DEFAULT,
            tls: TlsPolicy::Off,
        }
    }
}
