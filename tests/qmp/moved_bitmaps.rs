//! Bitmaps that go along when a disk moves: to a far server, and to another file of the same one.

use std::path::Path;

use black_box::peer::{assert_clean, converted, dirty_by_qemu};
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Scratch, Server, cowhand};
use serde_json::{Value, json};

use super::jobs::{Load, holds};
use super::{Steered, create};

const GRANULARITY: u64 = 64 << 10;

/// Another machine's server, with an image `far` and a control socket.
fn far(scratch: &Scratch) -> (Server, String, String) {
    let (image, qmp) = (create(scratch, "far.qcow2", "64M"), scratch.name("far.qmp"));
    let start = Start::new(["--qmp", &qmp, &image]).socket(scratch.file("far.sock"));
    let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    (server, image, qmp)
}

fn path(socket: &Path) -> String {
    socket.to_string_lossy().into_owned()
}

/// Bits of `bitmap` of the image, which no process has open: each says whether its 64 KiB are dirty.
fn bits(image: &str, bitmap: &str) -> Vec<bool> {
    let mut bits = vec![false; (64 << 20) / GRANULARITY as usize];
    for (offset, length) in dirty_by_qemu(image, bitmap) {
        let last = (offset + length - 1) / GRANULARITY;
        bits[(offset / GRANULARITY) as usize..=last as usize].fill(true);
    }
    bits
}

/// A backup vendor that lost a bitmap would have to copy all of the disk; one whose bitmap missed a write would restore old bytes.
#[test]
fn bitmaps_go_along_with_a_disk_and_miss_nothing_that_is_written_meanwhile() {
    for to_file in [false, true] {
        let steered = Steered::new();
        let (scratch, socket) = (&steered.scratch, path(&steered.qmp));
        let mut qmp = steered.talk();
        let mut client = steered.server.client("a");
        client.write(8 << 20, &[5; 20 << 20]).expect("a write");
        qmp.ok(
            "block-dirty-bitmap-add",
            json!({ "node": "a", "name": "resting", "persistent": true, "granularity": GRANULARITY }),
        );
        client.write(40 << 20, &[6; 100]).expect("a write");
        qmp.ok("block-dirty-bitmap-disable", json!({ "node": "a", "name": "resting" }));
        qmp.ok(
            "block-dirty-bitmap-add",
            json!({ "node": "a", "name": "b", "persistent": true, "granularity": GRANULARITY }),
        );
        qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "gone at the end" }));
        let mut before = client.read(0, 32 << 20).expect("a read");
        before.extend(client.read(32 << 20, 32 << 20).expect("a read"));
        let load = Load::on(steered.server.socket(), "a", 2048);
        let away = (!to_file).then(|| far(scratch));
        let (image, target, control) = match &away {
            Some((server, image, qmp)) => (image.clone(), server.uri("far"), qmp.clone()),
            None => (scratch.name("new.qcow2"), scratch.name("new.qcow2"), socket.clone()),
        };
        cowhand(["mirror", &socket, &target, "--switch", "--bitmaps-to", &control]).ok();
        load.goes_on();
        let held = load.end();
        let nodes = Qmp::connect(control.as_ref()).ok("query-named-block-nodes", json!({}));
        let found = nodes.as_array().expect("nodes").iter().find_map(|node| {
            let names = node["dirty-bitmaps"].as_array()?.iter().map(|bitmap| bitmap["name"].clone());
            let names: Vec<Value> = names.collect();
            (names.len() == 3).then_some(names)
        });
        assert!(found.is_some_and(|names| names.contains(&json!("gone at the end"))), "{nodes}");
        drop((client, qmp));
        steered.server.stop();
        away.into_iter().for_each(|(server, ..)| drop(server.stop()));
        holds(&image, &held, scratch);
        let mut resting = vec![false; 1024];
        resting[(40 << 20) / GRANULARITY as usize] = true;
        assert_eq!(bits(&image, "resting"), resting);
        let after = converted(&image, "qcow2", &[], &scratch.file("after"));
        let bits = bits(&image, "b");
        for (index, is_dirty) in bits.iter().enumerate() {
            let bytes = index * GRANULARITY as usize..(index + 1) * GRANULARITY as usize;
            assert!(*is_dirty || before[bytes.clone()] == after[bytes], "unit {index} changed unnoticed");
        }
        // What the mirror copied and was not written is not dirty: the 20 MiB that were there before.
        assert!(
            bits[(9 << 20) / GRANULARITY as usize..(28 << 20) / GRANULARITY as usize].iter().all(|bit| !bit)
        );
        assert_clean(image.as_ref());
    }
}

/// The next point of a backup is an increment, though the disk is another file of another server now.
#[test]
fn a_backup_goes_on_with_increments_after_the_disk_has_moved() {
    let steered = Steered::new();
    let (scratch, socket) = (&steered.scratch, path(&steered.qmp));
    let backups = scratch.name("backups");
    steered.server.client("a").write(0, &[1; 8 << 20]).expect("a write");
    cowhand(["backup", &socket, &backups]).ok();
    steered.server.client("a").write(1 << 20, &[2; 1 << 20]).expect("a write");
    let (far, image, far_qmp) = far(scratch);
    cowhand(["mirror", &socket, &far.uri("far"), "--switch", "--bitmaps-to", &far_qmp]).ok();
    steered.server.client("a").write(4 << 20, &[3; 1 << 20]).expect("a write");
    steered.server.stop();
    far.stop();
    cowhand(["backup", &image, &backups]).ok();
    let list = cowhand(["backup", "--list", "--output", "json", &backups]).json();
    assert_eq!(list[1]["kind"], "incremental", "{list}");
    let whole =
        converted(&scratch.name("backups/0002-incremental.qcow2"), "qcow2", &[], &scratch.file("raw"));
    assert!(whole == converted(&image, "qcow2", &[], &scratch.file("disk.raw")));
    assert!(std::fs::metadata(scratch.file("backups/0002-incremental.qcow2")).expect("it").len() < 4 << 20);
}

#[test]
fn bitmaps_that_cannot_go_along_stop_the_move_and_nothing_is_left() {
    let steered = Steered::new();
    let (scratch, socket) = (&steered.scratch, path(&steered.qmp));
    let mut qmp = steered.talk();
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": "b", "persistent": true }));
    let (server, image, control) = far(scratch);
    let moved = |export: &str, to: &str| {
        cowhand(["mirror", &socket, &server.uri(export), "--switch", "--bitmaps-to", to]).fails()
    };
    let mut there = Qmp::connect(control.as_ref());
    there.ok("block-dirty-bitmap-add", json!({ "node": "far", "name": "b" }));
    assert!(moved("far", &control).contains("the copy has a bitmap \"b\" already"));
    there.ok("block-dirty-bitmap-remove", json!({ "node": "far", "name": "b" }));
    // Another server than the one that has the export.
    assert!(moved("far", &socket).contains("no export \"far\""));
    assert!(moved("far", &scratch.name("nobody.qmp")).contains("cannot talk to the server"));
    let alone = cowhand(["mirror", &socket, &server.uri("far"), "--bitmaps-to", &control]).fails();
    assert!(alone.contains("--switch"), "{alone}");
    assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
    assert_eq!(there.ok("query-named-block-nodes", json!({}))[0].get("dirty-bitmaps"), None);
    cowhand(["mirror", &socket, &server.uri("far"), "--switch", "--bitmaps-to", &control]).ok();
    drop((qmp, there));
    steered.server.stop();
    server.stop();
    assert_eq!(dirty_by_qemu(&image, "b"), []);
}

/// A bitmap of many ranges takes several answers, and what is read from one and set in another is the same.
#[test]
fn ranges_of_a_bitmap_are_read_in_parts_and_set_in_another() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let which = |name: &str| json!({ "node": "a", "name": name });
    for name in ["from", "to"] {
        qmp.ok("block-dirty-bitmap-add", json!({ "node": "a", "name": name, "granularity": 512 }));
        qmp.ok("block-dirty-bitmap-disable", which(name));
    }
    // 5,000 sectors, each alone, and a run at the end.
    let marked = |offset: u64, length: u64| json!({ "offset": offset, "length": length });
    let single: Vec<Value> = (0..5000).map(|index| marked(index * 1024, 1)).collect();
    for ranges in [&single[..4096], &single[4096..], &[marked((64 << 20) - 4096, 4096)]] {
        qmp.ok("x-block-dirty-bitmap-mark", json!({ "node": "a", "name": "from", "ranges": ranges }));
    }
    let first = qmp.ok("x-block-dirty-bitmap-ranges", which("from"));
    assert_eq!(first["ranges"].as_array().map(Vec::len), Some(4096));
    assert_eq!((&first["ranges"][1], &first["next"]), (&marked(1024, 512), &json!(4096 * 1024)));
    let rest = json!({ "node": "a", "name": "from", "offset": first["next"] });
    let rest = qmp.ok("x-block-dirty-bitmap-ranges", rest);
    assert_eq!((rest["ranges"].as_array().map(Vec::len), rest.get("next")), (Some(905), None));
    assert_eq!(rest["ranges"][904], marked((64 << 20) - 4096, 4096));
    for part in [first, rest] {
        let mark = json!({ "node": "a", "name": "to", "ranges": part["ranges"] });
        qmp.ok("x-block-dirty-bitmap-mark", mark);
    }
    let sum = |qmp: &mut Qmp, name: &str| qmp.ok("x-debug-block-dirty-bitmap-sha256", which(name));
    assert_eq!(sum(&mut qmp, "from"), sum(&mut qmp, "to"));
    let mark = |name: &str, ranges: Value| json!({ "node": "a", "name": name, "ranges": ranges });
    let many = vec![marked(0, 1); 4097];
    for (arguments, word) in [
        (mark("none", json!([])), "no bitmap"),
        (mark("to", json!([marked(0, 512), marked(64 << 20, 1)])), "behind the disk"),
        (mark("to", json!([marked(i64::MAX as u64, i64::MAX as u64)])), "behind the disk"),
        (mark("to", json!(many)), "at most 4096"),
    ] {
        let refused = qmp.refused("x-block-dirty-bitmap-mark", arguments);
        assert!(refused.contains(word), "{refused}");
    }
    let beyond = json!({ "node": "a", "name": "from", "offset": 1u64 << 40 });
    assert_eq!(qmp.ok("x-block-dirty-bitmap-ranges", beyond), json!({ "ranges": [] }));
    assert_eq!(sum(&mut qmp, "from"), sum(&mut qmp, "to"));
    steered.server.stop();
}
