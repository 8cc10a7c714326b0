//! What a server says about an export before it is used.

use crate::nbd::flag_set::flag_set;

flag_set! {
    /// Transmission flags ("Transmission flags"), as a set.
    ExportFlags {
        /// Must be set whenever another is.
        HAS_FLAGS = 0,
        /// Writes fail.
        READ_ONLY = 1,
        /// FLUSH is understood.
        FLUSH = 2,
        /// The FUA flag is understood.
        FUA = 3,
        /// Behaves like a rotating disk.
        ROTATIONAL = 4,
        /// TRIM is understood.
        TRIM = 5,
        /// WRITE_ZEROES is understood.
        WRITE_ZEROES = 6,
        /// The DF flag of READ is understood.
        DF = 7,
        /// A flush on one connection covers what completed on the others.
        MULTI_CONN = 8,
        /// CACHE is understood.
        CACHE = 10,
        /// The FAST_ZERO flag of WRITE_ZEROES is understood.
        FAST_ZERO = 11,
        /// BLOCK_STATUS may carry a context filter.
        BLOCK_STATUS_PAYLOAD = 12,
    }
}

/// Block size constraints ("Block size constraints"), in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Requests are multiples of this; a power of two of at most 64 KiB.
    pub minimum: u32,
    /// Requests of multiples of this are fast; a power of two of at least 512 and `minimum`.
    pub preferred: u32,
    /// Most bytes a READ or WRITE may have; a multiple of `minimum`.
    pub maximum: u32,
}

/// All that the handshake says of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Its own name; not necessarily the one that was asked for (the empty one means a default).
    pub name: String,
    /// For humans; may be empty.
    pub description: String,
    /// Length in bytes.
    pub size: u64,
    /// What is understood. The handshake itself adds HAS_FLAGS, DF and BLOCK_STATUS_PAYLOAD.
    pub flags: ExportFlags,
    /// What requests should look like.
    pub blocks: BlockSizes,
    /// Whether the context `qemu:allocation-depth` is offered.
    pub allocation_depth: bool,
    /// Names of the bitmaps offered as contexts `qemu:dirty-bitmap:NAME`.
    pub bitmaps: Vec<String>,
}
