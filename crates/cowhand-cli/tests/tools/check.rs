//! `cowhand check` on damaged images.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::peer::Bench;

/// An image with data whose refcounts are gone, and a cluster that nothing uses is counted.
fn damaged(bench: &Bench) {
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "disk.qcow2", "8M"]);
    bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -P 7 0 1M", "disk.qcow2"]);
    let file = fs::File::options().read(true).write(true).open(bench.path("disk.qcow2")).unwrap();
    let mut table = [0; 8];
    file.read_exact_at(&mut table, 0x10000).unwrap();
    let block = u64::from_be_bytes(table);
    file.write_all_at(&[0; 6], block + 2 * 10).unwrap();
    file.write_all_at(&1u16.to_be_bytes(), block + 2 * 40).unwrap();
}

/// Who asks what a repair would do gets what the repair says then, and the image as it was.
#[test]
fn a_dry_run_says_what_the_repair_does_and_writes_nothing() {
    let bench = Bench::new();
    damaged(&bench);
    let before = fs::read(bench.path("disk.qcow2")).unwrap();
    for what in ["leaks", "all"] {
        fs::write(bench.path("disk.qcow2"), &before).unwrap();
        let dry = bench.cowhand(&["check", "--dry-run", "-r", what, "disk.qcow2"]);
        let dry_json = bench.cowhand(&["check", "--dry-run", "-r", what, "--output", "json", "disk.qcow2"]);
        assert!(fs::read(bench.path("disk.qcow2")).unwrap() == before, "it was written");
        let json = fs::copy(bench.path("disk.qcow2"), bench.path("copy.qcow2"))
            .map(|_| bench.cowhand(&["check", "-r", what, "--output", "json", "copy.qcow2"]).json())
            .unwrap();
        let repaired = bench.cowhand(&["check", "-r", what, "disk.qcow2"]);
        assert_eq!((dry.code, dry_json.code), (repaired.code, repaired.code), "{}", dry.err);
        let said = dry.out.strip_prefix(&*repaired.out).expect("the same verdict first");
        assert!(said.starts_with("Nothing was written; the repair writes "), "{said}");
        assert_eq!(dry.err, repaired.err);
        let mut dry_json = dry_json.json();
        dry_json["filename"] = "copy.qcow2".into();
        assert_eq!(dry_json, json);
    }
    bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
    let alone = bench.cowhand(&["check", "--dry-run", "disk.qcow2"]);
    assert!(alone.code == 1 && alone.err.contains("--repair"), "{}", alone.err);
}

/// Two places of the disk that share a cluster keep what they had, each in a cluster of its own; what will be done is said before.
#[test]
fn data_that_two_places_share_is_copied_and_a_dry_run_says_so() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "disk.qcow2", "8M"]);
    bench.qemu(
        "qemu-io",
        &["-f", "qcow2", "-c", "write -P 7 0 256k", "-c", "write -P 8 64k 64k", "disk.qcow2"],
    );
    let file = fs::File::options().read(true).write(true).open(bench.path("disk.qcow2")).unwrap();
    let (mut l1, mut entry) = ([0; 8], [0; 8]);
    file.read_exact_at(&mut l1, 0x30000).unwrap();
    let table = u64::from_be_bytes(l1) & !(1 << 63);
    file.read_exact_at(&mut entry, table + 8).unwrap();
    file.write_all_at(&entry, table + 16).unwrap();
    bench.qemu("qemu-img", &["convert", "-O", "raw", "disk.qcow2", "before.raw"]);
    let dry = bench.cowhand(&["check", "-r", "all", "--dry-run", "disk.qcow2"]);
    let said = "gets its own: guest data, 1 cluster\n";
    assert!(dry.code == 0 && dry.err.contains(said), "{} {}", dry.out, dry.err);
    let ran = bench.cowhand(&["check", "-p", "-r", "all", "disk.qcow2"]);
    assert!(ran.code == 0 && ran.err.contains(said), "{} {}", ran.out, ran.err);
    bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
    bench.qemu("qemu-img", &["compare", "-q", "disk.qcow2", "before.raw"]);
    bench.qemu(
        "qemu-io",
        &["-f", "qcow2", "-c", "write -P 1 64k 64k", "-c", "read -P 8 128k 64k", "disk.qcow2"],
    );
}
