//! Images of VMware and Hyper-V under QEMU's names: made by qemu-img in each subformat, and read by both.

use std::path::Path;

use black_box::{Run, Scratch};
use serde_json::Value;

use super::{Server, ours};

/// A disk over the border of extents of 2 GiB, with data at the borders of extents, grains and blocks.
const DISK: &str = "truncate -s 5G a.raw; for at in 0 65000 2147479552 4294901760 5368708608; do \
    head -c 3000 /dev/urandom | dd of=a.raw bs=1 seek=$at conv=notrunc status=none; done; truncate -s 5G a.raw";

/// A disk of less, with data at the borders of the largest blocks.
const SMALL: &str = "truncate -s 300M b.raw; for at in 0 65000 268434000 314569000; do \
    head -c 3000 /dev/urandom | dd of=b.raw bs=1 seek=$at conv=notrunc status=none; done; truncate -s 300M b.raw";

/// Options of images of these disks: of vhdx images QEMU, which does not know where they have data, reads everything.
const KINDS: [(&str, &str); 11] = [
    ("vmdk", "subformat=monolithicSparse"),
    ("vmdk", "subformat=monolithicSparse,zeroed_grain=on,hwversion=7"),
    ("vmdk", "subformat=monolithicFlat"),
    ("vmdk", "subformat=twoGbMaxExtentSparse"),
    ("vmdk", "subformat=twoGbMaxExtentFlat"),
    ("vmdk", "subformat=streamOptimized"),
    ("vmdk", "compat6=on"),
    ("vhdx", "subformat=dynamic"),
    ("vhdx", "subformat=dynamic,block_size=1M,log_size=4M"),
    ("vhdx", "subformat=dynamic,block_size=256M"),
    ("vhdx", "subformat=fixed,block_state_zero=off"),
];

/// What `info` has of an image alone; of its files QEMU shows more since 8.0.
const SHOWN: [&str; 10] = [
    "filename",
    "format",
    "virtual-size",
    "actual-size",
    "cluster-size",
    "dirty-flag",
    "backing-filename",
    "full-backing-filename",
    "backing-filename-format",
    "format-specific",
];

fn sh(scratch: &Scratch, script: &str) {
    drop(Run::new("bash").args(["-ec", script]).current_dir(scratch.path()).ok());
}

/// What `qemu-img` says with these words: standard output and exit code.
fn said(qemu_img: &Path, scratch: &Scratch, words: &str) -> (String, Option<i32>) {
    let run = Run::new(qemu_img).args(words.split(' ')).current_dir(scratch.path()).outcome();
    assert!(!run.panicked() && !run.timed_out, "{words}: {run}");
    (run.stdout, run.status.code())
}

fn shown(qemu_img: &Path, scratch: &Scratch, name: &str) -> Vec<Value> {
    let (info, code) = said(qemu_img, scratch, &format!("info --output=json {name}"));
    assert_eq!(code, Some(0), "{name}");
    let info: Value = serde_json::from_str(&info).expect("JSON");
    SHOWN.map(|key| info[key].clone()).to_vec()
}

fn map(qemu_img: &Path, scratch: &Scratch, name: &str) -> Value {
    let (map, code) = said(qemu_img, scratch, &format!("map --output=json {name}"));
    assert_eq!(code, Some(0), "{name}");
    let mut map: Value = serde_json::from_str(&map).expect("JSON");
    // QEMU says it since 8.2.
    for extent in map.as_array_mut().into_iter().flatten() {
        drop(extent.as_object_mut().and_then(|extent| extent.remove("compressed")));
    }
    map
}

/// `name` is read by both in the same way, and has what `raw` has.
fn is_read_as_by_qemu(scratch: &Scratch, name: &str, raw: &str) {
    let (us, them) = (ours("qemu-img"), Path::new("qemu-img"));
    assert_eq!(shown(&us, scratch, name), shown(them, scratch, name), "{name}");
    assert_eq!(map(&us, scratch, name), map(them, scratch, name), "{name}");
    for words in [
        format!("check {name}"),
        format!("check -r all {name}"),
        format!("map {name}"),
        format!("measure -O qcow2 {name}"),
        format!("measure -O raw {name}"),
        format!("compare {name} {raw}"),
        format!("convert -O qcow2 {name} back"),
        format!("compare back {raw}"),
        format!("convert -O raw {name} back"),
        format!("compare -f raw back {raw}"),
    ] {
        assert_eq!(said(&us, scratch, &words), said(them, scratch, &words), "{words}");
    }
}

#[test]
fn images_of_each_subformat_are_read_as_qemu_reads_them() {
    let scratch = Scratch::new();
    sh(&scratch, DISK);
    sh(&scratch, SMALL);
    for (format, options) in KINDS {
        let name = format!("a.{format}");
        let raw = if format == "vhdx" { "b.raw" } else { "a.raw" };
        sh(
            &scratch,
            &format!("rm -f *.{format}; qemu-img convert -f raw -O {format} -o {options} {raw} {name}"),
        );
        is_read_as_by_qemu(&scratch, &name, raw);
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| (sum >> 1) ^ (0x82f6_3b78 * (sum & 1));
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Gives the image's table of blocks another first page, in the log alone, as a writer that died after that: blocks 0 and 1 change places, 2 has
/// zeroes. The entry begins at `start` of the log, where it may reach beyond the end.
fn die_in_log(image: &Path, start: usize) {
    const LOG: usize = 1 << 20;
    const TABLE: usize = 2 << 20;
    const PAGE: usize = 4096;
    let mut bytes = std::fs::read(image).expect("the image");
    let (length, sequence) = (bytes.len() as u64, 77_u64);
    let mut page = bytes[TABLE..TABLE + PAGE].to_vec();
    page[..16].rotate_left(8);
    put(&mut page, 16, &2_u64.to_le_bytes());
    let mut entry = vec![0; 2 * PAGE];
    let header: [(usize, &[u8]); 8] = [
        (0, b"loge"),
        (8, &(2 * PAGE as u32).to_le_bytes()),
        (12, &(start as u32).to_le_bytes()),
        (16, &sequence.to_le_bytes()),
        (24, &1_u32.to_le_bytes()),
        (32, &[7; 16]),
        (48, &length.to_le_bytes()),
        (56, &length.to_le_bytes()),
    ];
    let descriptor: [(usize, &[u8]); 5] = [
        (64, b"desc"),
        (68, &page[PAGE - 4..]),
        (72, &page[..8]),
        (80, &(TABLE as u64).to_le_bytes()),
        (88, &sequence.to_le_bytes()),
    ];
    let data: [(usize, &[u8]); 3] =
        [(PAGE, b"data"), (PAGE + 8, &page[8..PAGE - 4]), (2 * PAGE - 4, &(sequence as u32).to_le_bytes())];
    for (at, value) in header.into_iter().chain(descriptor).chain(data) {
        put(&mut entry, at, value);
    }
    let sum = crc32c(&entry);
    put(&mut entry, 4, &sum.to_le_bytes());
    for (index, part) in entry.chunks(PAGE).enumerate() {
        put(&mut bytes, LOG + (start + index * PAGE) % (1 << 20), part);
    }
    for at in [64 << 10, 128 << 10] {
        put(&mut bytes, at + 48, &[7; 16]);
        put(&mut bytes, at + 4, &[0; 4]);
        let sum = crc32c(&bytes[at..at + PAGE]);
        put(&mut bytes, at + 4, &sum.to_le_bytes());
    }
    std::fs::write(image, bytes).expect("the image");
}

/// QEMU opens such an image only once it may write to it; we read it as it will be, and leave it as it is.
#[test]
fn a_vhdx_that_was_not_closed_reads_as_after_qemus_replay() {
    let scratch = Scratch::new();
    let us = ours("qemu-img");
    for start in [0, (1 << 20) - 4096] {
        sh(
            &scratch,
            "rm -f a.*; head -c 30M /dev/urandom > a.raw; truncate -s 40M a.raw; qemu-img convert -f raw -O vhdx -o block_size=8M a.raw a.vhdx",
        );
        die_in_log(&scratch.file("a.vhdx"), start);
        let before = std::fs::read(scratch.file("a.vhdx")).expect("the image");
        for words in ["info a.vhdx", "check a.vhdx", "convert -O raw a.vhdx ours.raw"] {
            assert_eq!(said(&us, &scratch, words).1, Some(0), "{words}");
        }
        assert_eq!(said(&us, &scratch, "check -r all a.vhdx").1, Some(1));
        assert!(std::fs::read(scratch.file("a.vhdx")).expect("the image") == before);
        sh(
            &scratch,
            "qemu-img check -q -r all a.vhdx; qemu-img convert -O raw a.vhdx theirs.raw; cmp ours.raw theirs.raw",
        );
        assert!(
            std::fs::read(scratch.file("ours.raw")).unwrap() != std::fs::read(scratch.file("a.raw")).unwrap()
        );
    }
}

/// A delta as ESX and qemu-img make it: what it lacks is in the image that its descriptor names.
#[test]
fn a_vmdk_over_another_one_is_read_through_its_chain() {
    let scratch = Scratch::new();
    sh(
        &scratch,
        "qemu-img create -q -f vmdk base.vmdk 10M; qemu-io -c 'write -P 7 0 1M' -c 'write -P 8 5M 64k' base.vmdk >/dev/null; \
         qemu-img create -q -f vmdk -b base.vmdk -F vmdk top.vmdk; qemu-io -c 'write -P 9 512k 128k' top.vmdk >/dev/null; \
         qemu-img convert -O raw top.vmdk a.raw",
    );
    is_read_as_by_qemu(&scratch, "top.vmdk", "a.raw");
    let (us, them) = (ours("qemu-img"), Path::new("qemu-img"));
    let chain = |qemu_img: &Path| {
        let (chain, _) = said(qemu_img, &scratch, "info --backing-chain --output=json top.vmdk");
        let chain: Vec<Value> = serde_json::from_str(&chain).expect("JSON");
        chain.iter().map(|info| SHOWN.map(|key| info[key].clone())).collect::<Vec<_>>()
    };
    assert_eq!(chain(&us), chain(them));
    // Another image in its place is not what the delta was made over.
    sh(
        &scratch,
        "qemu-img create -q -f vmdk base.vmdk 10M; qemu-io -c 'write -P 1 0 1M' base.vmdk >/dev/null",
    );
    assert_eq!(said(&us, &scratch, "convert -O raw top.vmdk b.raw").1, Some(1));
}

#[test]
fn a_vmdk_is_served_for_reading() {
    let scratch = Scratch::new();
    sh(
        &scratch,
        "truncate -s 20M a.raw; head -c 3M /dev/urandom | dd of=a.raw bs=1M seek=7 conv=notrunc status=none; \
         qemu-img convert -f raw -O vmdk -o subformat=streamOptimized a.raw a.vmdk",
    );
    let server =
        Server::start(&ours("qemu-nbd"), scratch.path(), &["-r", "-t", "-k", "s", "-f", "vmdk", "a.vmdk"]);
    let compared = said(Path::new("qemu-img"), &scratch, "compare -f raw -F raw nbd+unix:///?socket=s a.raw");
    assert_eq!(compared, ("Images are identical.\n".to_owned(), Some(0)));
    drop(server);
}

/// The author of a descriptor named files of the machine that converts it (CVE-2024-32498).
#[test]
fn extents_are_followed_only_beside_their_descriptor() {
    let scratch = Scratch::new();
    sh(
        &scratch,
        "mkdir d e; printf %01024d 7 > e/secret; ln -s ../e/secret d/link; mkfifo d/fifo; printf %01024d 8 > d/flat",
    );
    let us = ours("qemu-img");
    let names = ["../e/secret", "link", "fifo", "/etc/hostname", "nbd://localhost/x", "json:{}", "missing"];
    for name in names.into_iter().chain(["flat"]) {
        let text = format!(
            "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\nRW 2 FLAT \"{name}\" 0\n"
        );
        std::fs::write(scratch.file("d/a.vmdk"), text).expect("a file");
        let (info, code) = said(&us, &scratch, "info --output=json d/a.vmdk");
        let info: Value = serde_json::from_str(&info).expect("JSON");
        let extents = &info["format-specific"]["data"]["extents"];
        assert_eq!((code, extents.as_array().map(Vec::len)), (Some(0), Some(1)), "{name}");
        let code = said(&us, &scratch, "convert -O raw d/a.vmdk new").1;
        assert_eq!(code, Some(if name == "flat" { 0 } else { 1 }), "{name}");
    }
    let text = "version=1\nCID=1\ncreateType=\"vmfs\"\nRW 2 VMFS \"../e/secret\"\n";
    std::fs::write(scratch.file("d/a.vmdk"), text).expect("a file");
    let convert = ["convert", "-O", "raw", "d/a.vmdk", "new"];
    let allowed = Run::new(black_box::program::path()).args(convert).args(["--allow-path", "e"]);
    drop(allowed.current_dir(scratch.path()).ok());
    assert!(
        std::fs::read(scratch.file("new")).expect("it was made")
            == std::fs::read(scratch.file("e/secret")).unwrap()
    );
}

/// What programs that judge images rely on: nothing that an image says makes reading it take more.
#[test]
fn a_large_image_takes_little_memory() {
    let scratch = Scratch::new();
    sh(
        &scratch,
        "truncate -s 128G a.raw; for at in 0 50 100 127; do printf x | dd of=a.raw bs=1 seek=${at}G conv=notrunc status=none; done; \
         qemu-img convert -f raw -O vmdk a.raw a.vmdk",
    );
    for words in ["info a.vmdk", "check a.vmdk", "map a.vmdk", "convert -O qcow2 a.vmdk b.qcow2"] {
        let run = Run::new(ours("qemu-img")).args(words.split(' ')).current_dir(scratch.path()).outcome();
        assert!(run.status.success(), "{words}: {run}");
        assert!(run.peak_rss_bytes < 100 << 20, "{words}: {} bytes", run.peak_rss_bytes);
    }
}
