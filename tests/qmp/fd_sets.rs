//! Files that a management program opened and handed over: add-fd and /dev/fdset, as QEMU has them.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::qmp::Qmp;
use black_box::{Client, QemuNbd, Run, Scratch, Server};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use super::neighbours::python_packages;
use super::{Steered, create};

fn both(path: &str) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("the image")
}

fn reading(path: &str) -> File {
    File::open(path).expect("the image")
}

fn add(qmp: &mut Qmp, set: u32, file: &impl AsFd) -> i64 {
    let added = qmp.ask_with(&[file.as_fd()], "add-fd", json!({ "fdset-id": set }));
    let added = added.expect("it is added");
    assert_eq!(added["fdset-id"], set);
    added["fd"].as_i64().expect("a number")
}

fn node(name: &str, set: u32) -> Value {
    super::qcow2(name, &format!("/dev/fdset/{set}"))
}

fn export(qmp: &mut Qmp, name: &str) {
    qmp.ok("block-export-add", json!({ "type": "nbd", "id": name, "node-name": name, "writable": true }));
}

fn remove(qmp: &mut Qmp, name: &str) {
    qmp.ok("block-export-del", json!({ "id": name, "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    qmp.ok("blockdev-del", json!({ "node-name": name }));
}

/// The file lies where the sandbox opens nothing and where the server's user may not go: the descriptor is all there is.
#[test]
fn a_disk_is_served_by_the_descriptor_that_came_for_it_and_no_other_way() {
    let (steered, elsewhere) = (Steered::new(), Scratch::new());
    let path = create(&elsewhere, "b.qcow2", "16M");
    let mut qmp = steered.talk();
    let fd = add(&mut qmp, 3, &both(&path));
    assert_eq!(qmp.ok("query-fdsets", json!({})), json!([{ "fdset-id": 3, "fds": [{ "fd": fd }] }]));
    qmp.ok("blockdev-add", node("b", 3));
    export(&mut qmp, "b");
    let mut client = steered.server.client("b");
    for number in 0..8_u8 {
        client.write(u64::from(number) << 20, &[number + 1; 65536]).expect("a write");
    }
    client.flush().expect("a flush");
    client.trim(0, 65536).expect("a trim");
    // Its locks are QEMU's, also when another process opened the file.
    let refused = qemu_img(["info", &path]).outcome();
    assert!(!refused.status.success() && refused.stderr.contains("lock"), "{refused}");
    // The set may go: the disk keeps what it has.
    qmp.ok("remove-fd", json!({ "fdset-id": 3 }));
    assert_eq!(qmp.ok("query-fdsets", json!({})), json!([]));
    client.write(9 << 20, &[9; 512]).expect("a write");
    qmp.ok("block_resize", json!({ "node-name": "b", "size": 32 << 20 }));
    drop(client);
    remove(&mut qmp, "b");
    assert_clean(path.as_ref());
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 8 7M 64k", "read -P 9 9M 512", "read -P 0 16M 16M"]);
    assert_eq!(held(&steered.server, "b.qcow2"), 0);
    steered.server.stop();
}

#[test]
fn a_chain_is_made_of_sets_that_each_hold_the_descriptor_for_its_use() {
    let (steered, elsewhere) = (Steered::new(), Scratch::new());
    let base = create(&elsewhere, "base.qcow2", "16M");
    qemu_io_ok(&["-f", "qcow2"], &base, &["write -P 5 1M 64k"]);
    let (top, data) = (elsewhere.name("top.qcow2"), elsewhere.name("data.raw"));
    let options = format!("data_file={data}");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", &options, "-b", "base.qcow2", "-F", "qcow2", &top]).ok();
    let mut qmp = steered.talk();
    add(&mut qmp, 1, &reading(&base));
    // As libvirt does: one for each way to open it.
    add(&mut qmp, 2, &reading(&top));
    add(&mut qmp, 2, &both(&top));
    add(&mut qmp, 4, &both(&data));
    let mut options = node("top", 2);
    let refused = qmp.refused("blockdev-add", options.clone());
    assert!(
        refused.contains("data.raw") && refused.contains("outside the image's own directory"),
        "{refused}"
    );
    options["data-file"] = json!({ "driver": "file", "filename": "/dev/fdset/4" });
    let refused = qmp.refused("blockdev-add", options.clone());
    assert!(refused.contains("backing.file=PATH") && refused.contains("lies in no directory"), "{refused}");
    options["backing"] =
        json!({ "driver": "qcow2", "file": { "driver": "file", "filename": "/dev/fdset/1" } });
    qmp.ok("blockdev-add", options);
    export(&mut qmp, "top");
    let mut client = steered.server.client("top");
    client.write(0, &[6; 512]).expect("a write");
    assert_eq!(client.read(1 << 20, 65536).expect("a read"), [5; 65536]);
    drop(client);
    remove(&mut qmp, "top");
    qemu_io_ok(&["-f", "qcow2"], &top, &["read -P 6 0 512", "read -P 5 1M 64k"]);
    assert_clean(top.as_ref());
    steered.server.stop();
}

/// Copies of one descriptor share their file locks: two disks over them wrote to one image, each sure to be alone.
#[test]
fn copies_of_one_descriptor_never_serve_two_disks() {
    let (steered, elsewhere) = (Steered::new(), Scratch::new());
    let path = create(&elsewhere, "b.qcow2", "16M");
    let mut qmp = steered.talk();
    let file = both(&path);
    add(&mut qmp, 1, &file);
    add(&mut qmp, 2, &file);
    qmp.ok("blockdev-add", node("b", 1));
    for (set, read_only) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut options = node("c", set);
        options["read-only"] = json!(read_only);
        let refused = qmp.refused("blockdev-add", options);
        assert!(refused.contains("share file locks"), "{set} {read_only}: {refused}");
    }
    // Opened anew it has locks of its own, and they are in the way as those of any other process.
    add(&mut qmp, 2, &both(&path));
    let refused = qmp.refused("blockdev-add", node("c", 2));
    assert!(refused.contains("in use by"), "{refused}");
    qmp.ok("blockdev-del", json!({ "node-name": "b" }));
    qmp.ok("blockdev-add", node("c", 2));
    let locked = qemu_img(["info", &path]).outcome();
    assert!(!locked.status.success(), "c holds its locks: {locked}");
    qmp.ok("blockdev-del", json!({ "node-name": "c" }));
    qemu_img(["info", &path]).ok();
    steered.server.stop();
}

/// A descriptor that is not what it is taken for: each is refused in words, and the server goes on.
#[test]
fn a_descriptor_that_cannot_be_the_disk_is_refused_in_words() {
    let (steered, elsewhere) = (Steered::new(), Scratch::new());
    let path = create(&elsewhere, "b.qcow2", "1M");
    let mut qmp = steered.talk();
    // Servers of other tests, started meanwhile, are not to inherit them.
    let open = |flags: OFlags| -> OwnedFd {
        rustix::fs::open(&*path, flags | OFlags::CLOEXEC, Mode::empty()).expect("the image")
    };
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let (pipe, _end) = std::io::pipe().expect("a pipe");
    let directory = reading(elsewhere.path().to_str().expect("text"));
    let table: [(OwnedFd, &str); 7] = [
        (reading(&path).into(), "no descriptor opened for reading and writing; it has reading"),
        (open(OFlags::WRONLY), "it has writing alone"),
        (open(OFlags::PATH), "it has nothing (O_PATH)"),
        (directory.into(), "it has reading"),
        (socket.into(), "is a socket"),
        (pipe.into(), "it has reading"),
        (both("/dev/ptmx").into(), "is a character device without an end"),
    ];
    for (number, (fd, text)) in table.iter().enumerate() {
        let set = u32::try_from(number).expect("a small number");
        add(&mut qmp, set, fd);
        let refused = qmp.refused("blockdev-add", node("b", set));
        assert!(refused.contains(text), "{number} {text}: {refused}");
    }
    for (number, text) in [(3, "is a directory"), (5, "is a pipe")] {
        let mut options = node("b", number);
        options["read-only"] = json!(true);
        let refused = qmp.refused("blockdev-add", options);
        assert!(refused.contains(text), "{number} {text}: {refused}");
    }
    let words = [
        ("/dev/fdset/99", "there is no set of descriptors 99"),
        ("/dev/fdset/x", "a number follows /dev/fdset/"),
        ("/dev/fdset/", "a number follows /dev/fdset/"),
    ];
    for (name, text) in words {
        let refused = qmp.refused("blockdev-add", super::qcow2("b", name));
        assert!(refused.contains(text), "{name}: {refused}");
        let file = json!({ "driver": "file", "node-name": "f", "filename": name });
        let refused = qmp.refused("blockdev-add", file);
        assert!(refused.contains(text), "{name}: {refused}");
    }
    // Read-only by the read-only one: nothing is asked of it that it cannot do.
    let mut options = node("b", 0);
    options["read-only"] = json!(true);
    qmp.ok("blockdev-add", options);
    steered.server.stop();
}

/// With O_APPEND every write lands at the end of the file, whatever its offset.
#[test]
fn a_descriptor_opened_for_appending_writes_where_it_is_reported() {
    let (steered, elsewhere) = (Steered::new(), Scratch::new());
    let path = elsewhere.name("b.raw");
    std::fs::write(&path, [0; 1 << 20]).expect("a file");
    let file = OpenOptions::new().read(true).append(true).open(&path).expect("the file");
    let mut qmp = steered.talk();
    add(&mut qmp, 1, &file);
    let mut raw = node("b", 1);
    raw["driver"] = json!("raw");
    qmp.ok("blockdev-add", raw);
    export(&mut qmp, "b");
    steered.server.client("b").write(4096, &[7; 512]).expect("a write");
    remove(&mut qmp, "b");
    let bytes = std::fs::read(&path).expect("the file");
    assert_eq!((bytes.len(), &bytes[4096..4608]), (1 << 20, &[7; 512][..]));
    steered.server.stop();
}

/// How many descriptors of the file called `name` the server holds.
fn held(server: &Server, name: &str) -> usize {
    server.open_files().iter().filter(|path| path.ends_with(name)).count()
}

#[test]
fn what_clients_hand_over_is_bounded_and_goes_with_its_set() {
    let steered = Steered::new();
    let mut qmp = steered.talk();
    let none = qmp.refused("add-fd", json!({}));
    assert!(none.contains("no descriptor came"), "{none}");
    let file = reading(&steered.scratch.write("handed over", b"").display().to_string());
    // Those that are not taken wait for a command, a few of them, until others come.
    for _ in 0..100 {
        qmp.send_with(&[file.as_fd(); 100], b" ");
        qmp.ok("query-status", json!({}));
    }
    assert_eq!(held(&steered.server, "handed over"), 16);
    let (first, second) = (qmp.ok("add-fd", json!({})), qmp.ok("add-fd", json!({ "opaque": "mine" })));
    assert_eq!((&first["fdset-id"], &second["fdset-id"]), (&json!(0), &json!(1)));
    assert_eq!(qmp.ok("query-fdsets", json!({}))[1]["fds"][0]["opaque"], "mine");
    let long = qmp.refused("add-fd", json!({ "opaque": "x".repeat(1025) }));
    assert!(long.contains("1025 bytes; allowed: 1024"), "{long}");
    let refused = loop {
        if let Err(refused) = qmp.ask_with(&[file.as_fd()], "add-fd", json!({ "fdset-id": 5 })) {
            break refused.1;
        }
    };
    assert!(refused.contains("1000 descriptors"), "{refused}");
    assert_eq!(
        qmp.refused("remove-fd", json!({ "fdset-id": 77 })),
        "there is no set of descriptors 77; add-fd over QMP makes one"
    );
    let refused = qmp.refused("remove-fd", json!({ "fdset-id": 0, "fd": 100_000 }));
    assert!(refused.contains("there is no descriptor"), "{refused}");
    let first = &first["fd"];
    qmp.ok("remove-fd", json!({ "fdset-id": 0, "fd": first }));
    for set in [1, 5] {
        qmp.ok("remove-fd", json!({ "fdset-id": set }));
    }
    assert_eq!(qmp.ok("query-fdsets", json!({})), json!([]));
    // What this client has left goes with it.
    drop(qmp);
    let mut steered = steered;
    steered.server.wait_until(|server| (held(server, "handed over") == 0).then_some(())).expect("it serves");
    steered.server.stop();
}

/// The image names what it likes; `/dev/fdset` in it is a path in the file system, where nothing is.
#[test]
fn a_name_inside_an_image_leads_to_no_descriptor() {
    let steered = Steered::new();
    let secret = create(&steered.scratch, "secret.qcow2", "1M");
    let top = steered.scratch.name("top.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-u", "-b", "/dev/fdset/1", "-F", "qcow2", &top, "1M"]).ok();
    let mut qmp = steered.talk();
    add(&mut qmp, 1, &reading(&secret));
    let refused = qmp.refused("blockdev-add", super::qcow2("top", &top));
    assert!(refused.contains("No such file"), "{refused}");
    steered.server.stop();
}

/// QEMU's own client: the descriptor goes with a byte of its own, then comes the command.
const SCRIPT: &str = r#"
import asyncio, os, sys
from qemu.qmp import QMPClient

async def main(path, image):
    qmp = QMPClient("test")
    await qmp.connect(path)
    fd = os.open(image, os.O_RDWR)
    qmp.send_fd_scm(fd)
    added = await qmp.execute("add-fd", {"fdset-id": 8, "opaque": "rw:" + image})
    os.close(fd)
    assert added["fdset-id"] == 8, added
    await qmp.execute("blockdev-add", {"driver": "qcow2", "node-name": "b",
        "file": {"driver": "file", "filename": "/dev/fdset/8"}})
    await qmp.execute("block-export-add", {"type": "nbd", "id": "b", "node-name": "b", "writable": True})
    sets = await qmp.execute("query-fdsets")
    assert sets == [{"fdset-id": 8, "fds": [{"fd": added["fd"], "opaque": "rw:" + image}]}], sets
    await qmp.disconnect()
    print("done")

asyncio.run(main(sys.argv[1], sys.argv[2]))
"#;

#[test]
fn the_python_package_of_qemu_hands_over_descriptors() {
    let (steered, elsewhere) = (Steered::new(), Scratch::new());
    let path = create(&elsewhere, "b.qcow2", "1M");
    let script = steered.scratch.write("session.py", SCRIPT.as_bytes());
    let run = Run::new("/usr/bin/python3").arg(script).arg(&steered.qmp).arg(Path::new(&path));
    assert_eq!(run.env("PYTHONPATH", python_packages()).ok().trim(), "done");
    let mut client: Client = steered.server.client("b");
    client.write(0, &[1; 512]).expect("a write");
    steered.server.stop();
    assert_clean(path.as_ref());
    qemu_io_ok(&["-f", "qcow2"], &path, &["read -P 1 0 512"]);
}

/// Asked twice in one message, handed over once.
#[test]
fn commands_that_come_together_take_descriptors_in_order() {
    let steered = Steered::new();
    let null = reading("/dev/null");
    let mut qmp = steered.talk();
    let two = b"{'execute':'add-fd','arguments':{'fdset-id':1},'id':1}{'execute':'add-fd','id':2}";
    qmp.send_with(&[null.as_fd()], two);
    assert_eq!(qmp.line().expect("an answer")["return"]["fdset-id"], 1);
    assert!(
        qmp.line().expect("an answer")["error"]["desc"].as_str().expect("words").contains("no descriptor")
    );
    steered.server.stop();
}

/// A connection that the client made serves one node, and no second one is made for it.
#[test]
fn a_disk_is_reached_over_the_connection_that_came_for_it() {
    let (steered, elsewhere) = (Steered::new(), Scratch::new());
    let (image, socket) =
        (create(&elsewhere, "far.qcow2", "4M"), elsewhere.file("far.socket").display().to_string());
    qemu_io_ok(&[], &image, &["write -P 7 1M 64k"]);
    let far = QemuNbd::start_image(Path::new(&image), &["-k", &socket, "-e", "8"]);
    let mut qmp = steered.talk();
    let connection = UnixStream::connect(&socket).expect("the far server");
    let give = |qmp: &mut Qmp| qmp.ask_with(&[connection.as_fd()], "getfd", json!({ "fdname": "far" }));
    let node = |name: &str| {
        let server = json!({ "type": "fd", "str": "far" });
        json!({ "driver": "raw", "node-name": name, "file": { "driver": "nbd", "server": server } })
    };
    assert!(qmp.refused("getfd", json!({ "fdname": "far" })).contains("no descriptor came"));
    assert!(qmp.ask_with(&[connection.as_fd()], "getfd", json!({ "fdname": "7" })).is_err());
    give(&mut qmp).expect("it is kept");
    qmp.ok("closefd", json!({ "fdname": "far" }));
    assert!(qmp.refused("closefd", json!({ "fdname": "far" })).contains("\"far\""));
    assert!(qmp.refused("blockdev-add", node("far")).contains("no descriptor \"far\""));
    give(&mut qmp).expect("it is kept");
    drop(connection);
    qmp.ok("blockdev-add", node("far"));
    export(&mut qmp, "far");
    let mut client = steered.server.client("far");
    assert_eq!(client.read(1 << 20, 65536).expect("a read"), [7; 65536]);
    client.write(0, &[9; 512]).expect("a write");
    client.flush().expect("a flush");
    assert!(qmp.refused("blockdev-add", node("again")).contains("no descriptor \"far\""));
    remove(&mut qmp, "far");
    far.stop();
    qemu_io_ok(&[], &image, &["read -P 9 0 512"]);
}
