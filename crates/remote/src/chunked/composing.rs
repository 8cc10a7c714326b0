//! Chunks that are stored as patches of another one: read, and made.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::{join_all, try_join};
use futures_util::{StreamExt, TryStreamExt, stream};
use memory::IoBytes;

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::deltas::{DELTA_OBJECT_BYTES_MAX, Delta, DeltaTable, PATCHES_MAX, Patch, entry_bytes};
use crate::chunked::error::Error;
use crate::chunked::frame;
use crate::chunked::key::{ImageKey, KeyError};
use crate::chunked::manifest::{DeltasOf, Manifest};
use crate::chunked::patch::{self, Packed};
use crate::chunked::place::Place;
use crate::chunked::writing::{ObjectKind, Writing};
use crate::s3::{Present, StoreError};

/// What messages call an object of patches.
const WHAT: &str = "delta object";
/// An object with so many bytes gets no further patch.
const OBJECT_BYTES: usize = 4 << 20;
/// Patches of a chunk that are fetched at a time: a server that knows no ranges sends their objects.
const PATCHES_AT_ONCE: usize = 4;
/// Samples of a chunk, and bytes of each.
const SAMPLES: usize = 8;
const SAMPLE_BYTES: usize = 8 << 10;
/// A chunk that takes less at the store is stored as a whole.
const WHOLE_BYTES_MIN: usize = 64 << 10;

/// A chunk that is to be stored as a delta, and its new patch.
#[derive(Debug)]
pub struct NewDelta {
    chunk: ChunkName,
    base: ChunkName,
    /// The patches of the chunk that it was.
    patches: Vec<Patch>,
    new: Packed,
}

impl NewDelta {
    /// Bytes that it takes of the table of deltas.
    pub fn table_bytes(&self) -> u64 {
        entry_bytes(self.patches.len() + 1)
    }
}

/// New patches on their way to one object.
#[derive(Debug, Default)]
pub struct DeltaObject {
    bytes: Vec<u8>,
    new: Vec<(NewDelta, Range<usize>)>,
}

impl DeltaObject {
    /// Puts a patch behind the others.
    pub fn add(&mut self, mut delta: NewDelta) {
        let start = self.bytes.len();
        self.bytes.append(&mut delta.new.stored);
        self.new.push((delta, start..self.bytes.len()));
    }

    /// Whether it gets no further patch.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= OBJECT_BYTES
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.new.is_empty()
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// How the chunks are stored when their patches are in the object `name`.
    fn deltas(self, name: ChunkName) -> impl Iterator<Item = (ChunkName, Delta)> {
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        self.new.into_iter().map(move |(NewDelta { chunk, base, mut patches, new }, place)| {
            let (offset, stored, plain) = (number(place.start), number(place.len()), number(new.plain));
            patches.push(Patch { object: name, offset, stored, plain });
            (chunk, Delta { base, patches })
        })
    }
}

impl Place {
    /// The chunks of a table of `manifest` that are deltas.
    ///
    /// # Errors
    /// When the store does not answer, or their table is missing or damaged.
    pub async fn deltas(&self, manifest: &Manifest, table: u64) -> Result<DeltaTable, Error> {
        let Some(DeltasOf { name, bytes }) = manifest.deltas(table) else { return Ok(DeltaTable::default()) };
        let body = self.checked(ObjectKind::Deltas, name, bytes).await?;
        DeltaTable::decode(&body, manifest.chunk_size()).map_err(|reason| {
            let object = self.name_of(&name.object());
            Error::Delta { object, what: ObjectKind::Deltas.name(), reason }
        })
    }

    /// The bytes of a chunk, which fit its name, of those of its base, which are fetched beside the patches. Costs the chunk, its patches and its hash.
    ///
    /// # Errors
    /// When the store does not answer, or a delta object is missing or damaged.
    pub(crate) async fn composed(
        &self,
        name: ChunkName,
        delta: Delta,
        base: impl Future<Output = Result<Arc<Vec<u8>>, Error>>,
    ) -> Result<Arc<Vec<u8>>, Error> {
        let stored = stream::iter(&delta.patches).map(|patch| self.stored_patch(patch));
        let stored = stored.buffered(PATCHES_AT_ONCE).try_collect::<Vec<_>>();
        let (base, stored) = try_join(base, stored).await?;
        let key = self.key_of(ObjectKind::Chunk);
        let composed = reactor::blocking(move || {
            let mut chunk = Vec::clone(&base);
            for (Patch { object, plain, .. }, stored) in delta.patches.iter().zip(stored) {
                let patch = patch::unpacked(stored, *plain as usize, delta.base, key.as_deref());
                let applied = patch.and_then(|patch| patch::apply(&patch, &mut chunk));
                applied.map_err(|reason| (vec![*object], format!("has a patch for {name} that {reason}")))?;
            }
            match ChunkName::of_chunk(&chunk, key.as_deref()) == name {
                true => Ok(Arc::new(chunk)),
                false => {
                    let mut objects: Vec<_> = delta.patches.iter().map(|patch| patch.object).collect();
                    objects.dedup();
                    Err((objects, format!("leads to another content than {name} says")))
                }
            }
        });
        composed.await.map_err(|(objects, reason)| {
            let objects: Vec<_> = objects.into_iter().map(|one| self.name_of(&Patch::object(one))).collect();
            Error::Delta { object: objects.join(", "), what: WHAT, reason }
        })
    }

    /// A patch as it is at the store.
    async fn stored_patch(&self, patch: &Patch) -> Result<Vec<u8>, Error> {
        let object = Patch::object(patch.object);
        let (start, needed) = (u64::from(patch.offset), u64::from(patch.stored));
        let got = self.get_range(&object, start..start + needed, DELTA_OBJECT_BYTES_MAX).await?;
        let object = self.name_of(&object);
        let body = got.ok_or_else(|| Error::Missing { object: object.clone(), what: WHAT })?;
        match body.len() as u64 == needed {
            true => Ok(body),
            false => {
                let reason = format!("has {} of {needed} bytes at {start}", body.len());
                Err(Error::Delta { object, what: WHAT, reason })
            }
        }
    }

    /// The chunk of these bytes as a delta of the one that was `there`, if that is clearly shorter: `changed` is where they may differ, in order, and `old` how
    /// that one is stored. `None`: it is to be stored as a whole. Costs compressing what has changed; where patches get too many or too long, they are read, and one takes
    /// the place of all.
    ///
    /// # Errors
    /// When the key cannot be used.
    pub async fn delta(
        &self,
        chunk: ChunkName,
        bytes: &IoBytes,
        changed: Vec<Range<usize>>,
        there: ChunkName,
        old: Option<&Delta>,
    ) -> Result<Option<NewDelta>, Error> {
        let half = bytes.len() / 2;
        let total = |ranges: &[Range<usize>]| ranges.iter().map(Range::len).sum::<usize>();
        if total(&changed) > half {
            return Ok(None);
        }
        let (base, patches) = old.map_or((there, &[][..]), |old| (old.base, &old.patches[..]));
        let key = self.key_of(ObjectKind::Chunk);
        let (stored_max, new) = packed(bytes.clone(), changed.clone(), base, key.clone()).await?;
        let stored = new.stored.len() as u64 + old.map_or(0, Delta::stored_bytes);
        if patches.len() < PATCHES_MAX && stored <= stored_max as u64 {
            return Ok(Some(NewDelta { chunk, base, patches: patches.to_vec(), new }));
        }
        let Some(earlier) = self.changed_by(patches, base, bytes.len()).await else { return Ok(None) };
        let all = patch::union([changed, earlier].concat());
        if patches.is_empty() || total(&all) > half {
            return Ok(None);
        }
        let (_, new) = packed(bytes.clone(), all, base, key).await?;
        let is_short = new.stored.len() <= stored_max;
        Ok(is_short.then_some(NewDelta { chunk, base, patches: Vec::new(), new }))
    }

    /// Where these patches of a chunk of `len` bytes change it; `None` if one cannot be read.
    async fn changed_by(&self, patches: &[Patch], base: ChunkName, len: usize) -> Option<Vec<Range<usize>>> {
        let stored = join_all(patches.iter().map(|patch| self.stored_patch(patch))).await;
        let key = self.key_of(ObjectKind::Chunk);
        let mut changed = Vec::new();
        for (patch, stored) in patches.iter().zip(stored) {
            let plain = patch::unpacked(stored.ok()?, patch.plain as usize, base, key.as_deref()).ok()?;
            changed.extend(patch::ranges(&plain, len).ok()?.0);
        }
        Some(changed)
    }

    /// Makes the object of these patches unless it is there. How their chunks are stored then, and the bytes that were sent if it made it.
    ///
    /// # Errors
    /// As [`Place::add`].
    pub async fn add_deltas(
        &self,
        object: DeltaObject,
        how: Writing,
    ) -> Result<(Vec<(ChunkName, Delta)>, Option<u64>), Error> {
        let (name, bytes, object) = reactor::blocking(move || {
            let bytes = IoBytes::copy_from(&object.bytes);
            (ChunkName::of(&bytes), bytes, DeltaObject { bytes: Vec::new(), ..object })
        })
        .await;
        let sent = self.add_as_it_is(&Patch::object(name), bytes, how).await?;
        Ok((object.deltas(name).collect(), sent))
    }

    /// Makes an object, which is called by the hash of its bytes, unless it is there; gives the bytes that were sent if it made it.
    ///
    /// # Errors
    /// As [`Place::add`].
    async fn add_as_it_is(&self, object: &str, bytes: IoBytes, how: Writing) -> Result<Option<u64>, Error> {
        let (store, prefix) = self.bucket()?;
        self.begin_push().await?;
        let (key, len) = (format!("{prefix}{object}"), bytes.len() as u64);
        let present = match store.look(&key).await? {
            None => Present::Keep,
            Some(there) if there.bytes.is_none_or(|there| there == len) => return Ok(None),
            Some(_) => Present::Replace,
        };
        match self.put(store, &key, bytes, present, how.without).await {
            Ok(()) => Ok(Some(len)),
            Err(StoreError::Exists { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The patch with these ranges, and how many bytes the patches of a chunk with these bytes may have at the store: half of what it takes as a whole, as samples of it say.
async fn packed(
    bytes: IoBytes,
    ranges: Vec<Range<usize>>,
    base: ChunkName,
    key: Option<Arc<ImageKey>>,
) -> Result<(usize, Packed), KeyError> {
    reactor::blocking(move || {
        let whole = whole_bytes(&bytes);
        let stored_max = if whole < WHOLE_BYTES_MIN { 0 } else { whole / 2 };
        Ok((stored_max, patch::packed(&bytes, &ranges, base, key.as_deref())?))
    })
    .await
}

/// What a chunk with these bytes takes at the store as a whole, by samples of it: compressing all of it would take longer than all else.
fn whole_bytes(bytes: &[u8]) -> usize {
    let part_bytes = (bytes.len() / SAMPLES).max(SAMPLE_BYTES);
    let parts = bytes.chunks(part_bytes).map(|part| part.get(..SAMPLE_BYTES).unwrap_or(part));
    let sample = parts.collect::<Vec<_>>().concat();
    let taken = frame::compressed(&sample).map_or(sample.len(), |frame| frame.len());
    taken * bytes.len() / sample.len().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_say_what_a_chunk_takes() {
        let noise: Vec<u8> =
            (0..1_u32 << 15).flat_map(|part| *ChunkName::of(&part.to_le_bytes()).bytes()).collect();
        let half: Vec<u8> =
            noise.chunks(32).flat_map(|part| [part, &[0; 32]].concat()).take(1 << 20).collect();
        for (bytes, taken) in
            [(&noise[..], 1 << 20), (&half, 1 << 19), (&[0; 1 << 20], 0), (&noise[..5000], 5000), (&[], 0)]
        {
            assert!(whole_bytes(bytes).abs_diff(taken) <= taken / 5 + 4096, "{} {taken}", whole_bytes(bytes));
        }
    }
}
