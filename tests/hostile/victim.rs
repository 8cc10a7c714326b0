//! A real image in memory, about to be damaged at a named place.

use black_box::peer::{converted, qemu_img, qemu_io_ok};
use black_box::{Random, Scratch};

/// Header fields: offset and bytes.
#[derive(Clone, Copy, Debug)]
pub struct Field(pub usize, pub usize);

pub const VERSION: Field = Field(4, 4);
pub const BACKING_OFFSET: Field = Field(8, 8);
pub const BACKING_SIZE: Field = Field(16, 4);
pub const CLUSTER_BITS: Field = Field(20, 4);
pub const SIZE: Field = Field(24, 8);
pub const CRYPT_METHOD: Field = Field(32, 4);
pub const L1_SIZE: Field = Field(36, 4);
pub const L1_OFFSET: Field = Field(40, 8);
pub const REFCOUNT_TABLE_OFFSET: Field = Field(48, 8);
pub const REFCOUNT_TABLE_CLUSTERS: Field = Field(56, 4);
pub const SNAPSHOTS: Field = Field(60, 4);
pub const SNAPSHOTS_OFFSET: Field = Field(64, 8);
pub const INCOMPATIBLE: Field = Field(72, 8);
pub const AUTOCLEAR: Field = Field(88, 8);
pub const REFCOUNT_ORDER: Field = Field(96, 4);
pub const HEADER_LENGTH: Field = Field(100, 4);
pub const COMPRESSION_TYPE: Field = Field(104, 1);

const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;

/// Shapes of image that are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Version 3, 64 KiB clusters, 4 MiB; compressed, zero and plain clusters.
    Plain,
    /// The same with a snapshot.
    Snapshot,
    /// Version 3, 512-byte clusters, 256 KiB: many tables.
    Small,
    /// Subclusters, 64 KiB clusters.
    Extended,
    /// Version 2.
    Old,
}

/// The bytes of an image, and of the disk in it.
#[derive(Clone, Debug)]
pub struct Victim {
    pub bytes: Vec<u8>,
    pub disk: Vec<u8>,
}

impl Victim {
    /// A fresh one, made by QEMU.
    pub fn new(kind: Kind) -> Self {
        let scratch = Scratch::new();
        let path = scratch.name("victim.qcow2");
        let (options, bytes, unit) = match kind {
            Kind::Plain | Kind::Snapshot => ("cluster_size=64k", 4 << 20, 64 << 10),
            Kind::Small => ("cluster_size=512", 256 << 10, 512),
            Kind::Extended => ("cluster_size=64k,extended_l2=on", 4 << 20, 64 << 10),
            Kind::Old => ("cluster_size=64k,compat=0.10", 4 << 20, 64 << 10),
        };
        qemu_img(["create", "-q", "-f", "qcow2", "-o", options, &path, &format!("{bytes}")]).ok();
        qemu_io_ok(&["-f", "qcow2"], &path, &contents(&scratch, kind, unit));
        if kind == Kind::Snapshot {
            qemu_img(["snapshot", "-c", "one", &path]).ok();
            qemu_io_ok(&["-f", "qcow2"], &path, &[format!("write -P 99 0 {unit}")]);
        }
        let disk = converted(&path, "qcow2", &[], &scratch.file("disk.raw"));
        Self { bytes: std::fs::read(&path).expect("an image"), disk }
    }

    /// A number in the header.
    pub fn get(&self, Field(at, bytes): Field) -> u64 {
        self.bytes[at..at + bytes].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Changes a number in the header; only as many low bytes as the field has.
    pub fn set(&mut self, Field(at, bytes): Field, number: u64) {
        self.bytes[at..at + bytes].copy_from_slice(&number.to_be_bytes()[8 - bytes..]);
    }

    /// The number at a place.
    pub fn entry(&self, at: u64) -> u64 {
        let at = usize::try_from(at).expect("inside the file");
        u64::from_be_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Changes the number at a place.
    pub fn set_entry(&mut self, at: u64, number: u64) {
        let at = usize::try_from(at).expect("inside the file");
        self.bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
    }

    /// Bytes of a cluster.
    pub fn cluster(&self) -> u64 {
        1 << self.get(CLUSTER_BITS)
    }

    /// Where the L1 entry of slot `index` is.
    pub fn l1(&self, index: u64) -> u64 {
        self.get(L1_OFFSET) + 8 * index
    }

    /// Where the first L2 table is.
    pub fn l2_table(&self) -> u64 {
        self.entry(self.l1(0)) & OFFSET_MASK
    }

    /// Where the L2 entry of the disk's cluster `index` is (below the first table's end).
    pub fn l2(&self, index: u64) -> u64 {
        self.l2_table() + index * self.entry_bytes()
    }

    /// Where the refcount table is.
    pub fn refcount_table(&self) -> u64 {
        self.get(REFCOUNT_TABLE_OFFSET)
    }

    /// Where the first refcount block is.
    pub fn refcount_block(&self) -> u64 {
        self.entry(self.refcount_table()) & OFFSET_MASK
    }

    /// Where the extensions begin.
    pub fn extensions(&self) -> usize {
        usize::try_from(self.get(HEADER_LENGTH)).expect("small")
    }

    /// Puts these extensions in the place of all there are: type, what the length field says, data,
    /// padded with zeroes to 8 bytes. No end marker is added.
    pub fn replace_extensions(&mut self, extensions: &[(u32, u32, &[u8])]) {
        let cluster = usize::try_from(self.cluster()).expect("small");
        let mut area = Vec::new();
        for (kind, length, data) in extensions {
            area.extend(kind.to_be_bytes());
            area.extend(length.to_be_bytes());
            area.extend(*data);
            area.resize(area.len().next_multiple_of(8), 0);
        }
        let start = self.extensions();
        area.resize(cluster - start, 0);
        self.bytes[start..cluster].copy_from_slice(&area);
    }

    /// Puts a name of a backing file behind the extensions.
    pub fn set_backing(&mut self, name: &[u8], format: &str) {
        let length = u32::try_from(format.len()).expect("short");
        self.replace_extensions(&[(0xe279_2aca, length, format.as_bytes()), (0, 0, &[])]);
        let at = self.extensions() + 64;
        self.bytes[at..at + name.len()].copy_from_slice(name);
        self.set(BACKING_OFFSET, at as u64);
        self.set(BACKING_SIZE, name.len() as u64);
    }

    fn entry_bytes(&self) -> u64 {
        let extended = self.get(VERSION) == 3 && self.get(INCOMPATIBLE) & 1 << 4 != 0;
        if extended { 16 } else { 8 }
    }
}

/// Clusters 0 to 7 plain, 16 and 17 compressed, 20 zero, 24 of noise.
fn contents(scratch: &Scratch, kind: Kind, unit: u64) -> Vec<String> {
    let noise = scratch.write("noise", &Random::new(1).bytes(usize::try_from(unit).expect("small")));
    let mut lines: Vec<String> =
        (0..8).map(|index| format!("write -P {} {} {unit}", index + 1, index * unit)).collect();
    let compressed = [16, 17].map(|index| format!("write -c -P {index} {} {unit}", index * unit));
    lines.extend(compressed);
    if kind != Kind::Old {
        lines.push(format!("write -z {} {unit}", 20 * unit));
    }
    lines.push(format!("write -s {} {} {unit}", noise.display(), 24 * unit));
    lines
}
