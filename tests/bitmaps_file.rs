//! Bitmaps of disks that are no qcow2 images, kept in a file beside them: true after crashes, read by QEMU, and dropped when another program wrote to the disk.

use std::io::{Seek, SeekFrom, Write};

use black_box::peer::{assert_clean, dirty, dirty_by_qemu, qemu_img};
use black_box::qmp::Qmp;
use black_box::server::Start;
use black_box::{Run, Scratch, Server, cowhand};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const DISK: u64 = 64 * MIB;

/// A raw disk of 64 MiB with a file for its bitmaps.
struct World {
    scratch: Scratch,
    drive: String,
    bitmaps: String,
}

impl World {
    fn new() -> Self {
        let scratch = Scratch::new();
        std::fs::File::create(scratch.file("disk")).expect("a file").set_len(DISK).expect("a file");
        let bitmaps = scratch.name("bitmaps");
        let drive = format!("id=disk,file={},format=raw,bitmaps={bitmaps}", scratch.name("disk"));
        Self { scratch, drive, bitmaps }
    }

    fn with_bitmap(name: &str) -> Self {
        let world = Self::new();
        cowhand(["bitmap", "--add", &world.drive, name]).ok();
        world
    }

    /// Each bitmap and its flags, as qemu-img shows them.
    fn shown(&self) -> Vec<(String, Value)> {
        let info = qemu_img(["info", "--output=json", &self.bitmaps]).json();
        let bitmaps = info["format-specific"]["data"]["bitmaps"].as_array().cloned().unwrap_or_default();
        bitmaps
            .iter()
            .map(|found| (found["name"].as_str().expect("a name").to_owned(), found["flags"].clone()))
            .collect()
    }

    /// Another program writes to the disk.
    fn write_elsewhere(&self) {
        let mut file =
            std::fs::OpenOptions::new().write(true).open(self.scratch.file("disk")).expect("a file");
        file.seek(SeekFrom::Start(33 * MIB)).expect("a place");
        file.write_all(b"somebody else").expect("a write");
    }

    fn write_by_us(&self, offset: u64, bytes: &[u8]) {
        let server = Server::start([&self.drive]);
        server.client("disk").write(offset, bytes).expect("a write");
        server.stop();
    }
}

fn dirty_of(server: &Server, bitmap: &str) -> Vec<(u64, u64)> {
    let context = format!("--map=qemu:dirty-bitmap:{bitmap}");
    dirty(&Run::new("nbdinfo").args(["--json", &context, &server.uri("disk")]).json())
}

#[test]
fn what_clients_write_to_a_raw_disk_is_in_its_bitmaps_when_qemu_reads_them() {
    let world = World::with_bitmap("inc");
    for mode in ["writeback", "none", "writethrough"] {
        let server = Server::start([format!("{},cache={mode},discard=unmap", world.drive)]);
        let mut client = server.client("disk");
        client.write(MIB + 5, &[1; 10]).unwrap();
        client.write_zeroes(8 * MIB, 100 << 10, 0).unwrap();
        client.trim(20 * MIB, 64 << 10).unwrap();
        client.write(30 * MIB, &[2; 1 << 20]).unwrap();
        client.write(DISK - 100, &[1; 101]).expect_err("a write behind the end");
        let expected = [(MIB, 64 << 10), (8 * MIB, 128 << 10), (20 * MIB, 64 << 10), (30 * MIB, MIB)];
        assert_eq!(dirty_of(&server, "inc"), expected);
        assert_eq!(client.read(MIB + 5, 10).unwrap(), [1; 10]);
        client.disconnect();
        server.stop();
        assert_eq!(dirty_by_qemu(&world.bitmaps, "inc"), expected);
        assert_eq!(world.shown(), [("inc".to_owned(), json!(["auto"]))]);
        assert_clean(world.bitmaps.as_ref());
    }
    cowhand(["bitmap", "--clear", &world.drive, "inc"]).ok();
    assert_eq!(dirty_by_qemu(&world.bitmaps, "inc"), []);
}

/// What QEMU does to the bitmaps of the file counts, as long as the disk stays as it was.
#[test]
fn qemu_makes_bitmaps_in_the_file_and_they_are_kept_up_to_date() {
    let world = World::with_bitmap("ours");
    qemu_img(["bitmap", "--add", "-g", "4096", &world.bitmaps, "qemus"]).ok();
    world.write_by_us(5 * MIB, &[1; 512]);
    assert_eq!(dirty_by_qemu(&world.bitmaps, "qemus"), [(5 * MIB, 4096)]);
    assert_eq!(dirty_by_qemu(&world.bitmaps, "ours"), [(5 * MIB, 64 << 10)]);
}

#[test]
fn bitmaps_that_miss_a_change_by_somebody_else_are_inconsistent() {
    let world = World::with_bitmap("inc");
    cowhand(["bitmap", "--add", &world.drive, "frozen"]).ok();
    cowhand(["bitmap", "--disable", &world.drive, "frozen"]).ok();
    world.write_elsewhere();
    // Who only reads does not trust them either, and changes nothing.
    let before = std::fs::read(&world.bitmaps).unwrap();
    let copy = world.scratch.name("copy");
    let read_only = format!("{},read-only=on", world.drive);
    let refused = cowhand(["convert", "--bitmaps", "-O", "qcow2", &read_only, &copy]).fails();
    assert!(refused.contains("bitmap \"inc\"") && refused.contains("is inconsistent"), "{refused}");
    assert!(std::fs::read(&world.bitmaps).unwrap() == before);
    let server = Server::start([&world.drive]);
    server.client("disk").write(0, &[1; 512]).unwrap();
    let said = server.stderr_at_end();
    assert!(said.contains("was changed by a program that did not name") && said.contains("inc"), "{said}");
    assert_eq!(
        world.shown(),
        [("inc".to_owned(), json!(["in-use", "auto"])), ("frozen".to_owned(), json!([]))]
    );
    // And stays so: the file knows the disk as it is now.
    world.write_by_us(0, &[2; 512]);
    assert_eq!(world.shown()[0].1, json!(["in-use", "auto"]));
    cowhand(["bitmap", "--remove", "--add", &world.drive, "inc"]).ok();
    world.write_by_us(MIB, &[2; 512]);
    assert_eq!(dirty_by_qemu(&world.bitmaps, "inc"), [(MIB, 64 << 10)]);
}

#[test]
fn the_bitmaps_of_a_disk_that_got_another_size_are_made_to_fit() {
    let world = World::with_bitmap("inc");
    world.write_by_us(MIB, &[1; 512]);
    cowhand(["resize", &world.drive, "80M"]).ok();
    world.write_by_us(2 * MIB, &[1; 512]);
    let expected = [(MIB, 64 << 10), (2 * MIB, 64 << 10), (64 * MIB, 16 * MIB)];
    assert_eq!(dirty_by_qemu(&world.bitmaps, "inc"), expected, "what was added counts as changed");
    // By another program: then what else was changed is not known.
    std::fs::OpenOptions::new()
        .write(true)
        .open(world.scratch.file("disk"))
        .unwrap()
        .set_len(32 * MIB)
        .unwrap();
    let read_only = format!("{},read-only=on", world.drive);
    let refused = Server::refuses([&read_only]);
    assert!(refused.contains("of a disk of 83886080 bytes, and this one has 33554432"), "{refused}");
    world.write_by_us(0, &[1; 512]);
    assert_eq!(world.shown(), []);
    let info = qemu_img(["info", "--output=json", &world.bitmaps]).json();
    assert_eq!(info["virtual-size"], 32 * MIB);
}

#[test]
fn a_file_that_is_something_else_stays_as_it_is() {
    let world = World::new();
    let other = world.scratch.name("other.qcow2");
    let with = |file: &str| format!("id=disk,file={},format=raw,bitmaps={file}", world.scratch.name("disk"));
    cowhand(["create", "-q", "-f", "qcow2", &other, "64M"]).ok();
    cowhand(["io", "-c", "write 0 64k", &other]).ok();
    let text = world.scratch.name("text");
    std::fs::write(&text, "no image").unwrap();
    for (file, word) in [
        (other.as_str(), "holds a disk itself"),
        (text.as_str(), "qcow2"),
        (&world.scratch.name("disk"), "in use"),
        (&world.scratch.name("nowhere/bitmaps"), "No such file"),
        ("", "bitmaps"),
    ] {
        let before = std::fs::read(file).ok();
        let refused = Server::refuses([with(file)]);
        assert!(refused.contains(word), "{file}: {refused}");
        assert!(std::fs::read(file).ok() == before, "{file}");
    }
    let qcow2 = format!("id=disk,file={other},format=qcow2,bitmaps={}", world.bitmaps);
    let refused = Server::refuses([&qcow2]);
    assert!(refused.contains("these keep their bitmaps themselves"), "{refused}");
    assert!(!world.scratch.file("bitmaps").exists(), "nothing is made for it");
    let plain = format!("file={},format=raw", world.scratch.name("disk"));
    let refused = cowhand(["bitmap", "--add", &plain, "b"]).fails();
    assert!(refused.contains("DRIVE,bitmaps=FILE"), "{refused}");
    let first = Server::start([&world.drive]);
    let refused = Server::refuses([&world.drive]);
    assert!(refused.contains("in use"), "{refused}");
    first.stop();
}

/// The node "d" over QMP, with its bitmaps in `bitmaps`.
fn node(world: &World) -> Value {
    json!({
        "driver": "raw", "node-name": "d", "file": { "driver": "file", "filename": world.scratch.name("disk") },
        "bitmaps": { "driver": "file", "filename": world.bitmaps },
    })
}

fn completed(qmp: &mut Qmp, job: &str) {
    let event = qmp.event("BLOCK_JOB_COMPLETED");
    assert_eq!((&event["data"]["device"], event["data"].get("error")), (&json!(job), None), "{event}");
}

#[test]
fn increments_of_a_raw_disk_follow_its_bitmap_over_qmp_across_restarts_and_snapshots() {
    let world = World::new();
    let scratch = &world.scratch;
    let qmp_path = scratch.name("qmp");
    let begin = || {
        let start = Start::new(["--qmp", &qmp_path, "--allow-path"]).arg(scratch.path());
        let mut server = start.listening_on(&qmp_path).spawn();
        server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
        let mut qmp = Qmp::connect(qmp_path.as_ref());
        qmp.ok("blockdev-add", node(&world));
        (server, qmp)
    };
    let write = |qmp: &mut Qmp, at: u64, value: u8| {
        let socket = scratch.name("nbd");
        let _ = std::fs::remove_file(&socket);
        qmp.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": socket } } }));
        qmp.ok(
            "block-export-add",
            json!({ "type": "nbd", "id": "e", "node-name": "d", "name": "d", "writable": true }),
        );
        black_box::Client::connect(socket.as_ref(), "d").unwrap().write(at, &[value; 4096]).unwrap();
        qmp.ok("nbd-server-stop", json!({}));
    };
    let (server, mut qmp) = begin();
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "d", "name": "b", "persistent": true }));
    write(&mut qmp, MIB, 1);
    let full = scratch.name("full");
    let add = |qmp: &mut Qmp, name: &str, below: Option<&str>| {
        let (path, below) = (scratch.name(name), below.map(|below| scratch.name(below)));
        let more = below.iter().flat_map(|below| ["-b", below.as_str(), "-F", "qcow2"]);
        qemu_img(["create", "-q", "-f", "qcow2"].into_iter().chain(more).chain([path.as_str(), "64M"])).ok();
        let file = json!({ "driver": "file", "filename": path });
        qmp.ok(
            "blockdev-add",
            json!({ "driver": "qcow2", "node-name": name, "file": file, "backing": null }),
        );
    };
    add(&mut qmp, "full", None);
    let backup = json!({
        "job-id": "j", "device": "d", "target": "full", "sync": "full", "bitmap": "b", "bitmap-mode": "always"
    });
    qmp.ok("blockdev-backup", backup);
    completed(&mut qmp, "j");
    write(&mut qmp, 40 * MIB, 2);
    server.stop();

    let (server, mut qmp) = begin();
    write(&mut qmp, 50 * MIB, 3);
    // Over a snapshot that is committed again: what the commit writes to the raw disk is in its bitmap.
    let overlay = json!({ "node-name": "d", "snapshot-file": scratch.name("overlay"), "snapshot-node-name": "s", "format": "qcow2" });
    qmp.ok("blockdev-snapshot-sync", overlay);
    let socket = scratch.name("nbd2");
    qmp.ok("nbd-server-start", json!({ "addr": { "type": "unix", "data": { "path": socket } } }));
    qmp.ok(
        "block-export-add",
        json!({ "type": "nbd", "id": "e", "node-name": "s", "name": "s", "writable": true }),
    );
    black_box::Client::connect(socket.as_ref(), "s").unwrap().write(60 * MIB, &[4; 4096]).unwrap();
    qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
    qmp.event("BLOCK_EXPORT_DELETED");
    qmp.ok("block-commit", json!({ "job-id": "c", "device": "s" }));
    qmp.event("BLOCK_JOB_READY");
    qmp.ok("job-complete", json!({ "id": "c" }));
    completed(&mut qmp, "c");
    add(&mut qmp, "one", Some("full"));
    let backup =
        json!({ "job-id": "j", "device": "d", "target": "one", "sync": "incremental", "bitmap": "b" });
    qmp.ok("blockdev-backup", backup);
    completed(&mut qmp, "j");
    let nodes = qmp.ok("query-named-block-nodes", json!({}));
    let reported = nodes.as_array().unwrap().iter().find(|found| found["node-name"] == "d").unwrap();
    assert_eq!(reported["x-bitmaps-file"], json!(world.bitmaps));
    assert_eq!(reported["dirty-bitmaps"][0]["count"], 0);
    server.stop();
    let (one, disk) = (scratch.name("one"), scratch.name("disk"));
    qemu_img(["compare", "-f", "qcow2", "-F", "raw", &one, &disk]).ok();
    let map = qemu_img(["map", "--output=json", &one]).json();
    let own = map.as_array().unwrap().iter().filter(|extent| extent["depth"] == 0 && extent["data"] == true);
    let starts: Vec<u64> = own.map(|extent| extent["start"].as_u64().unwrap()).collect();
    assert_eq!(starts, [40 * MIB, 50 * MIB, 60 * MIB], "an increment has what was changed and no more");
    assert!(std::path::Path::new(&full).exists());
}

#[test]
fn backups_of_a_raw_disk_are_incremental_offline_and_from_a_server() {
    let world = World::new();
    let directory = world.scratch.name("backups");
    let kinds = || -> Vec<String> {
        let points = cowhand(["backup", "--list", "--output", "json", &directory]).json();
        points.as_array().unwrap().iter().map(|point| point["kind"].as_str().unwrap().to_owned()).collect()
    };
    world.write_by_us(MIB, &[1; 4096]);
    cowhand(["backup", &world.drive, &directory]).ok();
    world.write_by_us(2 * MIB, &[2; 4096]);
    cowhand(["backup", &world.drive, &directory]).ok();
    let qmp = world.scratch.name("qmp");
    let mut server = Start::new(["--qmp", &qmp, "--allow-path"])
        .arg(world.scratch.path())
        .arg(&world.drive)
        .listen()
        .unwrap();
    server.wait_until(|server| server.stdout().contains("control:").then_some(())).expect("it serves");
    server.client("disk").write(3 * MIB, &[3; 4096]).unwrap();
    cowhand(["backup", &qmp, &directory]).ok();
    server.stop();
    world.write_elsewhere();
    cowhand(["backup", &world.drive, &directory]).ok();
    assert_eq!(kinds(), ["full", "incremental", "incremental", "full"]);
    let restored = world.scratch.name("restored");
    cowhand(["backup", "--restore", &directory, &restored]).ok();
    qemu_img(["compare", "-F", "raw", &restored, &world.scratch.name("disk")]).ok();
}

#[test]
fn a_luks_disk_has_bitmaps_too() {
    let scratch = Scratch::new();
    let (disk, bitmaps) = (scratch.name("disk.luks"), scratch.name("bitmaps"));
    let secret = ["--object", "secret,id=key,data=word"];
    let iterations = "key-secret=key,iter-time=10";
    let create = ["create"].into_iter().chain(secret);
    qemu_img(create.chain(["-q", "-f", "luks", "-o", iterations, &disk, "16M"])).ok();
    let drive = format!("id=disk,driver=luks,key-secret=key,file={disk},bitmaps={bitmaps}");
    cowhand(["bitmap"].into_iter().chain(secret).chain(["--add", &drive, "b"])).ok();
    let server = Server::start(secret.into_iter().chain([drive.as_str()]));
    server.client("disk").write(3 * MIB, &[7; 512]).unwrap();
    server.stop();
    assert_eq!(dirty_by_qemu(&bitmaps, "b"), [(3 * MIB, 64 << 10)]);
}
