//! A file system that is full: what was acknowledged stays, and can still be changed and made durable.
//!
//! An image on a full file system once took writes of which it could store the data, but neither the map nor the
//! refcounts: every flush failed, and of 60 acknowledged writes none was left. The room for all that leads to a write is
//! there before the answer now.

use std::path::Path;

use black_box::media::Mounted;
use black_box::peer::{assert_clean, qemu_img};
use black_box::{Client, Run, Scratch, Server};

/// Bytes of a write: a cluster of most images here.
const STEP: usize = 64 << 10;
/// Far apart, so that no two are in one L2 table; every fourth is beside the one before.
const APART: u64 = 40 << 20;

/// Where write number `index` goes.
fn place(index: u64) -> u64 {
    index / 4 * APART + index % 4 * STEP as u64
}

fn bytes(index: u64, round: u8) -> Vec<u8> {
    let tag = [b"full".as_slice(), &index.to_le_bytes(), &[round; 4]].concat();
    tag.iter().copied().cycle().take(STEP).collect()
}

/// Writes until there is no room; gives how many were acknowledged.
fn fill(client: &mut Client, from: u64) -> u64 {
    let mut index = from;
    while client.write(place(index), &bytes(index, 0)).is_ok() {
        index += 1;
        assert!(index < 1000, "the device never fills up");
    }
    index
}

/// How many of the writes can be read back from the image, by QEMU.
fn kept(image: &str, written: u64) -> u64 {
    let read = |index: &u64| {
        let raw = Scratch::new();
        let part = raw.file("part");
        let range = format!(
            "driver=raw,offset={},size={STEP},file.driver=qcow2,file.file.filename={image}",
            place(*index)
        );
        qemu_img(["convert", "--image-opts", "-O", "raw", &range]).arg(&part).ok();
        std::fs::read(&part).expect("what QEMU wrote") == bytes(*index, 0)
    };
    (0..written).filter(read).count() as u64
}

fn create(image: &str, options: &str) {
    qemu_img(["create", "-q", "-f", "qcow2", "-o", options, image, "1G"]).ok();
}

/// What QEMU keeps of as many writes as it takes.
fn kept_by_qemu(files: &Mounted, options: &str) -> u64 {
    let beside = Scratch::new();
    let (image, socket, pid) = (files.name("qemu.qcow2"), beside.name("q.sock"), beside.name("q.pid"));
    create(&image, options);
    Run::new("qemu-nbd").args(["-f", "qcow2", "-k", &socket, "--fork", "--pid-file", &pid, &image]).ok();
    let mut client = Client::connect(Path::new(&socket), "").expect("qemu-nbd");
    let written = fill(&mut client, 0);
    let _: Result<(), _> = client.flush();
    client.disconnect();
    let pid = std::fs::read_to_string(&pid).unwrap_or_default();
    while Path::new("/proc").join(pid.trim()).exists() && !pid.is_empty() {
        std::thread::yield_now();
    }
    let kept = kept(&image, written);
    std::fs::remove_file(&image).expect("our image");
    kept
}

/// Fills the file system; then everything that needs no room works, and every acknowledged byte is there at the end.
fn filled_up(files: &Mounted, options: &str, more: &str) {
    let theirs = kept_by_qemu(files, options);
    let image = files.name("disk.qcow2");
    create(&image, options);
    let server = Server::start([format!("file={image},discard=unmap{more}")]);
    let mut client = server.client("");
    let written = fill(&mut client, 0);
    println!("{options}{more}: {written} writes acknowledged; QEMU keeps {theirs}");
    assert!(written + 2 >= theirs, "{options}: {written} writes, {theirs} by QEMU");
    client.flush().expect("a flush of what was acknowledged");
    client.write(place(1), &bytes(1, 1)).expect("writing in place");
    client.flush().expect("a flush of what was written in place");
    client.write_zeroes(place(2), STEP as u32, 0).expect("zeroes that give space back");
    client.trim(place(3), STEP as u32).expect("a trim");
    client.flush().expect("a flush of what was given back");
    // Space comes back when no client can be reading it any more.
    let again = (0..1000).find(|_| client.flush().is_ok() && client.write(place(3), &bytes(3, 2)).is_ok());
    assert!(again.is_some(), "{options}: no room after a trim");
    client.flush().expect("a flush after there was room again");
    let expected = |index| match index {
        1 => bytes(1, 1),
        2 => vec![0; STEP],
        3 => bytes(3, 2),
        _ => bytes(index, 0),
    };
    client.disconnect();
    // What was flushed needs no close.
    server.kill();
    let server = Server::start(["--read-only", image.as_str()]);
    let mut client = server.client("");
    for index in 0..written {
        let read = client.read(place(index), STEP as u32).expect("read");
        assert!(read == expected(index), "{options}: write {index} of {written} is lost");
    }
    client.disconnect();
    server.stop();
    if !options.contains("lazy") {
        black_box::peer::assert_leaks_at_most(Path::new(&image));
    }
    std::fs::remove_file(&image).expect("our image");
}

#[test]
fn what_was_acknowledged_on_a_full_file_system_is_kept() {
    let Some(files) = Mounted::tmpfs(4 << 20) else { return };
    for options in
        ["cluster_size=64k", "cluster_size=64k,extended_l2=on", "cluster_size=4k", "cluster_size=16k"]
    {
        filled_up(&files, options, "");
    }
    filled_up(&files, "cluster_size=64k,lazy_refcounts=on", "");
    filled_up(&files, "cluster_size=64k", ",allocation-reserve=0");
}

#[test]
fn what_was_acknowledged_on_a_full_disk_with_direct_io_is_kept() {
    let Some(files) = Mounted::ext4(8 << 20, 512) else { return };
    filled_up(&files, "cluster_size=64k", ",cache.direct=on");
    filled_up(&files, "cluster_size=4k,extended_l2=off", ",cache.direct=on");
}

/// Leaves a file system of the least size that can be made about `room` bytes.
fn crowd(files: &Mounted, room: u64) {
    let free = rustix::fs::statfs(files.file("").as_path()).map(|stat| stat.f_bavail * stat.f_bsize as u64);
    let bytes = free.expect("statfs").saturating_sub(room).to_string();
    Run::new("fallocate").args(["-l", &bytes, &files.name("crowd")]).ok();
}

/// Of a file that QEMU made XFS takes whole MiB, even for the gaps between clusters that were written: `extent_size_hint`. Room is compared without it.
#[test]
fn what_was_acknowledged_on_a_full_xfs_is_kept() {
    let Some(files) = Mounted::xfs(320 << 20, true) else { return };
    crowd(&files, 6 << 20);
    filled_up(&files, "cluster_size=64k,extent_size_hint=0", "");
    filled_up(&files, "cluster_size=64k,extent_size_hint=0", ",cache.direct=on");
    filled_up(&files, "cluster_size=4k,extent_size_hint=0", ",cache.direct=on");
}

/// btrfs takes room even to overwrite, so there a flush may fail when it is full (docs/internals/write-order.md, "Room"). Then it says so; what was flushed before stays.
#[test]
fn what_was_flushed_on_a_full_btrfs_is_kept() {
    for more in ["", ",cache.direct=on"] {
        let Some(files) = Mounted::btrfs(320 << 20) else { return };
        let image = files.name("disk.qcow2");
        create(&image, "cluster_size=64k");
        let server = Server::start([format!("file={image},discard=unmap{more}")]);
        let mut client = server.client("");
        (0..40).for_each(|index| client.write(place(index), &bytes(index, 0)).expect("there is room"));
        client.flush().expect("there is room");
        crowd(&files, 4 << 20);
        let filled = (40..1000).find(|&index| client.write(place(index), &bytes(index, 0)).is_err());
        let all_flushed = client.flush().is_ok();
        let written = filled.unwrap_or(1000);
        println!("{more}: {written} writes acknowledged, flushed: {all_flushed}");
        for index in 0..written {
            let read = client.read(place(index), STEP as u32).expect("read");
            assert!(read == bytes(index, 0), "write {index} is lost while the server lives");
        }
        client.disconnect();
        server.kill();
        let server = Server::start(["--read-only", image.as_str()]);
        let mut client = server.client("");
        for index in 0..if all_flushed { written } else { 40 } {
            let read = client.read(place(index), STEP as u32).expect("read");
            assert!(read == bytes(index, 0), "write {index} of {written} was flushed and is lost");
        }
        client.disconnect();
        server.stop();
        black_box::peer::assert_leaks_at_most(Path::new(&image));
    }
}

#[test]
fn a_full_file_system_loses_nothing_of_a_disk_with_a_snapshot_and_is_closed_clean() {
    let Some(files) = Mounted::tmpfs(4 << 20) else { return };
    let image = files.name("disk.qcow2");
    create(&image, "cluster_size=64k");
    let server = Server::start([format!("file={image},discard=unmap")]);
    let mut client = server.client("");
    (0..12).for_each(|index| client.write(place(index), &bytes(index, 0)).expect("there is room"));
    client.disconnect();
    server.stop();
    qemu_img(["snapshot", "-c", "before", &image]).ok();
    let server = Server::start([format!("file={image},discard=unmap")]);
    let mut client = server.client("");
    // Each needs a cluster, and every fourth the copy of a table.
    let written =
        (0..12).take_while(|&index| client.write(place(index), &bytes(index, 1)).is_ok()).count() as u64;
    let filled = if written == 12 { fill(&mut client, 12) } else { 12 };
    client.flush().expect("a flush of what was acknowledged");
    for index in 0..filled {
        let read = client.read(place(index), STEP as u32).expect("read");
        assert!(read == bytes(index, u8::from(index < written)), "write {index} is lost");
    }
    client.disconnect();
    server.stop();
    assert_clean(Path::new(&image));
}
