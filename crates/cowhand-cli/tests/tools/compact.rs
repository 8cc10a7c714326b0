//! `cowhand compact` on images that QEMU made and uses afterwards.

use std::path::Path;

use crate::peer::Bench;

const COWHAND: &str = env!("CARGO_BIN_EXE_cowhand");

/// An image whose first half the guest gave back, with a snapshot of some of what is left.
fn image(bench: &Bench, shape: &str) {
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", shape, "disk.qcow2", "64M"]);
    let written = ["write -P 1 0 16M", "write -P 2 20M 8M", "write -P 0 40M 1M", "write -P 3 50M 700k"];
    io(bench, &written);
    bench.qemu("qemu-img", &["snapshot", "-c", "kept", "disk.qcow2"]);
    io(bench, &["write -P 4 20M 1M", "write -P 5 60M 4M"]);
    bench.qemu("qemu-img", &["snapshot", "-d", "kept", "disk.qcow2"]);
    bench.qemu("qemu-img", &["snapshot", "-c", "second", "disk.qcow2"]);
    bench.qemu("qemu-img", &["bitmap", "--add", "disk.qcow2", "marks"]);
    io(bench, &["discard 0 16M", "write -P 6 30M 2M"]);
    bench.qemu("qemu-img", &["snapshot", "-d", "second", "disk.qcow2"]);
    bench.qemu("qemu-img", &["snapshot", "-c", "last", "disk.qcow2"]);
    io(bench, &["write -P 7 21M 1M"]);
    bench.qemu("qemu-img", &["convert", "-O", "raw", "disk.qcow2", "before.raw"]);
    bench.qemu("qemu-img", &["convert", "-l", "last", "-O", "raw", "disk.qcow2", "last.raw"]);
}

fn io(bench: &Bench, commands: &[&str]) {
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    bench.qemu("qemu-io", &[&["-f", "qcow2", "-d", "unmap"], &commands[..], &["disk.qcow2"]].concat());
}

fn assert_unchanged(bench: &Bench) {
    bench.qemu("qemu-img", &["compare", "-q", "disk.qcow2", "before.raw"]);
    bench.qemu("qemu-img", &["convert", "-l", "last", "-O", "raw", "disk.qcow2", "now.raw"]);
    bench.qemu("qemu-img", &["compare", "-q", "now.raw", "last.raw"]);
}

#[test]
fn the_file_becomes_smaller_and_disk_snapshot_and_bitmap_stay() {
    for shape in ["cluster_size=64k", "cluster_size=4k", "extended_l2=on,refcount_bits=8"] {
        let bench = Bench::new();
        image(&bench, shape);
        let length = || std::fs::metadata(bench.path("disk.qcow2")).unwrap().len();
        let (before, bytes) = (length(), std::fs::read(bench.path("disk.qcow2")).unwrap());
        let dry = bench.cowhand(&["compact", "-n", "--output", "json", "disk.qcow2"]);
        assert_eq!(dry.code, 0, "{}", dry.err);
        assert!(std::fs::read(bench.path("disk.qcow2")).unwrap() == bytes, "a dry run writes nothing");
        let expected = dry.json()["length-after"].as_u64().unwrap();
        let ran = bench.cowhand(&["compact", "--output", "json", "disk.qcow2"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let report = ran.json();
        assert_eq!(report["length-before"], before, "{report}");
        assert_eq!(report["length-after"], length(), "{report}");
        assert!(length() <= expected && length() + (8 << 20) < before, "{report}, expected {expected}");
        assert_unchanged(&bench);
        bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
        let info = bench.qemu("qemu-img", &["info", "--output", "json", "disk.qcow2"]).json();
        let bitmap = &info["format-specific"]["data"]["bitmaps"][0];
        assert_eq!((&bitmap["name"], &bitmap["flags"]), (&"marks".into(), &serde_json::json!(["auto"])));
        let zeroes = bench.cowhand(&["compact", "--detect-zeroes", "disk.qcow2"]);
        assert_eq!(zeroes.code, 0, "{}", zeroes.err);
        assert!(zeroes.out.contains("clusters of zeroes"), "{}", zeroes.out);
        assert_unchanged(&bench);
        let again = bench.cowhand(&["compact", "disk.qcow2"]);
        assert!(again.out.contains("moved: 0 B"), "{}", again.out);
        // QEMU can use the image.
        io(&bench, &["write -P 9 1M 9M"]);
        bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
    }
}

#[test]
fn a_killed_run_leaves_the_disk_as_it_was_and_the_next_one_finishes() {
    let bench = Bench::new();
    image(&bench, "cluster_size=4k");
    for tenths in 0..8 {
        let how = if tenths % 2 == 0 { "--defragment" } else { "--detect-zeroes" };
        let script = format!("timeout -s KILL 0.0{} \"$0\" compact {how} disk.qcow2", 1 + tenths);
        bench.run(Path::new("sh"), &["-c", &script, COWHAND]);
        bench.wait_for_lock("disk.qcow2");
        let check = bench.run(Path::new("qemu-img"), &["check", "-q", "disk.qcow2"]);
        assert!([0, 3].contains(&check.code), "{}: {}{}", check.code, check.out, check.err);
        assert_unchanged(&bench);
    }
    let ran = bench.cowhand(&["compact", "disk.qcow2"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
    assert_unchanged(&bench);
}

#[test]
fn the_guests_order_is_the_mediums_order_after_defragmenting() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "disk.qcow2", "64M"]);
    let writes: Vec<String> =
        (0..100).rev().map(|index| format!("write -P {} {}k 64k", index + 1, index * 192)).collect();
    io(&bench, &writes.iter().map(String::as_str).collect::<Vec<_>>());
    bench.qemu("qemu-img", &["snapshot", "-c", "last", "disk.qcow2"]);
    io(&bench, &["write -P 200 0 640k"]);
    bench.qemu("qemu-img", &["convert", "-O", "raw", "disk.qcow2", "before.raw"]);
    bench.qemu("qemu-img", &["convert", "-l", "last", "-O", "raw", "disk.qcow2", "last.raw"]);
    let dry = bench.cowhand(&["compact", "-n", "--defragment", "--output", "json", "disk.qcow2"]).json();
    let ran = bench.cowhand(&["compact", "--defragment", "--output", "json", "disk.qcow2"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let report = ran.json();
    assert!(report["moved-bytes"].as_u64() >= dry["moved-bytes"].as_u64(), "{report} {dry}");
    let fragmented = |when: &str| report[format!("fragmented-clusters-{when}")].as_u64().unwrap();
    assert!(fragmented("before") > 90 && fragmented("after") <= 2, "{report}");
    assert_unchanged(&bench);
    bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
}

#[test]
fn an_encrypted_image_is_compacted_with_its_password_alone() {
    let bench = Bench::new();
    let key = ["--object", "secret,id=s,data=abc"];
    let how = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    let disk = "driver=qcow2,file.filename=disk.qcow2,encrypt.key-secret=s";
    let create = ["create", "-q", key[0], key[1], "-f", "qcow2", "-o", how, "disk.qcow2", "16M"];
    bench.qemu("qemu-img", &create);
    let io = |commands: &[&str]| {
        let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
        let opened = [&key[..], &["-d", "unmap", "--image-opts", disk], &commands[..]].concat();
        bench.qemu("qemu-io", &opened);
    };
    io(&["write -P 1 8M 1M", "write -P 2 0 2M", "write -P 3 12M 700k", "discard 0 1M"]);
    std::fs::copy(bench.path("disk.qcow2"), bench.path("before.qcow2")).unwrap();
    let alone = bench.cowhand(&["compact", "disk.qcow2"]);
    assert!(alone.code == 1 && alone.err.contains("key-secret"), "{}", alone.err);
    for more in [&[][..], &["--defragment"]] {
        let words = [&["compact"], &key[..], more, &["--image-opts", disk]].concat();
        let ran = bench.cowhand(&words);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let before = disk.replace("disk.qcow2", "before.qcow2");
        bench.qemu("qemu-img", &[&["compare", "-q"], &key[..], &["--image-opts", disk, &before]].concat());
    }
    io(&["read -P 1 8M 1M", "write -P 9 3M 1M", "read -P 9 3M 1M"]);
}

#[test]
fn an_image_in_use_and_one_that_is_none_are_refused() {
    let bench = Bench::new();
    image(&bench, "cluster_size=64k");
    let busy = "qemu-io -f qcow2 -c 'sleep 3000' disk.qcow2 & sleep 1; \"$0\" compact disk.qcow2; code=$?; \
        \"$0\" compact -n disk.qcow2 >/dev/null; wait; exit $code";
    let ran = bench.run(Path::new("sh"), &["-c", busy, COWHAND]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("in use") || ran.err.contains("lock"), "{}", ran.err);
    let raw = bench.cowhand(&["compact", "-f", "raw", "before.raw"]);
    assert_eq!(raw.code, 1);
    assert!(raw.err.contains("no clusters"), "{}", raw.err);
    assert_unchanged(&bench);
}
