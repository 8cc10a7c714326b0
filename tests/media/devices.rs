//! What only devices do: they change their size under a disk, refuse writes, have partitions, and run out of room behind their own back.

use std::os::unix::fs::FileExt;
use std::path::Path;

use black_box::bytes::are_all;
use black_box::media::{LoopDevice, Mounted};
use black_box::peer::{dirty_by_qemu, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Client, Run, Scratch, Server, cowhand};
use serde_json::json;

use super::DEVICE;

fn server_of(path: &str, more: &str) -> Server {
    Server::start([format!("file={path},format=raw{more}")])
}

/// The same with a name and a control socket, which is in the directory.
fn steered(path: &str, more: &str) -> (Server, Qmp, Scratch) {
    let scratch = Scratch::new();
    let control = scratch.file("qmp");
    let drive = format!("file={path},format=raw,id=disk{more}");
    let server = Start::new(["--qmp"]).arg(&control).arg(drive).listen();
    let server = server.unwrap_or_else(|error| panic!("{}", error.0));
    (server, Qmp::connect(&control), scratch)
}

/// Sets the length of a device's file, and tells the device.
fn resize(device: &LoopDevice, bytes: u64) {
    let file = std::fs::File::options().write(true).open(device.file()).expect("the device's file");
    file.set_len(bytes).expect("a length");
    Run::new("losetup").args(["--set-capacity", device.path()]).ok();
}

#[test]
fn a_device_that_grows_is_as_long_as_before_until_its_disk_is_resized_or_opened_again() {
    let Some(device) = LoopDevice::new(DEVICE, 4096) else { return };
    let server = server_of(device.path(), "");
    resize(&device, 2 * DEVICE);
    let mut client = server.client("");
    assert_eq!(client.size(), DEVICE);
    client.write(DEVICE - 512, &[1; 512]).expect("a write up to the end as it was");
    client.write(DEVICE, &[1; 512]).expect_err("a write behind it");
    client.flush().expect("a flush");
    client.disconnect();
    server.stop();
    let server = server_of(device.path(), "");
    assert_eq!(server.client("").size(), 2 * DEVICE);
    server.stop();
    // An administrator extends a logical volume, and then the disk of the guest on it.
    let (server, mut qmp, _scratch) = steered(device.path(), "");
    let size = |size: u64| json!({ "device": "disk", "size": size });
    let refused = qmp.refused("block_resize", size(3 * DEVICE));
    assert!(refused.contains(&format!("whose size is what it is: {} bytes", 2 * DEVICE)), "{refused}");
    resize(&device, 3 * DEVICE);
    let refused = qmp.refused("block_resize", size(4 * DEVICE));
    assert!(refused.contains(&format!("{} bytes", 3 * DEVICE)), "{refused}");
    assert_eq!(server.client("disk").size(), 2 * DEVICE, "nothing has changed");
    qmp.ok("block_resize", size(3 * DEVICE));
    let (mut client, end) = (server.client("disk"), 3 * DEVICE - 4096);
    client.write(end, &[5; 4096]).expect("a write in what was added");
    assert_eq!((client.size(), client.read(end, 4096).expect("a read")), (3 * DEVICE, vec![5; 4096]));
    drop(client);
    server.stop();
}

/// The size of a device does not change by accident, and its system does not say when it was written last: bitmaps stay, and have what was added.
#[test]
fn the_bitmaps_of_a_device_that_grows_have_what_was_added() {
    let Some(device) = LoopDevice::new(DEVICE, 512) else { return };
    let scratch = black_box::Scratch::new();
    let bitmaps = scratch.name("bitmaps");
    let more = format!(",id=disk,bitmaps={bitmaps}");
    let drive = format!("file={},format=raw{more}", device.path());
    cowhand(["bitmap", "--add", &drive, "b"]).ok();
    for round in 0..2 {
        let server = server_of(device.path(), &more);
        server.client("disk").write(round << 20, &[1; 512]).expect("a write");
        server.stop();
        resize(&device, 2 * DEVICE);
    }
    let expected = [(0, 64 << 10), (1 << 20, 64 << 10), (DEVICE, DEVICE)];
    assert_eq!(dirty_by_qemu(&bitmaps, "b"), expected);
}

#[test]
fn a_device_that_shrinks_answers_with_errors_where_it_ended() {
    for mode in ["writeback", "none"] {
        let Some(device) = LoopDevice::new(DEVICE, 512) else { return };
        let (server, mut qmp, _scratch) = steered(device.path(), &format!(",cache={mode}"));
        let mut client = server.client("disk");
        client.write(0, &[1; 4096]).expect("a write");
        resize(&device, DEVICE / 2);
        client.write(DEVICE - 4096, &[2; 4096]).expect_err("a write where the device has ended");
        client.write(4096, &[3; 4096]).expect("a write where it has not");
        client.flush().expect("a flush");
        assert_eq!(client.read(0, 8192).expect("a read"), [[1; 4096], [3; 4096]].concat());
        // Also after the device was looked at again.
        let refused = qmp.refused("block_resize", json!({ "device": "disk", "size": 2 * DEVICE }));
        assert!(refused.contains("whose size is what it is"), "{refused}");
        client.write(DEVICE - 4096, &[2; 4096]).expect_err("a write where the device has ended");
        client.disconnect();
        server.stop();
    }
}

/// Such a device can be opened for writing: only the writes fail. It was served to a guest as one that takes them.
#[test]
fn a_device_that_is_read_only_is_served_so_or_not_at_all() {
    let Some(device) = LoopDevice::new(DEVICE, 512) else { return };
    std::fs::write(device.path(), [7; 4096]).expect("our device");
    let device = device.made_read_only();
    let said = Server::refuses([format!("file={},format=raw", device.path())]);
    assert!(said.contains(device.path()) && said.contains("read-only"), "{said}");
    let server = server_of(device.path(), ",read-only=on");
    assert_eq!(server.client("").read(0, 4096).expect("a read"), [7; 4096]);
    server.stop();
}

#[test]
fn a_device_is_in_use_by_one_program_at_a_time() {
    let Some(device) = LoopDevice::new(DEVICE, 512) else { return };
    let server = server_of(device.path(), "");
    let said = qemu_img(["create", "-q", "-f", "qcow2", device.path(), "1M"]).fails();
    assert!(said.contains("lock"), "{said}");
    let said = cowhand(["create", "-q", device.path(), "1M"]).fails();
    assert!(said.contains("in use") || said.contains("lock"), "{said}");
    server.stop();
}

/// Targets of copies that are devices: what they held is gone, and what is on them reads as with qemu-img.
#[test]
fn copies_onto_a_device_are_what_qemu_img_makes() {
    let scratch = Scratch::new();
    let source = scratch.name("source.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", &source, "3M"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &source, &["write -P 1 64k 200k", "write -P 2 2M 1M"]);
    let all = scratch.name("all.raw");
    for sector in [512, 4096] {
        let Some(device) = LoopDevice::new(DEVICE, sector) else { return };
        let path = device.path();
        let dirty = || std::fs::write(path, vec![0xee; DEVICE as usize]).expect("our device");
        for (words, format) in [
            (vec!["convert", "-O", "raw", &source, path], "raw"),
            (vec!["convert", "-O", "raw", "--verify", "-t", "none", &source, path], "raw"),
            (vec!["convert", "-O", "qcow2", "--verify", &source, path], "qcow2"),
            (vec!["convert", "-c", "-O", "qcow2", "-o", "cluster_size=4k", &source, path], "qcow2"),
        ] {
            dirty();
            cowhand(&words).ok();
            qemu_img(["convert", "-f", format, "-O", "raw", path, &all]).ok();
            let copied = std::fs::read(&all).expect("a copy");
            qemu_img(["convert", "-f", "qcow2", "-O", "raw", &source, &all]).ok();
            let expected = std::fs::read(&all).expect("a copy");
            assert!(copied[..expected.len()] == expected, "{words:?}");
            if format == "qcow2" {
                qemu_img(["check", "-q", "-f", "qcow2", path]).ok();
            } else {
                // Behind the disk the device stays as it was.
                assert!(are_all(&copied[expected.len()..], 0xee), "{words:?}");
            }
        }
        dirty();
        cowhand(["dd", "bs=1M", "count=1", &format!("if={source}"), &format!("of={path}")]).ok();
        let device_bytes = std::fs::read(path).expect("the device");
        assert!(are_all(&device_bytes[64 << 10..264 << 10], 1));
        assert!(are_all(&device_bytes[..64 << 10], 0));
        dirty();
        cowhand(["create", "-q", "-f", "raw", path, "1M"]).ok();
        let device_bytes = std::fs::read(path).expect("the device");
        assert!(device_bytes[..512] == [0; 512] && device_bytes[4096] == 0xee, "only the first sector");
        cowhand(["create", "-q", "-f", "qcow2", path, "1M"]).ok();
        qemu_img(["check", "-q", "-f", "qcow2", path]).ok();
        let said = cowhand(["convert", "-O", "raw", "-o", "size=1G", &source, path]).fails();
        assert!(said.contains("block device of") && said.contains(&DEVICE.to_string()), "{said}");
        let said = cowhand(["create", "-f", "raw", "-o", "preallocation=full", path, "1M"]).fails();
        assert!(said.contains("preallocation=full"), "{said}");
        let server = server_of(path, "");
        let said = cowhand(["convert", "-O", "raw", &source, path]).fails();
        assert!(said.contains("in use") || said.contains("lock"), "{said}");
        server.stop();
    }
}

/// A half copy with a good header would be taken for the whole disk.
#[test]
fn a_copy_onto_a_device_that_does_not_end_is_no_image() {
    let Some(device) = LoopDevice::new(DEVICE, 512) else { return };
    let scratch = Scratch::new();
    let source = scratch.name("source.raw");
    std::fs::write(&source, vec![3; 4 << 20]).expect("a source");
    for signal in ["INT", "KILL"] {
        // What the last copy left is not taken for this one's.
        let wiped = std::fs::OpenOptions::new().write(true).open(device.path()).expect("the device");
        wiped.write_all_at(&vec![0; DEVICE as usize], 0).expect("zeroes");
        drop(wiped);
        let words = ["convert", "-r", "500k", "-O", "qcow2", &source, device.path()];
        let mut running = std::process::Command::new(black_box::program::path())
            .args(words)
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("cowhand");
        // Data is on the device: the copy is in its middle.
        while !std::fs::read(device.path()).expect("the device").contains(&3) {
            assert!(running.try_wait().expect("a child").is_none(), "it has ended");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Run::new("kill").args([&format!("-{signal}"), &running.id().to_string()]).ok();
        assert!(!running.wait().expect("an end").success());
        let begin = std::fs::read(device.path()).expect("the device");
        assert!(begin[..4] == [0; 4] && begin.contains(&3), "{signal}");
        qemu_img(["info", "-f", "qcow2", device.path()]).fails();
    }
}

/// A master boot record with one partition: the entry at 446, the first sector and the count at 8 and 12 of it.
fn partition_table(first: u64, sectors: u64) -> Vec<u8> {
    let mut table = vec![0; 512];
    let word = |value: u64| u32::try_from(value).expect("a small device").to_le_bytes();
    // Linux.
    table[446 + 4] = 0x83;
    table[446 + 8..][..4].copy_from_slice(&word(first));
    table[446 + 12..][..4].copy_from_slice(&word(sectors));
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    table
}

/// A partition is a device of its own, and the unit of its discards stands with the whole one.
#[test]
fn a_partition_is_served_up_to_its_end_and_not_beyond() {
    let Some(device) = LoopDevice::new(DEVICE, 512) else { return };
    let sectors = |bytes: u64| bytes / 512;
    let (start, size) = (1 << 20, 8 << 20);
    std::fs::write(device.path(), partition_table(sectors(start), sectors(size))).expect("our device");
    // The kernel reads the table when it is asked to; the node is made here where no udev runs.
    Run::new("partx").args(["--add", device.path()]).ok();
    let name = format!("{}p1", device.path().trim_start_matches("/dev/"));
    let numbers = std::fs::read_to_string(format!("/sys/class/block/{name}/dev")).expect("a partition");
    let scratch = Scratch::new();
    let node = scratch.name("partition");
    let (major, minor) = numbers.trim().split_once(':').expect("two numbers");
    Run::new("mknod").args([&node, "b", major, minor]).ok();
    let medium =
        cowhand(["info", "--medium", "-f", "raw", "--output", "json", &node]).json()["medium"].take();
    assert!(medium["discard-granularity"].as_u64().is_some_and(|unit| unit > 0), "{medium}");
    let server = server_of(&node, ",cache=none,discard=unmap");
    let mut client = server.client("");
    assert_eq!(client.size(), size);
    client.write(size - 1000, &[5; 1000]).expect("a write up to the end");
    client.trim(0, size as u32 / 2).expect("a trim");
    client.flush().expect("a flush");
    client.disconnect();
    server.stop();
    let whole = std::fs::read(device.path()).expect("the device");
    let end = (start + size) as usize;
    assert!(are_all(&whole[end - 1000..end], 5) && are_all(&whole[end..], 0));
    Run::new("partx").args(["--delete", device.path()]).ok();
}

/// A thin device takes a write into the page cache, and finds out later that there is no room for it: then the flush fails, and every one after it.
#[test]
fn a_device_without_room_behind_it_fails_a_write_or_its_flush() {
    for mode in ["writeback", "none", "writethrough", "directsync"] {
        let Some(files) = Mounted::tmpfs(4 << 20) else { return };
        let Some(device) = LoopDevice::over(&files.file("thin"), DEVICE, 4096) else { return };
        let server = server_of(device.path(), &format!(",cache={mode}"));
        let mut client = server.client("");
        let written = |client: &mut Client, at: u64| client.write(at << 20, &vec![at as u8 | 1; 1 << 20]);
        let failed = (0..16).find(|&at| written(&mut client, at).is_err());
        let flushed = client.flush();
        assert!(failed.is_some() || flushed.is_err(), "{mode}: 16 MiB were acknowledged where 4 have room");
        if flushed.is_err() {
            client.flush().expect_err("a flush after one that failed");
        }
        drop(client);
        // The disk may be reported lost at its end, not the process.
        server.kill();
        assert!(Path::new(device.path()).exists());
    }
}
