//! A table: the chunks of a part of the disk.

use crate::chunked::chunk_name::{ChunkName, NAME_BYTES};
use crate::chunked::manifest::TABLE_CHUNKS;

/// The names of chunks that lie one behind the other. `None` is a chunk of zeroes, which is not stored.
///
/// Its bytes are 32 for each chunk: the name, or zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// In the order of the disk; [`crate::chunked::TABLE_CHUNKS`] of them at most.
    pub chunks: Vec<Option<ChunkName>>,
}

impl Table {
    /// Of so many chunks of zeroes.
    pub fn of_zeroes(chunks: usize) -> Self {
        Self { chunks: vec![None; chunks] }
    }

    /// Whether all are chunks of zeroes: such a table is not stored.
    pub fn is_zero(&self) -> bool {
        self.chunks.iter().all(Option::is_none)
    }

    /// The name of a chunk of the disk, of which this is the table.
    pub(crate) fn name_of(&self, chunk: u64) -> Option<ChunkName> {
        *self.chunks.get(usize::try_from(chunk % TABLE_CHUNKS).ok()?)?
    }

    /// The bytes of so many chunks' table.
    pub(crate) fn len_of(chunks: usize) -> usize {
        chunks * NAME_BYTES
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let entry = |chunk: &Option<ChunkName>| chunk.map_or([0; NAME_BYTES], |name| *name.bytes());
        self.chunks.iter().flat_map(entry).collect()
    }

    /// What its bytes say: all of them are names, or zeroes. Bytes behind the last whole entry say nothing.
    pub fn decode(bytes: &[u8]) -> Self {
        let (entries, _) = bytes.as_chunks::<NAME_BYTES>();
        let chunk =
            |entry: &[u8; NAME_BYTES]| (*entry != [0; NAME_BYTES]).then(|| ChunkName::from_bytes(*entry));
        Self { chunks: entries.iter().map(chunk).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_what_was_encoded() {
        let table = Table { chunks: vec![None, Some(ChunkName::of(b"a")), None, Some(ChunkName::of(b"b"))] };
        let bytes = table.encode();
        assert_eq!(bytes.len(), Table::len_of(4));
        assert_eq!(Table::decode(&bytes), table);
        assert!(Table::of_zeroes(3).is_zero() && !table.is_zero());
    }
}
