//! The export of an NBD server as storage.
//!
//! [`NbdStorage`] keeps the contract of [`storage::Storage`] over one connection or several: requests of any number are on their
//! way at a time, replies are received straight into the buffers that asked for them, and a connection that is lost is made
//! again. [`ExportName`] reads the file names that mean an export.
//!
//! # Connections
//! A connection lives on the loop that made it; requests of other loops reach it over a queue. Where the server lets several
//! connections see one disk (MULTI_CONN, or nothing is written), a loop without one makes its own, and a busy loop a second, up to
//! four in all. A flush goes over the oldest one: it proves that the server is still the one that took the writes.
//!
//! # Lost connections
//! With a `reconnect_delay`, requests wait that long for a new connection and are sent again: reads, flushes, and writes, which
//! have the same bytes. Writes that were acknowledged and not flushed may be gone with the server's machine; they are kept (up to
//! 32 MiB, then a flush is sent) and are written again before anything else. Without a delay requests on the way fail, and if
//! there were such writes, every later flush does.
//!
//! # TLS
//! With [`Options::tls`] every connection is encrypted before an export is named, those made again too. A server that has no TLS,
//! or shows another certificate, is an error: there is no way back to plain bytes.
//!
//! # A server that is silent
//! With a `remote_timeout` a request that is not answered in time makes the connection a lost one. So a request ends within that
//! time; with a `reconnect_delay`, within that time after the last connection was made in it.
//!
//! # A server that lies
//! What a server sends is checked where it arrives. Anything out of order ends the connection with a reason; memory is bounded by
//! what was asked for and by the limits of [`wire::nbd::limits`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod ask;
mod blocks;
mod client;
mod connect;
mod connection;
mod errors;
mod export;
mod incoming;
mod list;
mod name;

pub use connect::check_reachable;
pub use errors::Error;
pub use export::{NbdStorage, Options};
pub use list::{ListedExport, Listing, list_exports};
pub use name::{Credentials, ExportName, NameError, NamedTls, PORT_DEFAULT, Server};
pub use net::dial::AbstractName;
