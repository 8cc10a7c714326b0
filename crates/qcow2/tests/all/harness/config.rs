//! What is simulated: every kind of image, in the sizes where things happen.

use qcow2::cache_sizes::CacheRequest;
use qcow2::{Options, OverlapCheck};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

/// What lies below an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    Nothing,
    /// A raw file of so many bytes, with data.
    Raw(u64),
    /// A qcow2 image of so many bytes, with data.
    Qcow2(u64),
    /// [`CHAIN_FILES`], one above the other, the lowest being a raw file of so many bytes, with data.
    Chain(u64),
}

/// The layers of [`Below::Chain`], the upper first: their files, and for qcow2 images how they are made and
/// how much longer than the raw file they are.
pub const CHAIN_FILES: [(&str, Option<(&str, u64)>); 4] = [
    ("below0.qcow2", Some(("cluster_size=4k", 512 * K + 512))),
    ("below1.qcow2", Some(("cluster_size=16k,extended_l2=on", 0))),
    ("below2.qcow2", Some(("compat=0.10,cluster_size=1k", 256 * K))),
    ("below3.raw", None),
];

/// Where guest data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataIn {
    Image,
    File,
    RawFile,
}

/// One configuration.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its name in test filters.
    pub name: &'static str,
    /// `qemu-img create -o`.
    pub create: &'static str,
    /// Bytes of the disk.
    pub size: u64,
    pub below: Below,
    pub data_in: DataIn,
    /// Guest ranges that hold data from the start, in the image itself.
    pub own: &'static [(u64, u64)],
    /// The own data is compressed.
    pub compressed: bool,
    /// Whole clusters are written compressed.
    pub packs: bool,
    /// Snapshots taken of the own data.
    pub snapshots: usize,
    /// A persistent bitmap.
    pub bitmap: bool,
    pub discard: Discard,
    pub lazy: bool,
    /// The smallest caches there can be.
    pub tiny_cache: bool,
    /// The whole map is read ahead, beside the requests.
    pub prefetch: bool,
    /// The image lies on a block device of so many bytes more, with garbage behind the image.
    pub device: Option<u64>,
    /// Data is ciphered, with the password that [`super::qemu`] has.
    pub encrypted: bool,
    /// Clusters that are counted before anybody wants them.
    pub reserve: u64,
    /// The size of the disk changes.
    pub resized: bool,
    /// Snapshots are taken, gone back to and deleted.
    pub snapshotted: bool,
    /// Options change while the image is open.
    pub changed: bool,
    /// Whenever it is closed another process takes it, while ours waits for the lock.
    pub second_writer: bool,
}

/// What becomes of discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    Ignored,
    Freed,
    Punched,
    NoUnref,
}

const PLAIN: Config = Config {
    name: "",
    create: "",
    size: 0,
    below: Below::Nothing,
    data_in: DataIn::Image,
    own: &[],
    compressed: false,
    packs: false,
    snapshots: 0,
    bitmap: false,
    discard: Discard::Punched,
    lazy: false,
    tiny_cache: false,
    prefetch: false,
    device: None,
    encrypted: false,
    reserve: 0,
    resized: false,
    snapshotted: false,
    changed: false,
    second_writer: false,
};

/// L2 tables of [`ONE_CLUSTER_A_TABLE`].
const TABLES: usize = 48;

/// One cluster for each of the L2 tables, in clusters of 512 bytes.
const ONE_CLUSTER_A_TABLE: [(u64, u64); TABLES] = {
    let mut ranges = [(0, 512); TABLES];
    let mut table = 0;
    while table < TABLES {
        ranges[table].0 = table as u64 * 32 * K;
        table += 1;
    }
    ranges
};

/// All of them.
pub const CONFIGS: &[Config] = &[
    Config { name: "c512", create: "cluster_size=512", size: 192 * K + 512, ..PLAIN },
    Config {
        name: "c512_r1_tiny",
        create: "cluster_size=512,refcount_bits=1",
        size: 192 * K,
        tiny_cache: true,
        ..PLAIN
    },
    Config {
        name: "c512_r64_tiny",
        create: "cluster_size=512,refcount_bits=64",
        size: 256 * K,
        own: &[(0, 32 * K), (100 * K, 3000)],
        tiny_cache: true,
        ..PLAIN
    },
    // 64 entries of the refcount table, each for 64 clusters: beyond 2 MiB the table must move.
    Config {
        name: "c512_table_grows",
        create: "cluster_size=512,refcount_bits=64",
        size: 4 * M,
        own: &[(0, 1960 * K)],
        ..PLAIN
    },
    Config {
        name: "c1k_v2_on_raw",
        create: "compat=0.10,cluster_size=1k",
        size: 300 * K,
        below: Below::Raw(200 * K + 100),
        own: &[(2 * K, 5 * K)],
        ..PLAIN
    },
    Config { name: "c1k_v2", create: "compat=0.10,cluster_size=1k", size: 300 * K, ..PLAIN },
    Config { name: "c4k", create: "cluster_size=4k", size: 6 * M, own: &[(0, 12 * K)], ..PLAIN },
    Config {
        name: "c4k_device",
        create: "cluster_size=4k,refcount_bits=64",
        size: 2 * M,
        own: &[(0, 12 * K)],
        device: Some(6 * M),
        ..PLAIN
    },
    Config {
        name: "c4k_on_qcow2",
        create: "cluster_size=4k,refcount_bits=8",
        size: 6 * M,
        below: Below::Qcow2(4 * M + 512),
        own: &[(64 * K, 20000)],
        ..PLAIN
    },
    Config {
        name: "c64k_on_chain",
        create: "cluster_size=64k",
        size: 6 * M,
        below: Below::Chain(3 * M + 512),
        own: &[(128 * K, 20000)],
        ..PLAIN
    },
    Config {
        name: "c4k_on_chain_tiny",
        create: "cluster_size=4k",
        size: 4 * M,
        below: Below::Chain(3 * M + 1536),
        tiny_cache: true,
        ..PLAIN
    },
    Config {
        name: "c1k_prefetch",
        create: "cluster_size=1k",
        size: 3 * M,
        own: &[(0, 300 * K), (M, 12 * K), (2 * M + 100, 500_000)],
        prefetch: true,
        ..PLAIN
    },
    Config {
        name: "c64k_on_chain_prefetch",
        create: "cluster_size=64k",
        size: 6 * M,
        below: Below::Chain(3 * M + 512),
        own: &[(128 * K, 20000)],
        prefetch: true,
        ..PLAIN
    },
    Config {
        name: "c4k_no_unref",
        create: "cluster_size=4k,refcount_bits=2",
        size: 4 * M,
        below: Below::Raw(M),
        discard: Discard::NoUnref,
        ..PLAIN
    },
    Config {
        name: "c4k_compressed",
        create: "cluster_size=4k",
        size: 4 * M,
        own: &[(0, 128 * K), (2 * M, 64 * K)],
        compressed: true,
        discard: Discard::Freed,
        ..PLAIN
    },
    Config {
        name: "c4k_snapshots",
        create: "cluster_size=4k,refcount_bits=4",
        size: 5 * M,
        own: &[(0, 40 * K), (2 * M - 8 * K, 32 * K), (4 * M, 512)],
        snapshots: 2,
        ..PLAIN
    },
    Config { name: "c4k_packs", create: "cluster_size=4k", size: 4 * M, packs: true, ..PLAIN },
    Config {
        name: "c4k_packs_few_references",
        create: "cluster_size=4k,refcount_bits=2,compression_type=zstd",
        size: 4 * M,
        own: &[(0, 64 * K)],
        compressed: true,
        packs: true,
        discard: Discard::Freed,
        reserve: 64 * K,
        ..PLAIN
    },
    Config {
        name: "c4k_snapshots_compressed",
        create: "cluster_size=4k",
        size: 4 * M,
        own: &[(0, 64 * K), (2 * M, 16 * K)],
        compressed: true,
        snapshots: 1,
        tiny_cache: true,
        ..PLAIN
    },
    Config {
        name: "c4k_bitmap",
        create: "cluster_size=4k",
        size: 2 * M,
        own: &[(0, 12 * K)],
        bitmap: true,
        ..PLAIN
    },
    Config {
        name: "c4k_lazy",
        create: "cluster_size=4k,lazy_refcounts=on",
        size: 3 * M,
        own: &[(0, 12 * K)],
        lazy: true,
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_on_qcow2",
        create: "cluster_size=16k,extended_l2=on",
        size: 40 * M,
        below: Below::Qcow2(20 * M + 1536),
        own: &[(64 * K, 30000)],
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_snapshots",
        create: "cluster_size=16k,extended_l2=on",
        size: 40 * M,
        own: &[(0, 100_000), (16 * M - 16 * K, 32 * K)],
        snapshots: 1,
        tiny_cache: true,
        ..PLAIN
    },
    Config {
        name: "c64k_subclusters_zstd",
        create: "cluster_size=64k,extended_l2=on,compression_type=zstd",
        size: 300 * M,
        own: &[(0, 256 * K)],
        compressed: true,
        ..PLAIN
    },
    Config { name: "c64k", create: "cluster_size=64k", size: 1100 * M + 1536, ..PLAIN },
    Config {
        name: "c64k_on_short_raw",
        create: "cluster_size=64k,refcount_bits=32",
        size: 8 * M,
        below: Below::Raw(700_001),
        discard: Discard::Ignored,
        ..PLAIN
    },
    // 64 entries of the L1 table, each for 32 KiB: beyond 2 MiB the table must move.
    Config {
        name: "c512_resized",
        create: "cluster_size=512",
        size: 2 * M,
        own: &[(0, 3000), (M, 200 * K)],
        resized: true,
        ..PLAIN
    },
    // Many tables, none beside another, read ahead while the size changes.
    Config {
        name: "c512_resized_prefetch",
        create: "cluster_size=512",
        size: TABLES as u64 * 32 * K,
        own: &ONE_CLUSTER_A_TABLE,
        prefetch: true,
        resized: true,
        ..PLAIN
    },
    Config {
        name: "c4k_resized_under_longer",
        create: "cluster_size=4k",
        size: 3 * M,
        below: Below::Qcow2(4 * M + 512),
        own: &[(64 * K, 20000)],
        resized: true,
        ..PLAIN
    },
    Config {
        name: "c1k_v2_resized",
        create: "compat=0.10,cluster_size=1k",
        size: 400 * K,
        own: &[(2 * K, 5 * K), (390 * K, 10 * K)],
        resized: true,
        tiny_cache: true,
        ..PLAIN
    },
    Config {
        name: "c4k_compressed_resized",
        create: "cluster_size=4k",
        size: 4 * M,
        own: &[(0, 128 * K), (2 * M, 64 * K)],
        compressed: true,
        resized: true,
        ..PLAIN
    },
    Config {
        name: "c4k_lazy_resized",
        create: "cluster_size=4k,lazy_refcounts=on",
        size: 3 * M,
        own: &[(0, 12 * K)],
        lazy: true,
        resized: true,
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_resized",
        create: "cluster_size=16k,extended_l2=on",
        size: 24 * M,
        below: Below::Raw(20 * M + 1536),
        own: &[(64 * K, 30000), (16 * M - 16 * K, 32 * K)],
        resized: true,
        ..PLAIN
    },
    Config {
        name: "c4k_raw_data_file_resized",
        create: "cluster_size=4k",
        size: 3 * M,
        data_in: DataIn::RawFile,
        own: &[(8 * K, 10_000)],
        resized: true,
        ..PLAIN
    },
    Config {
        name: "c512_snapshotted",
        create: "cluster_size=512",
        size: 192 * K,
        own: &[(0, 3000), (100 * K, 20 * K)],
        snapshotted: true,
        ..PLAIN
    },
    Config {
        name: "c1k_v2_snapshotted_on_raw",
        create: "compat=0.10,cluster_size=1k",
        size: 300 * K,
        below: Below::Raw(200 * K + 100),
        own: &[(2 * K, 5 * K)],
        snapshots: 1,
        snapshotted: true,
        tiny_cache: true,
        ..PLAIN
    },
    Config {
        name: "c4k_snapshotted_and_resized",
        create: "cluster_size=4k,refcount_bits=8",
        size: 5 * M,
        own: &[(0, 40 * K), (2 * M - 8 * K, 32 * K), (4 * M, 512)],
        snapshots: 2,
        snapshotted: true,
        resized: true,
        ..PLAIN
    },
    Config {
        name: "c4k_compressed_snapshotted",
        create: "cluster_size=4k,refcount_bits=64",
        size: 4 * M,
        own: &[(0, 64 * K), (2 * M, 16 * K)],
        compressed: true,
        snapshotted: true,
        resized: true,
        ..PLAIN
    },
    Config {
        name: "c4k_lazy_snapshotted",
        create: "cluster_size=4k,lazy_refcounts=on",
        size: 3 * M,
        own: &[(0, 12 * K)],
        lazy: true,
        snapshotted: true,
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_snapshotted",
        create: "cluster_size=16k,extended_l2=on",
        size: 40 * M,
        below: Below::Qcow2(20 * M + 1536),
        own: &[(0, 100_000), (16 * M - 16 * K, 32 * K)],
        snapshotted: true,
        ..PLAIN
    },
    Config {
        name: "c4k_device_snapshotted",
        create: "cluster_size=4k,refcount_bits=64",
        size: 2 * M,
        own: &[(0, 12 * K)],
        device: Some(6 * M),
        snapshotted: true,
        ..PLAIN
    },
    Config {
        name: "c4k_encrypted",
        create: "cluster_size=4k",
        size: 4 * M,
        own: &[(0, 12 * K), (2 * M - 100, 5000)],
        encrypted: true,
        reserve: 16,
        ..PLAIN
    },
    Config {
        name: "c512_encrypted_resized",
        create: "cluster_size=512",
        size: 192 * K,
        below: Below::Raw(200 * K + 100),
        own: &[(0, 3000), (100 * K, 20 * K)],
        encrypted: true,
        resized: true,
        tiny_cache: true,
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_encrypted_snapshotted",
        create: "cluster_size=16k,extended_l2=on",
        size: 24 * M,
        below: Below::Qcow2(20 * M + 1536),
        own: &[(64 * K, 30000), (16 * M - 16 * K, 32 * K)],
        encrypted: true,
        snapshotted: true,
        ..PLAIN
    },
    Config { name: "c2m", create: "cluster_size=2M", size: 40 * M, own: &[(3 * M, 5000)], ..PLAIN },
    Config {
        name: "c4k_data_file",
        create: "cluster_size=4k",
        size: 3 * M,
        data_in: DataIn::File,
        own: &[(8 * K, 10_000)],
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_data_file",
        create: "cluster_size=16k,extended_l2=on",
        size: 24 * M,
        data_in: DataIn::File,
        own: &[(8 * K, 40_000), (16 * M - 16 * K, 32 * K)],
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_raw_data_file",
        create: "cluster_size=16k,extended_l2=on",
        size: 24 * M,
        data_in: DataIn::RawFile,
        own: &[(8 * K, 40_000)],
        tiny_cache: true,
        ..PLAIN
    },
    Config {
        name: "c4k_bitmap_reserve",
        create: "cluster_size=4k",
        size: 2 * M,
        own: &[(0, 12 * K), (M, 200 * K)],
        bitmap: true,
        reserve: 16,
        ..PLAIN
    },
    Config {
        name: "c4k_bitmap_snapshotted",
        create: "cluster_size=4k",
        size: 2 * M,
        own: &[(0, 12 * K), (M, 200 * K)],
        bitmap: true,
        snapshotted: true,
        ..PLAIN
    },
    Config {
        name: "c512_bitmap_resized_reserve",
        create: "cluster_size=512",
        size: 512 * K,
        own: &[(0, 3000), (100 * K, 20 * K)],
        bitmap: true,
        resized: true,
        reserve: 24,
        ..PLAIN
    },
    Config { name: "c512_reserve", create: "cluster_size=512", size: 192 * K, reserve: 24, ..PLAIN },
    Config {
        name: "c512_table_grows_reserve",
        create: "cluster_size=512,refcount_bits=64",
        size: 4 * M,
        own: &[(0, 1960 * K)],
        reserve: 70,
        ..PLAIN
    },
    Config {
        name: "c4k_reserve",
        create: "cluster_size=4k",
        size: 6 * M,
        own: &[(0, 12 * K)],
        reserve: 16,
        ..PLAIN
    },
    Config {
        name: "c4k_device_reserve",
        create: "cluster_size=4k,refcount_bits=64",
        size: 2 * M,
        own: &[(0, 12 * K)],
        device: Some(3 * M),
        reserve: 16,
        ..PLAIN
    },
    // Less room than the disk wants: not for workloads that expect every write to succeed.
    Config {
        name: "c4k_full_device_reserve",
        create: "cluster_size=4k",
        size: 2 * M,
        own: &[(0, 12 * K)],
        device: Some(200 * K),
        reserve: 16,
        ..PLAIN
    },
    Config {
        name: "c4k_on_qcow2_reserve",
        create: "cluster_size=4k,refcount_bits=8",
        size: 6 * M,
        below: Below::Qcow2(4 * M + 512),
        own: &[(64 * K, 20000)],
        reserve: 16,
        ..PLAIN
    },
    Config {
        name: "c4k_snapshots_reserve",
        create: "cluster_size=4k,refcount_bits=4",
        size: 5 * M,
        own: &[(0, 40 * K), (2 * M - 8 * K, 32 * K), (4 * M, 512)],
        snapshots: 2,
        reserve: 12,
        ..PLAIN
    },
    Config {
        name: "c4k_lazy_reserve",
        create: "cluster_size=4k,lazy_refcounts=on",
        size: 3 * M,
        own: &[(0, 12 * K)],
        lazy: true,
        reserve: 16,
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_reserve",
        create: "cluster_size=16k,extended_l2=on",
        size: 40 * M,
        own: &[(0, 100_000), (16 * M - 16 * K, 32 * K)],
        reserve: 8,
        ..PLAIN
    },
    // Few clusters, so that several requests meet in one; enough of a reserve to keep places for neighbours.
    Config {
        name: "c16k_subclusters_small_reserve",
        create: "cluster_size=16k,extended_l2=on",
        size: 160 * K,
        reserve: 32,
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_on_qcow2_reserve",
        create: "cluster_size=16k,extended_l2=on",
        size: 40 * M,
        below: Below::Qcow2(20 * M + 1536),
        own: &[(64 * K, 30000)],
        reserve: 8,
        ..PLAIN
    },
    Config {
        name: "c512_resized_reserve",
        create: "cluster_size=512",
        size: 192 * K,
        own: &[(0, 3000), (100 * K, 20 * K)],
        resized: true,
        reserve: 24,
        ..PLAIN
    },
    Config {
        name: "c4k_snapshotted_and_resized_reserve",
        create: "cluster_size=4k",
        size: 5 * M,
        own: &[(0, 40 * K), (2 * M - 8 * K, 32 * K), (4 * M, 512)],
        snapshotted: true,
        resized: true,
        reserve: 16,
        ..PLAIN
    },
    Config {
        name: "c16k_subclusters_snapshotted_reserve",
        create: "cluster_size=16k,extended_l2=on",
        size: 40 * M,
        own: &[(0, 100_000), (16 * M - 16 * K, 32 * K)],
        snapshotted: true,
        reserve: 8,
        ..PLAIN
    },
    Config {
        name: "c4k_second_writer",
        create: "cluster_size=4k",
        size: 6 * M,
        own: &[(0, 12 * K)],
        discard: Discard::Freed,
        second_writer: true,
        reserve: 16,
        ..PLAIN
    },
    // Two writers who also cut the file.
    Config {
        name: "c512_second_writer_resized",
        create: "cluster_size=512",
        size: 192 * K,
        own: &[(0, 3000), (100 * K, 20 * K)],
        second_writer: true,
        resized: true,
        snapshotted: true,
        ..PLAIN
    },
    Config {
        name: "c4k_second_writer_raw_data_file",
        create: "cluster_size=4k",
        size: 3 * M,
        data_in: DataIn::RawFile,
        own: &[(8 * K, 10_000)],
        second_writer: true,
        resized: true,
        ..PLAIN
    },
    Config {
        name: "c4k_lazy_changed",
        create: "cluster_size=4k,lazy_refcounts=on",
        size: 3 * M,
        own: &[(0, 12 * K), (M, 3000)],
        lazy: true,
        changed: true,
        ..PLAIN
    },
    Config {
        name: "c512_snapshotted_and_changed",
        create: "cluster_size=512,refcount_bits=64",
        size: 192 * K,
        own: &[(0, 3000), (100 * K, 20 * K)],
        snapshots: 1,
        snapshotted: true,
        changed: true,
        reserve: 24,
        ..PLAIN
    },
    Config {
        name: "c4k_raw_data_file",
        create: "cluster_size=4k",
        size: 3 * M,
        data_in: DataIn::RawFile,
        own: &[(8 * K, 10_000)],
        ..PLAIN
    },
];

/// The configuration of that name.
pub fn config(name: &str) -> Config {
    match CONFIGS.iter().find(|config| config.name == name) {
        Some(config) => *config,
        None => panic!("no configuration is named `{name}`"),
    }
}

impl Config {
    /// Bytes of a cluster.
    pub fn cluster(&self) -> u64 {
        let value = |option: &'static str| option.strip_prefix("cluster_size=");
        let text = self.create.split(',').find_map(value).unwrap_or("64k");
        match (text.strip_suffix('k'), text.strip_suffix('M')) {
            (Some(number), _) => number.parse::<u64>().map_or(0, |number| number * K),
            (_, Some(number)) => number.parse::<u64>().map_or(0, |number| number * M),
            (None, None) => text.parse().unwrap_or(0),
        }
    }

    fn discard_as(&self, variant: u32) -> Discard {
        match (variant, self.discard) {
            (3, Discard::Punched) => Discard::Freed,
            (3, Discard::Freed) => Discard::NoUnref,
            (3, Discard::NoUnref) => Discard::Punched,
            (_, discard) => discard,
        }
    }

    pub fn is_v2(&self) -> bool {
        self.create.contains("compat=0.10")
    }

    /// How the image is opened; variant 1 turns the size of the caches and the reserve around, 2 lazy
    /// refcounts, and looks at everything that a write might hit, 3 what becomes of discards, as far as they
    /// read the same; 4 whether the map is read ahead, which the opener does.
    pub fn options(&self, variant: u32) -> Options {
        let discard = self.discard_as(variant);
        let turned = variant == 2 && !self.is_v2();
        let tiny = self.tiny_cache != (variant == 1);
        let reserve = match (variant, self.reserve) {
            (1, 0) => 5,
            (1, _) => 0,
            (_, reserve) => reserve,
        };
        let cache = CacheRequest {
            l2_bytes: tiny.then_some(1),
            refcount_bytes: tiny.then_some(1),
            l2_entry_bytes: tiny.then_some(512),
            ..CacheRequest::default()
        };
        Options {
            writable: true,
            cache,
            discard: discard != Discard::Ignored,
            pass_discard_request: discard == Discard::Punched,
            pass_discard_other: discard == Discard::Punched,
            discard_no_unref: discard == Discard::NoUnref,
            lazy_refcounts: turned.then_some(!self.lazy),
            allocation_reserve: Some(reserve * self.cluster()),
            bitmap_slack: Some(super::bitmaps::SLACK_BYTES),
            overlap_check: if turned { OverlapCheck::ALL } else { OverlapCheck::default() },
            ..Options::default()
        }
    }
}
