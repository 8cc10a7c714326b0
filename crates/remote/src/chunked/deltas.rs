//! A table of deltas: the chunks of a part of the disk that are not stored as a whole, but as patches of another one that is.
//!
//! Its bytes are numbers of 32 bits, little-endian, and names: how many delta objects there are, and their names in order; then, in the order of their names,
//! each chunk that is a delta: its name, that of its base, how many patches there are, and of each the number of its object, its place there, its bytes there,
//! and the bytes that these stand for. A base is an object of its own, so no chain leads further, whatever a table says.

use std::collections::{BTreeMap, BTreeSet};

use crate::chunked::chunk_name::{ChunkName, NAME_BYTES};
use crate::chunked::chunk_size::ChunkSize;
use crate::chunked::key::OVERHEAD_BYTES;
use crate::chunked::limits::DELTAS_BYTES_MAX;

/// Patches of a chunk at most: a read of it takes a request for each, at the same time.
pub const PATCHES_MAX: usize = 8;
/// Bytes that the names of new delta objects take of a table at most: half of the largest chunks are 8,192 objects of 4 MiB.
const NEW_OBJECTS_BYTES_MAX: u64 = 256 << 10;
/// Bytes of a delta object at most, which a server that knows no ranges is asked for.
pub(crate) const DELTA_OBJECT_BYTES_MAX: u64 = 8 << 20;
/// The folder of delta objects, in that of the images.
pub(crate) const DELTAS: &str = "deltas/";
/// Bytes of a number.
const WORD: usize = 4;
/// Numbers of a patch.
const PATCH_WORDS: usize = 4;

/// A part of a delta object: other bytes of a chunk in a few ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The SHA-256 of the bytes of its object.
    pub object: ChunkName,
    /// Where it begins there.
    pub offset: u32,
    /// Its bytes there.
    pub stored: u32,
    /// The bytes that these stand for.
    pub plain: u32,
}

impl Patch {
    /// The delta object of this name in the folder of an image.
    pub(crate) fn object(name: ChunkName) -> String {
        format!("{DELTAS}{name}")
    }
}

/// A chunk as a whole one and what differs from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// A chunk of the same length that is an object of its own.
    pub base: ChunkName,
    /// In the order in which they are applied, [`PATCHES_MAX`] at most.
    pub patches: Vec<Patch>,
}

impl Delta {
    /// Bytes of its patches at the store.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.patches.iter().map(|patch| u64::from(patch.stored)).sum()
    }
}

/// Bytes that a chunk with so many patches takes of a table, without the names of their objects.
pub(crate) fn entry_bytes(patches: usize) -> u64 {
    (2 * NAME_BYTES + WORD + patches * PATCH_WORDS * WORD) as u64
}

/// The chunks of a part of the disk that are deltas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeltaTable {
    deltas: BTreeMap<ChunkName, Delta>,
}

impl DeltaTable {
    /// How the chunk of this name is stored; `None`: as a whole.
    pub fn of(&self, chunk: ChunkName) -> Option<&Delta> {
        self.deltas.get(&chunk)
    }

    /// Whether all chunks are stored as a whole.
    pub fn is_empty(&self) -> bool {
        self.deltas.is_empty()
    }

    /// Names a chunk that is a delta, unless it is named.
    pub fn insert(&mut self, chunk: ChunkName, delta: Delta) {
        self.deltas.entry(chunk).or_insert(delta);
    }

    /// Those of the chunks that `is_named` takes.
    #[must_use]
    pub fn of_those(&self, is_named: impl Fn(ChunkName) -> bool) -> Self {
        let named = self.deltas.iter().filter(|(chunk, _)| is_named(**chunk));
        Self { deltas: named.map(|(chunk, delta)| (*chunk, delta.clone())).collect() }
    }

    /// Names of what they lead to: of chunks that are their bases, and of delta objects.
    pub(crate) fn leads_to(&self) -> impl Iterator<Item = (ChunkName, impl Iterator<Item = ChunkName>)> {
        self.deltas.values().map(|delta| (delta.base, delta.patches.iter().map(|patch| patch.object)))
    }

    /// Bytes that are left for the entries of other chunks.
    pub fn room_bytes(&self) -> u64 {
        DELTAS_BYTES_MAX.saturating_sub(self.encode().len() as u64 + NEW_OBJECTS_BYTES_MAX)
    }

    /// Its bytes. They are the same for the same deltas.
    pub fn encode(&self) -> Vec<u8> {
        let patches = self.deltas.values().flat_map(|delta| &delta.patches);
        let objects: BTreeSet<ChunkName> = patches.map(|patch| patch.object).collect();
        let objects: Vec<ChunkName> = objects.into_iter().collect();
        let number = |object: ChunkName| word(objects.binary_search(&object).unwrap_or_default());
        let mut bytes = word(objects.len()).to_vec();
        objects.iter().for_each(|object| bytes.extend(object.bytes()));
        for (chunk, Delta { base, patches }) in &self.deltas {
            bytes.extend(chunk.bytes().iter().chain(base.bytes()));
            bytes.extend(word(patches.len()));
            for Patch { object, offset, stored, plain } in patches {
                bytes.extend(number(*object));
                [offset, stored, plain].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            }
        }
        bytes
    }

    /// What its bytes say, checked, of chunks of this size.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &[u8], chunk_size: ChunkSize) -> Result<Self, String> {
        let mut rest = Rest(bytes);
        let count = rest.number()?;
        let objects = rest.part(count.checked_mul(NAME_BYTES).ok_or(ENDS)?)?.as_chunks::<NAME_BYTES>().0;
        let (mut table, mut last) = (Self::default(), None);
        while !rest.0.is_empty() {
            let (chunk, base, patches) = (rest.name()?, rest.name()?, rest.number()?);
            if !(1..=PATCHES_MAX).contains(&patches) {
                return Err(format!("has {patches} patches of {chunk}; allowed: 1 to {PATCHES_MAX}"));
            }
            if last.is_some_and(|last| last >= chunk) {
                return Err(format!("has {chunk} in another order, or twice"));
            }
            let patches = (0..patches).map(|_| rest.patch(objects, chunk_size)).collect::<Result<_, _>>()?;
            table.deltas.insert(chunk, Delta { base, patches });
            last = Some(chunk);
        }
        Ok(table)
    }
}

/// That the bytes of a table are too few.
const ENDS: &str = "ends too early";

/// What of a table has not been read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn part(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let (part, rest) = self.0.split_at_checked(bytes).ok_or(ENDS)?;
        self.0 = rest;
        Ok(part)
    }

    fn word(&mut self) -> Result<u32, String> {
        let part = self.part(WORD)?;
        Ok(u32::from_le_bytes(*part.first_chunk().ok_or(ENDS)?))
    }

    fn number(&mut self) -> Result<usize, String> {
        Ok(self.word()? as usize)
    }

    fn name(&mut self) -> Result<ChunkName, String> {
        let part = self.part(NAME_BYTES)?;
        Ok(ChunkName::from_bytes(*part.first_chunk().ok_or(ENDS)?))
    }

    fn patch(&mut self, objects: &[[u8; NAME_BYTES]], chunk_size: ChunkSize) -> Result<Patch, String> {
        let number = self.number()?;
        let object = objects.get(number).copied().map(ChunkName::from_bytes);
        let object = object.ok_or_else(|| format!("names the object {number} of {}", objects.len()))?;
        let (offset, stored, plain) = (self.word()?, self.word()?, self.word()?);
        let [place, bytes, len] = [offset, stored, plain].map(u64::from);
        let is_sound = (1..=chunk_size.bytes()).contains(&len)
            && (1..=len + OVERHEAD_BYTES).contains(&bytes)
            && place + bytes <= DELTA_OBJECT_BYTES_MAX;
        match is_sound {
            true => Ok(Patch { object, offset, stored, plain }),
            false => Err(format!(
                "has a patch of {plain} bytes as {stored} at {offset}; allowed: up to {} bytes, of an object of up to {DELTA_OBJECT_BYTES_MAX}",
                chunk_size.bytes()
            )),
        }
    }
}

fn word(number: usize) -> [u8; WORD] {
    // A table has 4 MiB.
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(of: &str) -> ChunkName {
        ChunkName::of(of.as_bytes())
    }

    fn patch(object: &str, offset: u32) -> Patch {
        Patch { object: name(object), offset, stored: 10, plain: 20 }
    }

    fn table() -> DeltaTable {
        let mut table = DeltaTable::default();
        table.insert(name("x"), Delta { base: name("a"), patches: vec![patch("one", 0), patch("two", 7)] });
        table.insert(name("y"), Delta { base: name("a"), patches: vec![patch("one", 10); PATCHES_MAX] });
        table
    }

    #[test]
    fn a_table_is_what_was_encoded() {
        let table = table();
        let bytes = table.encode();
        assert_eq!(bytes.len(), 4 + 2 * 32 + 2 * (64 + 4) + 10 * 16);
        assert_eq!(table.room_bytes(), DELTAS_BYTES_MAX - bytes.len() as u64 - NEW_OBJECTS_BYTES_MAX);
        assert_eq!(entry_bytes(2) + entry_bytes(8), bytes.len() as u64 - 4 - 64);
        assert_eq!(DeltaTable::decode(&bytes, ChunkSize::default()).unwrap(), table);
        assert_eq!(table.of(name("x")).unwrap().stored_bytes(), 20);
        assert_eq!((table.of(name("a")), table.is_empty()), (None, false));
        let one = table.of_those(|chunk| chunk == name("x"));
        let mut other = one.clone();
        // The first one counts.
        other.insert(name("x"), Delta { base: name("b"), patches: vec![patch("one", 0)] });
        assert_eq!(other, one);
        assert!(one.encode().len() < bytes.len() && one.of(name("y")).is_none());
        assert_eq!(DeltaTable::decode(&[0; 4], ChunkSize::default()).unwrap(), DeltaTable::default());
    }

    #[test]
    fn a_hostile_table_is_refused_and_says_why() {
        let refused = |bytes: &[u8]| DeltaTable::decode(bytes, ChunkSize::default()).unwrap_err();
        let good = table().encode();
        for len in (0..good.len()).filter(|len| *len != 4 + 64 && *len != good.len()) {
            // A whole entry fewer is another table.
            match DeltaTable::decode(&good[..len], ChunkSize::default()) {
                Ok(fewer) => assert_eq!(fewer.encode().len() + 32 * 2, len + 32 * 2),
                Err(error) => assert_eq!(error, ENDS, "{len}"),
            }
        }
        assert_eq!(refused(&[255; 4]), ENDS);
        let of = |change: &dyn Fn(&mut Delta)| {
            let mut table = table();
            table.deltas.values_mut().for_each(change);
            refused(&table.encode())
        };
        assert!(of(&|delta| delta.patches.clear()).contains("has 0 patches of"));
        assert!(of(&|delta| delta.patches = vec![patch("one", 0); 9]).contains("allowed: 1 to 8"));
        for (stored, plain, offset) in
            [(0, 1, 0), (1, 0, 0), (30, 1, 0), (1, (1 << 20) + 1, 0), (1, 1, 8 << 20), (1, 1, u32::MAX)]
        {
            let change = |delta: &mut Delta| {
                for patch in &mut delta.patches {
                    (patch.stored, patch.plain, patch.offset) = (stored, plain, offset);
                }
            };
            assert!(of(&change).contains("has a patch of"), "{stored} {plain} {offset}");
        }
        let first = 4 + 64;
        let mut of_no_object = good.clone();
        of_no_object[first + 68] = 2;
        assert_eq!(refused(&of_no_object), "names the object 2 of 2");
        let mut twice = good.clone();
        let entry = good[first..].to_vec();
        twice.extend(entry);
        assert!(refused(&twice).contains("in another order, or twice"));
    }
}
