//! Snapshots of a part of a disk: a bitmap says which, and a backup gives up what it has copied.

use std::path::Path;

use black_box::client::Failed;
use black_box::peer::{qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::{Client, Scratch};
use serde_json::json;

use super::backups::Daemon;
use super::jobs::completed;
use super::{Steered, create, qcow2};

const UNIT: u64 = 64 << 10;

/// A disk `d` with a bitmap of its first and its third unit, and the snapshot `snap` of these; both are exported. Gives the clients.
fn snapshot(qmp: &mut Qmp, socket: &Path, scratch: &Scratch, begin: &str) -> [Client; 2] {
    let (disk, target) =
        (create(scratch, &format!("{begin}-d"), "1M"), create(scratch, &format!("{begin}-t"), "1M"));
    drop(qemu_io_ok(&["-f", "qcow2"], &disk, &["write -P 1 0 1M"]));
    qmp.ok("blockdev-add", qcow2("d", &disk));
    qmp.ok("blockdev-add", qcow2("t", &target));
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "d", "name": "b", "granularity": UNIT }));
    let export = |qmp: &mut Qmp, node: &str, writable: bool| {
        let export =
            json!({ "type": "nbd", "id": node, "node-name": node, "name": node, "writable": writable });
        qmp.ok("block-export-add", export);
        Client::connect(socket, node).expect("it serves")
    };
    let mut guest = export(qmp, "d", true);
    guest.write(512, &[2; 512]).expect("a write");
    guest.write(2 * UNIT, &[2; 512]).expect("a write");
    drop(guest);
    qmp.ok("block-export-del", json!({ "id": "d", "mode": "hard" }));
    qmp.event_of("BLOCK_EXPORT_DELETED", "id", "d");
    let mut filter = json!({ "driver": "copy-before-write", "node-name": "cbw", "file": "d", "target": "t" });
    for wrong in [json!({ "node": "d", "name": "none" }), json!({ "node": "none", "name": "b" })] {
        filter["bitmap"] = wrong;
        drop(qmp.refused("blockdev-add", filter.clone()));
    }
    filter["bitmap"] = json!({ "node": "d", "name": "b" });
    qmp.ok("blockdev-add", filter);
    qmp.ok("blockdev-add", json!({ "driver": "snapshot-access", "node-name": "snap", "file": "cbw" }));
    let guest = export(qmp, "cbw", true);
    [guest, export(qmp, "snap", false)]
}

/// Backup software copies what a bitmap has: the rest costs guests nothing, and is no part of the snapshot.
#[test]
fn a_snapshot_has_what_its_bitmap_has_and_the_rest_is_an_error_as_with_qemu() {
    let steered = Steered::new();
    let scratch = &steered.scratch;
    let other = create(scratch, "other.qcow2", "64M");
    let (_daemon, mut theirs) = Daemon::with(&scratch.file("daemon"), &other);
    let socket = scratch.file("nbd");
    let address = json!({ "type": "unix", "data": { "path": socket } });
    theirs.ok("nbd-server-start", json!({ "addr": address }));
    let mut ours = steered.talk();
    for (qmp, socket, begin) in
        [(&mut theirs, socket.as_path(), "theirs"), (&mut ours, steered.server.socket(), "ours")]
    {
        let [mut guest, mut snap] = snapshot(qmp, socket, scratch, begin);
        for unit in 0..4 {
            guest.write(unit * UNIT, &[9; UNIT as usize]).expect("a write");
        }
        guest.flush().expect("a flush");
        let mut old = vec![1; UNIT as usize];
        old[512..1024].fill(2);
        assert!(snap.read(0, UNIT as u32).expect("a read") == old, "{begin}");
        let mut old = vec![1; UNIT as usize];
        old[..512].fill(2);
        assert!(snap.read(2 * UNIT, UNIT as u32).expect("a read") == old, "{begin}");
        for (at, len) in [(UNIT, 512), (4 * UNIT, 512), (0, 2 * UNIT as u32)] {
            let read = snap.read(at, len);
            assert!(matches!(read, Err(Failed::Refused(_))), "{begin}: {at}: {read:?}");
        }
    }
    drop(ours);
    steered.server.stop();
    let map = qemu_img(["map", "--output=json", &scratch.name("ours-t")]).json();
    let data = map.as_array().expect("a list").iter().filter(|part| part["data"] == true);
    let parts: Vec<_> = data.map(|part| (part["start"].as_u64(), part["length"].as_u64())).collect();
    assert_eq!(parts, [(Some(0), Some(UNIT)), (Some(2 * UNIT), Some(UNIT))]);
}

/// The space of a snapshot is given back while a backup of it goes on; the disk itself loses nothing.
#[test]
fn a_backup_gives_up_what_it_has_copied_of_a_snapshot_and_of_nothing_else() {
    let steered = Steered::new();
    let (scratch, mut qmp) = (&steered.scratch, steered.talk());
    let disk = create(scratch, "d", "4M");
    drop(qemu_io_ok(&["-f", "qcow2"], &disk, &["write -P 1 0 4M"]));
    let (target, copy) = (create(scratch, "t", "4M"), create(scratch, "copy", "4M"));
    let mut opened = qcow2("t", &target);
    opened["discard"] = json!("unmap");
    for node in [qcow2("d", &disk), opened, qcow2("copy", &copy)] {
        qmp.ok("blockdev-add", node);
    }
    let mut backup =
        json!({ "job-id": "j", "device": "d", "target": "copy", "sync": "full", "discard-source": true });
    let refused = qmp.refused("blockdev-backup", backup.clone());
    assert!(
        refused.contains("'discard-source' is true and node \"d\" is no snapshot-access filter"),
        "{refused}"
    );
    qmp.ok(
        "blockdev-add",
        json!({ "driver": "copy-before-write", "node-name": "cbw", "file": "d", "target": "t" }),
    );
    qmp.ok("blockdev-add", json!({ "driver": "snapshot-access", "node-name": "snap", "file": "cbw" }));
    for (node, writable) in [("cbw", true), ("snap", false)] {
        let export =
            json!({ "type": "nbd", "id": node, "node-name": node, "name": node, "writable": writable });
        qmp.ok("block-export-add", export);
    }
    let mut guest = Client::connect(steered.server.socket(), "cbw").expect("it serves");
    guest.write(1 << 20, &[2; 1 << 20]).expect("a write");
    backup["device"] = json!("snap");
    qmp.ok("blockdev-backup", backup);
    completed(&mut qmp, "j");
    let mut snap = Client::connect(steered.server.socket(), "snap").expect("it serves");
    for at in [0, 1 << 20] {
        assert!(matches!(snap.read(at, 512), Err(Failed::Refused(_))), "it was given up");
    }
    // No client needs the old content any more.
    guest.write(2 << 20, &[3; 4096]).expect("a write");
    guest.flush().expect("a flush");
    assert!(guest.read(0, 512).expect("a read") == [1; 512], "the disk has lost something");
    drop((guest, snap));
    steered.server.stop();
    drop(qemu_io_ok(&["-f", "qcow2"], &copy, &["read -P 1 0 4M"]));
    drop(qemu_io_ok(&["-f", "qcow2"], &disk, &["read -P 1 0 1M", "read -P 2 1M 1M", "read -P 3 2M 4k"]));
    let map = qemu_img(["map", "--output=json", &target]).json();
    assert!(map.as_array().expect("a list").iter().all(|part| part["data"] == false), "{map}");
}
