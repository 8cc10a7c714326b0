//! The images of the table: data that can be packed and data that cannot, metadata of large disks.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Advice, fadvise};

use super::{KIB, MIB, name, qemu_img};
use crate::bench::image::Shape;
use crate::bench::{Bench, process};

/// Bytes of a run of data, and of the hole behind it.
const RUN_BYTES: u64 = 4 * MIB;
/// Clusters with data in a spread image: one in each table of a disk of 1 TiB.
const SPREAD: u64 = 2048;
const CLUSTER_BYTES: u64 = 64 * KIB;

/// Numbers without a pattern (Marsaglia's xorshift).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            let number = self.next().to_le_bytes();
            word.copy_from_slice(&number[..word.len()]);
        }
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

/// A raw disk of which every second run has data that cannot be packed; no two runs have the same.
pub fn half_full(path: &Path, disk_bytes: u64) -> Result<(), String> {
    let file = File::create(path).map_err(failed(path))?;
    file.set_len(disk_bytes).map_err(failed(path))?;
    let mut run = vec![0; RUN_BYTES as usize];
    Noise(1).fill(&mut run);
    for at in (0..disk_bytes).step_by(2 * RUN_BYTES as usize) {
        // Making noise takes longer than writing it.
        for page in run.chunks_mut(4096) {
            page.rotate_left(8);
        }
        run.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
        file.write_all_at(&run, at).map_err(failed(path))?;
    }
    file.sync_all().map_err(failed(path))
}

/// Lines of words, as a log has them.
pub fn text(path: &Path, len: u64) -> Result<(), String> {
    const WORDS: [&str; 16] = [
        "connection",
        "from",
        "the",
        "disk",
        "request",
        "of",
        "kernel:",
        "error",
        "at",
        "sector",
        "write",
        "read",
        "service",
        "started",
        "user",
        "session",
    ];
    let mut noise = Noise(2);
    fill(path, len, |piece| {
        let mut text = Vec::with_capacity(piece.len() + 64);
        while text.len() < piece.len() {
            let number = noise.next();
            let word = WORDS[(number % 16) as usize];
            match number >> 4 & 7 {
                0 => text.extend(format!("{word} {}\n", number >> 48).bytes()),
                _ => text.extend(format!("{word} ").bytes()),
            }
        }
        piece.copy_from_slice(&text[..piece.len()]);
    })
}

/// Records of numbers, most of them small, as programs and tables of databases have them.
pub fn binary(path: &Path, len: u64) -> Result<(), String> {
    let mut noise = Noise(3);
    fill(path, len, |piece| {
        for (at, record) in piece.chunks_mut(16).enumerate() {
            let number = noise.next();
            let fields = [at as u32, (number % 1000) as u32, (number >> 32) as u32 & 0xff, 0x4000_0000];
            let bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
            record.copy_from_slice(&bytes[..record.len()]);
        }
    })
}

fn fill(path: &Path, len: u64, mut piece: impl FnMut(&mut [u8])) -> Result<(), String> {
    let mut file = BufWriter::new(File::create(path).map_err(failed(path))?);
    let mut bytes = vec![0; MIB as usize];
    for _ in 0..len / MIB {
        piece(&mut bytes);
        file.write_all(&bytes).map_err(failed(path))?;
    }
    let file = file.into_inner().map_err(|error| failed(path)(error.into_error()))?;
    file.sync_all().map_err(failed(path))
}

/// An image with all metadata, whose data is holes.
pub fn allocated(bench: &Bench, name: &str, disk_bytes: u64) -> Result<PathBuf, String> {
    bench.create(name, Shape::allocated(disk_bytes, CLUSTER_BYTES), None)
}

/// An image with a cluster of data in each of many parts of the disk, from `first` on.
pub fn spread(bench: &Bench, name: &str, disk_bytes: u64, first: u64) -> Result<PathBuf, String> {
    let shape = Shape { disk_bytes, cluster_bytes: CLUSTER_BYTES, extended: false, allocated: false };
    let path = bench.create(name, shape, None)?;
    write_spread(&path, disk_bytes, first)?;
    Ok(path)
}

/// The same over `base`, with data in other places.
pub fn spread_over(bench: &Bench, top: &str, base: &Path, disk_bytes: u64) -> Result<PathBuf, String> {
    let path = bench.path(top);
    qemu_img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &name(base), &name(&path)])?;
    write_spread(&path, disk_bytes, CLUSTER_BYTES)?;
    Ok(path)
}

fn write_spread(path: &Path, disk_bytes: u64, first: u64) -> Result<(), String> {
    let step = disk_bytes / SPREAD;
    let commands: Vec<String> =
        (0..SPREAD).map(|at| format!("write -q -P {} {} 64k", at % 255 + 1, first + at * step)).collect();
    // A command line has room for so many.
    for some in commands.chunks(512) {
        let mut command = Command::new("qemu-io");
        command.args(["-t", "unsafe", "-f", "qcow2"]).args(some.iter().flat_map(|text| ["-c", text]));
        process::run(command.arg(path))?;
    }
    Ok(())
}

/// A copy that is on disk.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    crate::bench::image::remove(to)?;
    process::run(Command::new("cp").args(["--sparse=always"]).arg(from).arg(to))?;
    File::open(to).and_then(|file| file.sync_all()).map_err(failed(to))
}

/// Has the file's pages leave the page cache.
pub fn drop_pages(path: &Path) -> Result<(), String> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed(path))?;
    file.sync_all().map_err(failed(path))?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| failed(path)(error.into()))
}

/// Has what the file holds in the page cache, as far as it has room.
pub fn read_pages(path: &Path) -> Result<(), String> {
    let mut file = File::open(path).map_err(failed(path))?;
    let (mut piece, mut at, end) = (vec![0; MIB as usize], 0, file.metadata().map_err(failed(path))?.len());
    while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap_or(end);
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(data))
            .map_err(|error| failed(path)(error.into()))?;
        let mut left = hole - data;
        while left > 0 {
            let wanted = left.min(MIB) as usize;
            match file.read(&mut piece[..wanted]).map_err(failed(path))? {
                0 => return Ok(()),
                count => left -= count as u64,
            }
        }
        at = hole;
    }
    Ok(())
}
