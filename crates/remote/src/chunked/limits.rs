//! What a manifest may say at most.

/// The value of `format` in a manifest.
pub(crate) const FORMAT: &str = "cowhand-chunked-image";
/// A larger disk is refused. With the smallest chunks it has 8,192 tables: a manifest of 550 KB.
pub const DISK_BYTES_MAX: u64 = 64 << 40;
/// Tables that have chunks which are deltas at most: the manifest stays small.
pub const DELTA_TABLES_MAX: usize = 1024;
/// Checkpoints that a manifest names at most: no chain of layers is longer.
pub const CHECKPOINTS_MAX: usize = 1000;
/// Bytes of the smallest chunks.
pub const CHUNK_BYTES_MIN: u64 = 512 << 10;
/// Bytes of the largest chunks.
pub const CHUNK_BYTES_MAX: u64 = 4 << 20;
/// Bytes of a table of deltas at most: with eight patches each, and few objects, the chunks of a table take 3.2 MB. In memory it is twice as large.
pub const DELTAS_BYTES_MAX: u64 = 4 << 20;
