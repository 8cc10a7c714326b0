//! Images encrypted with AES as before LUKS: QEMU's tools still make them, and here they are read, to be converted.

use std::fs;

use serde_json::Value;

use crate::encrypted::{cowhand, must, qemu_img, qemu_io, raw};
use crate::peer::Bench;

const AES: &str = "encrypt.format=aes,encrypt.key-secret=sec0";

fn drive(name: &str) -> String {
    format!("driver=qcow2,encrypt.format=aes,encrypt.key-secret=sec0,file.filename={name}")
}

#[test]
fn every_aes_image_is_read_as_qemu_reads_it() {
    let bench = Bench::new();
    raw(&bench);
    for more in ["", ",compat=0.10", ",cluster_size=512", ",cluster_size=2M"] {
        let options = format!("{AES}{more}");
        qemu_img(&bench, &["convert", "-f", "raw", "-O", "qcow2", "-o", &options, "plain.raw", "old.qcow2"]);
        let image = drive("old.qcow2");
        qemu_io(&bench, &image, &["write -P 9 3M 70k", "write -z 200k 64k", "discard 300k 64k"]);
        let theirs = ["convert", "-O", "raw", "--image-opts", &image, "theirs.raw"];
        qemu_img(&bench, &theirs);
        let same = ["compare", "--image-opts", &image, "driver=raw,file.filename=theirs.raw"];
        assert_eq!(must(&bench, &same), "Images are identical.\n", "{more}");
        // Away from it: to a plain image and to LUKS.
        must(&bench, &["convert", "-O", "qcow2", &image, "plain.qcow2"]);
        must(&bench, &["compare", "plain.qcow2", "file=theirs.raw,format=raw"]);
        // Parts of sectors.
        must(
            &bench,
            &["dd", "-O", "raw", "bs=700", "count=900", "skip=3", &format!("if={image}"), "of=part.raw"],
        );
        let whole = fs::read(bench.path("theirs.raw")).unwrap();
        // As with qemu-img, the count begins at the start of the disk.
        assert!(fs::read(bench.path("part.raw")).unwrap()[..627_900] == whole[2100..630_000], "{more}");
        let check = bench.cowhand(&["check", "old.qcow2"]);
        assert_eq!(check.code, 0, "{}{}", check.out, check.err);
        let words = ["map", "--output", "json", "--image-opts", &image];
        let (ours, theirs) = (must(&bench, &words), qemu_img(&bench, &words));
        assert_eq!(data_and_zeroes(&ours), data_and_zeroes(&theirs), "{more}");
    }
}

/// The pieces of a map, neighbours of one kind together: QEMU tells no place of a cluster that is encrypted, so nothing parts them.
fn data_and_zeroes(map: &str) -> Vec<(u64, bool)> {
    let map: Value = serde_json::from_str(map).unwrap();
    let mut pieces: Vec<(u64, bool)> = Vec::new();
    for piece in map.as_array().unwrap() {
        let (len, zero) = (piece["length"].as_u64().unwrap(), piece["zero"].as_bool().unwrap());
        match pieces.last_mut() {
            Some(last) if last.1 == zero => last.0 += len,
            _ => pieces.push((len, zero)),
        }
    }
    pieces
}

/// The key is the first 16 bytes of the password.
#[test]
fn a_password_is_cut_or_filled_to_the_length_of_a_key() {
    let bench = Bench::new();
    raw(&bench);
    for password in ["x", "sixteen bytes ok", "more than sixteen bytes"] {
        let object = format!("secret,id=s,data={password}");
        let create = [
            "create",
            "-q",
            "--object",
            &object,
            "-f",
            "qcow2",
            "-o",
            "encrypt.format=aes,encrypt.key-secret=s",
            "old.qcow2",
            "1M",
        ];
        bench.qemu("qemu-img", &create);
        let image = "driver=qcow2,encrypt.key-secret=s,file.filename=old.qcow2";
        bench.qemu("qemu-io", &["--object", &object, "--image-opts", "-c", "write -P 5 0 100k", image]);
        let read = bench.cowhand(&["convert", "--object", &object, "-O", "raw", image, "ours.raw"]);
        assert_eq!(read.code, 0, "{}", read.err);
        assert!(fs::read(bench.path("ours.raw")).unwrap()[..102_400] == [5; 102_400], "{password}");
    }
}

/// Snapshots and images in a chain: below an image that is written, and compressed clusters, which are not ciphered.
#[test]
fn chains_and_snapshots_of_aes_images_are_read() {
    let bench = Bench::new();
    raw(&bench);
    qemu_img(
        &bench,
        &["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=4k", "plain.raw", "base.qcow2"],
    );
    let words = ["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", "-o", AES, "old.qcow2"];
    qemu_img(&bench, &words);
    let image = drive("old.qcow2");
    qemu_io(&bench, &image, &["write -P 3 64k 300k"]);
    qemu_img(&bench, &["snapshot", "-c", "before", "--image-opts", &image]);
    qemu_io(&bench, &image, &["write -P 4 100k 1000"]);
    qemu_img(&bench, &["convert", "-O", "raw", "--image-opts", &image, "now.raw"]);
    qemu_img(&bench, &["convert", "-O", "raw", "-l", "before", "--image-opts", &image, "before.raw"]);
    must(&bench, &["compare", "--image-opts", &image, "driver=raw,file.filename=now.raw"]);
    must(&bench, &["convert", "-O", "raw", "-l", "before", &image, "ours.raw"]);
    assert!(fs::read(bench.path("ours.raw")).unwrap() == fs::read(bench.path("before.raw")).unwrap());
    // Over it, an image that is written: copy-on-write decrypts the old image's data.
    must(&bench, &["create", "-q", "-u", "-f", "qcow2", "-b", "old.qcow2", "-F", "qcow2", "top.qcow2", "4M"]);
    let top =
        "driver=qcow2,file.filename=top.qcow2,backing.encrypt.format=aes,backing.encrypt.key-secret=sec0";
    must(&bench, &["bench", "-w", "-c", "50", "-d", "4", "-s", "700", "--pattern", "7", "--image-opts", top]);
    must(&bench, &["convert", "-O", "raw", top, "ours.raw"]);
    let mut expected = fs::read(bench.path("now.raw")).unwrap();
    expected[..35_000].fill(7);
    assert!(fs::read(bench.path("ours.raw")).unwrap() == expected);
}

#[test]
fn an_aes_image_is_not_written_and_needs_its_password() {
    let bench = Bench::new();
    qemu_img(&bench, &["create", "-q", "-f", "qcow2", "-o", AES, "old.qcow2", "1M"]);
    qemu_img(&bench, &["create", "-q", "-f", "qcow2", "plain.qcow2", "1M"]);
    let before = fs::read(bench.path("old.qcow2")).unwrap();
    let image = drive("old.qcow2");
    let only_read = "encrypted (AES, as before LUKS) and can only be read";
    let table: [(&[&str], &str); 6] = [
        (&["map", "old.qcow2"], "its password is needed: give encrypt.key-secret=ID"),
        (&["resize", "--image-opts", &image, "2M"], only_read),
        (&["bench", "-w", "-c", "1", "--image-opts", &image], only_read),
        (&["snapshot", "-c", "x", "--image-opts", &image], only_read),
        (
            &["map", "file=plain.qcow2,encrypt.format=aes"],
            "option encrypt.format is aes, and the image is not encrypted with it",
        ),
        (
            &["map", "file=old.qcow2,encrypt.format=luks,encrypt.key-secret=sec0"],
            "option encrypt.format is luks, and the image",
        ),
    ];
    for (words, error) in table {
        let ran = cowhand(&bench, words);
        assert!(ran.code == 1 && ran.err.contains(error), "{words:?}: {}", ran.err);
    }
    assert!(fs::read(bench.path("old.qcow2")).unwrap() == before);
}
