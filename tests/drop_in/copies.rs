//! Copies that QEMU's managers steer: what is put below a copy, what is left when it ends, and what queries tell of it.

use std::path::Path;

use black_box::Run;
use black_box::peer::qemu_io_ok;
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::{gone, images, ours};

/// A daemon with the words that name its nodes; it listens at `q`.
fn daemon(program: &Path, directory: &Path, words: &[&str]) -> Qmp {
    let steered = ["--chardev", "socket,path=q,server=on,wait=off,id=c", "--monitor", "chardev=c"];
    let run = Run::new(program).arg("--daemonize").args(words).args(steered).current_dir(directory);
    drop(run.ok());
    Qmp::connect(&directory.join("q"))
}

fn img(args: &[&str]) {
    drop(Run::new("qemu-img").args(args).ok());
}

fn status_comes(qmp: &mut Qmp, status: &str) {
    while qmp.ok("query-jobs", json!({}))[0]["status"] != status {}
}

fn node(qmp: &mut Qmp, name: &str) -> Option<Value> {
    let nodes = qmp.ok("query-named-block-nodes", json!({}));
    nodes.as_array().expect("a list").iter().find(|node| node["node-name"] == name).cloned()
}

/// How the backing image comes below the copy.
#[derive(Clone, Copy, Debug)]
enum Way {
    Snapshot,
    Transaction,
    Reopen,
}

/// libvirt copies an overlay alone, and puts the copy over a copy of the base that others have made meanwhile, before the disk switches.
#[test]
fn what_is_put_below_a_shallow_copy_is_what_the_disk_is_over_then_as_with_qemu() {
    for program in [Path::new("qemu-storage-daemon"), &ours("qemu-storage-daemon")] {
        for way in [Way::Snapshot, Way::Transaction, Way::Reopen] {
            let scratch = images();
            let [disk, overlay, base, copy] =
                ["disk.qcow2", "o", "base2", "copy"].map(|name| scratch.name(name));
            img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &disk, &overlay]);
            img(&["create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", &base, &copy, "4M"]);
            qemu_io_ok(&["-f", "qcow2"], &overlay, &["write -P 7 2M 64k"]);
            let source = format!("qcow2,node-name=source,file.driver=file,file.filename={overlay}");
            let words = ["--blockdev", &source, "--nbd-server", "addr.type=unix,addr.path=s"];
            let export = ["--export", "nbd,id=e,node-name=source,name=e,writable=on"];
            let mut qmp = daemon(program, scratch.path(), &[&words[..], &export].concat());
            let write = |value: u8, at: &str| {
                let uri = format!("nbd+unix:///e?socket={}", scratch.name("s"));
                qemu_io_ok(&["-f", "raw"], &uri, &[&format!("write -P {value} {at}"), "flush"]);
            };
            let file =
                |name: &str, path: &str| json!({ "driver": "file", "node-name": name, "filename": path });
            let target = json!({ "driver": "qcow2", "node-name": "target", "file": file("tf", &copy), "backing": null });
            qmp.ok("blockdev-add", target);
            let mirror = json!({ "job-id": "j", "device": "source", "target": "target", "sync": "top", "auto-dismiss": false });
            qmp.ok("blockdev-mirror", mirror);
            status_comes(&mut qmp, "ready");
            // A part of a cluster, whose rest is below.
            write(8, "1K 512");
            std::fs::copy(&disk, &base).expect("a copy");
            let below = json!({ "driver": "qcow2", "node-name": "below", "read-only": true, "file": file("bf", &base) });
            qmp.ok("blockdev-add", below);
            let over = json!({ "node": "below", "overlay": "target" });
            let action = json!({ "type": "blockdev-snapshot", "data": over });
            match way {
                Way::Snapshot => qmp.ok("blockdev-snapshot", over),
                Way::Transaction => {
                    // QEMU 7.2 ends at an assertion when this is undone.
                    if program.is_absolute() {
                        let failing = json!({ "actions": [action, { "type": "abort", "data": {} }] });
                        qmp.refused("transaction", failing);
                        let copied = node(&mut qmp, "target").expect("it is there");
                        assert!(copied["image"].get("backing-image").is_none(), "{copied}");
                    }
                    qmp.ok("transaction", json!({ "actions": [action] }))
                }
                Way::Reopen => {
                    let options =
                        json!({ "driver": "qcow2", "node-name": "target", "file": "tf", "backing": "below" });
                    qmp.ok("blockdev-reopen", json!({ "options": [options] }))
                }
            };
            write(9, "3M 512");
            qmp.ok("job-complete", json!({ "id": "j" }));
            status_comes(&mut qmp, "concluded");
            let job = qmp.ok("query-jobs", json!({}))[0].clone();
            assert!(job.get("error").is_none(), "{program:?} {way:?}: {job}");
            qmp.ok("job-dismiss", json!({ "id": "j" }));
            write(10, "1M 512");
            let copied = node(&mut qmp, "target").expect("it is there");
            assert_eq!(copied["image"]["backing-image"]["filename"], json!(base), "{program:?} {way:?}");
            qmp.ok("quit", json!({}));
            gone(&scratch.file("q"));
            img(&["check", "-q", &copy]);
            let read = [
                "read -P 1 0 1K",
                "read -P 8 1K 512",
                "read -P 1 1536 62976",
                "read -P 10 1M 512",
                "read -P 7 2M 64k",
                "read -P 9 3M 512",
            ];
            qemu_io_ok(&["-r", "-f", "qcow2"], &copy, &read);
        }
    }
}

/// The copy that drive-mirror opened stayed open with its lock, though nothing used it.
#[test]
fn a_copy_that_nothing_uses_is_closed_with_its_job_as_by_qemu() {
    for program in [Path::new("qemu-storage-daemon"), &ours("qemu-storage-daemon")] {
        let scratch = images();
        let disk = scratch.name("disk.qcow2");
        let source = format!("qcow2,node-name=source,file.driver=file,file.filename={disk}");
        let mut qmp = daemon(program, scratch.path(), &["--blockdev", &source]);
        let copy = scratch.name("copy");
        img(&["create", "-q", "-f", "qcow2", &copy, "4M"]);
        let blockdev =
            json!({ "driver": "qcow2", "node-name": "t", "file": { "driver": "file", "filename": copy } });
        qmp.ok("blockdev-add", blockdev);
        let mirror = json!({ "job-id": "j", "device": "source", "target": "t", "sync": "full", "auto-dismiss": false });
        qmp.ok("blockdev-mirror", mirror);
        status_comes(&mut qmp, "ready");
        qmp.ok("job-complete", json!({ "id": "j" }));
        status_comes(&mut qmp, "concluded");
        qmp.ok("job-dismiss", json!({ "id": "j" }));
        assert!(node(&mut qmp, "source").is_some() && node(&mut qmp, "t").is_some(), "{program:?}");
        qmp.ok("blockdev-del", json!({ "node-name": "t" }));
        img(&["compare", "-q", "-U", &disk, &copy]);
        img(&["check", "-q", &copy]);
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
    }
    // QEMU's daemon has no drive-mirror.
    let scratch = images();
    let [disk, copy] = ["disk.qcow2", "copy"].map(|name| scratch.name(name));
    let source = format!("qcow2,node-name=source,file.driver=file,file.filename={disk}");
    let mut qmp = daemon(&ours("qemu-storage-daemon"), scratch.path(), &["--blockdev", &source]);
    for _ in 0..2 {
        let mirror = json!({ "job-id": "j", "device": "source", "target": copy, "sync": "full", "format": "qcow2", "auto-dismiss": false });
        qmp.ok("drive-mirror", mirror);
        status_comes(&mut qmp, "ready");
        // As in QEMU the node of the target has a generated name.
        let nodes = qmp.ok("query-named-block-nodes", json!({}));
        let target = nodes.as_array().expect("a list").iter().find(|node| node["file"] == copy);
        let name = target.and_then(|node| node["node-name"].as_str()).expect("the target");
        assert!(name.starts_with("#block"), "{name}");
        qmp.ok("job-complete", json!({ "id": "j" }));
        status_comes(&mut qmp, "concluded");
        qmp.ok("job-dismiss", json!({ "id": "j" }));
        let nodes = qmp.ok("query-named-block-nodes", json!({}));
        let named = nodes.as_array().expect("a list").iter().filter(|node| node["drv"] == "qcow2");
        assert_eq!(named.map(|node| &node["node-name"]).collect::<Vec<_>>(), ["source"]);
        img(&["check", "-q", &copy]);
    }
    qmp.ok("quit", json!({}));
    gone(&scratch.file("q"));
}

/// Another image below than the header names is in the name of the image, by which a commit finds it.
#[test]
fn names_order_and_figures_are_as_qemus() {
    let look = |program: &Path| {
        let scratch = images();
        let names = ["disk.qcow2", "mid", "top"].map(|name| scratch.name(name));
        let [disk, mid, top] = &names;
        img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", disk, mid]);
        img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", "mid", top]);
        let file = |path: &str| json!({ "driver": "file", "filename": path });
        let mut qmp = daemon(program, scratch.path(), &[]);
        let base = json!({ "driver": "qcow2", "node-name": "base", "file": file(disk), "backing": { "driver": "null-co" } });
        let middle = json!({ "driver": "qcow2", "node-name": "mid", "file": file(mid), "backing": base });
        qmp.ok(
            "blockdev-add",
            json!({ "driver": "qcow2", "node-name": "top", "file": file(top), "backing": middle }),
        );
        for (name, persistent) in [("a", true), ("b", false), ("c", true)] {
            let bitmap = json!({ "node": "top", "name": name, "persistent": persistent });
            qmp.ok("block-dirty-bitmap-add", bitmap);
        }
        let reported = node(&mut qmp, "top").expect("it is there");
        let bitmaps: Vec<Value> = reported["dirty-bitmaps"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|bitmap| bitmap["name"].clone())
            .collect();
        let described = |name: &Value| -> Value {
            let name = name.as_str().expect("a name").strip_prefix("json:").expect("options");
            serde_json::from_str(name).expect("JSON")
        };
        let options = ["top", "mid", "base"]
            .map(|name| described(&node(&mut qmp, name).expect("it")["image"]["filename"]));
        let stats = qmp.ok("query-blockstats", json!({ "query-nodes": true }));
        let mut counted: Vec<String> = stats
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|of| Some(of["node-name"].as_str()?.to_owned()))
            .filter(|name| ["top", "mid", "base"].contains(&&**name))
            .collect();
        counted.sort();
        // A relative name is that in a header; the other one was returned.
        let base = node(&mut qmp, "base").expect("it")["image"]["filename"].clone();
        let commit =
            json!({ "job-id": "j", "device": "top", "top": "mid", "base": base, "auto-dismiss": false });
        let begun = match program.ends_with("qemu-storage-daemon") && program.is_relative() {
            // QEMU's compares `top` with the name that has all options.
            true => {
                json!({ "job-id": "j", "device": "top", "top-node": "mid", "base": base, "auto-dismiss": false })
            }
            false => commit,
        };
        qmp.ok("block-commit", begun);
        status_comes(&mut qmp, "concluded");
        let job = qmp.ok("query-jobs", json!({}))[0].clone();
        qmp.ok("job-dismiss", json!({ "id": "j" }));
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        let directory = scratch.name("");
        let text = json!([bitmaps, options, counted, job["error"]]).to_string();
        text.replace(directory.trim_end_matches('/'), "D")
    };
    assert_eq!(look(&ours("qemu-storage-daemon")), look(Path::new("qemu-storage-daemon")));
}

/// oVirt keeps changes from the moment of a snapshot: the overlay gets its bitmaps in the transaction that makes it.
#[test]
fn an_overlay_has_its_bitmaps_from_the_transaction_on_that_makes_it() {
    let scratch = images();
    let [disk, overlay] = ["disk.qcow2", "snap"].map(|name| scratch.name(name));
    let source = format!("qcow2,node-name=base,file.driver=file,file.filename={disk}");
    let mut qmp = daemon(&ours("qemu-storage-daemon"), scratch.path(), &["--blockdev", &source]);
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "base", "name": "old", "persistent": true }));
    let data = json!({ "device": "base", "snapshot-file": overlay, "snapshot-node-name": "snap", "format": "qcow2" });
    let new = json!({ "node": "snap", "name": "new", "persistent": true });
    let merged = json!({ "node": "snap", "target": "new", "bitmaps": [{ "node": "base", "name": "old" }] });
    let actions = |last: Value| {
        json!({ "actions": [
            { "type": "blockdev-snapshot-sync", "data": data },
            { "type": "block-dirty-bitmap-add", "data": new },
            last,
        ] })
    };
    qmp.refused("transaction", actions(json!({ "type": "abort", "data": {} })));
    assert!(node(&mut qmp, "snap").is_none());
    qmp.ok("transaction", actions(json!({ "type": "block-dirty-bitmap-merge", "data": merged })));
    let reported = node(&mut qmp, "snap").expect("it is there");
    assert_eq!(reported["dirty-bitmaps"][0]["name"], "new", "{reported}");
    let below = &reported["image"]["backing-image"]["format-specific"]["data"]["bitmaps"];
    assert!(below.as_array().expect("a list").iter().any(|bitmap| bitmap["name"] == "old"), "{reported}");
    qmp.ok("quit", json!({}));
    gone(&scratch.file("q"));
}

/// How far a mirror is, it says of the whole disk, whatever of it is data.
#[test]
fn a_mirror_counts_the_whole_disk() {
    let scratch = images();
    img(&["create", "-q", "-f", "qcow2", &scratch.name("target"), "4M"]);
    let nodes = [("n", "disk.qcow2"), ("t", "target")].map(|(node, file)| {
        format!("qcow2,node-name={node},file.driver=file,file.filename={}", scratch.name(file))
    });
    let words = ["--blockdev", &nodes[0], "--blockdev", &nodes[1]];
    let mut qmp = daemon(&ours("qemu-storage-daemon"), scratch.path(), &words);
    qmp.ok("blockdev-mirror", json!({ "job-id": "j", "device": "n", "target": "t", "sync": "full" }));
    assert_eq!(qmp.event("BLOCK_JOB_READY")["data"]["len"], 4 << 20);
    qmp.ok("quit", json!({}));
    gone(&scratch.file("q"));
}

/// A filter deep in a chain was refused where the chain is described as a whole.
#[test]
fn a_chain_over_a_filter_opens_and_is_committed_as_by_qemu() {
    for program in [Path::new("qemu-storage-daemon"), &ours("qemu-storage-daemon")] {
        let scratch = images();
        let paths = ["c0", "c1", "c2", "c3"].map(|name| scratch.name(name));
        for (at, path) in paths.iter().enumerate() {
            img(&["create", "-q", "-f", "qcow2", path, "4M"]);
            qemu_io_ok(&["-f", "qcow2"], path, &[&format!("write -P {} {at}M 1M", at + 1)]);
        }
        let mut qmp = daemon(program, scratch.path(), &["--nbd-server", "addr.type=unix,addr.path=s"]);
        qmp.ok("object-add", json!({ "qom-type": "throttle-group", "id": "g" }));
        let image = |at: usize| {
            let file = json!({ "driver": "file", "filename": paths[at] });
            json!({ "driver": "qcow2", "node-name": format!("n{at}"), "file": file })
        };
        let over = |at: usize, below: Value| {
            let mut image = image(at);
            image["backing"] = below;
            image
        };
        let filter = |name: &str, file: Value| json!({ "driver": "throttle", "throttle-group": "g", "node-name": name, "file": file });
        let chain = over(3, over(2, over(1, filter("middle", image(0)))));
        qmp.ok("blockdev-add", filter("top", chain));
        let export = json!({ "type": "nbd", "id": "e", "node-name": "top", "name": "e", "writable": true });
        qmp.ok("block-export-add", export);
        let uri = format!("nbd+unix:///e?socket={}", scratch.name("s"));
        let read = ["read -P 1 0 1M", "read -P 2 1M 1M", "read -P 3 2M 1M", "read -P 4 3M 1M"];
        qemu_io_ok(&["-f", "raw"], &uri, &read);
        let commit = json!({
            "job-id": "j", "device": "top", "top-node": "n2", "base-node": "n1", "backing-file": paths[1], "auto-dismiss": false,
        });
        qmp.ok("block-commit", commit);
        status_comes(&mut qmp, "concluded");
        assert!(qmp.ok("query-jobs", json!({}))[0].get("error").is_none(), "{program:?}");
        qmp.ok("job-dismiss", json!({ "id": "j" }));
        qemu_io_ok(&["-f", "raw"], &uri, &read);
        assert!(node(&mut qmp, "n2").is_none() && node(&mut qmp, "n1").is_some(), "{program:?}");
        qemu_io_ok(&["-f", "raw"], &uri, &["write -P 9 0 64k", "flush"]);
        qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
        qmp.event_of("BLOCK_EXPORT_DELETED", "id", "e");
        qmp.ok("blockdev-del", json!({ "node-name": "top" }));
        assert_eq!(qmp.ok("query-named-block-nodes", json!({})), json!([]), "{program:?}");
        qmp.ok("quit", json!({}));
        gone(&scratch.file("q"));
        paths.iter().for_each(|path| img(&["check", "-q", path]));
        qemu_io_ok(&["-r", "-f", "qcow2"], &paths[1], &["read -P 2 1M 1M", "read -P 3 2M 1M"]);
        qemu_io_ok(&["-r", "-U", "-f", "qcow2"], &paths[3], &["read -P 9 0 64k", "read -P 4 3M 1M"]);
    }
}
