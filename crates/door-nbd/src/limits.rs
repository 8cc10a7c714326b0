//! Every bound of the server, with its reason. Those of the protocol are in [`wire::nbd::limits`], those that hold for
//! the clients of every door in [`export::limits`].

use std::time::Duration;

/// Bytes that one receive takes at most: at 64 requests deep, all that a client has written.
pub const RECEIVE_BYTES: usize = 256 << 10;

/// What is received in one go after a large write: the next one's header and little of its payload,
/// so that the rest goes straight to its place instead of through the receive buffer.
pub const RECEIVE_BYTES_AFTER_LARGE: usize = 4 << 10;

/// A write from this size on is taken as a sign that the next one is large too.
pub const LARGE_WRITE_BYTES_MIN: usize = 128 << 10;

/// From this many missing bytes on, a payload is received into its own buffer; fewer come through
/// the receive buffer, with the requests behind them.
pub const DIRECT_RECEIVE_BYTES_MIN: usize = 16 << 10;

/// Replies are sent when there are this many. Sending each alone costs a system call a request;
/// collecting without a limit puts client and server into lock-step.
pub const BATCH_REPLIES_MAX: usize = 8;

/// Replies are sent when they have this many bytes, for the same reason.
pub const BATCH_BYTES_MAX: usize = 32 << 10;

/// Largest read that is copied out of the page cache by the loop itself: a tenth of a millisecond
/// during which the loop does nothing else.
pub const INLINE_READ_BYTES_MAX: u32 = 1 << 20;

/// Reads up to this size are answered in the shared reply buffer, larger ones in their own.
pub const SHARED_REPLY_BYTES_MAX: usize = 32 << 10;

/// Size of the shared reply buffer: a batch, and a last reply that goes beyond it.
pub const REPLY_BUFFER_BYTES: usize = 128 << 10;

/// While this many bytes of replies wait for the client to read, nothing more is read from it.
pub const BACKLOG_BYTES_MAX: usize = 1 << 20;

/// The same for replies that are in no account: those of a few bytes that need no memory of their own.
pub const UNCOUNTED_BYTES_MAX: usize = 64 << 10;

/// Replies are handed to the socket in pieces of this many bytes; the client has [`STALL_TIMEOUT_DEFAULT`] for each.
pub const SEND_BYTES_MAX: usize = 1 << 20;

/// Batches that a connection handles before the others on its loop get their turn.
pub const BATCHES_BEFORE_YIELD: u32 = 8;

/// Bytes answered inline after which the others on the loop get their turn, for the same reason: a third of a
/// millisecond of copying.
pub const INLINE_BYTES_BEFORE_YIELD: usize = 1 << 20;

/// Requests of one connection that wait for memory; while there are as many nothing more is read from it. They are
/// read from the socket all the same, so that the end of a connection behind them is seen.
pub const REQUESTS_WAITING_MAX: usize = 256;

/// Connections of the process, by default. Each holds buffers of up to half a MiB, one MiB with TLS, of
/// which idle ones touch little: its receive buffer, two reply buffers, [`UNCOUNTED_BYTES_MAX`].
pub const CONNECTIONS_MAX: usize = 1024;

/// Extents in the reply to one BLOCK_STATUS, over all its contexts: half a MiB of memory. The
/// protocol lets a server describe less than was asked for.
pub const STATUS_EXTENTS_MAX: usize = 16 << 10;

/// What a BLOCK_STATUS in flight counts: its extents, and the same once more as a reply.
pub const STATUS_REQUEST_BYTES: u64 = 2 * 16 * STATUS_EXTENTS_MAX as u64;

/// Connections of the process whose client has not chosen an export yet; one more takes the place of the oldest,
/// which is closed. Each holds a receive buffer of which it touches little.
pub const HANDSHAKES_MAX: usize = 256;

/// Connections that one export serves, by default: what clients with multi-conn use
/// (4 to 16), never without a limit.
pub const CONNECTIONS_PER_EXPORT_DEFAULT: u32 = 16;

/// How long a client may take to choose an export, by default.
pub const HANDSHAKE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// How long a client may take no reply that waits for it, and send nothing of a payload that it began, unless set
/// otherwise. Then its connection is closed, because the memory it holds is shared.
pub const STALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
