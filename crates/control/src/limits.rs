//! What a client of the control socket can cost at most.

use std::time::Duration;

/// Bytes of one message. The largest sensible one describes a chain of some dozen nodes in a few KiB;
/// parsed, a message takes up to forty times its bytes.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// Bytes of one reply that our own client takes: some thousand disks with all their figures.
pub const REPLY_BYTES_MAX: usize = 64 << 20;

/// Objects and lists inside one another: the deepest chain that options can name, and room.
pub const DEPTH_MAX: usize = 100;

/// Clients at a time, by default: a management program, a monitoring one and some people.
pub const CLIENTS_DEFAULT: usize = 16;

/// Bytes that wait for a client to read them. Its commands rest while more wait than this.
pub const BACKLOG_BYTES: usize = 256 << 10;

/// A client for which an event would make this many bytes of events wait is cut off.
pub const BACKLOG_BYTES_MAX: usize = 4 << 20;

/// How long a client may take to negotiate, and to end a message that it began.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long the end waits for clients to read their last replies.
pub const FAREWELL: Duration = Duration::from_secs(1);

/// Bytes received at a time.
pub const RECEIVE_BYTES: usize = 16 << 10;

/// How long accepting rests after a failure (out of descriptors, say).
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
