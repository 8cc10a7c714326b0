//! The file's size, and who may change it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use black_box::Run;
use black_box::bytes::are_all;
use rustix::io::Errno;
use serde_json::json;

use super::{Place, SIZE, pattern};

fn errno(result: std::io::Result<()>) -> Result<(), Option<i32>> {
    result.map_err(|error| error.raw_os_error())
}

fn open(place: &Place) -> File {
    OpenOptions::new().read(true).write(true).open(&place.file).expect("the disk")
}

/// Programs open what they overwrite with O_TRUNC: QEMU 11.0 refused them, a file's meaning would throw the disk away.
#[test]
fn a_disk_of_fixed_size_keeps_it() {
    let place = Place::new();
    let server = place.serve("", &[]);
    open(&place).write_all_at(&pattern(1, 4096), SIZE - 4096).expect("a write");
    // O_TRUNC, as dd and cp do it.
    let file = File::create(&place.file).expect("the disk");
    assert_eq!(file.metadata().expect("the disk").len(), SIZE);
    let mut last = vec![0; 4096];
    open(&place).read_exact_at(&mut last, SIZE - 4096).expect("a read");
    assert!(last == pattern(1, 4096), "nothing was cut off");

    let refused = |errno: Errno| Err(Some(errno.raw_os_error()));
    assert_eq!(errno(file.set_len(SIZE / 2)), refused(Errno::PERM));
    assert_eq!(errno(file.set_len(SIZE * 2)), refused(Errno::PERM));
    assert_eq!(errno(file.set_len(SIZE)), Ok(()));
    assert_eq!(errno(file.write_all_at(&[1], SIZE)), refused(Errno::NOSPC));
    // What finds a place is written, as on a block device.
    assert_eq!(file.write_at(&[5; 8192], SIZE - 4096).expect("a part"), 4096);
    let grown = Run::new("fallocate").args(["--length", "128MiB"]).arg(&place.file).fails();
    assert!(grown.contains("No space left") || grown.contains("not supported"), "{grown}");
    assert_eq!(open(&place).read_at(&mut last, SIZE).expect("the end"), 0);
    server.stop();
}

#[test]
fn a_growable_disk_grows_with_what_is_written_behind_its_end() {
    let place = Place::new();
    place.mount(&["--growable"]);
    let file = open(&place);
    file.write_all_at(&pattern(2, 10_000), SIZE + 1_000_000).expect("a write behind the end");
    let size = file.metadata().expect("the disk").len();
    assert_eq!(size, (SIZE + 1_010_000).next_multiple_of(512));
    Run::new("fallocate")
        .args(["--offset"])
        .arg(size.to_string())
        .args(["--length", "1MiB"])
        .arg(&place.file)
        .ok();
    assert_eq!(file.metadata().expect("the disk").len(), size + (1 << 20));
    file.set_len(SIZE / 2).expect("a shorter disk");
    file.set_len(SIZE).expect("a longer disk");
    file.write_all_at(&pattern(3, 100), SIZE / 2).expect("a write");
    drop(file);
    place.unmount();
    let content = place.content();
    assert_eq!(content.len() as u64, SIZE);
    let middle = content.len() / 2;
    assert!(content[middle..middle + 100] == pattern(3, 100));
    assert!(are_all(&content[middle + 100..], 0), "what was cut off is gone");
}

#[test]
fn a_size_that_is_changed_elsewhere_is_seen_and_a_snapshot_is_taken_under_programs() {
    let place = Place::new();
    let qmp = place.scratch.name("qmp.sock");
    let server = place.serve("", &["--qmp", &qmp]);
    let mut commands = black_box::qmp::Qmp::connect(qmp.as_ref());
    let file = open(&place);
    let before = pattern(4, 1 << 20);
    file.write_all_at(&before, 0).expect("a write");
    commands.ok("blockdev-snapshot-internal-sync", json!({ "device": "disk", "name": "s" }));
    file.write_all_at(&pattern(5, 1 << 20), 0).expect("a write");
    commands.ok("block_resize", json!({ "node-name": "disk", "size": SIZE * 2 }));
    assert_eq!(file.metadata().expect("the disk").len(), SIZE * 2);
    file.write_all_at(&before, SIZE * 2 - (1 << 20)).expect("a write at the new end");
    drop(file);
    server.stop();
    assert!(place.content()[(SIZE * 2 - (1 << 20)) as usize..] == before);
    let old = place.scratch.name("old.raw");
    black_box::peer::qemu_img(["convert", "-l", "s", "-f", "qcow2", "-O", "raw", &place.disk, &old]).ok();
    assert!(std::fs::read(&old).expect("a copy")[..1 << 20] == before);
}
