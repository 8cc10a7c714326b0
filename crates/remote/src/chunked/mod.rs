//! Chunked images: a disk as a manifest and immutable chunks that are named by their content.
//!
//! The manifest ([`Manifest`]) names tables, a table ([`Table`]) names the chunks of a part of the disk, and a chunk is so many bytes of it.
//! Tables and chunks are objects that are called by the SHA-256 of their bytes ([`ChunkName`]) and never change, so images of one folder
//! share what is equal in them. An object is those bytes or a shorter zstd frame of them. Chunks of zeroes are not stored. With a key ([`ImageKey`]) chunks are
//! encrypted, their names are keyed hashes, and the manifest has a proof that the owner of the key wrote it.
//! docs/internals/chunked-images.md has the bytes.
//!
//! A chunk that differs from another one in a few ranges may be stored as that one and patches ([`DeltaTable`]): many of these are one object.
//!
//! A start list names the chunks that a start reads, and packs have copies of them ([`Packing`]): so a guest's start takes few requests.
//!
//! [`Place`] finds and makes these objects; [`ChunkedStorage`] reads the disk. [`Folder`] finds what no image leads to. [`Comparison`] finds where
//! two images differ.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::cast_possible_truncation))]

mod ahead;
mod checkpoint;
mod chunk_name;
mod chunk_size;
mod composing;
mod deltas;
mod difference;
mod error;
mod frame;
mod in_use;
mod kept;
mod key;
mod limits;
mod manifest;
mod manifest_error;
mod packing;
mod patch;
mod place;
mod reading;
mod start_list;
mod storage;
mod table;
mod unused;
mod writing;

pub use checkpoint::{Checkpoint, Of};
pub use chunk_name::ChunkName;
pub use chunk_size::{CHUNK_BYTES_DEFAULT, ChunkSize};
pub use composing::{DeltaObject, NewDelta};
pub use deltas::{Delta, DeltaTable, PATCHES_MAX, Patch};
pub use difference::{Comparison, Content, Difference};
pub use error::Error;
pub use key::{ImageKey, KeyError, KeyId, SECRET_BYTES_MIN};
pub use limits::{
    CHECKPOINTS_MAX, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, DELTA_TABLES_MAX, DELTAS_BYTES_MAX, DISK_BYTES_MAX,
};
pub use manifest::{Compression, DeltasOf, Manifest, TABLE_CHUNKS};
pub use manifest_error::ManifestError;
pub use packing::{Packed, Packing};
pub use place::{PREFIX, Place, Published, split_key, without_prefix};
pub use start_list::{PACK_BYTES_MAX, Pack, PackedChunk, START_CHUNKS_MAX, StartList, StartListError};
pub use storage::{ChunkedStorage, MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MAX, Options};
pub use table::Table;
pub use unused::{Folder, Removal, Survey, Unused};
pub use writing::{ObjectKind, WithoutConditions, Writing};
