//! The start list of an image: the chunks that a start reads, in the order in which it reads them, and the packs that have copies of them.
//!
//! It makes a start faster and nothing else. What it says is believed only as far as it fits the image: a chunk of a pack counts if a table of the image has
//! its name, and its bytes fit that name.

use serde::{Deserialize, Serialize};

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::chunk_size::ChunkSize;
use crate::chunked::key::OVERHEAD_BYTES;
use crate::chunked::manifest_error::ManifestError;

/// What stands behind the name of an image, in place of its manifest's.
pub(crate) const START_SUFFIX: &str = ".start";
/// The folder of packs, in that of the images.
pub(crate) const PACKS: &str = "packs/";
/// The value of `format`.
const FORMAT: &str = "cowhand-start-list";
/// The only version.
const VERSION: u64 = 1;

/// Bytes of the disk that the chunks of a pack stand for at most. A start that reads a chunk of a pack waits for the whole of it: 80 ms at 100 MB/s if nothing of
/// it is compressed.
pub const PACK_BYTES_MAX: u64 = 8 << 20;
/// Chunks that a start list names at most: 4 GiB of a disk in chunks of 1 MiB.
pub const START_CHUNKS_MAX: usize = 4096;
/// No list has more: a chunk takes 120 bytes of it, a pack 100.
pub(crate) const START_LIST_BYTES_MAX: u64 = 1 << 20;

/// What is wrong with a start list.
#[derive(Debug, thiserror::Error)]
pub enum StartListError {
    /// It has another shape.
    #[error("it is no start list: {0}")]
    Shape(serde_json::Error),
    /// It is of something else.
    #[error("format is {found:?}; allowed: {FORMAT}")]
    Format {
        /// What it says.
        found: String,
    },
    /// It is of another version.
    #[error("version is {found}; allowed: {VERSION}")]
    Version {
        /// What it says.
        found: u64,
    },
    /// No chunk has this size.
    #[error(transparent)]
    ChunkSize(ManifestError),
    /// It names too many chunks.
    #[error("it names {found} chunks; allowed: up to {START_CHUNKS_MAX}")]
    Chunks {
        /// How many.
        found: usize,
    },
    /// A pack has too many chunks, or none.
    #[error("a pack has {found} chunks; allowed: 1 to {allowed}")]
    Pack {
        /// How many.
        found: usize,
        /// How many it may have.
        allowed: usize,
    },
    /// The name of a pack or of a chunk is none.
    #[error("a name is {found:?}; allowed: 64 hexadecimal digits in lower case")]
    Name {
        /// What it is.
        found: String,
    },
    /// No object of a chunk has so many bytes.
    #[error("a chunk has {found} bytes in its pack; allowed: 1 to {allowed}")]
    Bytes {
        /// How many.
        found: u64,
        /// How many it may have.
        allowed: u64,
    },
}

/// What every version has.
#[derive(Debug, Deserialize)]
struct Heading {
    format: String,
    version: u64,
}

/// As JSON has it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Document {
    format: String,
    version: u64,
    chunk_size: u64,
    packs: Vec<PackEntry>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PackEntry {
    name: String,
    chunks: Vec<ChunkEntry>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ChunkEntry {
    chunk: u64,
    name: String,
    bytes: u64,
}

/// A chunk in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedChunk {
    /// Its number in the disk.
    pub chunk: u64,
    /// Its name.
    pub name: ChunkName,
    /// Bytes of its object, which are a part of the pack.
    pub bytes: u64,
}

/// A pack: the objects of chunks, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pack {
    /// The SHA-256 of its bytes.
    pub name: ChunkName,
    /// In the order of their objects in it.
    pub chunks: Vec<PackedChunk>,
}

impl Pack {
    /// Bytes of its object.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.bytes).sum()
    }

    /// The object of this name in the folder of an image.
    pub(crate) fn object(name: ChunkName) -> String {
        format!("{PACKS}{name}")
    }
}

/// The start list of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartList {
    /// Of the image.
    pub chunk_size: ChunkSize,
    /// In the order in which a start reads them.
    pub packs: Vec<Pack>,
}

/// Chunks that a pack has at most.
pub(crate) fn pack_chunks_max(chunk_size: ChunkSize) -> usize {
    usize::try_from(PACK_BYTES_MAX / chunk_size.bytes()).unwrap_or(1)
}

impl StartList {
    /// What its bytes say, checked. They are 1 MiB at most.
    ///
    /// # Errors
    /// When it is none, or one that is not read.
    pub fn decode(bytes: &[u8]) -> Result<Self, StartListError> {
        // Another version has other members: what all have is looked at alone.
        let Heading { format, version } = serde_json::from_slice(bytes).map_err(StartListError::Shape)?;
        if format != FORMAT {
            return Err(StartListError::Format { found: format });
        }
        if version != VERSION {
            return Err(StartListError::Version { found: version });
        }
        let document: Document = serde_json::from_slice(bytes).map_err(StartListError::Shape)?;
        let chunk_size = ChunkSize::new(document.chunk_size).map_err(StartListError::ChunkSize)?;
        let found = document.packs.iter().map(|pack| pack.chunks.len()).sum();
        if found > START_CHUNKS_MAX {
            return Err(StartListError::Chunks { found });
        }
        let packs = document.packs.into_iter().map(|pack| pack.checked(chunk_size));
        Ok(Self { chunk_size, packs: packs.collect::<Result<_, _>>()? })
    }

    /// Its bytes. They are the same for the same packs.
    pub fn encode(&self) -> Vec<u8> {
        let entry = |chunk: &PackedChunk| ChunkEntry {
            chunk: chunk.chunk,
            name: chunk.name.to_string(),
            bytes: chunk.bytes,
        };
        let pack = |pack: &Pack| PackEntry {
            name: pack.name.to_string(),
            chunks: pack.chunks.iter().map(entry).collect(),
        };
        let document = Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            chunk_size: self.chunk_size.bytes(),
            packs: self.packs.iter().map(pack).collect(),
        };
        // Nothing of it can fail: text and numbers, into memory.
        let mut bytes = serde_json::to_vec(&document).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

impl PackEntry {
    fn checked(self, chunk_size: ChunkSize) -> Result<Pack, StartListError> {
        let allowed = pack_chunks_max(chunk_size);
        if !(1..=allowed).contains(&self.chunks.len()) {
            return Err(StartListError::Pack { found: self.chunks.len(), allowed });
        }
        let name = |name: String| ChunkName::parse(&name).ok_or(StartListError::Name { found: name });
        let bytes_max = chunk_size.bytes() + OVERHEAD_BYTES;
        let chunk = |ChunkEntry { chunk, name: of, bytes }: ChunkEntry| match (1..=bytes_max).contains(&bytes)
        {
            true => Ok(PackedChunk { chunk, name: name(of)?, bytes }),
            false => Err(StartListError::Bytes { found: bytes, allowed: bytes_max }),
        };
        let chunks = self.chunks.into_iter().map(chunk).collect::<Result<_, _>>()?;
        Ok(Pack { name: name(self.name)?, chunks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> StartList {
        let chunk = |chunk: u64, bytes| PackedChunk { chunk, name: ChunkName::of(&[chunk as u8]), bytes };
        let packs = vec![
            Pack { name: ChunkName::of(b"one"), chunks: vec![chunk(7, 1 << 20), chunk(0, 5)] },
            Pack { name: ChunkName::of(b"two"), chunks: vec![chunk(3, (1 << 20) + 28)] },
        ];
        StartList { chunk_size: ChunkSize::default(), packs }
    }

    #[test]
    fn a_list_is_what_was_encoded() {
        let list = list();
        assert_eq!(StartList::decode(&list.encode()).unwrap(), list);
        assert_eq!(list.packs[0].bytes(), (1 << 20) + 5);
        let name = list.packs[0].name;
        assert_eq!(Pack::object(name), format!("packs/{name}"));
    }

    #[test]
    fn the_longest_list_is_read() {
        let size = ChunkSize::new(crate::chunked::CHUNK_BYTES_MAX).unwrap();
        let chunk = PackedChunk {
            chunk: u64::from(u32::MAX),
            name: ChunkName::of(b"x"),
            bytes: size.bytes() + OVERHEAD_BYTES,
        };
        let pack = Pack { name: ChunkName::of(b"y"), chunks: vec![chunk; pack_chunks_max(size)] };
        let packs = vec![pack; START_CHUNKS_MAX / pack_chunks_max(size)];
        let list = StartList { chunk_size: size, packs };
        let bytes = list.encode();
        assert!((bytes.len() as u64) < START_LIST_BYTES_MAX, "{}", bytes.len());
        assert_eq!(StartList::decode(&bytes).unwrap(), list);
    }

    #[test]
    fn a_hostile_list_is_refused_and_says_why() {
        let good = String::from_utf8(list().encode()).unwrap();
        let many = format!("\"chunks\":[{}", r#"{"chunk":1,"name":"x","bytes":1},"#.repeat(8));
        for (found, by, says) in [
            ("\"version\":1", "\"version\":2", "version is 2; allowed: 1"),
            (FORMAT, "x", "format is \"x\""),
            ("\"chunk-size\":1048576", "\"chunk-size\":5", "chunk-size is 5"),
            ("\"bytes\":5}", "\"bytes\":0}", "a chunk has 0 bytes in its pack; allowed: 1 to 1048604"),
            ("\"bytes\":5}", "\"bytes\":1048605}", "a chunk has 1048605 bytes"),
            ("\"bytes\":5}", "\"bytes\":5,\"x\":1}", "unknown field"),
            ("\"chunks\":[", "\"chunks\":[],\"x\":[", "unknown field"),
            ("\"chunks\":[", &many, "a pack has 10 chunks; allowed: 1 to 8"),
            (&ChunkName::of(b"one").to_string(), "../one", "a name is \"../one\""),
            ("{", "[", "it is no start list"),
        ] {
            assert!(good.contains(found), "{good}");
            let refused = StartList::decode(good.replacen(found, by, 1).as_bytes()).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        let chunk = PackedChunk { chunk: 1, name: ChunkName::of(b"x"), bytes: 1 };
        let packs = vec![Pack { name: chunk.name, chunks: vec![chunk; 8] }; START_CHUNKS_MAX / 8 + 1];
        let refused = StartList::decode(&StartList { packs, ..list() }.encode()).unwrap_err();
        assert!(matches!(refused, StartListError::Chunks { found } if found == START_CHUNKS_MAX + 8));
    }
}
