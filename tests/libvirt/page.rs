//! The walk of docs/guide/libvirt.md as it is written, with the files of the page, in the daemon's mount namespace.
//!
//! The page said that no test ran its commands, and its XML was compared with nothing.

use std::fs;
use std::path::PathBuf;

use black_box::Client;

use super::daemon::Libvirt;
use crate::serve::pages::{Shell, page, session};

/// A machine's first program, which the BIOS loads from the disk's first sector: it writes itself to the second one and rests.
const BOOT: [u8; 20] = [
    0x31, 0xc0, 0x8e, 0xc0, // es = 0
    0xb8, 0x01, 0x03, // write one sector
    0xbb, 0x00, 0x7c, // from where the BIOS has loaded this one
    0xb9, 0x02, 0x00, 0xb6, 0x00, // to sector 2 of the first track
    0xcd, 0x13, 0xf4, 0xeb, 0xfd,
];

const SECTOR: usize = 512;

/// Files that the page has: the name before each block, and the block.
fn files(text: &str) -> Vec<(&str, &str)> {
    let mut parts = text.split("\n```");
    let mut before = parts.next().expect("a text");
    let mut files = Vec::new();
    while let (Some(block), after) = (parts.next(), parts.next()) {
        let (language, content) = block.split_once('\n').expect("a block");
        if language != "console" {
            files.push((before.rsplit('`').nth(1).expect("a name before the block"), content));
        }
        before = after.unwrap_or_default();
    }
    files
}

#[test]
fn the_walk_through_libvirt_runs_as_it_is_written() {
    let libvirt = Libvirt::start();
    let walked = libvirt.scratch();
    let of_machine = |path: &str| PathBuf::from(format!("/proc/{}/root{path}", libvirt.pid()));
    let text = page("libvirt");
    for (name, content) in files(text) {
        let place = if name.starts_with('/') { of_machine(name) } else { walked.file(name) };
        fs::write(&place, format!("{content}\n")).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let (target, directory) = (libvirt.pid().to_string(), format!("--wd={}", walked.path().display()));
    let enter = ["nsenter", "--target", &target, "--mount", &directory];
    let mut shell = Shell::start(walked, &enter, &[("LIBVIRT_DEFAULT_URI", libvirt.uri())]);
    let disk = || Client::connect(&of_machine("/run/cowhand/vm1.sock"), "vm1");
    let mut sector = BOOT.to_vec();
    sector.resize(SECTOR - 2, 0);
    sector.extend([0x55, 0xaa]);
    let mut starts = 0;
    for (number, line) in session(text).into_iter().enumerate() {
        shell.runs(line, &walked.file(&format!("line-{number}")));
        if line.ends_with('&') {
            shell.waits(line, || disk().is_ok() && of_machine("/run/cowhand-vm1/vhost").exists());
            disk().expect("it serves").write(0, &sector).expect("a boot sector");
        }
        if line == "virsh start vm1" {
            let mut disk = disk().expect("it serves");
            shell.waits(line, || disk.read(SECTOR as u64, SECTOR as u32).expect("a read") == sector);
            disk.write(SECTOR as u64, &[0; SECTOR]).expect("a write");
            starts += 1;
        }
    }
    shell.finish();
    assert_eq!(starts, 2, "over vhost-user-blk, and over NBD");
}
