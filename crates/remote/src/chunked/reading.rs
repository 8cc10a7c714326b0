//! How objects are read: fetched, and believed as far as their bytes fit their names.

use std::sync::Arc;

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::error::Error;
use crate::chunked::frame::{self, Damage};
use crate::chunked::key::{ImageKey, OVERHEAD_BYTES};
use crate::chunked::manifest::Manifest;
use crate::chunked::place::Place;
use crate::chunked::table::Table;
use crate::chunked::writing::ObjectKind;
use crate::http::Reply;

impl Place {
    /// A table of `manifest`, whose bytes fit its name.
    ///
    /// # Errors
    /// When the store does not answer, or the table is missing or damaged.
    pub async fn table(&self, manifest: &Manifest, table: u64) -> Result<Table, Error> {
        let chunks = manifest.chunks_of(table);
        let chunks = usize::try_from(chunks.end - chunks.start).unwrap_or_default();
        let Some(name) = manifest.table(table) else { return Ok(Table::of_zeroes(chunks)) };
        let bytes = self.checked(ObjectKind::Table, name, Table::len_of(chunks) as u64).await?;
        Ok(Table::decode(&bytes))
    }

    /// The bytes of a chunk, which fit its name.
    ///
    /// # Errors
    /// When the store does not answer, or the chunk is missing or damaged.
    pub async fn chunk(&self, name: ChunkName, len: u64) -> Result<Arc<Vec<u8>>, Error> {
        self.checked(ObjectKind::Chunk, name, len).await
    }

    /// The `needed` bytes of an object that is called by their hash.
    pub(crate) async fn checked(
        &self,
        kind: ObjectKind,
        name: ChunkName,
        needed: u64,
    ) -> Result<Arc<Vec<u8>>, Error> {
        let stored_max = needed + self.key_of(kind).map_or(0, |_| OVERHEAD_BYTES);
        let Some(Reply { body, .. }) = self.get(&name.object(), stored_max).await? else {
            return Err(Error::Missing { object: self.name_of(&name.object()), what: kind.name() });
        };
        let plain = self.plain(kind, name, body, needed).await;
        plain.map_err(|damage| self.damaged(kind, name, needed, damage))
    }

    /// The `needed` bytes that `name` stands for, of the `body` of its object. It is decrypted and decompressed, and the hash taken, beside the loop.
    pub(crate) async fn plain(
        &self,
        kind: ObjectKind,
        name: ChunkName,
        body: Vec<u8>,
        needed: u64,
    ) -> Result<Arc<Vec<u8>>, Damage> {
        // No object is longer than a chunk.
        let (len, key) = (usize::try_from(needed).unwrap_or(usize::MAX), self.key_of(kind));
        reactor::blocking(move || frame::plain(body, name, len, key.as_deref())).await.map(Arc::new)
    }

    /// That the object of a name is damaged.
    pub(crate) fn damaged(&self, kind: ObjectKind, name: ChunkName, needed: u64, damage: Damage) -> Error {
        let (object, what) = (self.name_of(&name.object()), kind.name());
        match damage {
            Damage::Length(found) => Error::Length { object, what, found, needed },
            Damage::Frame(reason) => Error::Frame { object, what, needed, reason },
            Damage::Content => Error::Content { object, what },
            Damage::Encryption => Error::Encryption { object, what },
        }
    }

    /// Tables are plain: they name chunks by keyed hashes, and what no image leads to is found without the key.
    pub(crate) fn key_of(&self, kind: ObjectKind) -> Option<Arc<ImageKey>> {
        self.key().filter(|_| kind == ObjectKind::Chunk)
    }
}
