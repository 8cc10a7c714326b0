//! How objects are made: compressed, encrypted, and when one that exists is kept.

use std::sync::Arc;

use memory::IoBytes;

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::frame;
use crate::chunked::key::{ImageKey, KeyError};
use crate::chunked::manifest::Compression;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A chunk, encrypted where the image is.
    Chunk,
    /// A table of chunks.
    Table,
    /// A table of chunks that are deltas.
    Deltas,
}

impl ObjectKind {
    /// What messages call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chunk => "chunk",
            Self::Table => "table of chunks",
            Self::Deltas => "table of deltas",
        }
    }
}

/// How objects are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writing {
    /// How they may be compressed.
    pub compression: Compression,
    /// What is done at a store that knows no conditions.
    pub without: WithoutConditions,
}

/// What is done at a store that knows no conditions by which an object stays that another process makes meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutConditions {
    /// Nothing is written there.
    Refuse,
    /// It is written all the same.
    Write,
}

impl Writing {
    /// Whether an object of `found` bytes that is there is one of `needed` bytes for this image. Others of the folder may have compressed it, which readers of version 1 do
    /// not decompress: it is made plain for them. A store that does not say how long it is is believed.
    pub(crate) fn takes(self, found: Option<u64>, needed: u64) -> bool {
        self.compression != Compression::None || found.is_none_or(|found| found == needed)
    }

    /// The body of the object `name` with these bytes.
    pub(crate) async fn body(
        self,
        name: ChunkName,
        bytes: IoBytes,
        key: Option<Arc<ImageKey>>,
    ) -> Result<IoBytes, KeyError> {
        if self.compression == Compression::None && key.is_none() {
            return Ok(bytes);
        }
        reactor::blocking(move || {
            let frame = match self.compression {
                Compression::None => None,
                Compression::Zstd => frame::compressed(&bytes),
            };
            let shortest = frame.as_deref().unwrap_or(&bytes);
            Ok(match (key, frame.is_some()) {
                (Some(key), _) => key.encrypted(name, shortest)?,
                (None, true) => IoBytes::copy_from(shortest),
                (None, false) => bytes,
            })
        })
        .await
    }
}
