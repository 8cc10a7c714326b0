//! Backing images of a disk that have names of their own.

use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use serde_json::{Value, json};

use super::jobs::completed;
use super::{Steered, create, qcow2};

/// A disk `t` over `mid` over `base`; gives their paths from the lowest up.
fn chain(steered: &Steered, qmp: &mut Qmp) -> [String; 3] {
    let (scratch, base) = (&steered.scratch, create(&steered.scratch, "base", "64M"));
    let [mid, top] = [("mid", &base), ("top", &scratch.name("mid"))].map(|(name, below)| {
        let path = scratch.name(name);
        qemu_img(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", below, &path]).ok();
        path
    });
    let file = |name: &str, path: &str| json!({ "driver": "file", "node-name": name, "filename": path });
    let base_node = json!({ "driver": "qcow2", "node-name": "base", "file": file("base-file", &base) });
    let mid_node = json!({ "driver": "qcow2", "node-name": "mid", "file": file("mid-file", &mid), "backing": base_node });
    let mut options = qcow2("t", &top);
    options["backing"] = mid_node;
    qmp.ok("blockdev-add", options);
    [base, mid, top]
}

fn node(qmp: &mut Qmp, name: &str) -> Value {
    super::node(qmp, name).unwrap_or_else(|| panic!("{name} is listed"))
}

/// libvirt finds the layer that it commits or streams among the nodes; it was shown the uppermost image's file there.
#[test]
fn a_named_image_below_is_reported_as_what_it_is_and_goes_with_its_disk() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let [base, mid, top] = chain(&steered, &mut qmp);
    for (name, path, below) in [("mid", &mid, Some(&base)), ("base", &base, None)] {
        let reported = node(&mut qmp, name);
        assert_eq!(
            (&reported["drv"], &reported["file"], &reported["ro"]),
            (&json!("qcow2"), &json!(path), &json!(true))
        );
        assert_eq!(reported["image"]["filename"], json!(path), "{reported}");
        assert_eq!(reported.get("backing_file"), below.map(|below| json!(below)).as_ref(), "{reported}");
        assert_eq!(reported["backing_file_depth"], json!(u32::from(below.is_some())));
        let reported = node(&mut qmp, &format!("{name}-file"));
        let length = std::fs::metadata(path).expect("it is there").len();
        assert_eq!((&reported["drv"], &reported["file"]), (&json!("file"), &json!(path)));
        let image = &reported["image"];
        assert_eq!((&image["filename"], &image["format"]), (&json!(path), &json!("file")), "{reported}");
        assert_eq!(image["virtual-size"], json!(length), "{reported}");
        let refused = qmp.refused("blockdev-del", json!({ "node-name": name }));
        assert!(refused.contains(&format!("node \"{name}\" is in use by node \"t\"")), "{refused}");
    }
    let mut part = json!({ "driver": "file", "node-name": "mid-file", "filename": mid });
    qmp.ok("blockdev-reopen", json!({ "options": [part] }));
    part["locking"] = json!("off");
    let refused = qmp.refused("blockdev-reopen", json!({ "options": [part] }));
    assert!(refused.contains("option file.locking of node \"mid-file\" cannot change"), "{refused}");
    let other = json!({ "driver": "qcow2", "node-name": "mid", "file": { "driver": "file", "filename": steered.scratch.name("other") } });
    std::fs::copy(&mid, steered.scratch.name("other")).expect("a copy");
    qmp.ok("blockdev-reopen", json!({ "options": [other] }));
    assert_eq!(node(&mut qmp, "mid")["file"], json!(steered.scratch.name("other")));
    assert_eq!(node(&mut qmp, "t")["file"], json!(top));
    qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    steered.server.stop();
    [base, mid, top].iter().for_each(|path| assert_clean(path.as_ref()));
}

/// As libvirt opens the chain of a machine that starts: each image a node of its own. Only the uppermost one was a layer by its name, and what it was over
/// was what its header said.
#[test]
fn a_chain_of_nodes_is_committed_and_streamed_by_their_names() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let names = ["n0", "n1", "n2", "n3"];
    let paths = names.map(|name| create(scratch, name, "64M"));
    for (at, path) in paths.iter().enumerate() {
        qemu_io_ok(&["-f", "qcow2"], path, &[&format!("write -P {} {at}M 1M", at + 1)]);
        let storage = format!("{}-storage", names[at]);
        qmp.ok("blockdev-add", json!({ "driver": "file", "node-name": storage, "filename": path }));
        let below = at.checked_sub(1).map(|below| names[below]);
        let image = json!({ "driver": "qcow2", "node-name": names[at], "read-only": at < 3, "file": storage, "backing": below });
        qmp.ok("blockdev-add", image);
    }
    let reads = |qmp: &mut Qmp| {
        let export = json!({ "type": "nbd", "id": "e", "node-name": "n3" });
        qmp.ok("block-export-add", export);
        let uri = steered.server.uri("n3");
        let commands: Vec<String> = (0..4).map(|at| format!("read -P {} {at}M 1M", at + 1)).collect();
        qemu_io_ok(&["-f", "raw", "-r"], &uri, &commands.iter().map(String::as_str).collect::<Vec<_>>());
        qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
        qmp.event("BLOCK_EXPORT_DELETED");
    };
    reads(&mut qmp);
    qmp.ok("block-commit", json!({ "job-id": "c", "device": "n3", "top-node": "n1", "base-node": "n0" }));
    completed(&mut qmp, "c");
    for gone in ["n1", "n1-storage"] {
        qmp.ok("blockdev-del", json!({ "node-name": gone }));
    }
    reads(&mut qmp);
    qmp.ok("block-stream", json!({ "job-id": "s", "device": "n3", "base-node": "n0" }));
    completed(&mut qmp, "s");
    reads(&mut qmp);
    for gone in ["n3", "n3-storage", "n2", "n2-storage", "n0", "n0-storage"] {
        qmp.ok("blockdev-del", json!({ "node-name": gone }));
    }
    steered.server.stop();
    paths.iter().for_each(|path| assert_clean(path.as_ref()));
    qemu_io_ok(&["-f", "qcow2"], &paths[0], &["read -P 1 0 1M", "read -P 2 1M 1M"]);
}

/// A filter over a layer that nothing reads through keeps no job from the layer, as in QEMU.
#[test]
fn a_throttle_node_over_a_layer_keeps_no_commit_from_it() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let paths = chain(&steered, &mut qmp);
    qmp.ok("object-add", json!({ "qom-type": "throttle-group", "id": "g" }));
    let throttle = json!({ "driver": "throttle", "node-name": "f", "throttle-group": "g", "file": "mid" });
    qmp.ok("blockdev-add", throttle);
    assert_eq!(node(&mut qmp, "f")["children"], json!([{ "child": "file", "node-name": "mid" }]));
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "e", "node-name": "f" }));
    let refused = qmp.refused("block-commit", json!({ "job-id": "c", "device": "t", "base-node": "base" }));
    assert!(refused.contains("\"mid\" is in use by"), "{refused}");
    qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    qmp.ok("block-commit", json!({ "job-id": "c", "device": "t", "base-node": "base" }));
    qmp.event("BLOCK_JOB_READY");
    let refused = qmp.refused("block-export-add", json!({ "type": "nbd", "id": "e", "node-name": "f" }));
    assert!(refused.contains("in use by job \"c\""), "{refused}");
    qmp.ok("job-complete", json!({ "id": "c" }));
    completed(&mut qmp, "c");
    steered.server.stop();
    paths.iter().for_each(|path| assert_clean(path.as_ref()));
}

/// Two disks over one image: the image was found by no commit. Both are over the base afterwards, and so say their headers.
#[test]
fn an_image_below_two_disks_is_committed_and_both_are_over_its_base() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let base = create(scratch, "base", "64M");
    let mut paths = vec![base];
    for (name, below) in [("mid", 0), ("top", 1), ("top2", 1)] {
        let path = scratch.name(name);
        qemu_img(["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &paths[below], &path]).ok();
        paths.push(path);
    }
    qemu_io_ok(&["-f", "qcow2"], &paths[1], &["write -P 5 1M 64k"]);
    for (at, (name, below)) in
        [("base", None), ("mid", Some("base")), ("top", Some("mid")), ("top2", Some("mid"))]
            .into_iter()
            .enumerate()
    {
        let mut options = qcow2(name, &paths[at]);
        options["backing"] = json!(below);
        qmp.ok("blockdev-add", options);
    }
    let commit = json!({ "job-id": "c", "device": "top", "top": &paths[1], "base": &paths[0] });
    qmp.ok("block-commit", commit);
    completed(&mut qmp, "c");
    for name in ["top", "top2"] {
        let reported = node(&mut qmp, name);
        assert_eq!(
            (&reported["backing_file"], &reported["backing_file_depth"]),
            (&json!(paths[0]), &json!(1)),
            "{reported}"
        );
        let export = json!({ "type": "nbd", "id": name, "node-name": name, "writable": true });
        qmp.ok("block-export-add", export);
        qemu_io_ok(&["-f", "raw"], &steered.server.uri(name), &["read -P 5 1M 64k", "write -P 6 2M 64k"]);
    }
    steered.server.stop();
    paths.iter().for_each(|path| assert_clean(path.as_ref()));
    for path in &paths[2..] {
        let info = qemu_img(["info", path.as_str()]).ok();
        assert!(info.contains(&format!("backing file: {}", paths[0])), "{info}");
        qemu_io_ok(&["-f", "qcow2"], path, &["read -P 5 1M 64k", "read -P 6 2M 64k"]);
    }
}

/// The base is a disk by itself there. A commit into it was refused: it would have had to be opened for writing, and it was open so.
#[test]
fn an_image_is_committed_into_a_disk_in_a_throttle_group() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let (base, mid, top) =
        (scratch.name("base"), create(scratch, "mid", "64M"), create(scratch, "top", "64M"));
    std::fs::File::create(&base).and_then(|file| file.set_len(64 << 20)).expect("a raw disk");
    qemu_io_ok(&["-f", "raw"], &base, &["write -P 1 0 1M"]);
    qemu_io_ok(&["-f", "qcow2"], &mid, &["write -P 2 64k 64k"]);
    qmp.ok("object-add", json!({ "qom-type": "throttle-group", "id": "g", "limits": { "bps-read": 4096 } }));
    qmp.ok("blockdev-add", json!({ "driver": "file", "node-name": "base", "filename": base }));
    let slow = json!({ "driver": "throttle", "node-name": "slow", "throttle-group": "g", "file": "base" });
    qmp.ok("blockdev-add", slow);
    for (name, path, below) in [("mid", &mid, "slow"), ("top", &top, "mid")] {
        let mut options = qcow2(name, path);
        options["backing"] = json!(below);
        qmp.ok("blockdev-add", options);
    }
    let shown = json!({ "type": "nbd", "id": "s", "node-name": "slow", "name": "s" });
    qmp.ok("block-export-add", shown);
    let commit = json!({ "job-id": "c", "device": "top", "top-node": "mid" });
    let refused = qmp.refused("block-commit", commit.clone());
    assert!(refused.contains("node \"slow\" is in use by export \"s\""), "{refused}");
    qmp.ok("block-export-del", json!({ "id": "s", "mode": "hard" }));
    qmp.event_of("BLOCK_EXPORT_DELETED", "id", "s");
    let export = json!({ "type": "nbd", "id": "e", "node-name": "top", "name": "e", "writable": true });
    qmp.ok("block-export-add", export);
    let mut client = steered.server.client("e");
    client.write(0, &[3; 65536]).expect("a write");
    qmp.ok("block-commit", commit);
    completed(&mut qmp, "c");
    assert_eq!(node(&mut qmp, "top")["backing_file"], json!(base));
    let expected = [[3; 65536], [2; 65536], [1; 65536]].concat();
    assert_eq!(client.read(0, 3 << 16).expect("a read"), expected);
    let refused = qmp.refused("blockdev-del", json!({ "node-name": "slow" }));
    assert!(refused.contains("\"top\""), "{refused}");
    drop(client);
    steered.server.stop();
    qemu_io_ok(&["-f", "raw"], &base, &["read -P 1 0 64k", "read -P 2 64k 64k", "read -P 1 128k 896k"]);
    qemu_io_ok(&["-f", "qcow2"], &top, &["read -P 3 0 64k", "read -P 2 64k 64k"]);
}

/// A filter cannot be named in an image. The answer was about the length of the format's name.
#[test]
fn an_overlay_of_a_filter_is_refused_by_what_it_is() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    chain(&steered, &mut qmp);
    let old = create(&steered.scratch, "old", "64M");
    qmp.ok("blockdev-add", qcow2("old", &old));
    let filter = json!({ "driver": "copy-before-write", "node-name": "cbw", "file": "t", "target": "old" });
    qmp.ok("blockdev-add", filter);
    let file = steered.scratch.name("overlay");
    let refused =
        qmp.refused("blockdev-snapshot-sync", json!({ "node-name": "cbw", "snapshot-file": &file }));
    assert!(refused.contains("a filter of driver copy-before-write"), "{refused}");
    assert!(!steered.scratch.file("overlay").exists(), "nothing was made");
    for command in ["block-commit", "block-stream"] {
        let refused = qmp.refused(command, json!({ "device": "cbw", "job-id": "j" }));
        assert!(refused.contains("over several disks"), "{command}: {refused}");
    }
    assert_eq!(node(&mut qmp, "base")["ro"], true, "a job that did not begin left it open for writing");
    // What the filter is over reads the same when its layers have become one.
    let export = json!({ "type": "nbd", "id": "e", "node-name": "cbw", "writable": true });
    qmp.ok("block-export-add", export);
    let uri = steered.server.uri("cbw");
    qemu_io_ok(&["-f", "raw"], &uri, &["write -P 8 0 64k"]);
    qmp.ok("block-commit", json!({ "device": "t", "job-id": "j" }));
    qmp.event("BLOCK_JOB_READY");
    qmp.ok("job-complete", json!({ "id": "j" }));
    completed(&mut qmp, "j");
    qemu_io_ok(&["-f", "raw"], &uri, &["read -P 8 0 64k", "write -P 9 64k 4k"]);
    steered.server.stop();
    assert_clean(old.as_ref());
    qemu_io_ok(&["-f", "qcow2"], &old, &["read -P 0 0 128k"]);
}

/// A commit of a filter over a disk was refused by what it was not about, and a stream failed in its last step.
#[test]
fn what_is_below_a_filter_is_committed_and_streamed_by_the_name_of_the_filter() {
    let filters = [
        json!({ "driver": "copy-on-read" }),
        json!({ "driver": "compress" }),
        json!({ "driver": "throttle", "throttle-group": "g" }),
    ];
    for filter in filters {
        let steered = Steered::new();
        let mut qmp = steered.talk();
        let paths = chain(&steered, &mut qmp);
        qmp.ok("object-add", json!({ "qom-type": "throttle-group", "id": "g" }));
        let mut over = filter.clone();
        (over["node-name"], over["file"]) = (json!("over"), json!("t"));
        qmp.ok("blockdev-add", over);
        qmp.ok(
            "block-export-add",
            json!({ "type": "nbd", "id": "e", "node-name": "over", "writable": true }),
        );
        let mut client = steered.server.client("over");
        client.write(1 << 20, &[5; 65536]).expect("a write");
        let commit = json!({ "job-id": "j", "device": "over", "top-node": "mid", "base-node": "base" });
        qmp.ok("block-commit", commit);
        completed(&mut qmp, "j");
        client.write(2 << 20, &[6; 65536]).expect("a write");
        qmp.ok("block-stream", json!({ "job-id": "j", "device": "over" }));
        completed(&mut qmp, "j");
        assert_eq!(client.read(1 << 20, 1).expect("a read"), [5]);
        assert!(node(&mut qmp, "t").get("backing_file").is_none(), "{filter}");
        drop(client);
        steered.server.stop();
        qemu_io_ok(&["-f", "qcow2"], &paths[2], &["read -P 5 1M 64k", "read -P 6 2M 64k"]);
        assert_clean(paths[2].as_ref());
    }
}

/// A backup program found no bitmap, no export and no backup of the node below a snapshot (virtnbdbackup, Incus).
#[test]
fn the_node_below_a_snapshot_is_listed_exported_and_copied_by_its_name() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let [base, over, target] = ["base", "over", "target"].map(|name| create(scratch, name, "64M"));
    qemu_img(["bitmap", "--add", &base, "old"]).ok();
    qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 1 1M 64k"]);
    qmp.ok("blockdev-add", qcow2("b", &base));
    let mut overlay = qcow2("o", &over);
    overlay["backing"] = Value::Null;
    qmp.ok("blockdev-add", overlay);
    qmp.ok("blockdev-snapshot", json!({ "node": "b", "overlay": "o" }));
    assert_eq!(node(&mut qmp, "b")["dirty-bitmaps"][0]["name"], "old");
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "o", "name": "new" }));
    let old = json!([{ "node": "b", "name": "old" }]);
    qmp.ok("block-dirty-bitmap-merge", json!({ "node": "o", "target": "new", "bitmaps": old }));
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "e", "node-name": "b", "name": "b" }));
    qmp.ok("blockdev-add", qcow2("t", &target));
    qmp.ok("blockdev-backup", json!({ "job-id": "j", "device": "b", "target": "t", "sync": "full" }));
    completed(&mut qmp, "j");
    // What would take the layer away waits for its users.
    let refused = qmp.refused("block-stream", json!({ "job-id": "s", "device": "o" }));
    assert!(refused.contains("node \"b\" is in use by export \"e\""), "{refused}");
    let refused = qmp.refused("blockdev-del", json!({ "node-name": "o" }));
    assert!(refused.contains("node \"b\" is in use by export \"e\""), "{refused}");
    qmp.ok("block-export-del", json!({ "id": "e" }));
    qmp.ok("block-stream", json!({ "job-id": "s", "device": "o" }));
    completed(&mut qmp, "s");
    qmp.ok("blockdev-del", json!({ "node-name": "o" }));
    qmp.ok("blockdev-del", json!({ "node-name": "t" }));
    steered.server.stop();
    qemu_io_ok(&["-f", "qcow2"], &target, &["read -P 1 1M 64k"]);
    [base, over, target].iter().for_each(|path| assert_clean(path.as_ref()));
}
