//! What programs write is what the disk holds.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use black_box::Run;
use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};

use super::{Place, SIZE, pattern};

/// Runs fio on the mounted file.
fn fio(place: &Place, options: &[&str]) {
    let file = format!("--filename={}", place.name());
    let run = Run::new("fio").args(["--name=job", &file, "--minimal", "--verify_state_save=0"]).args(options);
    run.limit(Duration::from_secs(60)).ok();
}

/// QEMU's export read, changed and wrote back whole sectors: direct writes side by side to parts of one sector lost each other.
#[test]
fn direct_writes_side_by_side_to_parts_of_one_sector_lose_nothing() {
    let place = Place::new();
    let server = place.serve(",cache=none", &[]);
    let len = 1 << 20;
    let expected = pattern(1, len);
    // Four writers, each with every fourth piece of 128 bytes.
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (expected, file) = (&expected, &place.file);
            scope.spawn(move || {
                let file = File::options().write(true).open(file).expect("the disk");
                for (index, piece) in expected.chunks(128).enumerate().skip(writer).step_by(4) {
                    file.write_all_at(piece, index as u64 * 128 + 57).expect("a write");
                }
            });
        }
    });
    server.stop();
    assert_eq!(place.content()[57..57 + len], expected);
    assert_clean(place.disk.as_ref());
}

#[test]
fn fio_verifies_direct_writes_at_depth_16_of_any_length() {
    let place = Place::new();
    let server = place.serve(",cache=none", &[]);
    let common = ["--direct=1", "--ioengine=libaio", "--iodepth=16", "--verify=crc32c", "--rw=randwrite"];
    let verify = ["--verify_fatal=1", "--do_verify=1", "--verify_backlog=256", "--size=48M"];
    let sizes = ["--bsrange=512-256k", "--bs_unaligned=0", "--blockalign=512", "--io_size=24M"];
    fio(&place, &[&common[..], &verify, &sizes].concat());
    server.stop();
    assert_clean(place.disk.as_ref());
}

/// Loops that help each have a descriptor of the mount; what one writes another reads.
#[test]
fn several_loops_serve_one_mount() {
    let place = Place::new();
    let server = place.serve("", &["--threads", "3"]);
    let opened = server.open_files();
    assert_eq!(opened.iter().filter(|target| target.as_os_str() == "/dev/fuse").count(), 3);
    let load = ["--direct=1", "--ioengine=libaio", "--iodepth=32", "--rw=randrw", "--bs=4k", "--numjobs=4"];
    let apart =
        ["--size=16M", "--offset_increment=16M", "--io_size=32M", "--verify=crc32c", "--verify_fatal=1"];
    fio(&place, &[&load[..], &apart].concat());
    // A handle that one loop gave is taken back by any.
    for _ in 0..100 {
        drop(File::open(&place.file).expect("the disk"));
    }
    server.stop();
    assert_clean(place.disk.as_ref());
}

/// QEMU 11.0: a shared mapping failed, and with it TPMs that keep their state so.
#[test]
fn a_shared_mapping_is_written_and_found_on_the_disk() {
    let place = Place::new();
    let server = place.serve("", &[]);
    let verify = ["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--size=8M", "--bs=4k"];
    fio(&place, &[&["--ioengine=mmap", "--rw=randwrite", "--fsync=256"][..], &verify].concat());
    // Once more without the cache, by another program.
    fio(
        &place,
        &[&["--ioengine=psync", "--direct=1", "--rw=randwrite", "--verify_only=1"][..], &verify].concat(),
    );
    server.stop();
}

#[test]
fn a_file_system_on_a_loop_device_is_whole() {
    let place = Place::new();
    let server = place.serve(",discard=unmap,cache=none", &[]);
    let device = Run::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&place.file).ok();
    let device = device.trim();
    let mounted = place.scratch.file("mounted");
    std::fs::create_dir(&mounted).expect("a directory");
    let written = pattern(7, 3 << 20);
    let done = std::panic::catch_unwind(|| {
        Run::new("mkfs.ext4").args(["-q", "-F", device]).ok();
        Run::new("mount").arg(device).arg(&mounted).ok();
        for number in 0..8 {
            std::fs::write(mounted.join(format!("file{number}")), &written[number * 1000..]).expect("a file");
        }
        std::fs::remove_file(mounted.join("file3")).expect("a file");
        Run::new("fstrim").arg(&mounted).ok();
        Run::new("umount").arg(&mounted).ok();
        Run::new("mount").args(["-o", "ro", device]).arg(&mounted).ok();
        assert!(std::fs::read(mounted.join("file7")).expect("a file") == written[7000..]);
    });
    let _ = Run::new("umount").arg(&mounted).outcome();
    Run::new("losetup").args(["--detach", device]).ok();
    done.expect("a file system");
    Run::new("fsck.ext4").args(["-f", "-n"]).arg(&place.file).ok();
    server.stop();
    assert_clean(place.disk.as_ref());
}

#[test]
fn holes_are_found_and_a_copy_takes_the_space_of_the_data() {
    let place = Place::new();
    qemu_io_ok(&["-f", "qcow2"], &place.disk, &["write -P 1 1M 64k", "write -P 2 40M 1M", "write -z 8M 1M"]);
    let server = place.serve("", &["--read-only"]);
    let copy = place.scratch.file("copy.raw");
    Run::new("cp").arg("--sparse=auto").arg(&place.file).arg(&copy).ok();
    server.stop();
    assert!(std::fs::read(&copy).expect("a copy") == place.content());
    let allocated = std::fs::metadata(&copy).expect("a copy").blocks() * 512;
    assert!(allocated < 4 << 20, "{allocated} bytes of {SIZE}");
}

#[test]
fn a_punched_hole_reads_as_zeroes_and_takes_no_space() {
    let place = Place::new();
    let server = place.serve(",discard=unmap", &[]);
    let file = File::options().read(true).write(true).open(&place.file).expect("the disk");
    file.write_all_at(&pattern(3, 4 << 20), 0).expect("a write");
    let fallocate = |option: &str, offset: &str, len: &str| {
        Run::new("fallocate").args([option, "--offset", offset, "--length", len]).arg(&place.file).ok();
    };
    fallocate("--punch-hole", "1MiB", "1MiB");
    fallocate("--zero-range", "2MiB", "100");
    let mut found = vec![0xff; 4 << 20];
    file.read_exact_at(&mut found, 0).expect("a read");
    drop(file);
    let mut expected = pattern(3, 4 << 20);
    expected[1 << 20..2 << 20].fill(0);
    expected[2 << 20..(2 << 20) + 100].fill(0);
    assert!(found == expected);
    server.stop();
    assert!(place.content()[..4 << 20] == expected);
    let map = qemu_img(["map", "--output=json", &place.disk]).json();
    let punched = |piece: &serde_json::Value| piece["start"] == 1 << 20 && piece["zero"] == true;
    assert!(map.as_array().is_some_and(|pieces| pieces.iter().any(punched)), "{map}");
}

#[test]
fn qemus_tools_take_the_file_as_the_raw_disk_that_it_is() {
    let place = Place::new();
    let reference = place.scratch.file("reference.raw");
    let bytes = [pattern(5, 9 << 20), vec![0; 20 << 20], pattern(6, 1 << 20), vec![0; 34 << 20]].concat();
    std::fs::write(&reference, &bytes).expect("a file");
    qemu_img(["convert", "-f", "raw", "-O", "qcow2"]).arg(&reference).arg(&place.disk).ok();
    let server = place.serve("", &[]);
    qemu_img(["compare", "-f", "raw", "-F", "raw", place.name()]).arg(&reference).ok();
    let copy = place.scratch.file("copy.raw");
    qemu_img(["convert", "-f", "raw", "-O", "raw", place.name()]).arg(&copy).ok();
    assert!(std::fs::read(&copy).expect("a copy") == bytes);
    // And the other way: onto the disk that is there.
    let other = pattern(8, 2 << 20);
    std::fs::write(&reference, [&other[..], &bytes[2 << 20..]].concat()).expect("a file");
    qemu_img(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&reference).arg(place.name()).ok();
    server.stop();
    assert!(place.content() == [&other[..], &bytes[2 << 20..]].concat());
}

/// What a program closed is on disk, whatever becomes of the server.
#[test]
fn a_closed_file_outlives_the_kill_of_its_server() {
    let place = Place::new();
    let server = place.serve("", &[]);
    let written = pattern(9, 1 << 20);
    let file = File::options().write(true).open(&place.file).expect("the disk");
    file.write_all_at(&written, 5 << 20).expect("a write");
    drop(file);
    server.kill();
    place.wait_for_the_disk();
    assert!(place.content()[5 << 20..6 << 20] == written);
}
