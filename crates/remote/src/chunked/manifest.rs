//! The manifest: how large the disk is, how large its chunks are, and which tables name them.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::chunked::checkpoint::Checkpoint;
use crate::chunked::chunk_name::ChunkName;
use crate::chunked::chunk_size::ChunkSize;
use crate::chunked::key::{CIPHER, ImageKey, KeyId};
use crate::chunked::limits::{CHECKPOINTS_MAX, DELTA_TABLES_MAX, DELTAS_BYTES_MAX, DISK_BYTES_MAX, FORMAT};
use crate::chunked::manifest_error::ManifestError;

/// The versions that are read. The first one is written where it can say all.
const VERSIONS: [u64; 4] = [1, 2, 3, 4];

/// Chunks that one table names. A table of 512 KiB is then 8 to 64 GiB of disk.
pub const TABLE_CHUNKS: u64 = 16_384;
/// No manifest has more: 8,192 names take 72 bytes each.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// How objects may be compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// All are plain.
    #[default]
    None,
    /// Those that get shorter by it are zstd frames.
    Zstd,
}

/// What every version has.
#[derive(Debug, Deserialize)]
struct Heading {
    format: String,
    version: u64,
}

/// What a manifest says of its key.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Encryption {
    cipher: String,
    key_id: String,
    /// Of all other members, and of the manifest's name.
    mac: String,
}

impl Encryption {
    fn checked(&self) -> Result<(KeyId, ChunkName), ManifestError> {
        if self.cipher != CIPHER {
            return Err(ManifestError::Cipher { found: self.cipher.clone() });
        }
        let wrong =
            |member, found: &String, digits| ManifestError::Digits { member, found: found.clone(), digits };
        let id = KeyId::parse(&self.key_id).ok_or_else(|| wrong("key-id", &self.key_id, 16))?;
        let mac = ChunkName::parse(&self.mac).ok_or_else(|| wrong("mac", &self.mac, 64))?;
        Ok((id, mac))
    }
}

/// As JSON has it.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Document {
    format: String,
    version: u64,
    size: u64,
    chunk_size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compression: Option<Compression>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<Encryption>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    checkpoints: Vec<Checkpoint>,
    tables: Vec<Option<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    deltas: Vec<DeltasEntry>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct DeltasEntry {
    table: u64,
    name: String,
    bytes: u64,
}

/// The table of the chunks of a table that are deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltasOf {
    /// Its name.
    pub name: ChunkName,
    /// Its bytes.
    pub bytes: u64,
}

/// A disk in chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    size: u64,
    chunk_size: ChunkSize,
    compression: Compression,
    /// Its chunks are encrypted with this key.
    key_id: Option<KeyId>,
    /// The one that the disk is, and those below it.
    checkpoints: Vec<Checkpoint>,
    /// As many as the disk has; `None` is a table of zeroes, which is not stored.
    tables: Vec<Option<ChunkName>>,
    /// Of tables that have chunks which are deltas.
    deltas: BTreeMap<u64, DeltasOf>,
}

impl Manifest {
    /// A disk of `size` bytes that reads as zeroes.
    ///
    /// # Errors
    /// When it is larger than [`DISK_BYTES_MAX`].
    pub fn of_zeroes(
        size: u64,
        chunk_size: ChunkSize,
        compression: Compression,
    ) -> Result<Self, ManifestError> {
        if size > DISK_BYTES_MAX {
            return Err(ManifestError::Size { found: size });
        }
        let (key_id, checkpoints, tables, deltas) = (None, Vec::new(), Vec::new(), BTreeMap::new());
        let manifest = Self { size, chunk_size, compression, key_id, checkpoints, tables, deltas };
        let tables = vec![None; usize::try_from(manifest.tables_needed()).unwrap_or_default()];
        Ok(Self { tables, ..manifest })
    }

    /// What the bytes of a manifest say, checked, and the proof that one of an encrypted image has, which is not. They are 1 MiB at most.
    ///
    /// # Errors
    /// When it is none, or one that is not read.
    pub fn decode(bytes: &[u8]) -> Result<(Self, Option<ChunkName>), ManifestError> {
        // Another version has other members: what all have is looked at alone.
        let Heading { format, version } = serde_json::from_slice(bytes).map_err(ManifestError::Shape)?;
        if format != FORMAT {
            return Err(ManifestError::Format { found: format });
        }
        if !VERSIONS.contains(&version) {
            return Err(ManifestError::Version { found: version });
        }
        let document: Document = serde_json::from_slice(bytes).map_err(ManifestError::Shape)?;
        let Document { size, chunk_size, compression, encryption, checkpoints, tables, deltas, .. } =
            document;
        if (version == 1) != compression.is_none() {
            return Err(ManifestError::Compression);
        }
        if version != 4 && (version == 3) != encryption.is_some() {
            return Err(ManifestError::Encryption);
        }
        if deltas.len() > DELTA_TABLES_MAX || (version == 4) == deltas.is_empty() {
            return Err(ManifestError::DeltaTables { found: deltas.len() });
        }
        let (key_id, mac) = encryption.map(|encryption| encryption.checked()).transpose()?.unzip();
        check_checkpoints(&checkpoints, version)?;
        let empty = Self::of_zeroes(size, ChunkSize::new(chunk_size)?, compression.unwrap_or_default())?;
        if tables.len() != empty.tables.len() {
            let needed = empty.tables_needed();
            return Err(ManifestError::Tables { found: tables.len(), size, needed });
        }
        let name = |(table, name): (usize, Option<String>)| match name {
            None => Ok(None),
            Some(name) => match ChunkName::parse(&name) {
                None => Err(ManifestError::Name { table, found: name }),
                name => Ok(name),
            },
        };
        let tables: Vec<_> = tables.into_iter().enumerate().map(name).collect::<Result<_, _>>()?;
        let deltas = checked_deltas(deltas, &tables)?;
        Ok((Self { tables, key_id, checkpoints, deltas, ..empty }, mac))
    }

    /// The same as one whose chunks are encrypted with a key, if there is one.
    #[must_use]
    pub fn of_key(self, key_id: Option<KeyId>) -> Self {
        Self { key_id, ..self }
    }

    /// The key of its chunks.
    pub fn key_id(&self) -> Option<KeyId> {
        self.key_id
    }

    /// The same as a checkpoint: the one that the disk is, and those below it, the nearest first. [`CHECKPOINTS_MAX`] of them count.
    #[must_use]
    pub fn of_checkpoints(self, mut checkpoints: Vec<Checkpoint>) -> Self {
        checkpoints.truncate(CHECKPOINTS_MAX);
        debug_assert!(checkpoints.iter().all(Checkpoint::is_sound), "{checkpoints:?}");
        Self { checkpoints, ..self }
    }

    /// The checkpoint that the disk is, and those below it, the nearest first. Empty: it was pushed.
    pub fn checkpoints(&self) -> &[Checkpoint] {
        &self.checkpoints
    }

    /// The one of [`Manifest::checkpoints`] that has this name or id.
    pub fn checkpoint(&self, name_or_id: &str) -> Option<&Checkpoint> {
        let is_it = |one: &&Checkpoint| one.id == name_or_id || one.name.as_deref() == Some(name_or_id);
        self.checkpoints.iter().find(is_it)
    }

    /// Its bytes under `name`. They are the same for the same disk. One of an encrypted image takes its key, and is read with that under that name alone.
    pub fn encode(&self, name: &str, key: Option<&ImageKey>) -> Vec<u8> {
        self.document(key.map(|key| key.proof_of(&self.proven(name))))
    }

    /// What the proof of a manifest under `name` is of.
    pub(crate) fn proven(&self, name: &str) -> Vec<u8> {
        [name.as_bytes(), b"\0", &self.document(None)].concat()
    }

    fn document(&self, mac: Option<ChunkName>) -> Vec<u8> {
        let tables = self.tables.iter().map(|table| table.map(|name| name.to_string())).collect();
        let (size, chunk_size) = (self.size, self.chunk_size.bytes());
        let [first, second, third, fourth] = VERSIONS;
        let version = match self.key_id {
            _ if !self.deltas.is_empty() => fourth,
            Some(_) => third,
            None if self.compression == Compression::None && self.checkpoints.is_empty() => first,
            None => second,
        };
        let compression = (version != first).then_some(self.compression);
        let encryption = self.key_id.map(|id| Encryption {
            cipher: CIPHER.to_owned(),
            key_id: id.to_string(),
            mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
        });
        let (format, checkpoints) = (FORMAT.to_owned(), self.checkpoints.clone());
        let entry = |(table, deltas): (&u64, &DeltasOf)| DeltasEntry {
            table: *table,
            name: deltas.name.to_string(),
            bytes: deltas.bytes,
        };
        let deltas = self.deltas.iter().map(entry).collect();
        let document = Document {
            format,
            version,
            size,
            chunk_size,
            compression,
            encryption,
            checkpoints,
            tables,
            deltas,
        };
        // Nothing of it can fail: text and numbers, into memory.
        let mut bytes = serde_json::to_vec_pretty(&document).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of its chunks. The last one ends with the disk.
    pub fn chunk_size(&self) -> ChunkSize {
        self.chunk_size
    }

    /// How its objects may be compressed. Those of an image without compression are plain: readers of version 1 know no others.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Whether the objects of this image can be those of `new`: their chunks have the same size and key, and none is compressed that must be plain there.
    pub fn has_objects_for(&self, new: &Self) -> bool {
        let is_plain_enough = new.compression == Compression::Zstd || self.compression == Compression::None;
        self.chunk_size == new.chunk_size && self.key_id == new.key_id && is_plain_enough
    }

    /// How many chunks the disk has, stored or not.
    pub fn chunks(&self) -> u64 {
        self.size.div_ceil(self.chunk_size.bytes())
    }

    /// The bytes of the disk that a chunk has.
    pub fn range(&self, chunk: u64) -> Range<u64> {
        let start = chunk.saturating_mul(self.chunk_size.bytes()).min(self.size);
        start..self.size.min(start + self.chunk_size.bytes())
    }

    /// How many tables the disk has, stored or not.
    pub fn tables(&self) -> u64 {
        self.tables.len() as u64
    }

    /// The chunks that a table names.
    pub fn chunks_of(&self, table: u64) -> Range<u64> {
        let start = table.saturating_mul(TABLE_CHUNKS).min(self.chunks());
        start..self.chunks().min(start + TABLE_CHUNKS)
    }

    /// The bytes of the disk that a table's chunks have.
    pub(crate) fn range_of_table(&self, table: u64) -> Range<u64> {
        let chunks = self.chunks_of(table);
        self.range(chunks.start).start..self.range(chunks.end).start
    }

    /// The name of a table; `None` if all its chunks are zeroes.
    pub fn table(&self, table: u64) -> Option<ChunkName> {
        usize::try_from(table).ok().and_then(|table| *self.tables.get(table)?)
    }

    /// Names a table.
    pub fn set_table(&mut self, table: u64, name: Option<ChunkName>) {
        let place = usize::try_from(table).ok().and_then(|table| self.tables.get_mut(table));
        debug_assert!(place.is_some(), "a disk of {} bytes has no table {table}", self.size);
        if let Some(place) = place {
            *place = name;
        }
    }

    /// The table of the chunks of a table that are deltas; `None` if none is.
    pub fn deltas(&self, table: u64) -> Option<DeltasOf> {
        self.deltas.get(&table).copied()
    }

    /// How many tables from this one on have chunks that are deltas; [`DELTA_TABLES_MAX`] at most.
    pub fn delta_tables_from(&self, table: u64) -> usize {
        self.deltas.range(table..).count()
    }

    /// Names the table of the chunks of a table that are deltas.
    pub fn set_deltas(&mut self, table: u64, deltas: Option<DeltasOf>) {
        match deltas {
            Some(deltas) => self.deltas.insert(table, deltas),
            None => self.deltas.remove(&table),
        };
        debug_assert!(self.deltas.len() <= DELTA_TABLES_MAX, "{}", self.deltas.len());
    }

    fn tables_needed(&self) -> u64 {
        self.chunks().div_ceil(TABLE_CHUNKS)
    }
}

fn checked_deltas(
    deltas: Vec<DeltasEntry>,
    tables: &[Option<ChunkName>],
) -> Result<BTreeMap<u64, DeltasOf>, ManifestError> {
    let mut checked = BTreeMap::new();
    for DeltasEntry { table, name, bytes } in deltas {
        let is_there = usize::try_from(table).ok().and_then(|table| *tables.get(table)?).is_some();
        let is_next = checked.last_key_value().is_none_or(|(last, _)| *last < table);
        let is_sound = is_there && is_next && (1..=DELTAS_BYTES_MAX).contains(&bytes);
        match ChunkName::parse(&name).filter(|_| is_sound) {
            Some(name) => checked.insert(table, DeltasOf { name, bytes }),
            None => return Err(ManifestError::Deltas { table, bytes, name }),
        };
    }
    Ok(checked)
}

fn check_checkpoints(checkpoints: &[Checkpoint], version: u64) -> Result<(), ManifestError> {
    let max = if version == 1 { 0 } else { CHECKPOINTS_MAX };
    if checkpoints.len() > max {
        return Err(ManifestError::Checkpoints { found: checkpoints.len() });
    }
    match checkpoints.iter().find(|one| !one.is_sound()) {
        Some(Checkpoint { id, name }) => {
            Err(ManifestError::Checkpoint { id: id.clone(), name: name.clone() })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunked::CHUNK_BYTES_MIN;

    fn encoded(manifest: &Manifest) -> Vec<u8> {
        manifest.encode("d", None)
    }

    fn checkpoint(name: Option<&str>) -> Checkpoint {
        Checkpoint { id: "0123456789abcdef".to_owned(), name: name.map(str::to_owned) }
    }

    #[test]
    fn a_manifest_is_what_was_encoded() {
        let mut manifest =
            Manifest::of_zeroes((33 << 30) + 512, ChunkSize::default(), Compression::Zstd).unwrap();
        assert_eq!((manifest.tables(), manifest.chunks()), (3, (33 << 10) + 1));
        manifest.set_table(1, Some(ChunkName::of(b"x")));
        assert_eq!(Manifest::decode(&encoded(&manifest)).unwrap().0, manifest);
        assert_eq!(manifest.range(33 << 10), 33 << 30..(33 << 30) + 512);
        assert_eq!(manifest.chunks_of(2), 32_768..33_793);
        let plain = Manifest::of_zeroes(512, ChunkSize::default(), Compression::None).unwrap();
        assert!(String::from_utf8(encoded(&plain)).unwrap().contains("\"version\": 1"));
        let published = plain.of_checkpoints(vec![checkpoint(Some("v1.2")), checkpoint(None)]);
        assert!(String::from_utf8(encoded(&published)).unwrap().contains("\"compression\": \"none\""));
        assert_eq!(Manifest::decode(&encoded(&published)).unwrap().0, published);
        let empty = Manifest::of_zeroes(0, ChunkSize::default(), Compression::None).unwrap();
        assert_eq!(Manifest::decode(&encoded(&empty)).unwrap().0.tables(), 0);
    }

    #[test]
    fn the_manifest_of_an_encrypted_image_is_proven_under_its_name_alone() {
        let key = ImageKey::of_secret(&[7; 32]).unwrap();
        let manifest = Manifest::of_zeroes(512, ChunkSize::default(), Compression::Zstd).unwrap();
        let manifest = manifest.of_key(Some(key.id())).of_checkpoints(vec![checkpoint(Some("v1"))]);
        let bytes = manifest.encode("d", Some(&key));
        let (read, mac) = Manifest::decode(&bytes).unwrap();
        assert_eq!((&read, read.key_id()), (&manifest, Some(key.id())));
        let mac = mac.unwrap();
        assert!(key.is_proof(mac, &read.proven("d")) && !key.is_proof(mac, &read.proven("e")));
        let changed = String::from_utf8(bytes).unwrap().replace("512", "513");
        let (changed, mac) = Manifest::decode(changed.as_bytes()).unwrap();
        assert!(!key.is_proof(mac.unwrap(), &changed.proven("d")));
    }

    #[test]
    fn a_manifest_with_deltas_has_a_version_of_its_own_with_and_without_a_key() {
        let key = ImageKey::of_secret(&[7; 32]).unwrap();
        let mut plain = Manifest::of_zeroes(33 << 30, ChunkSize::default(), Compression::Zstd).unwrap();
        plain.set_table(1, Some(ChunkName::of(b"x")));
        let without = encoded(&plain);
        plain.set_deltas(1, Some(DeltasOf { name: ChunkName::of(b"y"), bytes: 100 }));
        assert_eq!((plain.delta_tables_from(1), plain.deltas(0)), (1, None));
        let encrypted = plain.clone().of_key(Some(key.id()));
        for (manifest, key) in [(&plain, None), (&encrypted, Some(&key))] {
            let bytes = manifest.encode("d", key);
            assert!(String::from_utf8(bytes.clone()).unwrap().contains("\"version\": 4"));
            let (read, mac) = Manifest::decode(&bytes).unwrap();
            assert_eq!(&read, manifest);
            assert!(key.is_none_or(|key| key.is_proof(mac.unwrap(), &read.proven("d"))));
        }
        plain.set_deltas(1, None);
        assert_eq!(encoded(&plain), without);
    }

    #[test]
    fn the_manifest_of_the_largest_disk_is_below_its_bound() {
        let mut manifest =
            Manifest::of_zeroes(DISK_BYTES_MAX, ChunkSize::new(CHUNK_BYTES_MIN).unwrap(), Compression::Zstd)
                .unwrap();
        (0..manifest.tables()).for_each(|table| manifest.set_table(table, Some(ChunkName::of(b"x"))));
        let deltas = DeltasOf { name: ChunkName::of(b"x"), bytes: DELTAS_BYTES_MAX };
        let last = manifest.tables() - DELTA_TABLES_MAX as u64;
        (last..manifest.tables()).for_each(|table| manifest.set_deltas(table, Some(deltas)));
        let name = "n".repeat(128);
        let manifest = manifest.of_checkpoints(vec![checkpoint(Some(&name)); CHECKPOINTS_MAX + 1]);
        assert_eq!(manifest.checkpoints().len(), CHECKPOINTS_MAX);
        assert!((encoded(&manifest).len() as u64) < MANIFEST_BYTES_MAX);
    }

    /// Its author may be anybody who can write into the bucket.
    #[test]
    fn a_hostile_manifest_is_refused_with_what_is_allowed() {
        let manifest = |replaced: &str, by: &str| {
            let whole = r#"{"format":"cowhand-chunked-image","version":1,"size":4096,"chunk-size":1048576,"tables":[null]}"#;
            assert!(whole.contains(replaced));
            Manifest::decode(whole.replace(replaced, by).as_bytes()).map_err(|error| error.to_string())
        };
        assert!(manifest("4096", "4096").is_ok());
        let of = |ids: &[&str], more: usize| {
            let ids = ids.iter().copied().chain(std::iter::repeat_n("0123456789abcdef", more));
            let ids: Vec<String> = ids.map(|id| format!("{{\"id\":\"{id}\"}}")).collect();
            format!(":2,\"compression\":\"none\",\"checkpoints\":[{}],", ids.join(","))
        };
        assert!(manifest(":1,", &of(&[], 1000)).is_ok());
        let encrypted = |cipher: &str, id: &str, mac: &str| {
            format!(
                ":3,\"compression\":\"none\",\"encryption\":{{\"cipher\":\"{cipher}\",\"key-id\":\"{id}\",\"mac\":\"{mac}\"}},"
            )
        };
        assert!(manifest(":1,", &encrypted("aes-256-gcm", &"0".repeat(16), &"a".repeat(64))).is_ok());
        let deltas = |entries: &str| {
            let table = ChunkName::of(b"t");
            format!(":4,\"compression\":\"zstd\",\"deltas\":[{entries}],\"tables\":[\"{table}\"]")
        };
        let named = |table: u64, bytes: u64| {
            format!("{{\"table\":{table},\"name\":\"{}\",\"bytes\":{bytes}}}", ChunkName::of(b"d"))
        };
        let with_deltas = |entries: &str| {
            let whole = r#"{"format":"cowhand-chunked-image","size":4096,"chunk-size":1048576,"version"#;
            let whole = format!("{whole}\"{}}}", deltas(entries));
            Manifest::decode(whole.as_bytes()).map_err(|error| error.to_string())
        };
        assert!(with_deltas(&named(0, DELTAS_BYTES_MAX)).is_ok());
        for (entries, says) in [
            (String::new(), "it has 0 tables of deltas; allowed: 1 to 1024 in version 4"),
            (vec![named(0, 1); 1025].join(","), "it has 1025 tables of deltas"),
            (named(1, 1), "the deltas of table 1 are 1 bytes"),
            (named(0, 0), "the deltas of table 0 are 0 bytes"),
            (
                named(0, DELTAS_BYTES_MAX + 1),
                "allowed: each table with chunks once, in order, up to 4194304 bytes",
            ),
            (format!("{0},{0}", named(0, 1)), "the deltas of table 0"),
            (r#"{"table":0,"name":"../x","bytes":1}"#.to_owned(), "are 1 bytes called \"../x\""),
            (r#"{"table":0,"name":"x","bytes":1,"more":1}"#.to_owned(), "unknown field `more`"),
        ] {
            let error = with_deltas(&entries).unwrap_err();
            assert!(error.contains(says), "{error}: {says}");
        }
        for (replaced, by, says) in [
            (":1,", ":4,\"compression\":\"zstd\",", "it has 0 tables of deltas"),
            ("[null]", "[null],\"deltas\":[{\"table\":0,\"name\":\"x\",\"bytes\":1}]", "none in others"),
            ("cowhand-", "other-", "format is \"other-chunked-image\"; allowed: cowhand-chunked-image"),
            (":1,", ":5,\"more\":1,", "version is 5; allowed: 1 to 4"),
            (":1,", ":2,", "versions 2 to 4 have a member \"compression\""),
            (":1,", ":1,\"compression\":\"none\",", "and version 1 has none"),
            (":1,", ":2,\"compression\":\"lz4\",", "unknown variant `lz4`"),
            (":1,", ":1,\"checkpoints\":[{\"id\":\"0123456789abcdef\"}],", "it names 1 checkpoints"),
            (":1,", &of(&[], 1001), "it names 1001 checkpoints; allowed: up to 1000"),
            (":1,", &of(&["../0123456789abc"], 0), "it names the checkpoint \"../0123456789abc\""),
            (":1,", &of(&["0123456789ABCDEF"], 0), "allowed: an id of 16 hexadecimal digits"),
            (":1,", &of(&["0123456789abcdef\",\"name\":\"a/b"], 0), "(Some(\"a/b\"))"),
            (":1,", &of(&["0123456789abcdef\",\"name\":\""], 0), "(Some(\"\"))"),
            (":1,", &of(&["0123456789abcdef\",\"more\":\""], 0), "unknown field `more`"),
            (":1,", &encrypted("aes-256-gcm", &"0".repeat(16), &"a".repeat(63)), "mac is \"aaa"),
            (
                ":1,",
                &encrypted("aes-256-gcm", "0", &"a".repeat(64)),
                "key-id is \"0\"; allowed: 16 hexadecimal",
            ),
            (
                ":1,",
                &encrypted("xor", &"0".repeat(16), &"a".repeat(64)),
                "cipher is \"xor\"; allowed: aes-256-gcm",
            ),
            (":1,", ":3,\"compression\":\"none\",", "version 3 has a member \"encryption\""),
            ("4096", "70368744177665", "allowed: up to 70368744177664"),
            ("4096", "18446744073709551616", "no manifest"),
            ("4096", "-1", "no manifest"),
            ("1048576", "0", "chunk-size is 0; allowed: powers of two from 524288 to 4194304"),
            ("1048576", "1048577", "chunk-size is 1048577"),
            ("1048576", "262144", "chunk-size is 262144"),
            ("1048576", "8388608", "chunk-size is 8388608"),
            ("[null]", "[]", "it has 0 tables; a disk of 4096 bytes has 1"),
            ("[null]", "[null,null]", "it has 2 tables"),
            (
                "[null]",
                "[\"../../etc/passwd\"]",
                "table 0 is called \"../../etc/passwd\"; allowed: null, or 64",
            ),
            ("\"version\"", "\"size\":1,\"version\"", "duplicate field `size`"),
            ("\"version\"", "\"more\":1,\"version\"", "unknown field `more`"),
            ("}", "", "no manifest"),
            ("}", "}}", "no manifest"),
        ] {
            let error = manifest(replaced, by).unwrap_err();
            assert!(error.contains(says), "{error}: {says}");
        }
    }
}
