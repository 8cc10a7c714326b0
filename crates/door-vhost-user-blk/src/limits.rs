//! Bounds of this door, with their reasons.

use std::time::Duration;

/// Queues that a front-end may have: one for each of a guest's processors up to 64.
pub const QUEUES_MAX: u16 = 64;

/// Entries of a ring at most: the limit of virtio's split rings.
pub const RING_ENTRIES_MAX: u16 = 1 << 15;

/// Parts of a request's data that a driver is asked to use at most: a ring of 128 entries has room for them with header and status.
pub const SEGMENTS_MAX: u32 = 126;

/// Descriptors of one request that are looked at: the kernel takes 1024 parts in one call; header and status are two more.
pub const CHAIN_DESCRIPTORS_MAX: usize = 1026;

/// Bytes of one request at most: as many as NBD clients may ask for.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Bytes that requests merged into one have at most: a step of a loop's time.
pub const MERGED_BYTES_MAX: u64 = export::STEP_BYTES;

/// Bytes that are read without a task of their own, of one batch of requests at most: a step of a loop's time.
pub const INLINE_BYTES_MAX: u64 = export::STEP_BYTES;

/// Ranges of one discard or write-zeroes request.
pub const RANGES_MAX: u32 = 16;

/// Sectors of one such range: 1 GiB, so that one request cannot take the disk for minutes where zeroes have to be written.
pub const RANGE_SECTORS_MAX: u32 = 1 << 21;

/// Regions of guest memory: as many as a machine has slots for DIMMs (QEMU: 256).
pub const MEMORY_SLOTS_MAX: usize = 256;

/// Payload of a message: the largest has 16 regions of memory or 256 bytes of configuration.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// Bytes of a memory region that holds records of requests in flight: 64 queues of the largest rings.
pub const INFLIGHT_BYTES_MAX: u64 = 64 << 20;

/// Bytes of the log of dirty pages: one bit for each page of 256 TiB.
pub const LOG_BYTES_MAX: u64 = 8 << 30;

/// Descriptors that one message carries at most: a table of memory has 16 regions.
pub const MESSAGE_DESCRIPTORS_MAX: usize = 16;

/// How long a message may take from its first byte to its last, and a descriptor to give or take a few bytes.
pub const MESSAGE_PATIENCE: Duration = Duration::from_secs(10);

/// Threads that wait for descriptors of one export's front-ends: to be closed, or to give or take a device's state.
pub const WAITING_THREADS_MAX: usize = 4;

/// Ranges that one front-end may have mapped: all its regions twice (a new table is mapped before the old one goes), records, the log,
/// and some that requests in flight still use.
pub const FRONT_END_RANGES_MAX: u64 = 2 * MEMORY_SLOTS_MAX as u64 + 64;

/// Of those, ranges that are there for each front-end whatever others have: the whole memory of a machine without hotplug, twice.
pub const OWN_RANGES: u64 = 16;

/// Ranges that all front-ends share beyond their own. With their own these are half of the mappings that a process may have
/// (vm.max_map_count: 65,530).
pub const COMMON_RANGES: u64 = 16 << 10;

/// Ranges that are mapped at a time.
pub const RANGES_MAX_IN_ALL: usize = FRONT_ENDS_MAX * OWN_RANGES as usize + COMMON_RANGES as usize;

/// Bytes that one front-end may have mapped: a machine of 16 TiB, twice.
pub const FRONT_END_MAPPED_BYTES_MAX: u64 = 32 << 40;

/// Of those, bytes that are there for each front-end whatever others have.
pub const OWN_MAPPED_BYTES: u64 = 32 << 30;

/// Bytes that all front-ends share beyond their own. With their own these are 96 of the 128 TiB of addresses that a process has; where its
/// addresses are limited (RLIMIT_AS), both are less.
pub const COMMON_MAPPED_BYTES: u64 = 64 << 40;

/// How long a front-end waits for the end of the one before it, before it is refused: one that reconnects may be faster than the end
/// of its old connection is noticed.
pub const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(10);

/// Front-ends that wait or are served, of all exports.
pub const FRONT_ENDS_MAX: usize = 1024;
