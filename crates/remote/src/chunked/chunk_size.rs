//! How many bytes a chunk has.

use crate::chunked::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN};
use crate::chunked::manifest_error::ManifestError;

/// Bytes of a chunk by default.
pub const CHUNK_BYTES_DEFAULT: u64 = 1 << 20;

/// Bytes of a chunk: a power of two from [`CHUNK_BYTES_MIN`] to [`CHUNK_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize(u64);

impl Default for ChunkSize {
    fn default() -> Self {
        Self(CHUNK_BYTES_DEFAULT)
    }
}

impl ChunkSize {
    /// Of so many bytes.
    ///
    /// # Errors
    /// When no chunk has so many.
    pub fn new(bytes: u64) -> Result<Self, ManifestError> {
        match bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&bytes) {
            true => Ok(Self(bytes)),
            false => Err(ManifestError::ChunkSize { found: bytes }),
        }
    }

    /// So many bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}
