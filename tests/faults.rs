//! Faults that other implementations of the format have shipped: each is a law here.

#![forbid(unsafe_code)]

use std::path::Path;

use black_box::bytes::are_all;
use black_box::peer::{assert_clean, converted, qemu_img, qemu_io_ok};
use black_box::{Run, Scratch, Server, cowhand};

const UNKNOWN_EXTENSION: u32 = 0x1234_5678;

fn create(scratch: &Scratch, name: &str, options: &str, size: &str) -> String {
    let path = scratch.name(name);
    qemu_img(["create", "-q", "-f", "qcow2", "-o", options, &path, size]).ok();
    path
}

fn overlay(scratch: &Scratch, options: &str, base: &str, format: &str) -> String {
    let create = ["create", "-q", "-f", "qcow2", "-o", options, "-b", base, "-F", format, "top.qcow2"];
    qemu_img(create).current_dir(scratch.path()).ok();
    scratch.name("top.qcow2")
}

fn header_number(path: &str, at: usize) -> u64 {
    let bytes = std::fs::read(path).expect("an image");
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The features of an image: incompatible, compatible, autoclear.
fn features(path: &str) -> [u64; 3] {
    [72, 80, 88].map(|at| header_number(path, at))
}

fn patch(path: &str, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("an image");
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).expect("write");
}

#[test]
fn zeroes_written_to_an_overlay_hide_the_backing_file() {
    for options in ["compat=1.1", "compat=0.10", "extended_l2=on", "cluster_size=512"] {
        let scratch = Scratch::new();
        scratch.write("base.raw", &vec![0x77; 4 << 20]);
        let path = overlay(&scratch, options, "base.raw", "raw");
        let server = Server::start([format!("file={path},discard=unmap")]);
        let mut client = server.client("");
        // Whole clusters, parts of clusters, over unallocated and over allocated ones; with and without holes.
        client.write(2 << 20, &[5; 200_000]).expect("write");
        let ranges = [(0, 65536), (100_000, 3), (131_072, 300_000), ((2 << 20) + 1000, 100_000)];
        for (index, (offset, len)) in ranges.into_iter().enumerate() {
            let flags = if index % 2 == 0 { 0 } else { black_box::wire::NO_HOLE };
            client.write_zeroes(offset, len, flags).expect("zeroes");
            let found = client.read(offset, len).expect("read");
            assert!(are_all(&found, 0), "{options}: {offset} {len}");
        }
        client.disconnect();
        server.stop();
        assert_clean(Path::new(&path));
        let disk = converted(&path, "qcow2", &[], &scratch.file("disk.raw"));
        for (offset, len) in ranges {
            let range = usize::try_from(offset).expect("small")
                ..usize::try_from(offset + u64::from(len)).expect("small");
            assert!(are_all(&disk[range], 0), "{options}: {offset} {len}, read by QEMU");
        }
        assert_eq!((disk[99_999], disk[100_003]), (0x77, 0x77), "{options}: what is beside stays");
    }
}

#[test]
fn a_discard_never_shows_what_the_backing_file_has_below_newer_data() {
    for options in ["compat=1.1", "compat=0.10", "extended_l2=on"] {
        let scratch = Scratch::new();
        scratch.write("base.raw", &vec![0x77; 4 << 20]);
        let path = overlay(&scratch, options, "base.raw", "raw");
        let server = Server::start([format!("file={path},discard=unmap")]);
        let mut client = server.client("");
        client.write(0, &[5; 1 << 20]).expect("write");
        client.trim(0, 512 << 10).expect("trim");
        let found = client.read(0, 1 << 20).expect("read");
        assert!(found.iter().all(|byte| matches!(byte, 0 | 5)), "{options}: stale bytes of the backing file");
        client.disconnect();
        server.stop();
        assert_clean(Path::new(&path));
    }
}

#[test]
fn reads_behind_a_short_backing_file_are_zeroes_and_stay_so_after_copying() {
    let scratch = Scratch::new();
    scratch.write("base.raw", &[0x77; 100_000]);
    qemu_img(["create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "top.qcow2", "4M"])
        .current_dir(scratch.path())
        .ok();
    let path = scratch.name("top.qcow2");
    let server = Server::start([&path]);
    let mut client = server.client("");
    // A write into the cluster in which the backing file ends copies what is there and no more.
    client.write(120_000, &[1; 10]).expect("write");
    let found = client.read(90_000, 50_000).expect("read");
    let expected: Vec<u8> = (90_000..140_000)
        .map(|at| match at {
            ..100_000 => 0x77,
            120_000..120_010 => 1,
            _ => 0,
        })
        .collect();
    assert!(found == expected);
    client.disconnect();
    server.stop();
    assert_clean(Path::new(&path));
}

#[test]
fn encrypted_images_are_never_served_as_data() {
    let scratch = Scratch::new();
    let path = scratch.name("luks.qcow2");
    let secret = ["--object", "secret,id=s,data=12345678"];
    let options = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    qemu_img(["create", "-q", "-f", "qcow2"]).args(secret).args(["-o", options, &path, "1M"]).ok();
    for args in [vec!["--read-only", &path], vec![&path]] {
        let said = Server::refuses(args).to_lowercase();
        assert!(said.contains("luks") && said.contains("encrypt"), "{said}");
    }
    let info = cowhand(["info", "--output", "json", &path]).json();
    assert_eq!(info["encrypted"], true, "{info}");
}

#[test]
fn a_repair_clears_unknown_autoclear_features_of_a_sound_image() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "compat=1.1", "8M");
    // The latter is our own for a record of changes, and here is none.
    for bits in [1_u64 << 50, 1 << 63] {
        patch(&path, 88, &bits.to_be_bytes());
        cowhand(["check", &path]).ok();
        assert_eq!(features(&path)[2], bits, "a check writes nothing");
        cowhand(["check", "-r", "all", &path]).ok();
        assert_eq!(features(&path)[2], 0);
    }
}

#[test]
fn features_and_extensions_that_we_do_not_know_survive_writing() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "compression_type=zstd,lazy_refcounts=on", "8M");
    let image = std::fs::read(&path).expect("an image");
    let length = usize::try_from(header_number(&path, 96) & 0xffff_ffff).expect("small");
    // An unknown extension in front of those that are there.
    let mut extension = UNKNOWN_EXTENSION.to_be_bytes().to_vec();
    extension.extend(13_u32.to_be_bytes());
    extension.extend(b"keep me whole\0\0\0");
    extension.extend(&image[length..length + 4096]);
    patch(&path, length as u64, &extension);
    patch(&path, 80, &(1_u64 | 1 << 40).to_be_bytes());
    patch(&path, 88, &(1_u64 << 50).to_be_bytes());
    let before = features(&path);

    let server = Server::start([&path]);
    server.client("").write(1 << 20, &[1; 100_000]).expect("write");
    server.stop();
    let after = features(&path);
    assert_eq!(after[0], before[0], "compression type kept, dirty bit cleared");
    assert_eq!(after[1], before[1], "compatible features kept");
    assert_eq!(after[2], 0, "autoclear features that we do not know are cleared");
    let bytes = std::fs::read(&path).expect("an image");
    assert!(bytes[..4096].windows(13).any(|window| window == b"keep me whole"), "the extension is gone");
    assert_clean(Path::new(&path));
    let info = qemu_img(["info", "--output=json", &path]).json();
    assert_eq!(info["format-specific"]["data"]["compression-type"], "zstd");
    assert_eq!(info["format-specific"]["data"]["lazy-refcounts"], true);
}

#[test]
fn copied_is_right_after_snapshots_come_and_go() {
    for options in ["cluster_size=64k", "cluster_size=512", "extended_l2=on"] {
        let scratch = Scratch::new();
        let path = create(&scratch, "disk.qcow2", options, "4M");
        let write = |pattern: u8| {
            let server = Server::start([format!("file={path},discard=unmap")]);
            let mut client = server.client("");
            client.write(0, &vec![pattern; 1 << 20]).expect("write");
            client.write(3 << 20, &[pattern; 100]).expect("write");
            client.trim(2 << 20, 1 << 20).expect("trim");
            client.disconnect();
            server.stop();
            assert_clean(Path::new(&path));
        };
        write(1);
        qemu_img(["snapshot", "-c", "one", &path]).ok();
        write(2);
        qemu_img(["snapshot", "-c", "two", &path]).ok();
        write(3);
        qemu_img(["snapshot", "-a", "one", &path]).ok();
        qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 1 0 1M", "read -P 1 3M 100"]);
        write(4);
        qemu_img(["snapshot", "-a", "two", &path]).ok();
        qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 2 0 1M"]);
        qemu_img(["snapshot", "-d", "one", &path]).ok();
        write(5);
        qemu_img(["snapshot", "-d", "two", &path]).ok();
        write(6);
    }
}

#[test]
fn what_qemu_does_to_a_bitmap_after_a_crash_is_left_alone() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "cluster_size=64k", "8M");
    qemu_img(["bitmap", "--add", &path, "backup"]).ok();
    let server = Server::start([&path]);
    let mut client = server.client("");
    client.write(0, &[1; 4096]).expect("write");
    client.flush().expect("flush");
    server.kill();
    let info = qemu_img(["info", "--output=json", &path]).json();
    let bitmaps = &info["format-specific"]["data"]["bitmaps"];
    assert_eq!(bitmaps[0]["name"], "backup", "{info}");
    assert!(bitmaps[0]["flags"].as_array().expect("flags").iter().any(|flag| flag == "in-use"), "{info}");
    // QEMU does not know what it missed. When QEMU has written, it is lost: QEMU clears the mark of our record.
    qemu_io_ok(&["-f", "qcow2"], &path, &["write 4M 64k"]);
    let server = Server::start([&path]);
    let contexts = Run::new("nbdinfo").args(["--json", &server.uri("disk")]).json();
    assert!(!contexts.to_string().contains("dirty-bitmap"), "{contexts}");
    server.stop();
    // It is QEMU's to remove, and then nothing is leaked.
    qemu_img(["bitmap", "--remove", &path, "backup"]).ok();
    qemu_img(["check", "-r", "leaks", &path]).ok();
    assert_clean(Path::new(&path));
}

#[test]
fn lazy_refcounts_are_repaired_when_a_killed_image_is_opened_next() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "lazy_refcounts=on,cluster_size=4k", "64M");
    let server = Server::start([&path]);
    let mut client = server.client("");
    for index in 0..200_u64 {
        client.write(index * 300_000, &[1; 5000]).expect("write");
    }
    client.flush().expect("flush");
    server.kill();
    assert_eq!(features(&path)[0] & 1, 1, "the set-up leaves the dirty bit");
    // Reading needs no refcounts.
    let server = Server::start(["--read-only", &path]);
    assert_eq!(server.client("").read(300_000, 5000).expect("read"), [1; 5000]);
    server.stop();
    let server = Server::start([&path]);
    assert_eq!(server.client("").read(300_000, 5000).expect("read"), [1; 5000]);
    server.stop();
    assert_eq!(features(&path)[0] & 1, 0, "the dirty bit is cleared");
    assert_clean(Path::new(&path));
}

#[test]
fn tables_grow_without_losing_anything() {
    // Clusters of 512 bytes with 64-bit refcounts: a block covers 32 KiB, the table 2 MiB.
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "cluster_size=512,refcount_bits=64", "64M");
    let server = Server::start([format!("file={path},l2-cache-size=16k,refcount-cache-size=2k")]);
    let mut client = server.client("");
    let mut random = black_box::Random::new(4);
    let data = random.bytes(24 << 20);
    for (index, chunk) in data.chunks(1 << 20).enumerate() {
        client.write((index as u64) << 21, chunk).expect("write");
        client.flush().expect("flush");
    }
    client.disconnect();
    server.stop();
    assert_clean(Path::new(&path));
    let disk = converted(&path, "qcow2", &[], &scratch.file("disk.raw"));
    for (index, chunk) in data.chunks(1 << 20).enumerate() {
        assert!(disk[index << 21..][..chunk.len()] == *chunk, "MiB {index}");
    }
}

#[test]
fn an_image_that_was_resized_keeps_what_it_had_and_takes_more() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "cluster_size=512", "1M");
    let base = "base.qcow2";
    std::fs::rename(&path, scratch.file(base)).expect("rename");
    qemu_io_ok(&["-f", "qcow2"], &scratch.name(base), &["write -P 1 0 1M"]);
    let path = overlay(&scratch, "cluster_size=512", base, "qcow2");
    qemu_img(["resize", "-q", "-f", "qcow2", &path, "16M"]).ok();
    let server = Server::start([&path]);
    let mut client = server.client("");
    assert_eq!(client.size(), 16 << 20);
    assert_eq!(client.read((1 << 20) - 512, 1024).expect("read"), [[1; 512], [0; 512]].concat());
    client.write(15 << 20, &[2; 1 << 20]).expect("write");
    client.disconnect();
    server.stop();
    assert_clean(Path::new(&path));
    Run::new("qemu-io").args(["-f", "qcow2", "-c", "read -P 2 15M 1M", &path]).ok();
}
