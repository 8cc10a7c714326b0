//! Traces: what was asked of the disks of a server, recorded compactly and read again.
//!
//! docs/internals/map-cache.md ("Traces") has the bytes. A trace names disks and ranges, never their contents. [`Recorder`]
//! takes requests in from any thread, [`Recording`] writes them to a file in the background, [`Reader`] reads
//! them again and trusts nothing in the file.

mod plan;
mod reader;
mod recorder;
mod recording;
#[cfg(test)]
mod tests;
mod varint;

pub(crate) use self::plan::RANGE_BYTES_MAX;
pub use self::plan::{Plan, PlanRequest, plan};
pub use self::plan::{disk_called, disks};
pub use self::reader::{Decoder, TraceError};
pub use self::reader::{ReadError, Reader};
pub(crate) use self::recorder::Tap;
pub use self::recorder::{Recorder, STRIPE_RECORDS};
pub use self::recording::Encoder;
pub use self::recording::{Recording, Summary};
use crate::front::Kind;

/// A trace begins with this, and a byte for the version.
pub const MAGIC: &[u8; 8] = b"cowtrace";

/// The version that is written, and the only one that is read.
pub const VERSION: u8 = 1;

/// Disks of a trace at most: a reader keeps something for each.
pub const DISKS_MAX: usize = 4096;

/// Bytes of a disk's name at most: the longest path there is.
pub const NAME_BYTES_MAX: usize = 4096;

/// Ranges and distances that are multiples of this are written in this unit.
const SECTOR: u64 = 512;

/// A disk of a trace. The first in a trace has the number 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceDisk {
    /// The image's path.
    pub name: String,
    /// Bytes of the disk when it was opened.
    pub bytes: u64,
    /// Bytes of a cluster; 0 for raw disks.
    pub cluster_bytes: u64,
}

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// When it arrived, in microseconds since the first one.
    pub at_us: u64,
    /// First byte; 0 for a flush. `offset + len` fits 64 bits.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub len: u64,
    /// The disk's number.
    pub disk: u16,
    /// What was asked for.
    pub kind: Kind,
}

/// What stands in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A disk that requests may name from here on.
    Disk(TraceDisk),
    /// A request.
    Request(TraceRequest),
    /// Here so many requests are missing: they came faster than they could be written.
    Lost(u64),
    /// The server ended in order.
    End {
        /// Requests in the trace.
        requests: u64,
        /// Requests missing in it.
        lost: u64,
    },
}

/// The first byte of a record.
mod tag {
    /// Bits that say what it is: below [`DISK`] a request of this kind.
    pub(super) const WHAT: u8 = 0b111;
    pub(super) const DISK: u8 = 6;
    pub(super) const LOST: u8 = 7;
    pub(super) const END: u8 = 7 | 8;
    /// Of the same disk as the request before.
    pub(super) const SAME_DISK: u8 = 0x08;
    /// As long as the disk's request before.
    pub(super) const SAME_LEN: u8 = 0x10;
    /// Begins where the disk's request before ended.
    pub(super) const FOLLOWS: u8 = 0x20;
    /// Length and distance are in sectors.
    pub(super) const SECTORS: u8 = 0x40;
    /// Not in use.
    pub(super) const RESERVED: u8 = 0x80;
}

/// The last request of a disk: the next one is encoded relative to it.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    end: u64,
    len: u64,
}
