//! Bytes of a disk as they lie somewhere: what goes from one block to another without being read into memory, or unpacked.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use memory::IoBytes;

/// What a block can take over as it lies elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Bytes of a file of this machine, as they are.
    File,
    /// Units of so many bytes, packed in this way.
    Packed {
        /// The name of the compression, as in options (`zlib`, `zstd`).
        packing: &'static str,
        /// Bytes of the disk in each.
        unit_bytes: u64,
    },
}

/// Bytes of a disk as they lie somewhere.
#[derive(Clone, Debug)]
pub enum Stored {
    /// In a file that is read through the page cache.
    File {
        /// The file.
        file: Arc<OwnedFd>,
        /// Where they begin in it.
        offset: u64,
        /// How many they are, never 0.
        len: u64,
    },
    /// Packed, one unit after the other.
    Packed {
        /// Each without anything behind its end; at least one.
        units: Vec<IoBytes>,
        /// Bytes of the disk in each.
        unit_bytes: u64,
    },
}

impl Stored {
    /// Bytes of the disk.
    pub fn disk_bytes(&self) -> u64 {
        match self {
            Self::File { len, .. } => *len,
            Self::Packed { units, unit_bytes } => units.len() as u64 * unit_bytes,
        }
    }
}
