//! The NBD server: connections, exports, replies.
//!
//! [`Server`] serves [`Exports`] (disks that implement [`Export`]) on any number of event loops;
//! [`run`] starts one a thread. Every loop accepts; a new connection goes to the loop that has the
//! fewest. A connection lives on one loop: it receives into one large buffer, handles all requests that are
//! there, answers what needs no waiting at once and gives every other request a task.
//!
//! The way of a request: `inbox` (bytes) -> `nbd_wire::Command::check` -> `transmission`
//! (dispatch) -> `requests` (one future each) -> [`Export`] -> `outbox` (replies, in batches).
//!
//! What one client can cost is bounded in [`limits`]: memory by [`limits::CONNECTION_BYTES_MAX`]
//! and its share of the process's, time by the handshake timeout. A client that does not read its
//! replies is not read from.
#![forbid(unsafe_code)]

mod block_status;
mod budget;
mod connection;
mod counters;
mod disk;
mod export;
mod exports;
mod inbox;
pub mod limits;
mod local_event;
mod options;
mod outbox;
mod peer;
mod requests;
mod server;
mod shutdown;
mod tls;
mod transmission;
mod transport;

pub use counters::{Counters, KindCounts, Snapshot};
pub use export::{Abilities, Depth, Dirtiness, Export, Extent, IoFuture, ZeroFlags};
pub use exports::{DuplicateName, ExportEntry, Exports, NotRemoved, Removal};
pub use nbd_wire::{BlockSizes, ErrorCode};
pub use options::{ServerOptions, TlsPolicy};
pub use qcow2::ReadKind;
pub use server::{Server, run};
pub use shutdown::Shutdown;
pub use tls::{TlsConfigError, TlsFiles, server_config};
