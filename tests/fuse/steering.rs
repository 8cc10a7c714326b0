//! Files by command, under cowhand's name and QEMU's.

use std::fs::File;

use black_box::Run;
use black_box::qmp::Qmp;
use black_box::ready::eventually;
use black_box::server::Start;
use serde_json::json;

use super::{Place, SIZE, is_mounted};

#[test]
fn an_export_of_type_fuse_is_added_and_taken_away_by_command() {
    let place = Place::new();
    let qmp = place.scratch.name("qmp.sock");
    let start = Start::new(["--sandbox", "off", "--qmp", &qmp, &place.disk]);
    let server = start.listen().expect("it serves");
    let mut commands = Qmp::connect(qmp.as_ref());
    let add = json!({ "type": "fuse", "id": "e", "node-name": "disk", "mountpoint": place.name(), "writable": true, "allow-other": "off" });
    commands.ok("block-export-add", add.clone());
    assert_eq!(std::fs::metadata(&place.file).expect("the disk").len(), SIZE);
    let exports = commands.ok("query-block-exports", json!({}));
    let shown =
        exports.as_array().expect("a list").iter().find(|export| export["id"] == "e").expect("it is there");
    assert_eq!((&shown["type"], &shown["mountpoint"]), (&json!("fuse"), &json!(place.name())));

    // A program that has it open keeps it, unless it is forced to go.
    let open = File::open(&place.file).expect("the disk");
    let busy = commands.refused("block-export-del", json!({ "id": "e" }));
    assert!(busy.contains("mode hard"), "{busy}");
    commands.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
    assert_eq!(commands.event("BLOCK_EXPORT_DELETED")["data"]["id"], "e");
    assert!(!is_mounted(&place.file) && open.metadata().is_err());

    // Who unmounts by hand takes the export away.
    commands.ok("block-export-add", add);
    Run::new("umount").arg(&place.file).ok();
    assert_eq!(commands.event("BLOCK_EXPORT_DELETED")["data"]["id"], "e");
    server.stop();
}

#[test]
fn under_qemus_name_the_options_are_qemus() {
    let place = Place::new();
    let names = place.scratch.file("bin");
    std::fs::create_dir(&names).expect("a directory");
    black_box::program::cowhand(["compat", "install"]).arg(&names).ok();
    let pid_file = place.scratch.name("pid");
    let blockdev = format!("qcow2,node-name=d,file.driver=file,file.filename={}", place.disk);
    let export = format!(
        "type=fuse,id=e,node-name=d,mountpoint={},writable=on,growable=on,allow-other=auto",
        place.name()
    );
    let daemon = Run::new(names.join("qemu-storage-daemon"));
    daemon.args(["--blockdev", &blockdev, "--export", &export, "--daemonize", "--pidfile", &pid_file]).ok();
    Run::new("truncate").args(["--size", "96M"]).arg(&place.file).ok();
    assert_eq!(std::fs::metadata(&place.file).expect("the disk").len(), 96 << 20);
    let pid = std::fs::read_to_string(&pid_file).expect("a pid file");
    Run::new("kill").arg(pid.trim()).ok();
    eventually("the mount goes", || !is_mounted(&place.file));
    place.wait_for_the_disk();
    assert_eq!(place.content().len(), 96 << 20);
}

/// A disk as a file over the image itself, whose mode a program changes: QEMU's callers do both, once at a place.
#[test]
fn under_qemus_name_a_file_lies_over_its_image_and_has_a_mode_of_its_own() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let names = place.scratch.file("bin");
    std::fs::create_dir(&names).expect("a directory");
    black_box::program::cowhand(["compat", "install"]).arg(&names).ok();
    let socket = place.scratch.name("q");
    let blockdev = format!("qcow2,node-name=d,file.driver=file,file.filename={}", place.disk);
    let chardev = format!("socket,id=c,path={socket},server=on,wait=off");
    let words = ["--daemonize", "--blockdev", &blockdev, "--chardev", &chardev, "--monitor", "chardev=c"];
    Run::new(names.join("qemu-storage-daemon")).args(words).ok();
    let mut qmp = Qmp::connect(socket.as_ref());
    let export =
        |id: &str, place: &str| json!({ "type": "fuse", "id": id, "node-name": "d", "mountpoint": place });
    // fallocate makes also a disk longer that is not growable.
    let mut writable = export("w", place.name());
    writable["writable"] = json!(true);
    qmp.ok("block-export-add", writable);
    let size = SIZE.to_string();
    Run::new("fallocate").args(["--offset", &size, "--length", "64KiB"]).arg(&place.file).ok();
    assert_eq!(std::fs::metadata(&place.file).expect("the disk").len(), SIZE + (64 << 10));
    qmp.ok("block-export-del", json!({ "id": "w", "mode": "hard" }));
    eventually("the mount goes", || !is_mounted(&place.file));
    qmp.ok("block_resize", json!({ "node-name": "d", "size": SIZE }));
    qmp.ok("block-export-add", export("a", &place.disk));
    assert_eq!(std::fs::metadata(&place.disk).expect("the disk").len(), SIZE);
    let refused = qmp.refused("block-export-add", export("b", &place.disk));
    assert!(refused.contains("already"), "{refused}");
    let mode = |bits: u32| std::fs::set_permissions(&place.disk, std::fs::Permissions::from_mode(bits));
    mode(0o500).expect("the mode changes");
    assert!(mode(0o600).is_err(), "it cannot be written");
    // It is gone when the command is answered, and so is its use of the node.
    qmp.ok("block-export-del", json!({ "id": "a" }));
    assert!(!is_mounted(std::path::Path::new(&place.disk)));
    qmp.ok("blockdev-del", json!({ "node-name": "d" }));
    let file = json!({ "driver": "file", "filename": place.disk });
    qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "d", "file": file }));
    qmp.ok("quit", json!({}));
}
