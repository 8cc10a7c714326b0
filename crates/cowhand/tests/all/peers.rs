//! QEMU reads what was written here, and the reverse.

use std::path::Path;
use std::process::Command;

use cowhand::{Disk, OpenOptions, ResizeOptions};

use crate::scratch::{SIZE_BYTES, Scratch};

/// What it says, now and then, when it makes a key: the kernel's count of CPU time went back. It is to try again.
const NO_CPU_TIME: &str = "Unable to get accurate CPU usage";

pub fn qemu_img(arguments: &[&str]) -> String {
    let output = Command::new("qemu-img").args(arguments).output().expect("qemu-img is installed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains(NO_CPU_TIME) {
        return qemu_img(arguments);
    }
    assert!(output.status.success(), "qemu-img {arguments:?}: {text}{error}");
    text
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn qemu_reads_every_byte_that_was_written_and_finds_nothing_wrong() {
    let scratch = Scratch::new();
    let disk = scratch.options().discard(true).open().wait().unwrap();
    let mut expected = vec![0; SIZE_BYTES as usize * 2];
    for number in 0..200u64 {
        let (offset, len) = (number * 257 * 1021, 1000 + number as usize * 13);
        expected[offset as usize..offset as usize + len].fill(number as u8);
        disk.write(offset, vec![number as u8; len]).wait().unwrap();
    }
    disk.create_snapshot("one").wait().unwrap();
    disk.resize(SIZE_BYTES * 2, ResizeOptions::default()).wait().unwrap();
    disk.write(SIZE_BYTES * 2 - 512, vec![0xaa; 512]).wait().unwrap();
    let end = expected.len();
    expected[end - 512..].fill(0xaa);
    disk.discard(65536, 65536).wait().unwrap();
    expected[65536..131_072].fill(0);
    disk.close().wait().unwrap();
    let (path, raw) = (scratch.path(), scratch.file("read.raw"));
    assert!(qemu_img(&["check", text(&path)]).contains("No errors were found"));
    assert!(qemu_img(&["snapshot", "-l", text(&path)]).contains("one"));
    qemu_img(&["convert", "-O", "raw", text(&path), text(&raw)]);
    assert!(std::fs::read(&raw).unwrap() == expected);
}

#[test]
fn what_qemu_writes_is_read_here() {
    let scratch = Scratch::new();
    let (raw, path) = (scratch.file("source.raw"), scratch.file("qemu.qcow2"));
    let bytes: Vec<u8> = (0..1u32 << 20).map(|index| (index / 999) as u8).collect();
    std::fs::write(&raw, &bytes).unwrap();
    qemu_img(&["convert", "-c", "-f", "raw", "-O", "qcow2", text(&raw), text(&path)]);
    let disk = OpenOptions::new(&path).read_only(true).open().wait().unwrap();
    assert_eq!(disk.read(0, vec![0; bytes.len()]).wait().unwrap().into_vec(), bytes);
    assert!(disk.extents(0, 65536).wait().unwrap()[0].compressed);
    disk.close().wait().unwrap();
}

#[test]
fn qemu_refuses_an_image_that_is_open_here() {
    let scratch = Scratch::new();
    let disk = Disk::open(scratch.path()).wait().unwrap();
    let output = Command::new("qemu-img").args(["check", text(&scratch.path())]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("lock"));
    disk.close().wait().unwrap();
    qemu_img(&["check", text(&scratch.path())]);
}
