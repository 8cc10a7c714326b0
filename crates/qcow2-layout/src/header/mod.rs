//! The header: cluster 0 of every image.

mod decode;
mod encode;
mod error;
mod extension;

use std::fmt;

pub use error::HeaderError;
pub use extension::{BitmapsExtension, CryptoExtension, Extensions, RecordExtension};

use crate::{Autoclear, Compatible, Geometry, GeometryError, HostOffset, Incompatible, Version};

/// The first four bytes: "QFI\xfb".
pub const MAGIC: u32 = 0x5146_49fb;
/// Bytes of a version 2 header.
pub const HEADER_BYTES_V2: usize = 72;
/// Bytes of the shortest version 3 header.
pub const HEADER_BYTES_V3_MIN: usize = 104;
/// Bytes of the version 3 header as written here: with the compression type.
pub const HEADER_BYTES_V3: usize = 112;
/// Most bytes of an L1 table.
pub const L1_BYTES_MAX: u64 = 32 << 20;
/// Most bytes of the refcount table.
pub const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of the name of a backing file.
pub const BACKING_NAME_BYTES_MAX: usize = 1023;
/// Most bytes of the name of the backing file's format.
pub const BACKING_FORMAT_BYTES_MAX: usize = 15;
/// Most internal snapshots.
pub const SNAPSHOTS_MAX: u32 = 65536;

/// How compressed clusters are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// A raw deflate stream ("zlib" to QEMU).
    Deflate,
    /// A zstd frame.
    Zstd,
}

impl Compression {
    /// QEMU's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Deflate => "zlib",
            Compression::Zstd => "zstd",
        }
    }

    fn of(code: u8) -> Option<Self> {
        match code {
            0 => Some(Compression::Deflate),
            1 => Some(Compression::Zstd),
            _ => None,
        }
    }

    fn code(self) -> u8 {
        match self {
            Compression::Deflate => 0,
            Compression::Zstd => 1,
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How guest data is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CryptMethod {
    /// Not at all.
    None,
    /// AES-128-CBC, the passphrase being the key.
    Aes,
    /// LUKS.
    Luks,
}

impl CryptMethod {
    fn of(code: u32) -> Option<Self> {
        match code {
            0 => Some(CryptMethod::None),
            1 => Some(CryptMethod::Aes),
            2 => Some(CryptMethod::Luks),
            _ => None,
        }
    }

    fn code(self) -> u32 {
        match self {
            CryptMethod::None => 0,
            CryptMethod::Aes => 1,
            CryptMethod::Luks => 2,
        }
    }
}

/// A decoded header with its extensions and the backing file's name.
///
/// From [`Header::decode`] every field keeps to the limits of the format; after changes to the fields,
/// [`Header::encode`] checks again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the format.
    pub version: Version,
    /// log2 of the cluster size.
    pub cluster_bits: u32,
    /// log2 of the refcount width in bits.
    pub refcount_order: u32,
    /// Size of the guest's disk in bytes, as stored; see [`Header::guest_size`].
    pub size: u64,
    /// Name of the backing file, as stored: relative to this image's directory.
    pub backing: Option<String>,
    /// How guest data is encrypted.
    pub crypt: CryptMethod,
    /// Entries of the active L1 table.
    pub l1_size: u32,
    /// Where the active L1 table is; 0 without one.
    pub l1_table_offset: HostOffset,
    /// Where the refcount table is.
    pub refcount_table_offset: HostOffset,
    /// Clusters of the refcount table.
    pub refcount_table_clusters: u32,
    /// Internal snapshots.
    pub snapshots: u32,
    /// Where the snapshot table is.
    pub snapshots_offset: HostOffset,
    /// Features that must be known.
    pub incompatible: Incompatible,
    /// Features that may be ignored.
    pub compatible: Compatible,
    /// Features whose bit a writer must clear if it does not keep them.
    pub autoclear: Autoclear,
    /// How compressed clusters are compressed.
    pub compression: Compression,
    /// Header bytes behind the known ones, kept as they are; a multiple of 8.
    pub extra: Vec<u8>,
    /// Header extensions.
    pub extensions: Extensions,
}

impl Header {
    /// The sizes of everything in this image.
    ///
    /// # Errors
    /// Never for a decoded header; a header put together by hand may contradict itself.
    pub fn geometry(&self) -> Result<Geometry, GeometryError> {
        let mut geometry = Geometry::new(self.version, self.cluster_bits, self.refcount_order)?;
        if self.incompatible.contains(Incompatible::EXTENDED_L2) {
            geometry = geometry.with_extended_l2()?;
        }
        if self.incompatible.contains(Incompatible::EXTERNAL_DATA) {
            geometry = geometry.with_external_data()?;
        }
        Ok(geometry)
    }

    /// Size of the guest's disk: whole sectors of 512 bytes, a broken one at the end does not count.
    pub fn guest_size(&self) -> u64 {
        self.size & !511
    }

    /// Bytes of the cluster of this header, without bounds checks.
    fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits.min(crate::CLUSTER_BITS_MAX)
    }
}
