//! TLS over a stream of the event loop, and the certificates of servers and clients.

//!
//! A connection begins as [`Transport::Plain`] and becomes [`Transport::Tls`] when both sides have agreed to it; it never goes back.
//! Sessions are TLS 1.2 or 1.3. Clients verify servers by their name and one authority, servers verify clients by one
//! authority where they are asked to.

mod authorization;
mod certificates;
mod client;
mod distinguished_name;
mod inbox;
mod priority;
mod server;
mod stream;
mod terms;
mod transport;

pub use authorization::Authorization;
pub use certificates::{ConfigError, certificate_names};
pub use client::{ClientCredentials, ClientFiles, ClientTls};
pub use inbox::Inbox;
pub use priority::{Priority, PriorityError};
pub use rustls::ServerConfig;
pub use server::ServerFiles;
pub use stream::TlsStream;
pub use terms::Terms;
pub use transport::Transport;
