//! Each medium does things in its own way: btrfs takes O_DIRECT requests that it then sends through the page cache, tmpfs cannot zero a range, a
//! device with sectors of 4096 bytes takes nothing smaller, XFS demands more of a file that shares bytes with another. What a disk holds must not
//! depend on any of that: here the same is done on each of them, in every cache mode, and QEMU reads what we wrote and the reverse.

mod answers;
mod devices;
mod disk;

use black_box::Scratch;
use black_box::bytes::are_all;
use black_box::media::{LoopDevice, Mounted};
use black_box::peer::qemu_img;

use disk::{CACHE_MODES, Disk, Format, is_direct, takes_direct};

/// Bytes of a file system: the least that XFS is made with. It is sparse.
const FILE_SYSTEM: u64 = 320 << 20;
/// Bytes of a device.
const DEVICE: u64 = 48 << 20;

/// What is made: each in the first two cache modes, one through the page cache and one beside it; the first and the last in all.
const IMAGES: [(Format, &str); 4] = [
    (Format::Qcow2, "cluster_size=64k"),
    // The header's sector holds tables too, and clusters are smaller than blocks of the device.
    (Format::Qcow2, "cluster_size=512,refcount_bits=64"),
    (Format::Qcow2, "cluster_size=16k,extended_l2=on"),
    (Format::Raw, ""),
];

/// A disk at `path` in every cache mode, in images of both formats, of our making and of QEMU's.
fn in_every_cache_mode(path: &str, qemu_goes_direct: bool, each: impl Fn(&Disk, bool)) {
    for (number, mode) in CACHE_MODES.into_iter().enumerate() {
        let aio = if number % 2 == 0 { "io_uring" } else { "threads" };
        let qemus_mode = if qemu_goes_direct { mode } else { "writeback" };
        for (kind, (format, options)) in IMAGES.into_iter().enumerate() {
            if number < 2 || [0, IMAGES.len() - 1].contains(&kind) {
                each(
                    &Disk { path: path.to_owned(), format, options, mode, aio, qemus_mode },
                    number % 2 == 0,
                );
            }
        }
    }
}

fn every_file_works_in_every_cache_mode(files: &Mounted) {
    in_every_cache_mode(&files.name("disk"), true, |disk, ours| {
        if is_direct(disk.mode) && !takes_direct(&files.file("probe")) {
            return disk.is_refused_in_words();
        }
        disk.create(ours);
        disk.lives_through_a_kill_and_is_what_qemu_reads();
        disk.is_read_as_qemu_wrote_it();
        std::fs::remove_file(&disk.path).expect("our image");
    });
}

/// The same on the device itself.
fn every_device_works_in_every_cache_mode(device: &LoopDevice, qemu_goes_direct: bool) {
    in_every_cache_mode(device.path(), qemu_goes_direct, |disk, ours| {
        disk.create(ours);
        disk.lives_through_a_kill_and_is_what_qemu_reads();
        disk.is_read_as_qemu_wrote_it();
    });
}

#[test]
fn a_disk_on_tmpfs_holds_what_was_written() {
    let Some(files) = Mounted::tmpfs(FILE_SYSTEM) else { return };
    every_file_works_in_every_cache_mode(&files);
}

#[test]
fn a_disk_on_ext4_holds_what_was_written() {
    let Some(files) = Mounted::ext4(FILE_SYSTEM, 512) else { return };
    every_file_works_in_every_cache_mode(&files);
}

#[test]
fn a_disk_on_ext4_on_sectors_of_4096_bytes_holds_what_was_written() {
    let Some(files) = Mounted::ext4(FILE_SYSTEM, 4096) else { return };
    every_file_works_in_every_cache_mode(&files);
}

#[test]
fn a_disk_on_xfs_holds_what_was_written() {
    let Some(files) = Mounted::xfs(FILE_SYSTEM, true) else { return };
    every_file_works_in_every_cache_mode(&files);
}

#[test]
fn a_disk_on_btrfs_holds_what_was_written() {
    let Some(files) = Mounted::btrfs(FILE_SYSTEM) else { return };
    every_file_works_in_every_cache_mode(&files);
}

#[test]
fn a_disk_on_a_device_with_sectors_of_512_bytes_holds_what_was_written() {
    let Some(device) = LoopDevice::new(DEVICE, 512) else { return };
    every_device_works_in_every_cache_mode(&device, true);
}

#[test]
fn a_disk_on_a_device_with_sectors_of_4096_bytes_holds_what_was_written() {
    let Some(device) = LoopDevice::new(DEVICE, 4096) else { return };
    every_device_works_in_every_cache_mode(&device, true);
}

/// Linux 6.15 and later have them: pages of their cache are larger, and so is the least that can be zeroed or given back. Every zeroing failed there,
/// and O_DIRECT was refused.
#[test]
fn a_disk_on_a_device_with_sectors_of_16384_bytes_holds_what_was_written() {
    let Some(device) = LoopDevice::new(DEVICE, 16_384) else { return };
    // QEMU finds no alignment that works there.
    every_device_works_in_every_cache_mode(&device, false);
}

/// A raw file need not end with a block: what O_DIRECT writes at its end must neither make it longer nor lose bytes.
#[test]
fn the_last_bytes_of_a_file_that_ends_inside_a_block_are_kept() {
    let all = [
        Mounted::ext4(FILE_SYSTEM, 4096),
        Mounted::xfs(FILE_SYSTEM, true),
        Mounted::btrfs(FILE_SYSTEM),
        Mounted::tmpfs(FILE_SYSTEM),
    ];
    for files in all.into_iter().flatten() {
        for mode in
            CACHE_MODES.into_iter().filter(|mode| !is_direct(mode) || takes_direct(&files.file("probe")))
        {
            let path = files.name("odd.raw");
            let length = (1 << 20) + 3 * 512;
            std::fs::write(&path, vec![7; length]).expect("room");
            let server = black_box::Server::start([format!("file={path},format=raw,cache={mode}")]);
            let mut client = server.client("");
            assert_eq!(client.size(), length as u64);
            client.write(length as u64 - 700, &[8; 700]).expect("a write up to the end");
            client
                .write_zeroes(length as u64 - 100, 50, black_box::wire::NO_HOLE)
                .expect("zeroes near the end");
            let mut expected = vec![7; length];
            expected[length - 700..].fill(8);
            expected[length - 100..length - 50].fill(0);
            assert!(client.read_all().expect("a read") == expected, "{mode}");
            client.flush().expect("a flush");
            client.disconnect();
            server.kill();
            assert!(std::fs::read(&path).expect("the file") == expected, "{mode}: {path}");
        }
    }
}

/// XFS takes direct requests in sectors, but of a file that shares bytes with another one only in blocks. The copy was made while the disk was in use.
#[test]
fn a_disk_goes_on_when_a_copy_of_its_file_begins_to_share_its_bytes() {
    for files in [Mounted::xfs(FILE_SYSTEM, true), Mounted::btrfs(FILE_SYSTEM)].into_iter().flatten() {
        for mode in CACHE_MODES {
            let (path, copy) = (files.name("disk.raw"), files.name("copy.raw"));
            std::fs::write(&path, vec![5; 1 << 20]).expect("room");
            let server = black_box::Server::start([format!("file={path},format=raw,cache={mode}")]);
            let mut client = server.client("");
            client.write(512, &[6; 512]).expect("a write before the copy");
            client.flush().expect("a flush");
            black_box::Run::new("cp").args(["--reflink=always", &path, &copy]).ok();
            let mut expected = client.read_all().expect("a read");
            for (offset, len) in [(1536, 512), (9000, 77), (65_536, 4096), (100_000, 40_000)] {
                client.write(offset as u64, &vec![9; len]).expect("a write after the copy");
                expected[offset..offset + len].fill(9);
            }
            client.flush().expect("a flush");
            assert!(client.read_all().expect("a read") == expected, "{mode}");
            client.disconnect();
            server.stop();
            assert!(std::fs::read(&path).expect("the file") == expected, "{mode}: {path}");
            let mut before = vec![5; 1 << 20];
            before[512..1024].fill(6);
            assert!(std::fs::read(&copy).expect("the copy") == before, "{mode}: the copy changed");
        }
    }
}

/// What was created on a device that held another image before must not show any of that.
#[test]
fn an_image_on_a_used_device_shows_nothing_of_what_was_there() {
    for sector_bytes in [512, 4096] {
        let Some(device) = LoopDevice::new(DEVICE, sector_bytes) else { return };
        let scratch = Scratch::new();
        for (number, options) in ["cluster_size=64k", "cluster_size=512", "cluster_size=4k,extended_l2=off"]
            .into_iter()
            .enumerate()
        {
            std::fs::write(device.path(), vec![0xee; DEVICE as usize]).expect("a full device");
            let disk = Disk {
                path: device.path().to_owned(),
                format: Format::Qcow2,
                options,
                mode: if number == 0 { "writeback" } else { "none" },
                aio: "io_uring",
                qemus_mode: "writeback",
            };
            disk.create(true);
            let back = scratch.file("back");
            qemu_img(["convert", "-f", "qcow2", "-O", "raw", device.path()]).arg(&back).ok();
            assert!(are_all(&std::fs::read(&back).expect("a copy"), 0), "{options}");
            disk.lives_through_a_kill_and_is_what_qemu_reads();
        }
    }
}
