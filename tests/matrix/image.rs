//! An image of a given shape, made by QEMU alone.

use std::fs::File;
use std::os::unix::fs::FileExt;

use black_box::peer::{converted, qemu_img, qemu_io_ok};
use black_box::{Random, Scratch};

use super::shape::{Backing, Compression, Data, Shape};

/// Name of the snapshot, where there is one.
pub const SNAPSHOT: &str = "before";

/// Name of the bitmap, where there is one.
pub const BITMAP: &str = "changes";

/// The name of the file that holds bytes to be written.
const BYTES: &str = "bytes.bin";

/// An image in its directory.
#[derive(Debug)]
pub struct Image {
    pub scratch: Scratch,
    pub shape: Shape,
    /// The disk when the snapshot was taken.
    pub snapshot: Option<Vec<u8>>,
}

impl Image {
    /// Makes it.
    pub fn new(shape: Shape, random: &mut Random) -> Self {
        let scratch = Scratch::new();
        make_bytes(&scratch, random);
        make_backing(&scratch, shape, random);
        make_top(&scratch, shape);
        let mut image = Self { scratch, shape, snapshot: None };
        if shape.bitmap {
            qemu_img(["bitmap", "--add", &image.path(), BITMAP]).ok();
        }
        image.write_first(random);
        if shape.snapshot {
            image.snapshot = Some(image.converted());
            qemu_img(["snapshot", "-c", SNAPSHOT, &image.path()]).ok();
        }
        let commands = commands(random, shape.disk_bytes(), 12);
        image.qemu_io(&commands);
        image
    }

    /// Where it is.
    pub fn path(&self) -> String {
        self.scratch.name("disk.qcow2")
    }

    /// The disk as QEMU reads it.
    pub fn converted(&self) -> Vec<u8> {
        converted(&self.path(), "qcow2", &[], &self.scratch.file("converted.raw"))
    }

    /// The snapshot as QEMU reads it.
    pub fn converted_snapshot(&self) -> Vec<u8> {
        converted(&self.path(), "qcow2", &["-l", SNAPSHOT], &self.scratch.file("converted.raw"))
    }

    /// Every file of the image, byte for byte.
    pub fn files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let names = ["disk.qcow2", "data.bin", "base.raw", "base.qcow2", "middle.qcow2", "upper.qcow2"];
        let read = |name| Some((name, std::fs::read(self.scratch.file(name)).ok()?));
        names.into_iter().filter_map(read).collect()
    }

    fn qemu_io(&self, commands: &[String]) {
        let bytes = self.scratch.name(BYTES);
        let commands: Vec<String> = commands.iter().map(|line| line.replace(BYTES, &bytes)).collect();
        qemu_io_ok(&["-f", "qcow2", "-d", "unmap"], &self.path(), &commands);
    }

    /// Compressed clusters go first: nothing may be where they come to lie.
    fn write_first(&self, random: &mut Random) {
        let Shape { cluster_bytes, compression, .. } = self.shape;
        let clusters = self.shape.disk_bytes() / cluster_bytes;
        let mut lines = Vec::new();
        if compression != Compression::Plain {
            let mut at = 0;
            while at < clusters {
                let run = random.between(1, 3).min(clusters - at);
                let (offset, len) = (at * cluster_bytes, run * cluster_bytes);
                lines.push(match random.below(3) {
                    0 => format!("write -c -s {BYTES} {offset} {len}"),
                    _ => format!("write -c -P {} {offset} {len}", random.between(1, 255)),
                });
                at += run + random.below(clusters / 6 + 2);
            }
        }
        lines.extend(commands(random, self.shape.disk_bytes(), 12));
        self.qemu_io(&lines);
    }
}

/// Content that is partly compressible.
fn make_bytes(scratch: &Scratch, random: &mut Random) {
    let mut bytes = random.bytes(8 << 20);
    for page in bytes.chunks_mut(4096) {
        let flat = usize::try_from(random.below(4097)).expect("small");
        page[..flat.min(4096)].fill(0x55);
    }
    scratch.write(BYTES, &bytes);
}

fn make_top(scratch: &Scratch, shape: Shape) {
    let options = shape.options(&scratch.name("data.bin"));
    let mut create = qemu_img(["create", "-q", "-f", "qcow2", "-o", &options]);
    if let Some((name, format)) = backing(shape) {
        create = create.args(["-b", name, "-F", format]);
    }
    // Relative names are resolved against the image's directory, wherever we are.
    create.arg("disk.qcow2").arg(shape.disk_bytes().to_string()).current_dir(scratch.path()).ok();
    debug_assert!(shape.data == Data::Inside || scratch.file("data.bin").exists());
}

fn backing(shape: Shape) -> Option<(&'static str, &'static str)> {
    match shape.backing {
        Backing::None => None,
        Backing::Qcow2 => Some(("base.qcow2", "qcow2")),
        Backing::Raw => Some(("base.raw", "raw")),
        Backing::Deep => Some(("upper.qcow2", "qcow2")),
    }
}

fn make_backing(scratch: &Scratch, shape: Shape, random: &mut Random) {
    let bytes = shape.disk_bytes();
    let (longer, shorter, short) =
        (bytes + (1 << 20), bytes - bytes / 3 - bytes % 1024, bytes / 2 - bytes % 512);
    match shape.backing {
        Backing::None => {}
        Backing::Qcow2 => overlay(scratch, "base.qcow2", None, longer, random),
        Backing::Raw => raw(scratch, shorter, random),
        Backing::Deep => {
            raw(scratch, short, random);
            overlay(scratch, "middle.qcow2", Some(("base.raw", "raw")), longer, random);
            overlay(scratch, "upper.qcow2", Some(("middle.qcow2", "qcow2")), shorter, random);
        }
    }
}

/// A raw file with holes.
fn raw(scratch: &Scratch, bytes: u64, random: &mut Random) {
    let file = File::create(scratch.file("base.raw")).expect("cannot create a raw image");
    file.set_len(bytes).expect("cannot set a length");
    let mut at = random.below(64 << 10);
    while at < bytes {
        let len = random.between(1, 96 << 10).min(bytes - at);
        let content = random.bytes(usize::try_from(len).expect("small"));
        file.write_all_at(&content, at).expect("cannot write a raw image");
        at += len + random.below(256 << 10);
    }
}

fn overlay(scratch: &Scratch, name: &str, below: Option<(&str, &str)>, bytes: u64, random: &mut Random) {
    let mut create = qemu_img(["create", "-q", "-f", "qcow2", "-o", "cluster_size=16k"]);
    if let Some((name, format)) = below {
        create = create.args(["-b", name, "-F", format]);
    }
    create.arg(name).arg(bytes.next_multiple_of(512).to_string()).current_dir(scratch.path()).ok();
    let path = scratch.name(BYTES);
    let lines: Vec<String> =
        commands(random, bytes, 10).iter().map(|line| line.replace(BYTES, &path)).collect();
    qemu_io_ok(&["-f", "qcow2", "-d", "unmap"], &scratch.name(name), &lines);
}

/// Lines for qemu-io that write, zero and discard here and there.
fn commands(random: &mut Random, disk_bytes: u64, count: usize) -> Vec<String> {
    let sectors = disk_bytes / 512;
    let mut line = || {
        let offset = random.below(sectors);
        let longest = if random.one_in(4) { sectors / 4 } else { 256 };
        let len = random.between(1, longest).min(sectors - offset) * 512;
        let offset = offset * 512;
        match random.below(8) {
            0..=2 => format!("write -P {} {offset} {len}", random.between(1, 255)),
            3..=4 => format!("write -s {BYTES} {offset} {len}"),
            5 => format!("write -z {offset} {len}"),
            6 => format!("write -z -u {offset} {len}"),
            _ => format!("discard {offset} {len}"),
        }
    };
    (0..count).map(|_| line()).collect()
}
