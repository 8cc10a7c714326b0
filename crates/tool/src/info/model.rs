//! What `info` says about an image, with the field names of qemu-img 10.

use serde::Serialize;
use serde_json::Value;

/// One image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageInfo {
    /// As it was named.
    #[serde(serialize_with = "without_credentials")]
    pub filename: String,
    /// Its format.
    pub format: String,
    /// Size of the disk in bytes.
    pub virtual_size: u64,
    /// Space that the file takes, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual_size: Option<u64>,
    /// Its refcounts may be wrong until the next repair; unknown of raw disks that are no files of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_flag: Option<bool>,
    /// Cluster size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_size: Option<u64>,
    /// Its data is encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// The name of the backing file, as the header has it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "without_credentials_in")]
    pub backing_filename: Option<String>,
    /// The same, seen from where this image lies.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "without_credentials_in")]
    pub full_backing_filename: Option<String>,
    /// The format of the backing file, if the header has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing_filename_format: Option<String>,
    /// Internal snapshots.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotInfo>,
    /// What only this format has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format_specific: Option<FormatSpecific>,
    /// The files it is made of (since qemu-img 8.0).
    pub children: Vec<Child>,
    /// Limits of requests (only with `--limits`; since qemu-img 10.2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Properties of the device under its file (ours; only with `--medium`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<Value>,
}

fn without_credentials<S: serde::Serializer>(name: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&memory::secret::without_credentials(name))
}

fn without_credentials_in<S: serde::Serializer>(
    name: &Option<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    name.as_deref().map(memory::secret::without_credentials).serialize(serializer)
}

impl ImageInfo {
    /// Removes the limits of the image and of what it is made of.
    pub fn leave_out_limits(&mut self) {
        self.limits = None;
        self.children.iter_mut().for_each(|child| child.info.leave_out_limits());
    }
}

/// Limits of requests, in bytes where nothing else is said, in the order in which qemu-img prints them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// Zeroes of whole multiples are written without data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_zeroes_alignment: Option<u64>,
    /// Requests are multiples of it.
    pub request_alignment: u64,
    /// Alignment that memory of a request needs.
    pub min_mem_alignment: u64,
    /// A discard of whole multiples frees space.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discard_alignment: Option<u64>,
    /// Alignment of memory with which nothing is copied.
    pub opt_mem_alignment: u64,
    /// Parts of memory in one request.
    pub max_iov: u64,
}

/// A file below an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Child {
    /// What it is to the image.
    pub name: String,
    /// What it is itself.
    pub info: ImageInfo,
}

/// An internal snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SnapshotInfo {
    /// Identifier.
    pub id: String,
    /// Name.
    pub name: String,
    /// Bytes of saved machine state.
    pub vm_state_size: u64,
    /// When it was taken: seconds since 1970.
    pub date_sec: u64,
    /// And nanoseconds.
    pub date_nsec: u64,
    /// How long the machine had run: seconds.
    pub vm_clock_sec: u64,
    /// And nanoseconds.
    pub vm_clock_nsec: u64,
    /// Instructions it had executed, where that was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icount: Option<u64>,
}

/// What only one format has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", content = "data", rename_all = "kebab-case")]
pub enum FormatSpecific {
    /// qcow2.
    Qcow2(Qcow2Info),
    /// A LUKS file, version 1.
    Luks(LuksInfo),
    /// Version 2, which QEMU does not know.
    Luks2(Luks2Info),
    /// VMware's vmdk.
    Vmdk(VmdkInfo),
    /// A plain file.
    File(FileInfo),
}

/// What a plain file has: nothing yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileInfo {}

/// What a qcow2 image has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Qcow2Info {
    /// `0.10` is version 2, `1.1` version 3.
    pub compat: String,
    /// How compressed clusters are compressed.
    pub compression_type: String,
    /// Refcounts may be written late (version 3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lazy_refcounts: Option<bool>,
    /// Persistent bitmaps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bitmaps: Vec<BitmapInfo>,
    /// Width of a refcount.
    pub refcount_bits: u32,
    /// The external data file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_file: Option<String>,
    /// It is a valid raw image (only said with a data file).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_file_raw: Option<bool>,
    /// How it is encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<EncryptInfo>,
    /// Its metadata was caught lying (version 3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corrupt: Option<bool>,
    /// It has subclusters (version 3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended_l2: Option<bool>,
}

/// How an image is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EncryptInfo {
    /// What a LUKS header says, as far as it is no secret.
    #[serde(flatten)]
    pub luks: Option<LuksInfo>,
    /// `aes` or `luks`.
    pub format: &'static str,
}

/// What a LUKS header says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LuksInfo {
    /// What is made of a sector's number.
    pub ivgen_alg: &'static str,
    /// Its data is in another file (since qemu-img 9.0).
    pub detached_header: bool,
    /// With which hash (`essiv`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ivgen_hash_alg: Option<&'static str>,
    /// Hash that passwords become keys with.
    pub hash_alg: &'static str,
    /// Cipher.
    pub cipher_alg: &'static str,
    /// Name of the volume.
    pub uuid: String,
    /// Mode of the cipher.
    pub cipher_mode: &'static str,
    /// Its key slots.
    pub slots: Vec<SlotInfo>,
    /// Bytes of the header with all key material.
    pub payload_offset: u64,
    /// Iterations of the key's digest.
    pub master_key_iters: u32,
}

/// What a vmdk image has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct VmdkInfo {
    /// Changes with the content.
    pub cid: u32,
    /// That of the backing file.
    pub parent_cid: u32,
    /// How it is laid out.
    pub create_type: String,
    /// The parts of the disk.
    pub extents: Vec<VmdkExtentInfo>,
}

/// A part of a vmdk image's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct VmdkExtentInfo {
    /// Its grains are compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compressed: Option<bool>,
    /// Bytes of the disk.
    pub virtual_size: u64,
    /// Its file.
    pub filename: String,
    /// Bytes of a grain, of a sparse one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_size: Option<u64>,
    /// What the descriptor calls the kind of its file; empty where the image is one file.
    pub format: String,
}

/// A key slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SlotInfo {
    /// It has a key.
    pub active: bool,
    /// Iterations that its password needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iters: Option<u32>,
    /// Where its key material begins.
    pub key_offset: u64,
    /// Stripes of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stripes: Option<u32>,
}

/// What a LUKS2 header says, under names of `LuksInfo` where it has the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Luks2Info {
    /// Its data is in another file.
    pub detached_header: bool,
    /// What the user calls it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// Likewise, a second name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subsystem: String,
    /// Name of the volume.
    pub uuid: String,
    /// Grows with every change of the header.
    pub sequence: u64,
    /// The first copy of the header is damaged or older.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub second_copy: bool,
    /// Cipher.
    pub cipher_alg: &'static str,
    /// Mode of the cipher.
    pub cipher_mode: &'static str,
    /// What is made of a sector's number.
    pub ivgen_alg: &'static str,
    /// With which hash (`essiv`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ivgen_hash_alg: Option<&'static str>,
    /// Bytes that are ciphered together.
    pub sector_size: u64,
    /// First byte of the disk's data in its file.
    pub payload_offset: u64,
    /// Iterations of the key's digest.
    pub master_key_iters: u64,
    /// Its key slots.
    pub slots: Vec<Slot2Info>,
}

/// A key slot of LUKS2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Slot2Info {
    /// Its number.
    pub slot: u32,
    /// Why no password is tried on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<String>,
    /// The rest, of a slot that is supported.
    #[serde(flatten)]
    pub tried: Option<TriedSlot>,
}

/// What trying a password on a key slot needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TriedSlot {
    /// `prefer`, `normal`, `ignore`.
    pub priority: &'static str,
    /// `pbkdf2`, `argon2i`, `argon2id`.
    pub kdf: &'static str,
    /// Hash of PBKDF2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_alg: Option<&'static str>,
    /// Iterations of PBKDF2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iters: Option<u32>,
    /// Passes of Argon2 over its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passes: Option<u32>,
    /// Bytes of memory that Argon2 takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Lanes of Argon2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u32>,
    /// Where its key material begins.
    pub key_offset: u64,
    /// Stripes of the key.
    pub stripes: u32,
}

/// A persistent bitmap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BitmapInfo {
    /// `in-use`, `auto`.
    pub flags: Vec<String>,
    /// Name.
    pub name: String,
    /// Bytes of disk for each bit.
    pub granularity: u64,
}
