//! Bounds of this door, with their reasons.

use std::time::Duration;

/// Requests of one queue at a time: what the kernel's own servers have, and enough for any disk of ours.
pub const QUEUE_DEPTH: u16 = 128;

/// Bytes of one read or write at most. Where the kernel (before Linux 6.5) copies the data itself, each request of a queue has a buffer of as many: 32 MiB of a queue,
/// of which memory is taken that was used.
pub const REQUEST_BYTES_MAX: u32 = 256 << 10;

/// Queues of a device: more loops than this gain nothing, and each has its tasks.
pub const QUEUES_MAX: u16 = 8;

/// Queues that a device left by another server may have: the kernel's own limit is as many as there are processors.
pub const QUEUES_FOUND_MAX: u16 = 4096;

/// Sectors that one request discards or zeroes: 1 GiB, so that one request cannot take the disk for minutes where zeroes have to be written.
pub const RANGE_SECTORS_MAX: u32 = 1 << 21;

/// The largest device number that can be asked for: the kernel has 20 bits for minor numbers.
pub const NUMBER_MAX: u32 = (1 << 20) - 1;

/// How long the kernel may take to see that the server of a device is gone: Linux before 6.9 looks every five seconds.
pub const RECOVERY_PATIENCE: Duration = Duration::from_secs(20);

/// How long /dev/ublkcN may take to appear.
pub const NODE_PATIENCE: Duration = Duration::from_secs(10);

/// How often either is looked at.
pub const LOOK: Duration = Duration::from_millis(20);
