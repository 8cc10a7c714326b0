//! A file system fills up while a tool works.

use std::path::Path;

use black_box::media::Mounted;

use super::{Images, TOOLS, cowhand};

/// The file system's size: more than any tool needs.
const ROOM: u64 = 96 << 20;

/// What is left of it when a tool begins, in KiB.
const LEFT_KIB: [u64; 3] = [0, 300, 1500];

#[test]
fn a_full_tmpfs_in_the_middle_leaves_the_disk_whole_and_with_room_the_tool_works() {
    let Some(files) = Mounted::tmpfs(ROOM) else { return };
    fill_up(&files, &LEFT_KIB);
}

#[test]
fn a_full_ext4_in_the_middle_leaves_the_disk_whole_and_with_room_the_tool_works() {
    let Some(files) = Mounted::ext4(ROOM, 512) else { return };
    fill_up(&files, &LEFT_KIB[..1]);
}

fn fill_up(files: &Mounted, left_kib: &[u64]) {
    let images = Images::new();
    let directory = files.file("");
    for tool in TOOLS {
        let mut failed = 0;
        for left in left_kib {
            let what = format!("{:?}, with {left} KiB left", tool.words);
            images.copy_into(&directory);
            take_all_but(&directory, left << 10);
            let outcome = cowhand(tool.words, &directory);
            if !outcome.status.success() {
                failed += 1;
                let said = &outcome.stderr;
                assert!(said.contains("o space left") || said.contains("room"), "{what}: {outcome}");
            }
            std::fs::remove_file(directory.join("filler")).expect("our file");
            images.assert_whole(&directory, &what);
            if !outcome.status.success() {
                images.assert_works(&directory, tool, &what);
            }
        }
        // A compaction needs room for what it moves only, and finds it in the image.
        assert!(failed > 0 || tool.name == "compact", "{tool:?} always had room");
    }
}

/// Leaves so many bytes of the file system, or a little more: it takes some for the file itself.
fn take_all_but(directory: &Path, left: u64) {
    let file = std::fs::File::create(directory.join("filler")).expect("a file");
    let found = rustix::fs::statvfs(directory).expect("a file system");
    let mut taken = (found.f_bavail * found.f_frsize).saturating_sub(left).max(1);
    while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, taken).is_err() {
        taken -= found.f_frsize;
    }
}
