//! What a server says about an export before it is used.

/// Transmission flags ("Transmission flags"), as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportFlags(u16);

impl ExportFlags {
    /// Must be set whenever another is.
    pub const HAS_FLAGS: Self = Self(1 << 0);
    /// Writes fail.
    pub const READ_ONLY: Self = Self(1 << 1);
    /// FLUSH is understood.
    pub const FLUSH: Self = Self(1 << 2);
    /// The FUA flag is understood.
    pub const FUA: Self = Self(1 << 3);
    /// Behaves like a rotating disk.
    pub const ROTATIONAL: Self = Self(1 << 4);
    /// TRIM is understood.
    pub const TRIM: Self = Self(1 << 5);
    /// WRITE_ZEROES is understood.
    pub const WRITE_ZEROES: Self = Self(1 << 6);
    /// The DF flag of READ is understood.
    pub const DF: Self = Self(1 << 7);
    /// A flush on one connection covers what completed on the others.
    pub const MULTI_CONN: Self = Self(1 << 8);
    /// CACHE is understood.
    pub const CACHE: Self = Self(1 << 10);
    /// The FAST_ZERO flag of WRITE_ZEROES is understood.
    pub const FAST_ZERO: Self = Self(1 << 11);
    /// BLOCK_STATUS may carry a context filter.
    pub const BLOCK_STATUS_PAYLOAD: Self = Self(1 << 12);

    /// What the bits on the wire say; unknown ones are kept.
    pub fn from_wire(bits: u16) -> Self {
        Self(bits)
    }

    /// The bits on the wire.
    pub fn to_wire(self) -> u16 {
        self.0
    }

    /// Whether all of `other` are set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// `self`, and `other` if `condition` holds.
    #[must_use]
    pub fn and_if(self, condition: bool, other: Self) -> Self {
        if condition { Self(self.0 | other.0) } else { self }
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
