//! Valid images to start from: small, and together with everything that an image can have.
//!
//! They are made by the creator and the engine in memory. What the engine does not write (compressed
//! clusters, snapshots, bitmaps) is put in by hand, and the repair counts the references.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

use block::{Block, Raw};
use qcow2::{CreateOptions, Files, Options, Qcow2, Repair, ZeroOptions};
use qcow2_layout::{
    Autoclear, BitmapEntry, BitmapFlags, BitmapTableEntry, BitmapsExtension, CompressedCluster, Compression,
    Geometry, Header, HostOffset, L1Entry, L2Entry, SnapshotEntry, Version, encode_bitmap_directory,
    encode_snapshots,
};
use storage::{Hints, IoBytes, IoVec, MemoryStorage, Storage};

use crate::executor::{block_on, host};

/// Size of every disk in bytes: enough for several L2 tables where clusters are small.
pub const DISK_BYTES: u64 = 256 << 10;

/// Where the compressed cluster of an image that has one is, in the disk.
pub const COMPRESSED_AT: u64 = 128 << 10;

/// What a region of an image holds, where that matters for editing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Words of 8 bytes: tables of any kind.
    Words,
    /// Anything else.
    Bytes,
}

/// A part of an image that is worth editing.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// What it holds.
    pub kind: RegionKind,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 8.
    pub len: u64,
}

/// A valid image.
#[derive(Clone, Debug)]
pub struct Base {
    /// The image file.
    pub bytes: Vec<u8>,
    /// Its header.
    pub header: Header,
    /// Its geometry.
    pub geometry: Geometry,
    /// What is worth editing.
    pub regions: Vec<Region>,
    /// Where the snapshot table is, if there is one.
    pub snapshots_at: Option<u64>,
    /// Where the bitmap directory is, if there is one.
    pub bitmaps_at: Option<u64>,
    /// Where the L2 entry of the compressed cluster and its bytes are, if there is one.
    pub compressed: Option<(u64, u64)>,
}

/// What a base image is to have.
struct Plan {
    options: CreateOptions,
    compressed: bool,
    snapshot: bool,
    bitmap: bool,
}

/// All base images; made once a thread.
pub fn all() -> Rc<Vec<Base>> {
    thread_local! {
        static ALL: RefCell<Option<Rc<Vec<Base>>>> = const { RefCell::new(None) };
    }
    if let Some(all) = ALL.with_borrow(Clone::clone) {
        return all;
    }
    let all = Rc::new(plans().iter().map(make).collect::<Vec<_>>());
    ALL.set(Some(Rc::clone(&all)));
    all
}

fn plans() -> Vec<Plan> {
    let options = CreateOptions { size: DISK_BYTES, cluster_size: 512, ..CreateOptions::default() };
    let plan = |options| Plan { options, compressed: false, snapshot: false, bitmap: false };
    vec![
        Plan { compressed: true, snapshot: true, bitmap: true, ..plan(options.clone()) },
        Plan {
            compressed: true,
            snapshot: true,
            ..plan(CreateOptions { version: Version::V2, cluster_size: 4096, ..options.clone() })
        },
        Plan {
            compressed: true,
            bitmap: true,
            ..plan(CreateOptions {
                cluster_size: 16 << 10,
                extended_l2: true,
                compression: Compression::Zstd,
                ..options.clone()
            })
        },
        plan(CreateOptions { refcount_bits: 1, ..options.clone() }),
        Plan {
            snapshot: true,
            ..plan(CreateOptions {
                cluster_size: 4096,
                refcount_bits: 64,
                lazy_refcounts: true,
                backing_file: Some("backing.raw".to_owned()),
                backing_format: Some("raw".to_owned()),
                ..options.clone()
            })
        },
        plan(CreateOptions { cluster_size: 4096, data_file: Some("data.raw".to_owned()), ..options.clone() }),
        plan(CreateOptions { cluster_size: 65536, ..options }),
    ]
}

/// The files of an image with such a header: a short raw layer below, `data` beside, as far as it wants them.
pub fn files(file: Arc<dyn Storage>, data: Arc<dyn Storage>, header: &Header) -> Files {
    let external = header.incompatible.contains(qcow2_layout::Incompatible::EXTERNAL_DATA);
    // Shorter than the disk: what it lacks reads as zeroes.
    let below = || {
        let bytes: Vec<u8> = (0..100_000u32).map(|at| at.to_le_bytes()[1] | 1).collect();
        Arc::new(Raw::new(Arc::new(MemoryStorage::from_bytes(&bytes)))) as Arc<dyn Block>
    };
    Files { file, data: external.then_some(data), backing: header.backing.is_some().then(below) }
}

fn make(plan: &Plan) -> Base {
    let file = Arc::new(MemoryStorage::new(0));
    let data: Option<MemoryStorage> = plan.options.data_file.as_ref().map(|_| MemoryStorage::new(0));
    let beside = data.as_ref().map(|data| data as &dyn Storage);
    block_on(qcow2::create(&*file, beside, &plan.options)).expect("the options are valid");
    block_on(write_some(&file));
    let mut maker = Maker::new(file.to_bytes());
    if plan.compressed {
        maker.add_compressed();
    }
    if plan.snapshot {
        maker.add_snapshot();
    }
    if plan.bitmap {
        maker.add_bitmap();
    }
    maker.finish()
}

async fn write_some(file: &Arc<MemoryStorage>) {
    let header = qcow2::read_header(&**file).await.expect("it was just made");
    let data: Arc<dyn Storage> = Arc::new(MemoryStorage::new(0));
    let files = files(Arc::clone(file) as Arc<dyn Storage>, data, &header);
    let options = Options { writable: true, discard: true, ..Options::default() };
    let image = Qcow2::open(files, options, host()).await.expect("it was just made");
    for (offset, len, byte) in [(0u64, 9000usize, 1), (40_000, 700, 2), (COMPRESSED_AT - 512, 512, 3)] {
        let data = IoVec::from(IoBytes::copy_from(&vec![byte; len]));
        image.write(offset, data, Hints::NONE).await.expect("memory does not fail");
    }
    let zeroes = ZeroOptions { unmap: true, fast_only: false };
    image.zero(2048, 4096, zeroes).await.expect("memory does not fail");
    image.discard(0, 1024).await.expect("memory does not fail");
    image.close().await.expect("memory does not fail");
}

/// Puts structures into an image behind its end.
struct Maker {
    bytes: Vec<u8>,
    header: Header,
    geometry: Geometry,
    compressed: Option<(u64, u64)>,
}

impl Maker {
    fn new(bytes: Vec<u8>) -> Self {
        let header = Header::decode(&bytes).expect("it was just made");
        let geometry = header.geometry().expect("it was just made");
        Self { bytes, header, geometry, compressed: None }
    }

    fn cluster(&self) -> u64 {
        self.geometry.cluster_size()
    }

    /// Appends whole clusters that start with `content`.
    fn append(&mut self, content: &[u8]) -> u64 {
        let cluster = usize::try_from(self.cluster()).expect("a cluster fits memory");
        let at = self.bytes.len().next_multiple_of(cluster);
        self.bytes.resize(at, 0);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().max(at + 1).next_multiple_of(cluster), 0);
        at as u64
    }

    fn word(&self, at: u64) -> u64 {
        word(&self.bytes, at)
    }

    fn set(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).expect("inside the image");
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn add_compressed(&mut self) {
        let content: Vec<u8> = (0..self.cluster()).map(|at| at.to_le_bytes()[0] & 0xf0).collect();
        let packed = pack(self.header.compression, &content);
        let host = self.append(&packed);
        let cluster = COMPRESSED_AT >> self.geometry.cluster_bits;
        let l2_entries = self.cluster() / self.geometry.l2_entry_bytes();
        let l1_at = self.header.l1_table_offset.0 + cluster / l2_entries * 8;
        let l1 = L1Entry::decode(self.word(l1_at), &self.geometry).expect("the engine wrote it");
        let table = match l1.table {
            Some(table) => table.0,
            None => {
                let table = self.append(&[]);
                self.set(
                    l1_at,
                    &L1Entry { table: Some(HostOffset(table)), copied: true }.encode().to_be_bytes(),
                );
                table
            }
        };
        let entry_at = table + cluster % l2_entries * self.geometry.l2_entry_bytes();
        let len = (packed.len() as u64).next_multiple_of(512);
        let entry = L2Entry::Compressed(CompressedCluster { host: HostOffset(host), len });
        let [first, second] = entry.encode(&self.geometry);
        self.set(entry_at, &first.to_be_bytes());
        if self.geometry.extended_l2 {
            self.set(entry_at + 8, &second.to_be_bytes());
        }
        self.compressed = Some((entry_at, host));
    }

    fn add_snapshot(&mut self) {
        let from = usize::try_from(self.header.l1_table_offset.0).expect("inside the image");
        let len = self.header.l1_size as usize * 8;
        let l1 = self.bytes[from..from + len].to_vec();
        let snapshot = |number: u32, at| SnapshotEntry {
            l1_table_offset: HostOffset(at),
            l1_size: self.header.l1_size,
            id: number.to_string().into_bytes(),
            name: b"first".to_vec(),
            date_sec: number,
            disk_size: Some(DISK_BYTES),
            ..SnapshotEntry::default()
        };
        let (one, two) = (snapshot(1, 0), snapshot(2, 0));
        let first = self.append(&l1);
        let second = self.append(&l1);
        let entries = [
            SnapshotEntry { l1_table_offset: HostOffset(first), ..one },
            SnapshotEntry { l1_table_offset: HostOffset(second), ..two },
        ];
        let table = encode_snapshots(&entries, self.header.version).expect("two short snapshots");
        self.header.snapshots_offset = HostOffset(self.append(&table));
        self.header.snapshots = 2;
        self.write_header();
    }

    fn add_bitmap(&mut self) {
        let bits = self.append(&[0x5a; 64]);
        let table = self.append(&BitmapTableEntry::Data(HostOffset(bits)).encode().to_be_bytes());
        let entry = |name: &str, flags| BitmapEntry {
            table_offset: HostOffset(table),
            table_entries: 1,
            flags,
            granularity_bits: 9,
            name: name.to_owned(),
            extra: Vec::new(),
        };
        let zeroes = self.append(&BitmapTableEntry::Ones.encode().to_be_bytes());
        let second = BitmapEntry { table_offset: HostOffset(zeroes), ..entry("b", BitmapFlags::default()) };
        let entries = [entry("a", BitmapFlags::AUTO), second];
        let directory = encode_bitmap_directory(&entries, &self.geometry).expect("two short bitmaps");
        let directory_size = directory.len() as u64;
        let directory_offset = HostOffset(self.append(&directory));
        self.header.extensions.bitmaps =
            Some(BitmapsExtension { count: 2, directory_size, directory_offset });
        self.header.autoclear.set(Autoclear::BITMAPS, true);
        self.write_header();
    }

    fn write_header(&mut self) {
        let first = self.header.encode().expect("the header is valid");
        self.set(0, &first);
    }

    fn finish(self) -> Base {
        let file = MemoryStorage::from_bytes(&self.bytes);
        let repaired = block_on(qcow2::check(&file, Repair::All, &mut |_| {})).expect("it can be repaired");
        assert!(repaired.is_clean(), "a base image is not valid: {repaired:?}");
        let bytes = file.to_bytes();
        let header = Header::decode(&bytes).expect("it was checked");
        let regions = regions(&bytes, &header, &self.geometry);
        Base {
            regions,
            geometry: self.geometry,
            snapshots_at: (header.snapshots > 0).then_some(header.snapshots_offset.0),
            bitmaps_at: header.extensions.bitmaps.map(|bitmaps| bitmaps.directory_offset.0),
            compressed: self.compressed,
            header,
            bytes,
        }
    }
}

/// The compressed form of `content`.
pub fn pack(compression: Compression, content: &[u8]) -> Vec<u8> {
    match compression {
        Compression::Deflate => {
            let mut stream = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
            stream.write_all(content).expect("memory does not fail");
            stream.finish().expect("memory does not fail")
        }
        Compression::Zstd => zstd::bulk::compress(content, 1).expect("memory does not fail"),
    }
}

fn word(bytes: &[u8], at: u64) -> u64 {
    let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
    rest.and_then(|rest| rest.first_chunk::<8>()).map_or(0, |word| u64::from_be_bytes(*word))
}

fn regions(bytes: &[u8], header: &Header, geometry: &Geometry) -> Vec<Region> {
    let cluster = geometry.cluster_size();
    let words = |offset, len| Region { kind: RegionKind::Words, offset, len };
    let raw = |offset, len| Region { kind: RegionKind::Bytes, offset, len };
    let l1_at = header.l1_table_offset.0;
    let table_at = header.refcount_table_offset.0;
    let mut regions = vec![
        raw(0, 112),
        raw(104, 400),
        words(l1_at, u64::from(header.l1_size).max(1) * 8),
        words(table_at, 64.min(cluster)),
        raw(word(bytes, table_at), 64.min(cluster)),
    ];
    let entries = (0..u64::from(header.l1_size)).map(|index| word(bytes, l1_at + index * 8));
    let tables = entries.filter_map(|word| L1Entry::decode(word, geometry).ok()?.table);
    regions.extend(tables.take(3).map(|table| words(table.0, cluster.min(2048))));
    if header.snapshots > 0 {
        regions.push(raw(header.snapshots_offset.0, 160.min(cluster)));
    }
    if let Some(bitmaps) = header.extensions.bitmaps {
        let at = bitmaps.directory_offset.0;
        regions.push(raw(at, bitmaps.directory_size));
        regions.push(words(word(bytes, at), 16));
    }
    regions
}
