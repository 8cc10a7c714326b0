//! Every shape of image that `qemu-img` can make, and a choice of them in which every two values that
//! can meet do meet.

use std::collections::HashSet;
use std::fmt;

/// How clusters are compressed, if they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Plain,
    Zlib,
    Zstd,
}

/// What lies below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    None,
    /// Longer than the disk.
    Qcow2,
    /// Shorter than the disk.
    Raw,
    /// Three more: qcow2 (shorter) over qcow2 (longer) over raw.
    Deep,
}

/// Where the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    Inside,
    File,
    RawFile,
}

/// One shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub version: u32,
    pub cluster_bytes: u64,
    pub refcount_bits: u32,
    pub extended_l2: bool,
    pub compression: Compression,
    pub backing: Backing,
    pub data: Data,
    pub snapshot: bool,
    pub bitmap: bool,
}

const VERSIONS: [u32; 2] = [2, 3];
const CLUSTERS: [u64; 5] = [512, 4 << 10, 64 << 10, 256 << 10, 2 << 20];
const REFCOUNT_BITS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
const COMPRESSIONS: [Compression; 3] = [Compression::Plain, Compression::Zlib, Compression::Zstd];
const BACKINGS: [Backing; 4] = [Backing::None, Backing::Qcow2, Backing::Raw, Backing::Deep];
const DATAS: [Data; 3] = [Data::Inside, Data::File, Data::RawFile];
const SWITCH: [bool; 2] = [false, true];

/// Values in each dimension, in the order of [`of`].
const COUNTS: [usize; 9] = [2, 5, 7, 2, 3, 4, 3, 2, 2];

/// Which value a shape has in each dimension.
type Point = [usize; COUNTS.len()];

fn of(point: &Point) -> Shape {
    let [version, cluster, refcount, extended, compression, backing, data, snapshot, bitmap] = *point;
    Shape {
        version: VERSIONS[version],
        cluster_bytes: CLUSTERS[cluster],
        refcount_bits: REFCOUNT_BITS[refcount],
        extended_l2: SWITCH[extended],
        compression: COMPRESSIONS[compression],
        backing: BACKINGS[backing],
        data: DATAS[data],
        snapshot: SWITCH[snapshot],
        bitmap: SWITCH[bitmap],
    }
}

impl Shape {
    /// Whether the format has it.
    fn exists(&self) -> bool {
        let inside = self.data == Data::Inside;
        let owners_bits_min = if self.compression == Compression::Plain { 2 } else { 16 };
        let needs_3 = self.refcount_bits != 16
            || self.extended_l2
            || self.compression == Compression::Zstd
            || !inside
            || self.bitmap;
        (self.version == 3 || !needs_3)
            && (!self.extended_l2 || self.cluster_bytes >= 16 << 10)
            && (inside || (self.compression == Compression::Plain && !self.snapshot))
            && (self.data != Data::RawFile || self.backing == Backing::None)
            // A snapshot's clusters have two owners; one that holds many compressed clusters has many.
            && (!self.snapshot || self.refcount_bits >= owners_bits_min)
    }

    /// Bytes of the disk: some clusters, and not a whole number of them.
    pub fn disk_bytes(&self) -> u64 {
        (6 << 20).max(7 * self.cluster_bytes) + 3 * 512
    }

    /// Arguments of `qemu-img create -o`, without the backing file. QEMU looks for a data file with a
    /// relative name in the working directory, so its name is given whole.
    pub fn options(&self, data_file: &str) -> String {
        let switch = |on: bool| if on { "on" } else { "off" };
        let mut options = format!("cluster_size={}", self.cluster_bytes);
        let compat = if self.version == 2 { "0.10" } else { "1.1" };
        options.push_str(&format!(",compat={compat},refcount_bits={}", self.refcount_bits));
        if self.version == 3 {
            options.push_str(&format!(",extended_l2={}", switch(self.extended_l2)));
        }
        if self.compression == Compression::Zstd {
            options.push_str(",compression_type=zstd");
        }
        if self.data != Data::Inside {
            let raw = switch(self.data == Data::RawFile);
            options.push_str(&format!(",data_file={data_file},data_file_raw={raw}"));
        }
        options
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, cluster_bytes, refcount_bits, .. } = self;
        write!(f, "v{version}-c{cluster_bytes}-r{refcount_bits}")?;
        if self.extended_l2 {
            write!(f, "-extended")?;
        }
        let words = format!("-{:?}-backing_{:?}-data_{:?}", self.compression, self.backing, self.data);
        write!(f, "{}", words.to_lowercase())?;
        if self.snapshot {
            write!(f, "-snapshot")?;
        }
        if self.bitmap {
            write!(f, "-bitmap")?;
        }
        Ok(())
    }
}

/// Every shape that exists.
pub fn all() -> Vec<Shape> {
    points().iter().map(of).collect()
}

/// A choice in which every two values that can meet do meet.
pub fn pairwise() -> Vec<Shape> {
    let points = points();
    let mut missing: HashSet<_> = points.iter().flat_map(pairs).collect();
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let gain = |point: &&Point| pairs(point).filter(|pair| missing.contains(pair)).count();
        let best = *points.iter().max_by_key(gain).expect("a pair comes from a point");
        for pair in pairs(&best) {
            missing.remove(&pair);
        }
        chosen.push(of(&best));
    }
    chosen
}

fn points() -> Vec<Point> {
    let mut points = vec![[0; COUNTS.len()]];
    for (dimension, count) in COUNTS.into_iter().enumerate() {
        let with = |point: &Point| {
            let mut point = *point;
            (0..count).map(move |value| {
                point[dimension] = value;
                point
            })
        };
        points = points.iter().flat_map(with).collect();
    }
    points.retain(|point| of(point).exists());
    points
}

/// Two dimensions and their values, for all two dimensions.
fn pairs(point: &Point) -> impl Iterator<Item = [usize; 4]> {
    let point = *point;
    let lower = move |high: usize| (0..high).map(move |low| [low, point[low], high, point[high]]);
    (0..COUNTS.len()).flat_map(lower)
}
