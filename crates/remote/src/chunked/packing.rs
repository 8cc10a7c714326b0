//! Packs: copies of the chunks that a start reads, several in an object, so that a start takes few requests.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use memory::IoBytes;

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::deltas::DeltaTable;
use crate::chunked::error::Error;
use crate::chunked::frame::Damage;
use crate::chunked::kept::RecentlyUsed;
use crate::chunked::key::OVERHEAD_BYTES;
use crate::chunked::manifest::{Manifest, TABLE_CHUNKS};
use crate::chunked::place::Place;
use crate::chunked::start_list::{
    Pack, PackedChunk, START_CHUNKS_MAX, START_LIST_BYTES_MAX, START_SUFFIX, StartList, pack_chunks_max,
};
use crate::chunked::table::Table;
use crate::chunked::writing::ObjectKind;
use crate::http::Reply;
use crate::s3::Present;

/// Chunks that are fetched at a time.
const AT_ONCE: usize = 8;
/// Tables that are kept, of 512 KiB each, and those of their deltas.
const TABLES_KEPT: usize = 8;

/// What was packed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// The start list.
    pub list: String,
    /// Chunks in it.
    pub chunks: u64,
    /// Packs of them.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packs that were made: others were there.
    pub uploaded: u64,
    /// Their bytes.
    pub uploaded_bytes: u64,
    /// A start reads more chunks than a list names: the last ones are not in it.
    pub is_cut: bool,
    /// The list is another one now.
    pub is_changed: bool,
}

/// An image of which chunks are to be packed. It takes no key: packs have chunks as they are at the store.
#[derive(Debug)]
pub struct Packing<'a> {
    place: &'a Place,
    manifest: Manifest,
    /// The start list that is there.
    list: Option<StartList>,
    tables: RecentlyUsed<u64, (Arc<Table>, Arc<DeltaTable>)>,
}

impl Place {
    /// The image that is there, to pack chunks of it.
    ///
    /// # Errors
    /// When there is none, it is only read, something else is in the place of its start list, or the store does not answer.
    pub async fn packing(&self) -> Result<Packing<'_>, Error> {
        self.bucket()?;
        let found = self.find_unproven().await?;
        let (found, _) = found.ok_or_else(|| Error::NoImage { manifest: self.to_string() })?;
        let (manifest, list) = (found.manifest, self.start_list().await?);
        Ok(Packing { place: self, manifest, list, tables: RecentlyUsed::new(TABLES_KEPT) })
    }

    /// The start list of the name that the image was published to: all its checkpoints share it.
    pub(crate) fn start_object(&self) -> String {
        format!("{}{START_SUFFIX}", self.published_name())
    }

    /// The start list that is there; `None` if there is none.
    ///
    /// # Errors
    /// When the store does not answer, or the object of that name is no start list.
    pub(crate) async fn start_list(&self) -> Result<Option<StartList>, Error> {
        let object = self.start_object();
        let Some(Reply { body, .. }) = self.get(&object, START_LIST_BYTES_MAX).await? else {
            return Ok(None);
        };
        let list = StartList::decode(&body);
        list.map(Some).map_err(|source| Error::StartList { list: self.name_of(&object), source })
    }

    /// The bytes of a pack: as many as its chunks have. They are not checked.
    ///
    /// # Errors
    /// When the store does not answer, or the pack is missing or has another length.
    pub(crate) async fn pack(&self, pack: &Pack) -> Result<Vec<u8>, Error> {
        let (object, needed) = (Pack::object(pack.name), pack.bytes());
        let wrong = |reason| Error::Pack { pack: self.name_of(&object), reason };
        let reply = self.get(&object, needed).await?;
        let body = reply.ok_or_else(|| wrong("is missing".to_owned()))?.body;
        match body.len() as u64 == needed {
            true => Ok(body),
            false => Err(wrong(format!("has {} bytes and must have {needed}", body.len()))),
        }
    }

    /// Takes over the start list of `from`, an image of the same folder, unless there is one: most chunks of a disk that began as another one are the other's.
    /// Says whether it did. A push must be announced ([`Place::begin_push`]): until the list is there, nothing may lead to its packs.
    ///
    /// # Errors
    /// When the store does not answer or refuses.
    pub async fn take_start_list(&self, from: &Self) -> Result<bool, Error> {
        let (store, prefix) = self.bucket()?;
        let (own, other) = (self.start_object(), from.start_object());
        if own == other {
            return Ok(false);
        }
        let Some(Reply { body, .. }) = from.get(&other, START_LIST_BYTES_MAX).await? else {
            return Ok(false);
        };
        let own = format!("{prefix}{own}");
        if StartList::decode(&body).is_err() || store.look(&own).await?.is_some() {
            return Ok(false);
        }
        store.put(&own, IoBytes::copy_from(&body), &Present::Replace).await?;
        Ok(true)
    }
}

impl Packing<'_> {
    /// What the image says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Packs `chunks`, in the order in which a start reads them, and makes them the image's start list; chunks of zeroes, and numbers beyond the disk, are left
    /// out. [`Place::end_push`] follows, whatever came of it. Packs are written before the list, so a crash leaves the list that was there. Memory: a pack, and as
    /// many chunks as are fetched at a time.
    ///
    /// # Errors
    /// When none of the chunks has data, the store does not answer or refuses, or a chunk is missing or, of an image without a key, damaged.
    pub async fn run(&self, chunks: impl IntoIterator<Item = u64>) -> Result<Packed, Error> {
        self.place.begin_push().await?;
        let (chunks, is_cut) = self.with_data(chunks).await?;
        if chunks.is_empty() {
            return Err(Error::NothingToPack { image: self.place.image() });
        }
        let chunk_size = self.manifest.chunk_size();
        let mut packed = Packed {
            list: self.place.name_of(&self.place.start_object()),
            chunks: chunks.len() as u64,
            is_cut,
            ..Packed::default()
        };
        let mut packs = Vec::new();
        for group in chunks.chunks(pack_chunks_max(chunk_size)) {
            let (pack, is_new) = self.add(group).await?;
            packed.packs += 1;
            packed.bytes += pack.bytes();
            if is_new {
                packed.uploaded += 1;
                packed.uploaded_bytes += pack.bytes();
            }
            packs.push(pack);
        }
        packed.is_changed = self.write(StartList { chunk_size, packs }).await?;
        Ok(packed)
    }

    /// Those of `chunks` that have data, each name once, and whether there are more than a list names.
    async fn with_data(
        &self,
        chunks: impl IntoIterator<Item = u64>,
    ) -> Result<(Vec<(u64, ChunkName)>, bool), Error> {
        let (mut found, mut met) = (Vec::new(), HashSet::new());
        for chunk in chunks {
            let table = chunk / TABLE_CHUNKS;
            if self.manifest.table(table).is_none() {
                continue;
            }
            let fetch = async || {
                let chunks = self.place.table(&self.manifest, table).await?;
                Ok::<_, Error>((Arc::new(chunks), Arc::new(self.place.deltas(&self.manifest, table).await?)))
            };
            let (chunks, deltas) = self.tables.get(table, fetch).await?;
            let Some(name) = chunks.name_of(chunk) else { continue };
            // Of a delta what is at the store as a chunk. It is the base of later ones, too.
            let name = deltas.of(name).map_or(name, |delta| delta.base);
            if met.contains(&name) {
                continue;
            }
            if found.len() == START_CHUNKS_MAX {
                return Ok((found, true));
            }
            met.insert(name);
            found.push((chunk, name));
        }
        Ok((found, false))
    }

    /// Makes the pack of these chunks unless it is there. Says whether it did.
    async fn add(&self, chunks: &[(u64, ChunkName)]) -> Result<(Pack, bool), Error> {
        let (store, prefix) = self.place.bucket()?;
        let bodies = stream::iter(chunks).map(|(chunk, name)| self.stored(*chunk, *name));
        let mut bodies = std::pin::pin!(bodies.buffered(AT_ONCE).enumerate());
        let (mut bytes, mut packed) = (Vec::new(), Vec::with_capacity(chunks.len()));
        while let Some((at, body)) = bodies.next().await {
            let body = body?;
            bytes.extend_from_slice(&body);
            let named = chunks.get(at).copied();
            packed.extend(named.map(|(chunk, name)| PackedChunk { chunk, name, bytes: body.len() as u64 }));
        }
        let bytes = Arc::new(bytes);
        let hashed = Arc::clone(&bytes);
        let name = reactor::blocking(move || ChunkName::of(&hashed)).await;
        let key = format!("{prefix}{}", Pack::object(name));
        let is_new = store.look(&key).await?.is_none_or(|there| there.bytes != Some(bytes.len() as u64));
        if is_new {
            store.put(&key, IoBytes::copy_from(&bytes), &Present::Replace).await?;
        }
        Ok((Pack { name, chunks: packed }, is_new))
    }

    /// The object of a chunk, as it is at the store.
    async fn stored(&self, chunk: u64, name: ChunkName) -> Result<Vec<u8>, Error> {
        let (range, is_plain) = (self.manifest.range(chunk), self.manifest.key_id().is_none());
        let (kind, needed) = (ObjectKind::Chunk, range.end - range.start);
        let bytes_max = needed + if is_plain { 0 } else { OVERHEAD_BYTES };
        let Some(Reply { body, .. }) = self.place.get(&name.object(), bytes_max).await? else {
            return Err(Error::Missing { object: self.place.name_of(&name.object()), what: kind.name() });
        };
        let checked = match is_plain {
            true => self.place.plain(kind, name, body.clone(), needed).await.map(drop),
            // Its content takes the key.
            false if body.is_empty() => Err(Damage::Length(0)),
            false => Ok(()),
        };
        checked.map(|()| body).map_err(|damage| self.place.damaged(kind, name, needed, damage))
    }

    /// Makes `list` the image's. Says whether it is another one than before.
    async fn write(&self, list: StartList) -> Result<bool, Error> {
        let is_changed = self.list.as_ref() != Some(&list);
        if is_changed {
            let (store, prefix) = self.place.bucket()?;
            let key = format!("{prefix}{}", self.place.start_object());
            store.put(&key, IoBytes::copy_from(&list.encode()), &Present::Replace).await?;
        }
        Ok(is_changed)
    }
}
