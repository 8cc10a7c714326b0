//! Jobs copy between images whose clusters and lengths are unlike, and the disk reads the same afterwards.
//!
//! A guest's write of 2 KiB during a shallow mirror made the rest of a cluster zeroes, zeroes of less than a cluster were not stored, and a commit of
//! middle layers dropped the end of a short one: the disk then showed data that had been hidden.

use black_box::bytes::are_all;
use black_box::peer::{converted, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::{QemuNbd, Scratch};
use serde_json::{Value, json};

use super::jobs::{completed, reported};
use super::qcow2;

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

/// An image of a chain, made by QEMU.
fn image(scratch: &Scratch, name: &str, size: &str, options: &str, below: Option<&str>) -> String {
    let path = scratch.name(name);
    let mut words = vec!["create", "-q", "-f", "qcow2", "-o", options];
    below.iter().for_each(|below| words.extend(["-b", below, "-F", "qcow2"]));
    words.extend([&*path, size]);
    qemu_img(words).ok();
    path
}

/// A server with an export of the node `top` that a client writes to.
fn export(qmp: &mut Qmp, scratch: &Scratch) -> String {
    let nbd = scratch.name("n");
    qmp.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": nbd } } }));
    qmp.ok(
        "block-export-add",
        json!({ "type": "nbd", "id": "e", "node-name": "top", "name": "e", "writable": true }),
    );
    format!("nbd+unix:///e?socket={nbd}")
}

fn add(qmp: &mut Qmp, node: &str, path: &str, backing: Value, is_written: bool) {
    let mut options = qcow2(node, path);
    options["backing"] = backing;
    options["discard"] = json!("unmap");
    options["read-only"] = json!(!is_written);
    qmp.ok("blockdev-add", options);
}

#[test]
fn a_shallow_mirror_keeps_the_rest_of_each_cluster_that_a_guest_writes_in_part() {
    for (clusters, mode) in
        [("64k", "background"), ("64k", "write-blocking"), ("2M", "background"), ("2M", "write-blocking")]
    {
        let scratch = Scratch::new();
        let base = image(&scratch, "base.qcow2", "8M", "cluster_size=64k", None);
        qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 17 0 8M"]);
        let top = image(&scratch, "top.qcow2", "8M", "cluster_size=4k", Some(&base));
        qemu_io_ok(&["-f", "qcow2"], &top, &["write -z 3M 4k"]);
        let target = image(&scratch, "t.qcow2", "8M", &format!("cluster_size={clusters}"), Some(&base));
        let (server, mut qmp) = super::begin_with_nothing(&scratch);
        add(&mut qmp, "base", &base, Value::Null, false);
        add(&mut qmp, "top", &top, json!("base"), true);
        add(&mut qmp, "t", &target, Value::Null, true);
        let uri = export(&mut qmp, &scratch);
        qmp.ok(
            "blockdev-mirror",
            json!({ "job-id": "j", "device": "top", "target": "t", "sync": "top", "copy-mode": mode, "granularity": 4096 }),
        );
        reported(&mut qmp, "BLOCK_JOB_READY", "j");
        qemu_io_ok(&["-f", "raw"], &uri, &["write -P 51 1025k 2k", "write -z 5000k 1k"]);
        qmp.ok("job-complete", json!({ "id": "j" }));
        completed(&mut qmp, "j");
        server.stop();
        let mut wanted = vec![17; 8 * MIB];
        wanted[1025 * KIB..1027 * KIB].fill(51);
        wanted[5000 * KIB..5001 * KIB].fill(0);
        wanted[3 * MIB..3 * MIB + 4 * KIB].fill(0);
        let found = converted(&target, "qcow2", &[], &scratch.file("converted"));
        let wrong = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "{clusters} {mode}");
    }
}

/// A mirror of nothing copies what guests write meanwhile. Its target was put over what lies below the disk's image, and what that image had was gone.
#[test]
fn a_mirror_of_nothing_is_put_over_the_disk() {
    for (command, mode) in [
        ("blockdev-mirror", "background"),
        ("blockdev-mirror", "write-blocking"),
        ("drive-mirror", "background"),
        ("drive-mirror", "write-blocking"),
    ] {
        let scratch = Scratch::new();
        let base = image(&scratch, "base.qcow2", "8M", "cluster_size=64k", None);
        qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 17 0 8M"]);
        let top = image(&scratch, "top.qcow2", "8M", "cluster_size=4k", Some(&base));
        qemu_io_ok(&["-f", "qcow2"], &top, &["write -P 18 1M 1M", "write -z 3M 4k"]);
        let (server, mut qmp) = super::begin_with_nothing(&scratch);
        add(&mut qmp, "base", &base, Value::Null, false);
        add(&mut qmp, "top", &top, json!("base"), true);
        let uri = export(&mut qmp, &scratch);
        let mut mirror = json!({ "job-id": "j", "device": "top", "sync": "none", "copy-mode": mode });
        let target = if command == "drive-mirror" {
            mirror["target"] = json!(scratch.name("t.qcow2"));
            mirror["format"] = json!("qcow2");
            scratch.name("t.qcow2")
        } else {
            let target = image(&scratch, "t.qcow2", "8M", "cluster_size=2M", Some(&top));
            add(&mut qmp, "t", &target, Value::Null, true);
            mirror["target"] = json!("t");
            target
        };
        // Not flushed before the disk switches: the next flush is one of what lies below, too.
        qemu_io_ok(&["-f", "raw", "-t", "unsafe"], &uri, &["write -P 50 7M 4k"]);
        qmp.ok(command, mirror);
        reported(&mut qmp, "BLOCK_JOB_READY", "j");
        qemu_io_ok(&["-f", "raw"], &uri, &["write -P 51 1025k 2k", "write -z 5000k 1k"]);
        qmp.ok("job-complete", json!({ "id": "j" }));
        completed(&mut qmp, "j");
        qemu_io_ok(&["-f", "raw"], &uri, &["write -P 52 6M 1k", "read -P 18 1500k 500k", "flush"]);
        server.stop();
        let mut wanted = vec![17; 8 * MIB];
        wanted[MIB..2 * MIB].fill(18);
        wanted[1025 * KIB..1027 * KIB].fill(51);
        wanted[3 * MIB..3 * MIB + 4 * KIB].fill(0);
        wanted[5000 * KIB..5001 * KIB].fill(0);
        wanted[6 * MIB..6 * MIB + KIB].fill(52);
        wanted[7 * MIB..7 * MIB + 4 * KIB].fill(50);
        let found = converted(&target, "qcow2", &[], &scratch.file("converted"));
        let wrong = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "{command} {mode}");
    }
}

#[test]
fn a_backup_over_an_earlier_one_stores_zeroes_of_any_size() {
    for sync in ["top", "bitmap"] {
        let scratch = Scratch::new();
        let base = image(&scratch, "base.qcow2", "1M", "cluster_size=4k", None);
        qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 17 0 1M"]);
        let top = image(&scratch, "top.qcow2", "1M", "cluster_size=4k", Some(&base));
        qemu_img(["bitmap", "--add", "-g", "65536", &top, "b"]).ok();
        // Without a name of a backing file, which it gets at the end.
        let target = image(&scratch, "t.qcow2", "1M", "cluster_size=64k", None);
        let (server, mut qmp) = super::begin_with_nothing(&scratch);
        add(&mut qmp, "base", &base, Value::Null, false);
        add(&mut qmp, "top", &top, json!("base"), true);
        add(&mut qmp, "t", &target, Value::Null, true);
        let uri = export(&mut qmp, &scratch);
        qemu_io_ok(&["-f", "raw"], &uri, &["write -z 0 4k", "discard 200k 4k", "write -P 5 300k 512"]);
        let mut backup = json!({ "job-id": "j", "device": "top", "target": "t", "sync": sync });
        if sync == "bitmap" {
            backup["bitmap"] = json!("b");
            backup["bitmap-mode"] = json!("on-success");
        }
        qmp.ok("blockdev-backup", backup);
        completed(&mut qmp, "j");
        server.stop();
        qemu_img(["rebase", "-u", "-b", &base, "-F", "qcow2", &target]).ok();
        let disk = converted(&top, "qcow2", &[], &scratch.file("disk"));
        assert!(are_all(&disk[..4 * KIB], 0), "the guest's zeroes");
        let found = converted(&target, "qcow2", &[], &scratch.file("converted"));
        let wrong = found.iter().zip(&disk).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "sync {sync}");
    }
}

#[test]
fn a_commit_of_middle_layers_writes_the_end_of_a_short_one_to_the_base() {
    let scratch = Scratch::new();
    let base = image(&scratch, "base.qcow2", "4M", "cluster_size=64k", None);
    qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 17 0 4M"]);
    let short = image(&scratch, "short.qcow2", "1M", "cluster_size=4k", Some(&base));
    let mid = image(&scratch, "mid.qcow2", "4M", "cluster_size=2M", Some(&short));
    let top = image(&scratch, "top.qcow2", "4M", "cluster_size=64k", Some(&mid));
    let (server, mut qmp) = super::begin_with_nothing(&scratch);
    add(&mut qmp, "base", &base, Value::Null, false);
    add(&mut qmp, "short", &short, json!("base"), false);
    add(&mut qmp, "mid", &mid, json!("short"), false);
    add(&mut qmp, "top", &top, json!("mid"), true);
    qmp.ok("block-commit", json!({ "job-id": "j", "device": "top", "top-node": "mid", "base-node": "base" }));
    completed(&mut qmp, "j");
    server.stop();
    let found = converted(&top, "qcow2", &[], &scratch.file("converted"));
    assert!(are_all(&found[..MIB], 17) && are_all(&found[MIB..], 0), "old data of the base shows");
}

/// A machine moves to another host, whose image is an overlay of the same base: what the disk's uppermost image has goes there over NBD.
#[test]
fn a_shallow_copy_goes_to_an_overlay_that_another_server_has() {
    for (command, wrapped) in
        [("blockdev-mirror", false), ("blockdev-mirror", true), ("blockdev-backup", false)]
    {
        let scratch = Scratch::new();
        let base = image(&scratch, "base.qcow2", "4M", "cluster_size=64k", None);
        qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 17 0 4M"]);
        let top = image(&scratch, "top.qcow2", "4M", "cluster_size=64k", Some(&base));
        qemu_io_ok(&["-f", "qcow2"], &top, &["write -P 34 1M 10k", "write -z 2M 3k"]);
        let target = image(&scratch, "t.qcow2", "4M", "cluster_size=4k", Some(&base));
        let place = scratch.name("other");
        let other = QemuNbd::start_image(target.as_ref(), &["-x", "", "-k", &place]);
        let (server, mut qmp) = super::begin_with_nothing(&scratch);
        add(&mut qmp, "base", &base, Value::Null, false);
        add(&mut qmp, "top", &top, json!("base"), true);
        let mut nbd = json!({ "driver": "nbd", "server": { "type": "unix", "path": place } });
        if wrapped {
            nbd = json!({ "driver": "raw", "file": nbd });
        }
        nbd["node-name"] = json!("t");
        qmp.ok("blockdev-add", nbd);
        qmp.ok(command, json!({ "job-id": "j", "device": "top", "target": "t", "sync": "top" }));
        if command == "blockdev-mirror" {
            reported(&mut qmp, "BLOCK_JOB_READY", "j");
            qmp.ok("job-complete", json!({ "id": "j" }));
        }
        completed(&mut qmp, "j");
        server.stop();
        other.stop();
        let compared = qemu_img(["compare", &top, &target]).ok();
        assert!(compared.contains("identical"), "{command} {wrapped}: {compared}");
    }
}
