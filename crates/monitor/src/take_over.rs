//! Upgrade under running guests: a new process takes over what a running one serves (docs/internals/upgrade.md).
//!
//! The two, successor and predecessor, talk over a Unix socket (`--take-over-socket`), in
//! messages of [`message`]. The order:
//!
//! 1. The successor asks; the predecessor offers its listening sockets. Each checks whether the other can do
//!    it.
//! 2. The successor checks everything it can without opening a disk for writing, then reports that it is
//!    ready.
//! 3. The predecessor admits no more requests, answers those in flight, closes its disks (locks released) and
//!    sends clients and state.
//! 4. The successor opens the disks, accepts the clients, and reports that it serves. The predecessor
//!    confirms and ends.
//!
//! Until that report the predecessor keeps a copy of every descriptor: if the successor fails, dies or takes
//! too long, the predecessor opens the disks again and continues. A disk is never open in both: each takes
//! the file locks before it reads.

pub mod clients;
pub mod journal;
pub mod levels;
pub mod line;
pub mod message;
pub mod predecessor;
pub mod refusal;
pub mod sockets;
pub mod successor;

use std::time::Duration;

/// The version of the messages. A change that an older side would misunderstand raises it; members that are added do not.
pub const VERSION: u32 = 1;

/// How long a successor may check and prepare before it reports that it is ready. Clients are served
/// meanwhile.
pub const PREPARING_MAX: Duration = Duration::from_secs(60);

/// How long a successor may take to open the disks, while clients wait.
pub const OPENING_MAX: Duration = Duration::from_secs(5);

/// After this a successor without permission to serve ends itself, so that its locks are released.
pub const HEIR_LIFE_MAX: Duration = Duration::from_secs(7);

/// How long a predecessor gets to drain requests and close its disks.
pub const CLOSING_MAX: Duration = Duration::from_secs(60);

/// How long a predecessor whose successor failed tries to open its disks again: a process that is about to
/// end may hold their locks for a moment.
pub const RETURNING_MAX: Duration = Duration::from_secs(60);

/// The handover state: what the successor gets. The predecessor keeps it until the successor serves.
#[derive(Debug, Default)]
pub struct Estate {
    /// Clients of the NBD server.
    pub clients: Vec<door_nbd::HandedClient>,
    /// Front-ends of virtual machines.
    pub front_ends: Vec<door_vhost_user_blk::HandedFrontEnd>,
    /// What commands made of the configuration.
    pub commands: Vec<journal::Entry>,
    /// How full the buckets of limits are, by node.
    pub levels: Vec<message::Levels>,
    /// Listening sockets for clients.
    pub sockets: Vec<sockets::Handed>,
}
