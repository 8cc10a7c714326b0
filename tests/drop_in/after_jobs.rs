//! What jobs leave open, and over what, under the names of `qemu-storage-daemon`.

use std::path::Path;

use black_box::peer::qemu_io_ok;
use black_box::qmp::Qmp;
use black_box::{Run, Scratch};
use serde_json::{Value, json};

use super::{gone, images, ours};

/// `program` in the background, with `words`, an NBD server on `s` and a monitor.
fn daemon(program: &Path, scratch: &Scratch, words: &[&str]) -> Qmp {
    let doors = ["--nbd-server", "addr.type=unix,addr.path=s"];
    let monitor = ["--chardev", "socket,path=q,server=on,wait=off,id=c", "--monitor", "chardev=c"];
    // What words export needs the server.
    let run = Run::new(program).arg("--daemonize").args(doors).args(words).args(monitor);
    drop(run.current_dir(scratch.path()).ok());
    Qmp::connect(&scratch.file("q"))
}

fn uri(scratch: &Scratch, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", scratch.name("s"))
}

fn node(name: &str, path: &str) -> String {
    format!("driver=qcow2,node-name={name},file.driver=file,file.filename={path}")
}

fn img(args: &[&str]) {
    drop(Run::new("qemu-img").args(args).ok());
}

/// Completes job `id`, which stays until it is dismissed.
fn complete(qmp: &mut Qmp, id: &str) {
    while qmp.ok("query-jobs", json!({}))[0]["status"] != "ready" {}
    qmp.ok("job-complete", json!({ "id": id }));
    while qmp.ok("query-jobs", json!({}))[0]["status"] != "concluded" {}
    assert_eq!(qmp.ok("query-jobs", json!({}))[0].get("error"), None);
    qmp.ok("job-dismiss", json!({ "id": id }));
}

/// The node called `name`, as queries describe it.
fn described(qmp: &mut Qmp, name: &str) -> Value {
    let nodes = qmp.ok("query-named-block-nodes", json!({}));
    let found = nodes.as_array().expect("a list").iter().find(|node| node["node-name"] == name);
    found.expect("it is there").clone()
}

/// Files of an image and of those below it.
fn chain_of(node: &Value) -> Vec<String> {
    let name = |image: &Value| {
        image["filename"].as_str().and_then(|name| name.rsplit('/').next().map(str::to_owned))
    };
    std::iter::successors(Some(&node["image"]), |image| image.get("backing-image")).filter_map(name).collect()
}

/// What a mirror leaves was closed, and only its name stayed: a manager could not go back to it, nor read it.
#[test]
fn what_a_mirror_leaves_stays_open_under_its_name_as_qemus() {
    let look = |program: &Path, sync: &str| {
        let scratch = images();
        let [disk, overlay, copy] = ["disk.qcow2", "o", "copy"].map(|name| scratch.name(name));
        img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &disk, &overlay]);
        img(&["create", "-q", "-f", "qcow2", &copy, "4M"]);
        qemu_io_ok(&["-f", "qcow2"], &overlay, &["write -P 7 2M 64k"]);
        let (source, target) = (node("source", &overlay), node("target", &copy));
        let words = ["--blockdev", &source, "--blockdev", &target];
        let export = ["--export", "nbd,id=e,node-name=source,name=e,writable=on"];
        let mut qmp = daemon(program, &scratch, &[&words[..], &export].concat());
        let write = |export: &str, value: u8| {
            let write = format!("write -P {value} 0 64k");
            qemu_io_ok(&["-f", "raw"], &uri(&scratch, export), &[&write, "flush"]);
        };
        let mirror = json!({ "job-id": "j", "device": "source", "target": "target", "sync": sync, "auto-dismiss": false });
        qmp.ok("blockdev-mirror", mirror);
        while qmp.ok("query-jobs", json!({}))[0]["status"] != "ready" {}
        write("e", 8);
        complete(&mut qmp, "j");
        write("e", 9);
        let source = described(&mut qmp, "source");
        // It can be written again, and the disk does not notice.
        let export =
            json!({ "type": "nbd", "id": "left", "node-name": "source", "name": "left", "writable": true });
        qmp.ok("block-export-add", export);
        let left = ["read -P 8 0 64k", "read -P 1 64k 64k", "read -P 7 2M 64k"];
        qemu_io_ok(&["-f", "raw"], &uri(&scratch, "left"), &left);
        write("left", 10);
        qmp.ok("block-export-del", json!({ "id": "left", "mode": "hard" }));
        qmp.event_of("BLOCK_EXPORT_DELETED", "id", "left");
        qmp.ok("blockdev-del", json!({ "node-name": "source" }));
        // It is closed, while the copy is in use.
        img(&["check", "-q", &overlay]);
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        qemu_io_ok(&["-r", "-f", "qcow2"], &overlay, &["read -P 10 0 64k", "read -P 7 2M 64k"]);
        qemu_io_ok(&["-r", "-f", "qcow2"], &copy, &["read -P 9 0 64k", "read -P 7 2M 64k"]);
        (source["drv"].clone(), source["ro"].clone(), chain_of(&source))
    };
    for sync in ["full", "top"] {
        let ours = look(&ours("qemu-storage-daemon"), sync);
        assert_eq!(ours, look(Path::new("qemu-storage-daemon"), sync), "{sync}");
        assert_eq!(ours.2, ["o", "disk.qcow2"], "{sync}");
    }
}

/// What lies below a copy is what its image names, or what a manager gives it, unless the file was made for the job.
#[test]
fn a_copy_is_put_over_other_images_where_qemus_is() {
    let look = |program: &Path, (mode, sync, is_overlay): (Option<&str>, &str, bool)| {
        let scratch = images();
        let [disk, overlay, copy, other] =
            ["disk.qcow2", "o", "copy", "other"].map(|name| scratch.name(name));
        img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &disk, &overlay]);
        img(&["create", "-q", "-f", "qcow2", &other, "4M"]);
        match (mode, is_overlay) {
            (Some("absolute-paths"), _) => {}
            (_, true) => img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &other, &copy]),
            (_, false) => img(&["create", "-q", "-f", "qcow2", &copy, "4M"]),
        }
        let (source, target) = (node("source", &overlay), node("target", &copy));
        let mut words = vec!["--blockdev", &source];
        let mut mirror = json!({ "job-id": "j", "device": "source", "sync": sync, "auto-dismiss": false });
        if let Some(mode) = mode {
            (mirror["target"], mirror["node-name"]) = (json!(copy), json!("target"));
            (mirror["mode"], mirror["format"]) = (json!(mode), json!("qcow2"));
        } else {
            words.extend(["--blockdev", &target]);
            mirror["target"] = json!("target");
        }
        words.extend(["--export", "nbd,id=e,node-name=source"]);
        let mut qmp = daemon(program, &scratch, &words);
        qmp.ok(if mode.is_some() { "drive-mirror" } else { "blockdev-mirror" }, mirror);
        complete(&mut qmp, "j");
        let chains = ["source", "target"].map(|name| chain_of(&described(&mut qmp, name)));
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        chains
    };
    for sync in ["full", "top", "none"] {
        for mode in [None, Some("existing"), Some("absolute-paths")] {
            for is_overlay in [true, false] {
                let how = (mode, sync, is_overlay);
                let theirs = look(Path::new("qemu-storage-daemon"), how);
                assert_eq!(look(&ours("qemu-storage-daemon"), how), theirs, "{how:?}");
            }
        }
    }
}

/// A storage migration: the backing file of the copy is copied while the job runs, and is not there when it begins.
#[test]
fn a_copy_reads_the_same_where_its_backing_file_comes_later_as_qemus() {
    for program in [Path::new("qemu-storage-daemon"), &ours("qemu-storage-daemon")] {
        let scratch = images();
        let [disk, overlay, copy, later] =
            ["disk.qcow2", "o", "copy", "later"].map(|name| scratch.name(name));
        img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &disk, &overlay]);
        qemu_io_ok(&["-f", "qcow2"], &overlay, &["write -P 7 2M 64k"]);
        img(&["create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", &later, &copy, "4M"]);
        let source = node("source", &overlay);
        let words = ["--blockdev", &source, "--export", "nbd,id=e,node-name=source,name=e,writable=on"];
        let mut qmp = daemon(program, &scratch, &words);
        let mirror = json!({ "job-id": "j", "device": "source", "sync": "top", "target": copy, "mode": "existing",
            "format": "qcow2", "node-name": "target", "auto-dismiss": false });
        qmp.ok("drive-mirror", mirror);
        while qmp.ok("query-jobs", json!({}))[0]["status"] != "ready" {}
        std::fs::copy(&disk, &later).expect("a copy");
        complete(&mut qmp, "j");
        let all = ["read -P 1 64k 64k", "read -P 7 2M 64k", "write -P 8 128k 64k", "flush"];
        qemu_io_ok(&["-f", "raw"], &uri(&scratch, "e"), &all);
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        let all = ["read -P 1 64k 64k", "read -P 7 2M 64k", "read -P 8 128k 64k"];
        qemu_io_ok(&["-r", "-f", "qcow2"], &copy, &all);
    }
}

/// The images that were committed stay nodes, over the base that guests write by then.
#[test]
fn what_an_active_commit_leaves_stays_open_under_its_name_as_qemus() {
    let look = |program: &Path| {
        let scratch = images();
        let [base, middle, top] = ["disk.qcow2", "middle", "top"].map(|name| scratch.name(name));
        img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &base, &middle]);
        img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &middle, &top]);
        qemu_io_ok(&["-f", "qcow2"], &top, &["write -P 7 2M 64k"]);
        let source = node("source", &top);
        let words = ["--blockdev", &source, "--export", "nbd,id=e,node-name=source,name=e,writable=on"];
        let mut qmp = daemon(program, &scratch, &words);
        qmp.ok("block-commit", json!({ "device": "source", "job-id": "j", "auto-dismiss": false }));
        complete(&mut qmp, "j");
        let written = ["write -P 9 0 64k", "flush", "read -P 7 2M 64k"];
        qemu_io_ok(&["-f", "raw"], &uri(&scratch, "e"), &written);
        let chain = chain_of(&described(&mut qmp, "source"));
        qmp.ok("block-export-add", json!({ "type": "nbd", "id": "l", "node-name": "source", "name": "l" }));
        let left = ["read -P 9 0 64k", "read -P 1 64k 64k", "read -P 7 2M 64k"];
        qemu_io_ok(&["-r", "-f", "raw"], &uri(&scratch, "l"), &left);
        qmp.ok("block-export-del", json!({ "id": "l", "mode": "hard" }));
        qmp.event_of("BLOCK_EXPORT_DELETED", "id", "l");
        // Another round, once what was left is gone.
        qmp.ok("blockdev-del", json!({ "node-name": "source" }));
        let snapshot = json!({ "node-name": qmp.ok("query-block-exports", json!({}))[0]["node-name"],
            "snapshot-file": scratch.name("next"), "format": "qcow2", "snapshot-node-name": "next" });
        qmp.ok("blockdev-snapshot-sync", snapshot);
        qemu_io_ok(&["-f", "raw"], &uri(&scratch, "e"), &["write -P 10 64k 64k"]);
        let commit = json!({ "device": "next", "base": base, "job-id": "k", "auto-dismiss": false });
        qmp.ok("block-commit", commit);
        complete(&mut qmp, "k");
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        for image in [&middle, &top] {
            img(&["check", "-q", image]);
        }
        let all = ["read -P 9 0 64k", "read -P 10 64k 64k", "read -P 7 2M 64k"];
        qemu_io_ok(&["-r", "-f", "qcow2"], &base, &all);
        chain
    };
    let ours = look(&ours("qemu-storage-daemon"));
    assert_eq!(ours, look(Path::new("qemu-storage-daemon")));
    assert_eq!(ours, ["top", "middle", "disk.qcow2"]);
}
