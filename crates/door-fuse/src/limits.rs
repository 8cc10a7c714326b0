//! Bounds of this door, with their reasons.

use std::time::Duration;

/// Bytes of one read or write at most: the largest that the kernel sends (256 pages of 4 KiB).
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Pages of one request, in INIT's words.
pub const REQUEST_PAGES_MAX: u16 = 256;

/// Requests that the kernel sends without waiting for answers (readahead, asynchronous direct I/O): as many as a client may have in flight.
/// The kernel's own default is 12.
pub const BACKGROUND_MAX: u16 = 256;

/// From so many on, the kernel calls the mount congested: three quarters, as its own default.
pub const CONGESTED_FROM: u16 = BACKGROUND_MAX / 4 * 3;

/// Writes up to this size are copied out of the buffer that requests are read into, which is as large as the largest; larger ones take it
/// along. 64 KiB are copied in microseconds, and in flight they hold what they are.
pub const COPIED_WRITE_BYTES_MAX: usize = 64 << 10;

/// Reads up to this size are tried on the loop itself: a tenth of a millisecond of copying.
pub const INLINE_READ_BYTES_MAX: usize = REQUEST_BYTES_MAX;

/// Requests answered in a row after which other clients of the loop get their turn.
pub const REQUESTS_BEFORE_YIELD: u32 = 32;

/// Files that are open at a time, of one mount: each is a small entry. The kernel's own limit for a process is lower in most places.
pub const OPEN_FILES_MAX: u32 = 1 << 16;

/// Bytes that are zeroed, or asked about, in one step: between two of them a request that was interrupted ends.
pub const STEP_BYTES: u64 = 1 << 30;

/// How long the kernel may take for a program that mounts or unmounts, before its end is not waited for any more.
pub const PROGRAM_PATIENCE: Duration = Duration::from_secs(20);
