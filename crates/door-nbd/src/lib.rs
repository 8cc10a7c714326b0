//! The NBD server: connections, exports, replies.
//!
//! [`Server`] is a door to [`export::Exports`]: disks that implement [`export::Export`]. Its clients live on the loops
//! that it shares with other doors ([`export::Loops`]); a new connection goes to the one that has the
//! fewest. There it receives into one large buffer, handles all requests that are
//! there, answers what needs no waiting at once and gives every other request a task.
//!
//! The way of a request: `inbox` (bytes) -> `wire::nbd::Command::check` -> `transmission`
//! (dispatch) -> `line` (memory) -> `requests` (one future each) -> [`export::Export`] -> `outbox` (replies, in batches).
//!
//! What one client can cost is bounded in [`limits`] and [`export::limits`]: memory by [`export::limits::CLIENT_BYTES_MAX`]
//! and its share of the process's, time by the handshake timeout. A client that does not read its
//! replies is not read from, and sent away after a while. What a client that is gone asked for is dropped
//! where it has not begun; a loop's time is shared between clients by bytes ([`export::Pace`]).
#![forbid(unsafe_code)]

mod block_status;
mod catalogue;
mod client;
mod connection;
mod gone;
mod handed;
mod inbox;
pub mod limits;
mod newcomers;
mod options;
mod outbox;
mod requests;
mod server;
mod transmission;

pub use handed::{HandedClient, NotResumed};
pub use options::{Admission, ServerOptions, TlsPolicy};
pub use server::Server;
pub use wire::nbd::{Dialect, ExportFlags};
