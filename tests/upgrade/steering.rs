//! Daemons that a file or commands configure.

use black_box::Client;
use black_box::peer::qemu_img;
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Scratch, Server};
use serde_json::json;

use super::Daemon;

fn steered() -> Daemon {
    Daemon::start(|scratch| {
        let path = scratch.path().display().to_string();
        ["--qmp", &scratch.name("q.sock"), "--allow-path", &path].map(str::to_owned).to_vec()
    })
}

/// A disk and an export that commands added, limits and a bitmap that they set.
#[test]
fn what_commands_added_survives_an_upgrade() {
    let mut daemon = steered();
    let (second, control) = (daemon.scratch.name("second.qcow2"), daemon.scratch.file("q.sock"));
    qemu_img(["create", "-q", "-f", "qcow2", &second, "8M"]).ok();
    let mut qmp = Qmp::connect(&control);
    let file = json!({ "driver": "file", "filename": second });
    qmp.ok("blockdev-add", json!({ "node-name": "second", "driver": "qcow2", "file": file }));
    let gone = json!({ "driver": "null-co", "size": 1 << 20, "node-name": "gone" });
    if qmp.ask("blockdev-add", gone).is_ok() {
        qmp.ok("blockdev-del", json!({ "node-name": "gone" }));
    }
    qmp.ok("block-export-add", json!({ "id": "e", "type": "nbd", "node-name": "second", "writable": true }));
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "second", "name": "kept", "persistent": true }));
    let throttle = json!({ "id": "disk", "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 12345, "iops_rd": 0, "iops_wr": 0 });
    qmp.ok("block_set_io_throttle", throttle);
    let mut client = daemon.server.client("second");
    client.write(1 << 20, &[7; 4096]).expect("a write");
    for _ in 0..2 {
        daemon.upgrade();
        assert_eq!(client.read(1 << 20, 4096).expect("a read"), [7; 4096]);
        client.write(2 << 20, &[8; 4096]).expect("a write");
        let mut qmp = Qmp::connect(&control);
        let exports = qmp.ok("query-block-exports", json!({}));
        assert!(exports.as_array().is_some_and(|all| all.iter().any(|one| one["id"] == "e")), "{exports}");
        let devices = qmp.ok("query-block", json!({})).to_string();
        assert!(devices.contains("12345") && devices.contains("kept"), "{devices}");
    }
    client.disconnect();
    daemon.stop();
}

/// What would be lost is named, and nothing changes.
#[test]
fn what_cannot_be_handed_over_is_refused_by_name() {
    let mut daemon = steered();
    let mut qmp = Qmp::connect(&daemon.scratch.file("q.sock"));
    let mut client = daemon.server.client("disk");
    client.write(0, &[1; 4096]).expect("a write");
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "disk", "name": "passing", "persistent": false }));
    let outcome = daemon.successor(&daemon.disk.clone(), &[]).outcome();
    assert!(!outcome.status.success() && outcome.stderr.contains("passing"), "{outcome}");
    // The clients of the control socket were not touched.
    qmp.ok("block-dirty-bitmap-remove", json!({ "node": "disk", "name": "passing" }));
    daemon.upgrade();
    assert_eq!(client.read(0, 4096).expect("a read"), [1; 4096]);
    let overlay = daemon.scratch.name("overlay.qcow2");
    let mut qmp = Qmp::connect(&daemon.scratch.file("q.sock"));
    qmp.ok(
        "blockdev-snapshot-sync",
        json!({ "device": "disk", "snapshot-file": overlay, "format": "qcow2" }),
    );
    let outcome = daemon.successor(&daemon.disk.clone(), &[]).outcome();
    assert!(!outcome.status.success() && outcome.stderr.contains("blockdev-snapshot-sync"), "{outcome}");
    assert_eq!(client.read(0, 4096).expect("a read"), [1; 4096]);
    client.disconnect();
    daemon.stop();
}

#[test]
fn a_configuration_file_is_what_both_processes_read() {
    let scratch = Scratch::new();
    let (disk, socket, next) =
        (scratch.name("disk.qcow2"), scratch.file("n.sock"), scratch.file("next.sock"));
    let (pid_file, config) = (scratch.file("pid"), scratch.file("vm.toml"));
    qemu_img(["create", "-q", "-f", "qcow2", &disk, "8M"]).ok();
    let text = format!(
        "socket = {socket:?}\ntake-over-socket = {next:?}\npid-file = {pid_file:?}\nquiet = true\n[[drive]]\nfile = {disk:?}\n"
    );
    std::fs::write(&config, text).expect("a file");
    let start = || Start::new(["--config"]).arg(&config).listening_on(&socket);
    let mut first = start().listen().unwrap_or_else(|error| panic!("{}", error.0));
    let mut client = Client::connect(&socket, "disk").expect("a connection");
    client.write(0, &[3; 4096]).expect("a write");
    let mut second: Server = start().arg("--take-over").arg(&next).spawn();
    assert!(first.outcome().status.success());
    assert_eq!(client.read(0, 4096).expect("a read"), [3; 4096]);
    let written = |server: &Server| {
        std::fs::read_to_string(&pid_file).is_ok_and(|said| said.trim() == server.pid().to_string())
    };
    assert!(second.wait_until(|server| written(server).then_some(())).is_some());
    client.disconnect();
    second.stop();
    assert!(!pid_file.exists() && !next.exists() && !socket.exists());
}

/// A guest that has used up its burst does not get another one.
#[test]
fn the_levels_of_limits_survive_an_upgrade() {
    let mut daemon = steered();
    let control = daemon.scratch.file("q.sock");
    let limits = json!({ "id": "disk", "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": 1, "iops_rd": 0, "iops_wr": 0,
        "iops_max": 1000, "iops_max_length": 10 });
    Qmp::connect(&control).ok("block_set_io_throttle", limits);
    let mut client = daemon.server.client("disk");
    (0..500).for_each(|block| client.write(block * 4096, &[1; 4096]).expect("a write"));
    let level = || {
        let report = Qmp::connect(&control).ok("x-query-throttle", json!({ "device": "disk" }));
        report[0]["bucket-levels"]["iops-total"]["level"].as_f64().unwrap_or_else(|| panic!("{report}"))
    };
    let before = level();
    daemon.upgrade();
    let after = level();
    // It leaks one a second.
    assert!(before > 450.0 && after <= before && after > before - 30.0, "{before}, then {after}");
    client.disconnect();
    daemon.stop();
}
