//! A disk is handed to another server without being closed, and back: `blockdev-set-active`.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use black_box::peer::{assert_clean, newer_qemu, qemu_img};
use black_box::qmp::Qmp;
use black_box::ready;
use black_box::{Client, Scratch, Server};
use serde_json::{Value, json};

use super::{begin_with_nothing, node, qcow2};

const PIECE: usize = 64 << 10;

/// How long QEMU may take to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that has the disk, inactive, and shows it all the same.
struct Side {
    qmp: Qmp,
    socket: PathBuf,
    _scratch: Scratch,
    server: Option<Server>,
    qemu: Option<Child>,
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Some(qemu) = &mut self.qemu {
            let _ = qemu.kill();
            let _ = qemu.wait();
        }
    }
}

impl Side {
    fn of_cowhand(image: &str) -> Self {
        let scratch = Scratch::new();
        let directory = Path::new(image).parent().expect("a directory");
        let qmp = scratch.name("qmp");
        let start = black_box::server::Start::new(["--qmp", &qmp, "--allow-path"]).arg(scratch.path());
        let start = start.arg("--allow-path").arg(directory).listening_on(&qmp);
        let server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        Self::with(Qmp::connect(qmp.as_ref()), scratch, image).served_by(server)
    }

    fn of_qemu(image: &str) -> Self {
        let scratch = Scratch::new();
        let qmp = scratch.name("qmp");
        let chardev = format!("socket,id=m,path={qmp},server=on,wait=off");
        let mut command = Command::new(newer_qemu("qemu-storage-daemon"));
        command.args(["--chardev", &chardev, "--monitor", "chardev=m"]).stdin(Stdio::null());
        let mut qemu = command.spawn().expect("QEMU's storage daemon");
        ready::until("qemu-storage-daemon", &mut qemu, PATIENCE, || UnixStream::connect(&qmp).is_ok());
        let mut side = Self::with(Qmp::connect(qmp.as_ref()), scratch, image);
        side.qemu = Some(qemu);
        // QEMU 10.0 and 11.1 do not look again at an image that was inactive from the beginning, when it becomes active for the first time.
        for active in [true, false] {
            side.set_active(active).expect("no other process has the disk");
        }
        side
    }

    fn with(mut qmp: Qmp, scratch: Scratch, image: &str) -> Self {
        let socket = scratch.file("nbd");
        let mut options = qcow2("d", image);
        options["active"] = json!(false);
        qmp.ok("blockdev-add", options);
        qmp.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": socket } } }));
        qmp.ok(
            "block-export-add",
            json!({ "type": "nbd", "id": "e", "node-name": "d", "writable": true, "allow-inactive": true }),
        );
        Self { qmp, socket, _scratch: scratch, server: None, qemu: None }
    }

    fn served_by(self, server: Server) -> Self {
        let mut side = self;
        side.server = Some(server);
        side
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket, "d").expect("it serves")
    }

    fn set_active(&mut self, active: bool) -> Result<Value, (String, String)> {
        self.qmp.ask("blockdev-set-active", json!({ "node-name": "d", "active": active }))
    }

    fn is_active(&mut self) -> bool {
        node(&mut self.qmp, "d").expect("it is there")["active"].as_bool().expect("a switch")
    }
}

/// The disk goes back and forth, each side writes while it has the disk and is refused while it has not, and finds what the other one wrote.
fn hand_over(mut from: Side, mut to: Side, image: &str) {
    from.set_active(true).expect("no process has the disk");
    let (mut writer, mut waiting) = (from.client(), to.client());
    for round in 1..6_u8 {
        let place = u64::from(round) * PIECE as u64;
        writer.write(0, &vec![round; PIECE]).expect("a write");
        writer.write(place, &vec![round; PIECE]).expect("a write");
        assert!(to.set_active(true).is_err(), "the other one has it");
        assert!(waiting.write(0, &[9; 512]).is_err(), "it is inactive");
        from.set_active(false).expect("it lets others have it");
        assert!(writer.write(0, &[9; 512]).is_err(), "it is inactive");
        to.set_active(true).expect("no process has it");
        assert_eq!((from.is_active(), to.is_active()), (false, true));
        for (at, value) in [(0, round), (place, round), (PIECE as u64, 1)] {
            assert!(
                waiting.read(at, PIECE as u32).expect("a read").iter().all(|byte| *byte == value),
                "{round}"
            );
        }
        std::mem::swap(&mut from, &mut to);
        std::mem::swap(&mut writer, &mut waiting);
    }
    drop((writer, waiting));
    from.set_active(false).expect("an active disk");
    drop((from, to));
    assert_clean(Path::new(image));
}

fn image(scratch: &Scratch) -> String {
    let (base, top) = (scratch.name("base.qcow2"), scratch.name("top.qcow2"));
    qemu_img(["create", "-q", "-f", "qcow2", &base, "8M"]).ok();
    qemu_img(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &top, "8M"]).ok();
    top
}

#[test]
fn a_disk_goes_from_server_to_server_without_being_closed() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    hand_over(Side::of_cowhand(&image), Side::of_cowhand(&image), &image);
}

#[test]
fn a_disk_goes_to_qemu_and_back_without_being_closed() {
    let scratch = Scratch::new();
    let image = image(&scratch);
    hand_over(Side::of_cowhand(&image), Side::of_qemu(&image), &image);
}

#[test]
fn a_disk_that_an_export_or_a_job_needs_stays_active() {
    let scratch = Scratch::new();
    let path = image(&scratch);
    let (server, mut qmp) = begin_with_nothing(&scratch);
    let mut options = qcow2("d", &path);
    options["active"] = json!(false);
    qmp.ok("blockdev-add", options);
    let active = |qmp: &mut Qmp| node(qmp, "d").expect("it is there")["active"].clone();
    assert_eq!(active(&mut qmp), json!(false));
    let refused = qmp.refused("block-stream", json!({ "device": "d", "job-id": "j" }));
    assert!(refused.contains("is inactive"), "{refused}");
    qmp.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": scratch.name("n") } } }));
    // As in QEMU: an export that is to be active makes its node so.
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": "e", "node-name": "d", "writable": true }));
    assert_eq!(active(&mut qmp), json!(true));
    let off = json!({ "node-name": "d", "active": false });
    let refused = qmp.refused("blockdev-set-active", off.clone());
    assert!(refused.contains("export \"e\""), "{refused}");
    qmp.ok("block-export-del", json!({ "id": "e" }));
    qmp.ok("blockdev-set-active", off);
    // Without a name: all.
    qmp.ok("blockdev-set-active", json!({ "active": true }));
    assert_eq!(active(&mut qmp), json!(true));
    qmp.ok("blockdev-del", json!({ "node-name": "d" }));
    server.stop();
}
