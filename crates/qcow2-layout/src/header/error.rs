//! Why a header is not one, or cannot be written.

use thiserror::Error;

use super::{
    BACKING_NAME_BYTES_MAX, HEADER_BYTES_V2, HEADER_BYTES_V3_MIN, L1_BYTES_MAX, REFCOUNT_TABLE_BYTES_MAX,
    SNAPSHOTS_MAX,
};
use crate::bitmap::{BITMAP_DIRECTORY_BYTES_MAX, BITMAPS_MAX};
use crate::feature::UnknownFeatures;
use crate::{CLUSTER_BITS_MAX, CLUSTER_BITS_MIN, GeometryError};

/// Why a header was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are what the messages say: found values and limits")]
pub enum HeaderError {
    /// The bytes end before the field.
    #[error("the image ends after {len} bytes; its header needs {needed}")]
    Truncated { len: usize, needed: usize },
    /// Not a qcow2 image.
    #[error("not a qcow2 image: the first bytes are {found:#010x}; must be 0x514649fb")]
    Magic { found: u32 },
    /// Version 1 or newer than 3.
    #[error("qcow2 version is {found}; supported are 2 and 3")]
    Version { found: u32 },
    /// Cluster size out of range.
    #[error("cluster_bits is {found}; must be {CLUSTER_BITS_MIN} to {CLUSTER_BITS_MAX}")]
    ClusterBits { found: u32 },
    /// Cluster size, refcount width and feature bits contradict each other.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The stated length of the header is impossible.
    #[error(
        "header_length is {found}; must be a multiple of 8 from {HEADER_BYTES_V3_MIN} to the cluster size {cluster_size} (version 2: {HEADER_BYTES_V2})"
    )]
    HeaderLength { found: u32, cluster_size: u64 },
    /// Features that must be known are not.
    #[error("the image needs unknown features: {0}")]
    UnknownFeatures(UnknownFeatures),
    /// An unknown way of encryption.
    #[error("crypt_method is {found}; known are 0 (none), 1 (AES), 2 (LUKS)")]
    CryptMethod { found: u32 },
    /// An unknown way of compression.
    #[error("compression_type is {found}; known are 0 (zlib), 1 (zstd)")]
    CompressionType { found: u8 },
    /// Compression type and feature bit disagree.
    #[error(
        "compression_type is {found} but the compression feature bit is {bit}; the bit must be set exactly for types other than 0"
    )]
    CompressionBit { found: u8, bit: bool },
    /// The L1 table is longer than allowed.
    #[error("l1_size is {entries} entries; at most {} bytes are allowed", L1_BYTES_MAX)]
    L1TooLarge { entries: u64 },
    /// The L1 table cannot map the disk.
    #[error("l1_size is {entries}; a disk of {size} bytes needs {needed}")]
    L1TooSmall { entries: u32, needed: u64, size: u64 },
    /// A table does not start at a cluster, or ends beyond what offsets can say.
    #[error(
        "{table} is at {offset:#x} with {len} bytes; must start at a multiple of {cluster_size} behind the header and end below 2^63"
    )]
    TableOffset { table: &'static str, offset: u64, len: u64, cluster_size: u64 },
    /// There is no refcount table.
    #[error("refcount_table_clusters is 0; an image needs a refcount table")]
    RefcountTableMissing,
    /// The refcount table is longer than allowed.
    #[error("refcount_table_clusters is {clusters}; at most {} bytes are allowed", REFCOUNT_TABLE_BYTES_MAX)]
    RefcountTableTooLarge { clusters: u32 },
    /// More snapshots than allowed.
    #[error("nb_snapshots is {found}; at most {SNAPSHOTS_MAX} are allowed")]
    TooManySnapshots { found: u32 },
    /// The name of the backing file is not where it must be.
    #[error(
        "the backing file name is at {offset:#x} with {len} bytes; must lie behind the header ({header_length}) inside the first cluster ({cluster_size}), at most {BACKING_NAME_BYTES_MAX} bytes"
    )]
    BackingName { offset: u64, len: u32, header_length: usize, cluster_size: u64 },
    /// A name cannot be the name of a file or format.
    #[error("the {what} is not usable: {found:?} holds a zero byte or is not UTF-8")]
    BadName { what: &'static str, found: String },
    /// A name is longer than allowed.
    #[error("the {what} has {len} bytes; at most {max} are allowed")]
    NameTooLong { what: &'static str, len: usize, max: usize },
    /// A header extension runs out of its area.
    #[error(
        "header extension {kind:#010x} at {offset:#x} has {len} bytes; the area for extensions ends at {end:#x}"
    )]
    ExtensionLength { kind: u32, offset: usize, len: u32, end: usize },
    /// A header extension has the wrong size.
    #[error("header extension {kind:#010x} has {len} bytes; must have {expected}")]
    ExtensionSize { kind: u32, len: usize, expected: usize },
    /// A header extension that may come once came twice.
    #[error("header extension {kind:#010x} appears more than once")]
    DuplicateExtension { kind: u32 },
    /// The LUKS header pointer goes with LUKS, and only with it.
    #[error("the LUKS header extension is {}, but crypt_method is {method}", if *.present { "there" } else { "missing" })]
    CryptoExtension { present: bool, method: u32 },
    /// The bitmaps extension is out of limits.
    #[error(
        "the bitmaps extension names {count} bitmaps with a directory of {size} bytes; allowed are 1 to {BITMAPS_MAX} and {BITMAP_DIRECTORY_BYTES_MAX} bytes"
    )]
    Bitmaps { count: u32, size: u64 },
    /// A reserved field is not zero.
    #[error("{field} is {found:#x}; must be 0")]
    Reserved { field: &'static str, found: u64 },
    /// The header does not fit in the first cluster.
    #[error(
        "header, extensions and backing file name need {needed} bytes; the first cluster has {cluster_size}"
    )]
    TooLarge { needed: usize, cluster_size: u64 },
}

impl HeaderError {
    /// Valid, as far as can be seen, but asks for something that is not known here; otherwise the header contradicts the
    /// format, or is none.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            HeaderError::Version { .. }
                | HeaderError::UnknownFeatures(_)
                | HeaderError::CryptMethod { .. }
                | HeaderError::CompressionType { .. }
                | HeaderError::BadName { .. }
        )
    }
}
