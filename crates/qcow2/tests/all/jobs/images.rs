//! The images: a chain of three with data of each, a target full of stale data, an empty file for an overlay.

use std::path::Path;
use std::sync::OnceLock;

use sim::{CLIENT_DISK, Content, fill};

use crate::harness::qemu::{load, must, scratch};

/// Bytes of the disk.
pub const SIZE: u64 = 192 << 10;
/// Bytes of a cluster of each image.
pub const CLUSTER: u64 = 4096;

/// Numbers of the disks of the simulated machine.
pub const TOP: usize = 0;
pub const MIDDLE: usize = 1;
pub const BASE: usize = 2;
pub const COPY: usize = 3;
pub const OVERLAY: usize = 4;

/// Files of the images, by number.
pub const FILES: [&str; 5] = ["top.qcow2", "middle.qcow2", "base.qcow2", "copy.qcow2", "overlay.qcow2"];

/// Which data lies where at the start: bytes of a run, one in every so many runs of 8 KiB. The lower layers first.
const LAYERS: [(usize, u64, u64); 3] = [(BASE, 6000, 2), (MIDDLE, 4096, 3), (TOP, 3000, 5)];
const RUN: u64 = 8192;

/// The images as they are at the start.
pub struct Images {
    pub disks: Vec<Content>,
    /// Which layer has which range, in the order of versions: later ones lie over earlier ones.
    pub preloads: Vec<(usize, u64, u64)>,
}

/// The number of the file called `name`.
pub fn number(name: &str) -> Option<usize> {
    FILES.iter().position(|file| *file == name)
}

/// What a guest of the image `disk` finds at the start.
pub fn at_the_start(disk: usize) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    for (version, &(layer, offset, len)) in (1u64..).zip(&images().preloads) {
        if layer >= disk {
            let range = offset as usize..(offset + len) as usize;
            bytes[range].copy_from_slice(&fill(CLIENT_DISK, version, offset, len as usize));
        }
    }
    bytes
}

/// Made once by QEMU's tools.
pub fn images() -> &'static Images {
    static MADE: OnceLock<Images> = OnceLock::new();
    MADE.get_or_init(make)
}

fn make() -> Images {
    let scratch = scratch();
    let directory = scratch.path();
    let size = SIZE.to_string();
    let mut preloads = Vec::new();
    let mut below: Option<&str> = None;
    for (layer, len, every) in LAYERS {
        let mut options = "cluster_size=4k".to_owned();
        if let Some(below) = below {
            options += &format!(",backing_file={below},backing_fmt=qcow2");
        }
        must("qemu-img", directory, &["create", "-q", "-f", "qcow2", "-o", &options, FILES[layer], &size]);
        let runs = (0..SIZE / RUN).filter(|run| run % every == 0);
        let ranges: Vec<_> = runs.map(|run| (layer, run * RUN, len)).collect();
        write(directory, preloads.len() as u64, &ranges);
        preloads.extend(ranges);
        below = Some(FILES[layer]);
    }
    for image in [TOP, BASE] {
        must("qemu-img", directory, &["bitmap", "--add", "-g", "4096", FILES[image], "changes"]);
    }
    must(
        "qemu-img",
        directory,
        &["create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", FILES[COPY], &size],
    );
    must("qemu-io", directory, &["-f", "qcow2", "-c", &format!("write -P 153 0 {SIZE}"), FILES[COPY]]);
    let mut disks: Vec<_> = FILES[..OVERLAY].iter().map(|name| load(&directory.join(name))).collect();
    disks.push(Content::zeroed(0));
    Images { disks, preloads }
}

/// Lets qemu-io write the ranges of one layer, with the versions behind `before`.
fn write(directory: &Path, before: u64, ranges: &[(usize, u64, u64)]) {
    let mut args = vec!["-f".to_owned(), "qcow2".to_owned()];
    for (version, &(_, offset, len)) in (before + 1..).zip(ranges) {
        let pattern = format!("pattern{version}");
        std::fs::write(directory.join(&pattern), fill(CLIENT_DISK, version, offset, len as usize))
            .expect("space");
        args.extend(["-c".to_owned(), format!("write -s {pattern} {offset} {len}")]);
    }
    args.push(FILES[ranges[0].0].to_owned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    must("qemu-io", directory, &args);
}
