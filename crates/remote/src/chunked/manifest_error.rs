//! What is wrong with a manifest.

use crate::chunked::key::CIPHER;
use crate::chunked::limits::{
    CHECKPOINTS_MAX, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, DELTA_TABLES_MAX, DELTAS_BYTES_MAX, DISK_BYTES_MAX,
    FORMAT,
};

/// What is wrong with a manifest, or with a disk that is to have one.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It has another shape.
    #[error("it is no manifest of a chunked image: {0}")]
    Shape(serde_json::Error),
    /// It is of something else.
    #[error("format is {found:?}; allowed: {FORMAT}")]
    Format {
        /// What it says.
        found: String,
    },
    /// It is of another version.
    #[error("version is {found}; allowed: 1 to 4")]
    Version {
        /// What it says.
        found: u64,
    },
    /// The member is of all versions but the first, which need it.
    #[error("versions 2 to 4 have a member \"compression\", and version 1 has none")]
    Compression,
    /// The member is of version 3, which needs it, and may be in version 4.
    #[error("version 3 has a member \"encryption\", version 4 may have it, and others have none")]
    Encryption,
    /// It is encrypted in another way.
    #[error("cipher is {found:?}; allowed: {CIPHER}")]
    Cipher {
        /// What it says.
        found: String,
    },
    /// The key has another id, or the proof another form.
    #[error("{member} is {found:?}; allowed: {digits} hexadecimal digits in lower case")]
    Digits {
        /// Which of them.
        member: &'static str,
        /// What it says.
        found: String,
        /// How many it has.
        digits: usize,
    },
    /// Version 1 has none, and no chain is so long.
    #[error(
        "it names {found} checkpoints; allowed: up to {CHECKPOINTS_MAX} in versions 2 to 4, none in version 1"
    )]
    Checkpoints {
        /// What it has.
        found: usize,
    },
    /// A checkpoint cannot be called so.
    #[error(
        "it names the checkpoint {id:?} ({name:?}); allowed: an id of 16 hexadecimal digits in lower case, and a name of 1 to 128 letters, digits or -_.:+"
    )]
    Checkpoint {
        /// Its id.
        id: String,
        /// Its name.
        name: Option<String>,
    },
    /// The disk is too large.
    #[error("the disk has {found} bytes; allowed: up to {DISK_BYTES_MAX}")]
    Size {
        /// Its bytes.
        found: u64,
    },
    /// No chunk has this size.
    #[error("chunk-size is {found}; allowed: powers of two from {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}")]
    ChunkSize {
        /// Its bytes.
        found: u64,
    },
    /// It has more or fewer tables than its disk.
    #[error("it has {found} tables; a disk of {size} bytes has {needed}")]
    Tables {
        /// What it has.
        found: usize,
        /// Bytes of its disk.
        size: u64,
        /// Tables of such a disk.
        needed: u64,
    },
    /// The member is of version 4, which needs it.
    #[error("it has {found} tables of deltas; allowed: 1 to {DELTA_TABLES_MAX} in version 4, none in others")]
    DeltaTables {
        /// What it has.
        found: usize,
    },
    /// A table of deltas cannot be one.
    #[error(
        "the deltas of table {table} are {bytes} bytes called {name:?}; allowed: each table with chunks once, in order, up to {DELTAS_BYTES_MAX} bytes, and 64 hexadecimal digits in lower case"
    )]
    Deltas {
        /// Of which table.
        table: u64,
        /// Its bytes.
        bytes: u64,
        /// What it is called.
        name: String,
    },
    /// The name of a table is none.
    #[error("table {table} is called {found:?}; allowed: null, or 64 hexadecimal digits in lower case")]
    Name {
        /// Which one.
        table: usize,
        /// What it is called.
        found: String,
    },
}
