//! Messages between predecessor and successor. Unknown members are ignored; an unknown message
//! is an error.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::journal::Entry;

/// One message. Its name is the one member of a JSON object.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// Successor: may I take over?
    TakeOver(TakeOver),
    /// Predecessor: no.
    Refused(Refused),
    /// Predecessor: my version. My sockets come next, then [`Message::End`].
    Offer(Offer),
    /// Successor: I have checked all that I can. From here on clients wait.
    Ready {},
    /// Predecessor: a listening socket for clients, with its descriptor.
    Socket(Place),
    /// Predecessor: a client of the NBD server, with its connection; the bytes are the beginning of a request.
    NbdClient(NbdClient),
    /// Predecessor: a front-end of a virtual machine, with its connection. Its requests so far follow in messages of [`Message::Said`].
    FrontEnd(FrontEnd),
    /// Predecessor: a request of a front-end, as vhost-user has it; the bytes are the payload.
    Said {
        /// The request's number.
        request: u32,
    },
    /// Predecessor: what commands made of the configuration.
    Command(Entry),
    /// Predecessor: how full the buckets of a disk's limits are.
    Levels(Levels),
    /// Predecessor: that was all.
    End {},
    /// Successor: I have the disks and the clients; may I serve?
    Serving {},
    /// Successor: I cannot.
    Failed(Refused),
    /// Predecessor: serve. I do not touch anything any more.
    Go {},
    /// Predecessor: too late, I have taken everything back.
    TakenBack {},
}

/// The first message.
#[derive(Debug, Serialize, Deserialize)]
pub struct TakeOver {
    /// Versions that the successor understands.
    pub versions: Vec<u32>,
    /// What it is, for the log.
    #[serde(default)]
    pub program: String,
}

/// Why not.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refused {
    /// In words.
    pub why: String,
}

/// The predecessor's answer to [`TakeOver`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Offer {
    /// The version that is spoken from here on.
    pub version: u32,
    /// The predecessor's program and version, for the log.
    #[serde(default)]
    pub program: String,
}

/// What a descriptor was made for. The successor finds it by this when it opens the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A listening Unix socket at an absolute path.
    Unix(PathBuf),
    /// A listening Unix socket without a path, as its name is shown.
    Abstract(String),
    /// A listening TCP socket.
    Tcp(SocketAddr),
    /// A listening Unix socket that systemd made.
    SystemdUnix(PathBuf),
    /// A listening TCP socket that systemd made.
    SystemdTcp(SocketAddr),
    /// A pid file, with its lock.
    PidFile(PathBuf),
}

/// See [`door_nbd::HandedClient`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NbdClient {
    /// The name of its export.
    pub export: String,
    /// How messages look.
    pub dialect: Dialect,
    /// Bytes of the disk, as it knows them.
    pub size: u64,
    /// Transmission flags, as it knows them.
    pub flags: u16,
    /// Metadata contexts: id and name.
    pub contexts: Vec<(u32, String)>,
}

/// How full the buckets of a disk's limits are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Levels {
    /// The disk.
    pub node: String,
    /// Of each limit that is set, in operations or bytes, the level of its bucket, and that of its bucket for bursts; operations first, of both directions, of reads, of
    /// writes, then bytes.
    pub levels: Vec<Option<[f64; 2]>>,
}

/// How NBD's messages look.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// Simple replies.
    Simple,
    /// Structured replies.
    Structured,
    /// Extended headers.
    Extended,
}

/// See [`door_vhost_user_blk::HandedFrontEnd`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct FrontEnd {
    /// The id of its export.
    pub export: String,
    /// Bytes of the disk.
    pub size: u64,
    /// Whether the write cache is on.
    pub cache: Option<bool>,
    /// What discards are aligned to; older versions leave it out.
    #[serde(default)]
    pub discard_bytes: Option<u32>,
    /// How many messages of what it said follow.
    pub said: u32,
}
