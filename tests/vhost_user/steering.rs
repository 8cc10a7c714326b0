//! Exports that come and go, new sizes, figures, migration.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use black_box::peer::qemu_io_ok;
use black_box::qmp::Qmp;
use black_box::ready::eventually;
use black_box::vhost_user::{Ask, FrontEnd, GUEST_BASE, Machine, USED_AT, Ways, feature};
use black_box::{Run, Scratch, Server};
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::json;

use super::Place;

#[test]
fn a_guest_hears_of_a_new_size_and_reaches_it() {
    let place = Place::new();
    let qmp = place.scratch.file("q");
    let server = place.serve("", &["--qmp", &place.scratch.name("q")]);
    let mut machine = Machine::new(Ways::default());
    let mut front = FrontEnd::start(&place.socket, &mut machine);
    let last = (96 << 20) / 512 - 1;
    assert_eq!(machine.ask(0, &Ask::Write(last, &[3; 512])).status, 1);
    Qmp::connect(&qmp).ok("block_resize", json!({ "node-name": "disk", "size": 96 << 20 }));
    assert!(front.config_changed());
    assert_eq!(front.size(), 96 << 20);
    machine.ok(0, &Ask::Write(last, &[3; 512]));
    machine.ok(0, &Ask::Flush);
    // Smaller again: what is beyond the end fails.
    Qmp::connect(&qmp).ok("block_resize", json!({ "node-name": "disk", "size": 64 << 20, "x-shrink": true }));
    assert!(front.config_changed());
    assert_eq!(machine.ask(0, &Ask::Read(last, 512)).status, 1);
    server.stop();
}

#[test]
fn exports_for_machines_come_and_go_by_command_in_the_sandbox() {
    let place = Place::new();
    let (qmp, directory) = (place.scratch.name("q"), place.scratch.name(""));
    let server = Server::start(["--qmp", &qmp, "--allow-path", &directory, &format!("file={}", place.disk)]);
    let mut control = Qmp::connect(qmp.as_ref());
    let socket = place.scratch.name("added.sock");
    let export = json!({
        "type": "vhost-user-blk", "id": "v", "node-name": "disk", "writable": true, "num-queues": 2,
        "logical-block-size": 4096, "addr": { "type": "unix", "path": socket },
    });
    for (name, value, why) in [
        ("num-queues", json!(0), "num-queues"),
        ("logical-block-size", json!(1000), "logical-block-size"),
        ("addr", json!({ "type": "unix", "path": "/proc/x" }), "/proc/x"),
        ("node-name", json!("none"), "none"),
    ] {
        let mut wrong = export.clone();
        wrong[name] = value;
        let refused = control.refused("block-export-add", wrong);
        assert!(refused.contains(why), "{refused}");
    }
    control.ok("block-export-add", export.clone());
    assert!(control.refused("block-export-add", export.clone()).contains("already"));
    let mut machine = Machine::new(Ways { queues: 2, ..Ways::default() });
    let mut front = FrontEnd::start(socket.as_ref(), &mut machine);
    assert_eq!(front.config(20, 4), 4096u32.to_le_bytes());
    machine.ok(1, &Ask::Write(8, &[5; 4096]));
    let exports = control.ok("query-block-exports", json!({}));
    let own = exports.as_array().unwrap().iter().find(|export| export["id"] == "v").unwrap();
    assert_eq!((&own["type"], &own["connections"]), (&json!("vhost-user-blk"), &json!(1)), "{own}");
    assert!(control.refused("block-export-del", json!({ "id": "v" })).contains("in use"));
    control.ok("block-export-del", json!({ "id": "v", "mode": "hard" }));
    control.event("BLOCK_EXPORT_DELETED");
    assert!(front.is_hung_up() && !std::path::Path::new(&socket).exists());
    // What was answered to the machine, NBD clients see.
    assert_eq!(server.client("disk").read(4096, 4096).unwrap(), [5; 4096]);
    control.ok("block-export-add", export);
    drop(FrontEnd::start(socket.as_ref(), &mut Machine::new(Ways { queues: 2, ..Ways::default() })));
    server.stop();
    assert!(!std::path::Path::new(&socket).exists(), "the socket stays behind");
}

#[test]
fn the_storage_daemons_options_offer_a_disk_to_a_machine() {
    let place = Place::new();
    let link = place.scratch.file("qemu-storage-daemon");
    std::os::unix::fs::symlink(black_box::program::path(), &link).unwrap();
    let node = format!("driver=qcow2,node-name=n,file.driver=file,file.filename={}", place.disk);
    let export =
        "type=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=v.sock,writable=on,num-queues=2";
    let daemon = std::process::Command::new(&link)
        .args(["--blockdev", &node, "--export", export])
        .current_dir(place.scratch.path())
        .spawn();
    let mut daemon = daemon.unwrap();
    let mut machine = Machine::new(Ways { queues: 2, ..Ways::default() });
    let front = FrontEnd::start(&place.socket, &mut machine);
    machine.ok(1, &Ask::Write(0, &[6; 512]));
    machine.ok(1, &Ask::Flush);
    drop(front);
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), rustix::process::Signal::TERM)
        .unwrap();
    assert!(daemon.wait().unwrap().success() && !place.socket.exists());
    qemu_io_ok(&["-f", "qcow2"], &place.disk, &["read -P 6 0 512"]);
}

/// A front-end that migrates: pages that the device writes are in the log, others are not.
#[test]
fn pages_that_the_device_writes_are_logged() {
    let place = Place::new();
    let server = place.serve("", &[]);
    for packed in [false, true] {
        pages_are_logged(&place, packed);
    }
    server.stop();
}

/// Marks went to memory that no front-end sees, and a migration left out what the device had written.
#[test]
fn a_log_that_is_lost_stops_the_queues() {
    let place = Place::new();
    let server = place.serve("", &[]);
    let ways = Ways::default();
    let mut machine = Machine::new(ways);
    let mut front = FrontEnd::start(&place.socket, &mut machine);
    machine.ok(0, &Ask::Write(0, &[1; 4096]));
    let log = memfd_create("log", MemfdFlags::CLOEXEC).expect("a memory file");
    let bytes = (GUEST_BASE + machine.bytes()) / 4096 / 8 + 1;
    rustix::fs::ftruncate(&log, bytes).expect("memory");
    front.send(6, &[bytes, 0].map(u64::to_ne_bytes).concat(), &[log.as_fd()]);
    assert!(front.answer().is_some());
    front.set_features(ways, feature::LOG_ALL);
    front.set_address(0, 1);
    rustix::fs::ftruncate(&log, 0).expect("it is not sealed");
    // The marks of one request find out; the next one is not carried out.
    machine.submit(0, 7, &Ask::Read(0, 4096));
    machine.kick(0);
    machine.submit(0, 8, &Ask::Read(0, 4096));
    machine.kick(0);
    assert!(machine.broken(0), "pages are written that no log has");
    server.stop();
}

fn pages_are_logged(place: &Place, packed: bool) {
    let ways = Ways { packed, ..Ways::default() };
    let mut machine = Machine::new(ways);
    let mut front = FrontEnd::start(&place.socket, &mut machine);
    machine.ok(0, &Ask::Write(0, &[1; 8192]));
    let log = memfd_create("log", MemfdFlags::CLOEXEC).expect("a memory file");
    let bytes = (GUEST_BASE + machine.bytes()) / 4096 / 8 + 1;
    rustix::fs::ftruncate(&log, bytes).expect("memory");
    front.send(6, &[bytes, 0].map(u64::to_ne_bytes).concat(), &[log.as_fd()]);
    assert!(front.answer().is_some());
    front.set_features(ways, feature::LOG_ALL);
    front.set_address(0, 1);
    machine.submit(0, 7, &Ask::Read(0, 8192));
    machine.kick(0);
    assert_eq!(machine.wait(0, 1)[0].status, 0);
    let log = std::fs::File::from(log);
    let is_dirty = |page: u64| {
        let mut byte = [0];
        log.read_exact_at(&mut byte, page / 8).expect("memory");
        byte[0] & 1 << (page % 8) != 0
    };
    let first = GUEST_BASE / 4096;
    let slot = first + (0x1_0000 + 7 * 0x9000) / 4096;
    // A packed ring is written to where its descriptors are, and where the device says when it wants to be woken.
    let ring = if packed { vec![first] } else { Vec::new() };
    let expected = [&ring[..], &[first + USED_AT / 4096, slot, slot + 1, slot + 2]].concat();
    let dirty = || (first..first + machine.bytes() / 4096).filter(|page| is_dirty(*page)).collect::<Vec<_>>();
    // When the device wants to be woken it says behind an answer.
    eventually(&format!("packed: {packed}: {expected:?}"), || dirty() == expected);
    front.set_features(ways, 0);
}

/// A guest that turned the write cache off moves to another server with its disk: the cache is off there, too, and on for one that has it on,
/// rather than off because it is unknown.
#[test]
fn the_state_of_a_device_goes_to_another_server() {
    const NO_FD: u64 = 1 << 8;
    for on in [false, true] {
        let place = Place::new();
        let server = place.serve("", &[]);
        let mut machine = Machine::new(Ways { inflight: false, ..Ways::default() });
        let mut front = FrontEnd::start(&place.socket, &mut machine);
        machine.ok(0, &Ask::Write(0, &[7; 512]));
        assert_eq!(front.set_cache(on), 0);
        let (from, to) = rustix::pipe::pipe().unwrap();
        let transfer = |direction: u32| [direction, 0].map(u32::to_ne_bytes).concat();
        // A device that is at work has no state to give.
        assert_eq!(front.number_with(42, &transfer(0), to.as_fd()), NO_FD | 1);
        front.stop_ring(0);
        assert_eq!(front.number_with(42, &transfer(0), to.as_fd()), NO_FD);
        drop(to);
        assert_eq!(front.number(43, &[]), 0);
        assert_eq!(front.number(43, &[]), NO_FD | 1, "nothing was begun");
        drop(front);
        server.stop();

        let server = place.serve("", &[]);
        let mut front = FrontEnd::connect(&place.socket);
        front.prepare(&mut machine);
        assert_eq!(front.number_with(42, &transfer(1), from.as_fd()), NO_FD);
        assert_eq!(front.number(43, &[]), 0);
        front.start_rings(&machine);
        assert_eq!(front.config(32, 1), [u8::from(on)]);
        assert_eq!(machine.read(0, 512), [7; 512]);
        // What is no state is refused, and the connection goes on.
        front.stop_ring(0);
        let (from, to) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&to, &[0; 20]).unwrap();
        drop(to);
        assert_eq!(front.number_with(42, &transfer(1), from.as_fd()), NO_FD);
        assert_eq!(front.number(43, &[]), NO_FD | 1);
        assert_eq!(front.config(32, 1), [u8::from(on)]);
        drop(front);
        server.stop();
    }
}

/// The lines that are printed have the socket, for each monitor. QEMU 11 refused that for QEMU: an option had another name since 9.2.
#[test]
fn lines_for_machines_are_printed_and_the_configuration_has_sockets_too() {
    let scratch = Scratch::new();
    let (disk, socket) = (scratch.name("disk.qcow2"), scratch.name("v.sock"));
    black_box::peer::qemu_img(["create", "-q", "-f", "qcow2", &disk, "8M"]).ok();
    let text =
        format!("vhost-user-blk = [{socket:?}]\nrequest-merging = false\n[[drive]]\nfile = {disk:?}\n");
    let config = scratch.write("c.toml", text.as_bytes());
    let mut server = Server::start([std::path::Path::new("--config"), &config]);
    let printed =
        server.wait_until(|server| Some(server.stdout()).filter(|said| said.contains("Firecracker")));
    let printed = printed.expect("it serves");
    for (monitor, word) in [
        ("QEMU", "-device vhost-user-blk-pci"),
        ("cloud-hypervisor", "vhost_user=on"),
        ("crosvm", "--vhost-user"),
        ("Firecracker", "/drives/"),
    ] {
        let line = printed.lines().find(|line| line.contains(monitor) && line.contains(word));
        assert!(line.is_some_and(|line| line.contains(&socket)), "{monitor}: {printed}");
    }
    let mut machine = Machine::new(Ways::default());
    let _front = FrontEnd::start(socket.as_ref(), &mut machine);
    machine.ok(0, &Ask::Write(0, &[1; 512]));
    server.stop();
    let chardev = |tool: &str| {
        let lines = printed.lines().filter_map(|line| line.trim_start().strip_prefix(tool));
        let (_, rest) = lines.filter_map(|line| line.split_once(" -chardev ")).next().expect("a line");
        rest.split(' ').next().expect("its options").to_owned()
    };
    let (new, old) = (chardev("QEMU  "), chardev("QEMU before 9.2 "));
    // No server is there any more, which some versions wait for: an object of no type ends them all.
    let takes = |program: &Path, options: &str| {
        let said = Run::new(program).args(["--chardev", options, "--object", "none"]).fails();
        !said.contains("Invalid parameter 'reconnect")
    };
    let installed = Path::new("qemu-storage-daemon");
    assert!(takes(installed, &new) || takes(installed, &old), "{new} {old}");
    if let Some(newest) = black_box::peer::newest_qemu() {
        assert!(takes(&newest.join("qemu-storage-daemon"), &new), "{new}");
    }
}
