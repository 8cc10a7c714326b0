//! Images to measure on: sparse, with all their metadata.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use qcow2_layout::Header;
use rustix::fs::{FallocateFlags, fallocate};

use super::{Bench, process, vdi};

/// How an image is made.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// Subclusters.
    pub extended: bool,
    /// All metadata is there, and the data clusters are holes of the file.
    pub allocated: bool,
}

impl Shape {
    /// An allocated image without subclusters.
    pub fn allocated(disk_bytes: u64, cluster_bytes: u64) -> Self {
        Self { disk_bytes, cluster_bytes, extended: false, allocated: true }
    }

    fn options(&self) -> String {
        let preallocation = if self.allocated { ",preallocation=metadata" } else { "" };
        let extended = if self.extended { ",extended_l2=on" } else { "" };
        format!("cluster_size={}{preallocation}{extended}", self.cluster_bytes)
    }
}

impl Bench {
    /// Where an image of this name belongs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.images.join(name)
    }

    /// Makes an image, over a backing file if one is given (by its name in the same directory).
    pub fn create(&self, name: &str, shape: Shape, backing: Option<&str>) -> Result<PathBuf, String> {
        let path = self.path(name);
        remove(&path)?;
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2", "-o", &shape.options()]);
        if let Some(backing) = backing {
            command.args(["-F", "qcow2", "-b", backing]);
        }
        command.arg(&path).arg(shape.disk_bytes.to_string());
        process::run(&mut command)?;
        Ok(path)
    }

    /// Writes the head of a shuffled disk to the start of a disk, so that QEMU can be measured with
    /// random access.
    pub fn shuffle_above(&self, image: &Path, format: &str, disk_bytes: u64) -> Result<(), String> {
        let mut head = vdi::shuffled(disk_bytes, 1).bytes;
        head.resize(head.len().next_multiple_of(4096), 0);
        let file = self.path("shuffled.head");
        fs::write(&file, &head).map_err(|error| format!("{}: {error}", file.display()))?;
        let write = format!("write -q -s {} 0 {}", file.display(), head.len());
        process::run(Command::new("qemu-io").args(["-f", format, "-c", &write]).arg(image)).map(drop)
    }

    /// An image that both sides can read in any order.
    pub fn create_readable(&self, name: &str, shape: Shape) -> Result<PathBuf, String> {
        let path = self.create(name, shape, None)?;
        self.shuffle_above(&path, "qcow2", shape.disk_bytes)?;
        Ok(path)
    }
}

/// Writes patterns all over a disk of 1 GiB that exists, in large writes: the kernel keeps what one of them wrote in large pieces,
/// which is what small writes into the page cache cost.
pub fn fill(format: &str, file: &Path) -> Result<(), String> {
    let mut command = Command::new("qemu-io");
    command.args(["-f", format]);
    for part in 0..8 {
        command.args(["-c", &format!("write -q -P {} {}M 128M", part + 1, part * 128)]);
    }
    process::run(command.arg(file)).map(drop)
}

/// Makes a disk of 1 GiB and fills it: the same writes for each format.
pub fn filled(format: &str, file: &Path) -> Result<(), String> {
    process::run(Command::new("qemu-img").args(["create", "-q", "-f", format]).arg(file).arg("1G"))?;
    fill(format, file)
}

/// Removes an image, if it is there.
pub fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Memory for refcounts while an image is checked. With the default, a shuffled image is checked in
/// half a minute instead of a moment: every cluster's refcount is in another block.
const CHECK_CACHE_BYTES: u64 = 16 << 20;

/// An image without a corruption and without a leak.
pub fn check(path: &Path) -> Result<(), String> {
    let name = path.display().to_string().replace(',', ",,");
    let image =
        format!("driver=qcow2,refcount-cache-size={CHECK_CACHE_BYTES},file.driver=file,file.filename={name}");
    process::run(Command::new("qemu-img").args(["check", "-q", "--image-opts", &image])).map(drop)
}

/// Bytes that a file takes on the disk.
pub fn host_bytes(path: &Path) -> Result<u64, String> {
    fs::metadata(path).map(|meta| meta.blocks() * 512).map_err(|error| format!("{}: {error}", path.display()))
}

/// Puts the clusters of a fully allocated image in random order: its map entries are shuffled among
/// themselves, so every cluster keeps its refcount of 1.
pub fn shuffle_clusters(path: &Path) -> Result<(), String> {
    let unusable = |error: std::io::Error| format!("{}: {error}", path.display());
    let Map { file, cluster_bytes, tables } = Map::open(path)?;
    let mut entries = Vec::new();
    for &table in &tables {
        entries.extend(words(&file, table, cluster_bytes / 8).map_err(unusable)?);
    }
    let used: Vec<usize> = (0..entries.len()).filter(|&at| entries[at] != 0).collect();
    let order = vdi::shuffle(u32::try_from(used.len()).map_err(|error| error.to_string())?, 7);
    let before = entries.clone();
    used.iter().zip(order).for_each(|(&at, from)| entries[at] = before[used[from as usize]]);
    for (table, entries) in tables.iter().zip(entries.chunks(cluster_bytes / 8)) {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        file.write_all_at(&bytes, *table).map_err(unusable)?;
    }
    Ok(())
}

/// An image whose map is about to be looked through.
struct Map {
    file: File,
    cluster_bytes: usize,
    /// Where its L2 tables are.
    tables: Vec<u64>,
}

impl Map {
    fn open(path: &Path) -> Result<Self, String> {
        let unusable = |error: std::io::Error| format!("{}: {error}", path.display());
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(unusable)?;
        let header = header_of(&file, path)?;
        let l1 = words(&file, header.l1_table_offset.0, header.l1_size as usize).map_err(unusable)?;
        let tables = l1.into_iter().map(|entry| entry & OFFSET_BITS).filter(|&table| table > 0).collect();
        Ok(Self { file, cluster_bytes: 1 << header.cluster_bits, tables })
    }
}

/// Bits of an L1 or L2 entry that say where the table or the cluster is.
const OFFSET_BITS: u64 = 0x00ff_ffff_ffff_fe00;

/// Makes holes of an image's data clusters, which stay allocated: then reading one costs the file system the same
/// in every image of a chain.
pub fn empty_clusters(path: &Path) -> Result<(), String> {
    let unusable = |error: std::io::Error| format!("{}: {error}", path.display());
    let Map { file, cluster_bytes, tables } = Map::open(path)?;
    for table in tables {
        let entries = words(&file, table, cluster_bytes / 8).map_err(unusable)?;
        for cluster in entries.into_iter().map(|entry| entry & OFFSET_BITS).filter(|&cluster| cluster > 0) {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, how, cluster, cluster_bytes as u64).map_err(|error| unusable(error.into()))?;
        }
    }
    Ok(())
}

/// Gives an image a backing file, without looking at it.
pub fn link(path: &Path, backing: &str) -> Result<(), String> {
    let unusable = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(unusable)?;
    let mut header = header_of(&file, path)?;
    header.backing = Some(backing.to_owned());
    header.extensions.backing_format = Some("qcow2".to_owned());
    let bytes = header.encode().map_err(|error| error.to_string())?;
    file.write_all_at(&bytes, 0).map_err(unusable)
}

fn header_of(file: &File, path: &Path) -> Result<Header, String> {
    let mut first = vec![0; 65_536];
    let unusable = |error: &dyn std::error::Error| format!("{}: {error}", path.display());
    let len = file.read_at(&mut first, 0).map_err(|error| unusable(&error))?;
    Header::decode(&first[..len]).map_err(|error| unusable(&error))
}

fn words(file: &File, offset: u64, count: usize) -> std::io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    file.read_exact_at(&mut bytes, offset)?;
    let word = |bytes: &[u8]| bytes.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    Ok(bytes.chunks_exact(8).map(word).collect())
}
