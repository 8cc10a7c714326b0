//! Images to start from, made by QEMU's tools, once for each configuration.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use sim::{CLIENT_DISK, Content, fill};

use super::config::{Below, CHAIN_FILES, Config, DataIn};
use super::judge::{self, Frozen};
use super::qemu::{Image, SECRET, load, must, scratch};

/// The disks of a configuration as they are at the start.
#[derive(Debug)]
pub struct Base {
    /// Image, then its data file or what lies below it.
    pub disks: Vec<(&'static str, Content)>,
    /// Guest ranges that hold stamped data, in the order of their versions.
    pub preloads: Vec<(u64, u64)>,
    /// Bytes of the image file that belong to snapshots.
    pub frozen: Vec<Frozen>,
}

/// Makes the images of `config`, or gives those made before.
pub fn base(config: &Config) -> Arc<Base> {
    static MADE: OnceLock<Mutex<HashMap<&'static str, Arc<Base>>>> = OnceLock::new();
    let mut made = MADE.get_or_init(Mutex::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    Arc::clone(made.entry(config.name).or_insert_with(|| Arc::new(make(config))))
}

fn make(config: &Config) -> Base {
    let scratch = scratch();
    let directory = scratch.path();
    let mut preloads = make_below(config, directory);
    let mut create = config.create.to_owned();
    match config.data_in {
        DataIn::Image => {}
        DataIn::File => create += ",data_file=data.raw",
        DataIn::RawFile => create += ",data_file=data.raw,data_file_raw=on",
    }
    match config.below {
        Below::Nothing => {}
        Below::Raw(_) => create += ",backing_file=below.raw,backing_fmt=raw",
        Below::Qcow2(_) => create += ",backing_file=below.qcow2,backing_fmt=qcow2",
        Below::Chain(_) => create += &format!(",backing_file={},backing_fmt=qcow2", CHAIN_FILES[0].0),
    }
    if config.encrypted {
        create += ",encrypt.format=luks,encrypt.key-secret=sec0,encrypt.iter-time=1";
    }
    let image = Image { name: "image.qcow2", encrypted: config.encrypted };
    let size = config.size.to_string();
    must(
        "qemu-img",
        directory,
        &["create", "-q", SECRET[0], SECRET[1], "-f", "qcow2", "-o", &create, image.name, &size],
    );
    for &(offset, len) in config.own {
        preloads.push((offset, len));
        write(directory, image, preloads.len() as u64, (offset, len), config.compressed);
    }
    for snapshot in 0..config.snapshots {
        must("qemu-img", directory, &["snapshot", "-c", &snapshot.to_string(), image.name]);
    }
    if config.bitmap {
        must("qemu-img", directory, &["bitmap", "--add", "image.qcow2", "persistent"]);
    }
    let mut disks = vec![("image.qcow2", load(&directory.join("image.qcow2")))];
    if config.data_in != DataIn::Image {
        disks.push(("data.raw", load(&directory.join("data.raw"))));
    }
    match config.below {
        Below::Nothing => {}
        Below::Raw(_) => disks.push(("below.raw", load(&directory.join("below.raw")))),
        Below::Qcow2(_) => disks.push(("below.qcow2", load(&directory.join("below.qcow2")))),
        Below::Chain(_) => {
            disks.extend(CHAIN_FILES.iter().map(|(name, _)| (*name, load(&directory.join(name)))));
        }
    }
    if let Some(more) = config.device {
        let image = &mut disks[0].1;
        let end = image.length();
        image.grow(end + more);
        image.fill(end, more, 0xdb);
        image.settle();
    }
    let frozen = judge::frozen(&disks[0].1);
    Base { disks, preloads, frozen }
}

/// What lies below has data at its start and up to its very end.
fn make_below(config: &Config, directory: &Path) -> Vec<(u64, u64)> {
    let (name, format, size) = match config.below {
        Below::Nothing => return Vec::new(),
        Below::Raw(size) => ("below.raw", "raw", size),
        Below::Qcow2(size) => ("below.qcow2", "qcow2", size),
        Below::Chain(size) => return make_chain(size, directory),
    };
    let text = size.to_string();
    must("qemu-img", directory, &["create", "-q", "-f", format, name, &text]);
    let covered =
        |range: (u64, u64)| config.own.iter().any(|own| range.0 < own.0 + own.1 && own.0 < range.0 + range.1);
    let wanted = [(0, 2048), (30_000, 40_000), (size - 10_000, 10_000)];
    let ranges: Vec<(u64, u64)> = wanted.into_iter().filter(|range| !covered(*range)).collect();
    for (index, range) in ranges.iter().enumerate() {
        if format == "raw" {
            // qemu-io rounds the length of a raw file up; the odd end is what this is about.
            let bytes = fill(CLIENT_DISK, index as u64 + 1, range.0, range.1 as usize);
            let file =
                std::fs::OpenOptions::new().write(true).open(directory.join(name)).expect("made above");
            file.set_len(size).expect("space in the scratch directory");
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, range.0).expect("space");
        } else {
            write(directory, Image { name, encrypted: false }, index as u64 + 1, *range, false);
        }
    }
    ranges
}

/// Each layer has data of its own that no layer above hides.
fn make_chain(size: u64, directory: &Path) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut below: Option<&str> = None;
    for (index, (name, made)) in CHAIN_FILES.iter().enumerate().rev() {
        let range = (200_000 + 90_000 * index as u64, 40_000);
        ranges.push(range);
        let version = ranges.len() as u64;
        match (made, below) {
            (Some((options, longer)), Some(below)) => {
                let format = if below.ends_with("raw") { "raw" } else { "qcow2" };
                let options = format!("{options},backing_file={below},backing_fmt={format}");
                let text = (size + longer).to_string();
                must("qemu-img", directory, &["create", "-q", "-f", "qcow2", "-o", &options, name, &text]);
                write(directory, Image { name, encrypted: false }, version, range, false);
            }
            (_, _) => {
                let bytes = fill(CLIENT_DISK, version, range.0, range.1 as usize);
                let file = std::fs::File::create(directory.join(name)).expect("the scratch directory");
                file.set_len(size).expect("space in the scratch directory");
                std::os::unix::fs::FileExt::write_all_at(&file, &bytes, range.0).expect("space");
            }
        }
        below = Some(name);
    }
    ranges
}

/// Lets qemu-io write the bytes of `version` to a range.
fn write(directory: &Path, image: Image, version: u64, (offset, len): (u64, u64), compressed: bool) {
    let pattern = directory.join("pattern");
    std::fs::write(&pattern, fill(CLIENT_DISK, version, offset, len as usize)).expect("space");
    let flags = if compressed { "-c " } else { "" };
    let command = format!("write {flags}-s pattern {offset} {len}");
    let image = image.arguments();
    let image: Vec<&str> = image.iter().map(String::as_str).collect();
    must("qemu-io", directory, &[&["-c", &command], &image[..]].concat());
}
