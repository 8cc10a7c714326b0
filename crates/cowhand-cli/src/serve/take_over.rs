//! Upgrade under running guests: a new process takes over what a running one serves (docs/guide/upgrade.md).
//!
//! Both talk over a Unix socket (`--take-over-socket`), in messages of [`message`]. The order:
//!
//! 1. The heir asks; the elder offers the sockets that it listens at. Both look whether the other can do it.
//! 2. The heir checks everything it can without opening a disk for writing, then says that it is ready.
//! 3. The elder takes no more requests, answers those in flight, closes its disks (locks given back) and gives away clients and state.
//! 4. The heir opens the disks, takes the clients in, and says that it serves. The elder lets it go on and ends.
//!
//! Until it has said so the elder keeps a copy of every descriptor: if the heir fails, dies or takes too long, the elder opens the disks
//! again and goes on. Never are both at a disk: each takes the file locks before it reads.

pub mod clients;
pub mod elder;
pub mod heir;
pub mod journal;
pub mod levels;
pub mod line;
pub mod message;
pub mod refusal;
pub mod sockets;

use std::time::Duration;

/// The version of the messages. A change that an older side would misunderstand raises it; members that are added do not.
pub const VERSION: u32 = 1;

/// How long a heir may check and prepare before it says that it is ready. Clients are served meanwhile.
pub const PREPARING_MAX: Duration = Duration::from_secs(60);

/// How long a heir may take to open the disks, while clients wait.
pub const OPENING_MAX: Duration = Duration::from_secs(5);

/// After this a successor without permission to serve ends itself, so that its locks are released.
pub const HEIR_LIFE_MAX: Duration = Duration::from_secs(7);

/// How long an elder gets to drain requests and close its disks.
pub const CLOSING_MAX: Duration = Duration::from_secs(60);

/// How long an elder whose heir failed tries to have its disks again: their locks may be held for a moment by a process that ends.
pub const RETURNING_MAX: Duration = Duration::from_secs(60);

/// What is given to the next process, and kept until it serves.
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
    /// Sockets that clients come in at.
    pub sockets: Vec<sockets::Handed>,
}
