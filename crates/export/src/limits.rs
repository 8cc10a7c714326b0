//! Bounds that hold for the clients of every door, with their reasons.

use std::time::Duration;

/// Requests of one client that wait for the disk: four times what a guest's virtio-blk queue of 64 keeps in flight.
pub const REQUESTS_IN_FLIGHT_MAX: u32 = 256;

/// Payload bytes in flight of one client: two requests of 32 MiB, or 256 of 256 KiB.
pub const CLIENT_BYTES_MAX: u64 = 64 << 20;

/// Payload bytes in flight of all clients: no number of clients gets beyond it, but for
/// [`FIRST_REQUEST_BYTES_MAX`] of each. A client that holds some gets no more than what is left for all others, so
/// that greedy ones slow down before they fill it.
pub const PROCESS_BYTES_MAX: u64 = 256 << 20;

/// Of those, for requests of at most [`SMALL_REQUEST_BYTES_MAX`]: clients that ask for much and read nothing cannot
/// take it from others.
pub const RESERVED_FOR_SMALL_BYTES: u64 = PROCESS_BYTES_MAX / 4;

/// What counts as a small request, all included: what virtual machines ask for.
pub const SMALL_REQUEST_BYTES_MAX: u64 = 260 << 10;

/// A client that holds nothing always gets a request of this size, all included, so that it never stops. With 1024
/// clients that is 68 MiB at most.
pub const FIRST_REQUEST_BYTES_MAX: u64 = 68 << 10;

/// What a request in flight counts beyond its payload: its task, header and bookkeeping.
pub const REQUEST_OVERHEAD_BYTES: u64 = 4 << 10;

/// How long the end of the loops waits for clients to take their last answers, by default.
pub const SHUTDOWN_GRACE_DEFAULT: Duration = Duration::from_secs(10);

/// How long accepting rests after a failure (out of descriptors, say).
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client that reads no replies delays a hand-over to another process: all others wait with it.
pub const HAND_OVER_GRACE: Duration = Duration::from_secs(1);
