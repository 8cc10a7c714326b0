//! Disks that are pushed while a server has them open: the image is the disk of one moment, clients go on writing, and whatever ends the push leaves what was there.

use std::ops::Deref;
use std::time::{Duration, Instant};

use black_box::client::Client;
use black_box::peer::{assert_clean, qemu_img};
use black_box::qmp::Qmp;
use black_box::random::Random;
use black_box::server::Server;
use black_box::{Run, StoreFault, StoreScene, wire};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;
const NAME: &str = "s3://images/vms/d";
/// Nothing but what clients overwrite is read meanwhile.
const STANDS_STILL: u64 = 1;

/// A disk `d.qcow2` of 12 chunks of noise and 4 of nothing, and a store behind a way that loses things.
struct Scene(StoreScene);

impl Deref for Scene {
    type Target = StoreScene;

    fn deref(&self) -> &StoreScene {
        &self.0
    }
}

impl Scene {
    fn new() -> Self {
        let scene = Self(StoreScene::new());
        scene.disk("d.qcow2", 12);
        scene
    }

    /// A disk with so many chunks of noise, and 4 of nothing.
    fn disk(&self, name: &str, chunks: usize) {
        self.scratch.write("noise.raw", &Random::of_name(name).bytes(chunks * MIB));
        let (raw, disk) = (self.scratch.name("noise.raw"), self.scratch.name(name));
        qemu_img(["convert", "-f", "raw", "-O", "qcow2", &raw, &disk]).ok();
        qemu_img(["resize", "-q", &disk, "+4M"]).ok();
    }

    /// A server of these disks in its sandbox, which reaches the store alone, with the control socket `qmp`.
    fn serve(&self, disks: &[&str]) -> (Server, Qmp) {
        let address = self.way.address();
        let options = ["--allow-connect".to_owned(), address.clone()].into_iter();
        let disks = disks.iter().map(|disk| self.scratch.name(disk));
        self.serve_with(format!("http://{address}"), options.chain(disks))
    }

    fn keys(&self, mark: &str) -> Vec<String> {
        self.store.keys("images").into_iter().filter(|key| key.contains(mark)).collect()
    }

    /// No image, no announcement, and a disk without a filter that does what it is asked.
    fn assert_nothing_is_left(&self, qmp: &mut Qmp, client: &mut Client) {
        assert_eq!((self.keys(".json"), self.keys("/pushing/")), (vec![], vec![]));
        assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
        assert_unfiltered(qmp);
        client.write(9 << 20, &[9; 4096]).expect("a write");
    }
}

fn assert_unfiltered(qmp: &mut Qmp) {
    let nodes = qmp.ok("query-named-block-nodes", json!({ "flat": true })).to_string();
    assert!(!nodes.contains("copy-before-write"), "{nodes}");
}

fn push(more: Value) -> Value {
    let mut arguments = json!({ "node-name": "d", "target": NAME, "job-id": "p", "auto-dismiss": false });
    arguments.as_object_mut().expect("arguments").extend(more.as_object().expect("more").clone());
    arguments
}

/// Waits for the end of the job, and gives what is known of it.
fn ended(qmp: &mut Qmp) -> Value {
    qmp.event_where("JOB_STATUS_CHANGE", |data| data["status"] == "concluded");
    let job = qmp.ok("query-jobs", json!({}))[0].clone();
    qmp.ok("job-dismiss", json!({ "id": "p" }));
    job
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

/// Waits until the server has a job.
fn job_of(qmp: &mut Qmp) -> String {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let jobs = qmp.ok("query-jobs", json!({}));
        match jobs[0]["id"].as_str() {
            Some(id) if jobs[0]["status"] == "running" => return id.to_owned(),
            _ => assert!(Instant::now() < until, "{jobs}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// There was no push of a disk that is written: it had to be closed, or be a lineage's.
#[test]
fn a_disk_that_is_written_is_pushed_as_it_was_when_the_job_began() {
    let scene = Scene::new();
    let before = scene.bytes("d.qcow2");
    let (server, mut qmp) = scene.serve(&["d.qcow2"]);
    let mut client = server.client("");
    assert_eq!(qmp.ok("cowhand-push", push(json!({ "speed": STANDS_STILL }))), json!({ "image": NAME }));
    // What has data, what has none, what is overwritten twice, and what is over two chunks.
    client.write(0, &[1; 512]).expect("a write");
    client.write(0, &[2; 8192]).expect("a write");
    client.write(3 * MIB as u64 - 4096, &[3; 8192]).expect("a write");
    client.write(13 * MIB as u64, &[4; 4096]).expect("a write");
    client.write_zeroes(5 << 20, 2 << 20, 0).expect("zeroes");
    client.write_zeroes(8 << 20, 4096, wire::NO_HOLE).expect("zeroes");
    client.trim(10 << 20, 1 << 20).expect("a trim");
    assert_eq!(scene.keys(".json"), Vec::<String>::new());
    qmp.ok("block-job-set-speed", json!({ "device": "p", "speed": 0 }));
    let job = ended(&mut qmp);
    let outcome = &job["x-outcome"];
    assert_eq!((&job["error"], &outcome["changed"]), (&Value::Null, &true.into()), "{job}");
    assert_eq!((&outcome["chunks"], &outcome["read-bytes"]), (&12.into(), &(12 * MIB).into()), "{job}");
    scene.assert_reads_as(NAME, &before);
    assert_unfiltered(&mut qmp);
    // The next one has what was written, and reads no more than that of the store.
    client.flush().expect("a flush");
    let now = client.read_all().expect("the disk");
    assert!(now != before);
    qmp.ok("cowhand-push", push(json!({})));
    assert_eq!(ended(&mut qmp)["error"], Value::Null);
    scene.assert_reads_as(NAME, &now);
    client.disconnect();
    server.stop();
    assert_clean(&scene.scratch.file("d.qcow2"));
    assert!(scene.bytes("d.qcow2") == now);
}

/// More than memory has room for: clients wait for the store, and for nothing else.
#[test]
fn more_is_overwritten_than_is_kept_in_memory() {
    let scene = Scene::new();
    scene.disk("d.qcow2", 96);
    let before = scene.bytes("d.qcow2");
    let (server, mut qmp) = scene.serve(&["d.qcow2"]);
    let mut client = server.client("");
    let at_rest = server.peak_rss_bytes();
    qmp.ok("cowhand-push", push(json!({ "speed": STANDS_STILL, "chunk-size": 2 * MIB })));
    for chunk in (0..96).rev() {
        client.write(chunk << 20, &[7; 65536]).expect("a write");
    }
    qmp.ok("block-job-set-speed", json!({ "device": "p", "speed": 0 }));
    let job = ended(&mut qmp);
    assert_eq!((&job["error"], &job["x-outcome"]["chunks"]), (&Value::Null, &48.into()), "{job}");
    let grown = server.peak_rss_bytes() - at_rest;
    assert!(grown < 192 << 20, "{grown} bytes");
    scene.assert_reads_as(NAME, &before);
}

/// A store that says nothing: guests would wait until their drivers give up.
#[test]
fn a_silent_store_costs_clients_one_wait_and_fails_the_push() {
    let scene = Scene::new();
    scene.disk("d.qcow2", 64);
    let (server, mut qmp) = scene.serve(&["d.qcow2"]);
    let mut client = server.client("");
    qmp.ok("cowhand-push", push(json!({ "speed": STANDS_STILL })));
    scene.way.plan(&[("HEAD /images/vms/chunks", StoreFault::Silence); 500]);
    for chunk in 0..64 {
        client.write(chunk << 20, &[7; 4096]).expect("a write");
    }
    scene.way.plan(&[]);
    qmp.ok("block-job-set-speed", json!({ "device": "p", "speed": 0 }));
    let job = ended(&mut qmp);
    assert!(text(&job, "error").contains("the snapshot is broken"), "{job}");
    scene.assert_nothing_is_left(&mut qmp, &mut client);
}

#[test]
fn a_push_that_is_cancelled_or_refused_by_the_store_leaves_the_disk_and_the_store_as_they_were() {
    let scene = Scene::new();
    let (server, mut qmp) = scene.serve(&["d.qcow2"]);
    let mut client = server.client("");
    qmp.ok("cowhand-push", push(json!({ "speed": STANDS_STILL })));
    client.write(0, &[1; 4096]).expect("a write");
    // One push of a disk at a time, and no other job of its layers.
    let refused = qmp.refused("cowhand-push", push(json!({ "job-id": "q" })));
    assert!(refused.contains("in use by job \"p\""), "{refused}");
    qmp.ok("job-pause", json!({ "id": "p" }));
    client.write(1 << 20, &[1; 4096]).expect("a write while it rests");
    qmp.ok("block-job-cancel", json!({ "device": "p", "force": true }));
    assert_eq!(ended(&mut qmp)["error"], "it was cancelled");
    scene.assert_nothing_is_left(&mut qmp, &mut client);
    // Also what clients overwrite is sent: either fails it.
    for speed in [STANDS_STILL, 0] {
        scene.way.plan(&[("PUT /images/vms/chunks", StoreFault::Status(403))]);
        qmp.ok("cowhand-push", push(json!({ "speed": speed })));
        client.write(4 << 20, &Random::of_name("other").bytes(4096)).expect("a write");
        let job = ended(&mut qmp);
        assert!(text(&job, "error").contains("403"), "{job}");
        scene.assert_nothing_is_left(&mut qmp, &mut client);
    }
    for (more, says) in [
        (json!({ "target": "disk" }), "allowed: s3://BUCKET/FOLDER/NAME"),
        (json!({ "chunk-size": 5 }), "chunk-size is 5"),
        (json!({ "node-name": "x" }), "x"),
        (json!({ "bitmap": "b" }), "the disk has no bitmap \"b\"; it has: none"),
    ] {
        let refused = qmp.refused("cowhand-push", push(more));
        assert!(refused.contains(says), "{refused}");
        assert_unfiltered(&mut qmp);
    }
    // The store is asked first.
    scene.way.plan(&[("GET /images/vms/d.json", StoreFault::Status(403))]);
    let refused = qmp.refused("cowhand-push", push(json!({})));
    assert!(refused.contains("403"), "{refused}");
    scene.assert_nothing_is_left(&mut qmp, &mut client);
}

#[test]
fn a_server_that_is_killed_leaves_the_image_that_was_there_and_the_next_push_ends() {
    let scene = Scene::new();
    scene.run(&["push", "-q", "d.qcow2", NAME]).ok();
    let before = scene.bytes("d.qcow2");
    let (server, mut qmp) = scene.serve(&["d.qcow2"]);
    let mut client = server.client("");
    client.write(0, &Random::of_name("new").bytes(4096)).expect("a write");
    qmp.ok("cowhand-push", push(json!({ "speed": STANDS_STILL })));
    client.write(MIB as u64, &[1; 4096]).expect("a write");
    client.write(4096, &[1; 4096]).expect("a write");
    client.flush().expect("a flush");
    let written = client.read_all().expect("the disk");
    drop(client);
    server.kill();
    let mut left: Vec<_> = std::fs::read_dir(scene.scratch.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .filter(|name| !name.contains("by-qemu"))
        .collect();
    left.sort();
    assert!(left.iter().all(|name| ["d.qcow2", "noise.raw", "qmp", "socket"].contains(&&**name)), "{left:?}");
    scene.assert_reads_as(NAME, &before);
    let (server, mut qmp) = scene.serve(&["d.qcow2"]);
    qmp.ok("cowhand-push", push(json!({})));
    assert_eq!(ended(&mut qmp)["error"], Value::Null);
    scene.assert_reads_as(NAME, &written);
    server.stop();
}

/// Only what the bitmap has is read, and what clients overwrite meanwhile of the rest is neither read nor sent.
#[test]
fn a_bitmap_says_what_is_read() {
    let scene = Scene::new();
    scene.run(&["bitmap", "--add", "d.qcow2", "since"]).ok();
    scene.run(&["push", "-q", "d.qcow2", NAME]).ok();
    let (server, mut qmp) = scene.serve(&["d.qcow2"]);
    let mut client = server.client("");
    client.write(6 << 20, &[6; 4096]).expect("a write");
    let moment = client.read_all().expect("the disk");
    // The record for the next push begins before this one.
    qmp.ok("block-dirty-bitmap-add", json!({ "node": "d", "name": "next" }));
    qmp.ok("cowhand-push", push(json!({ "bitmap": "since", "speed": STANDS_STILL })));
    for chunk in [2, 6, 14] {
        client.write((chunk << 20) + 8192, &[5; 4096]).expect("a write");
    }
    qmp.ok("block-job-set-speed", json!({ "device": "p", "speed": 0 }));
    let job = ended(&mut qmp);
    let outcome = &job["x-outcome"];
    // A chunk and the table.
    assert_eq!((&outcome["read-bytes"], &outcome["uploaded"]), (&MIB.into(), &2.into()), "{job}");
    scene.assert_reads_as(NAME, &moment);
    qmp.ok("cowhand-push", push(json!({ "bitmap": "next" })));
    let job = ended(&mut qmp);
    assert_eq!(job["x-outcome"]["read-bytes"], 3 * MIB, "{job}");
    scene.assert_reads_as(NAME, &client.read_all().expect("the disk"));
}

#[test]
fn the_command_line_pushes_by_the_socket_of_the_server() {
    let scene = Scene::new();
    scene.disk("e.qcow2", 5);
    let (server, mut qmp) = scene.serve(&["d.qcow2", "e.qcow2"]);
    let refused = scene.run(&["push", "qmp", NAME]).fails();
    assert!(refused.contains("the server has 2 disks"), "{refused}");
    let refused = scene.run(&["push", "-f", "qcow2", "qmp:d", NAME]).fails();
    assert!(refused.contains("the server has the disk open"), "{refused}");
    let report = scene.run(&["push", "--output", "json", "qmp:e", "s3://images/vms/e"]).json();
    assert_eq!((text(&report, "filename"), text(&report, "target")), ("qmp:e", "s3://images/vms/e"));
    assert_eq!(
        (&report["chunks"], &report["changed"], &report["virtual-size"]),
        (&5.into(), &true.into(), &(9 * MIB).into())
    );
    scene.assert_reads_as("s3://images/vms/e", &server.client("e").read_all().expect("the disk"));
    let said = scene.run(&["push", "qmp:e", "s3://images/vms/e"]).ok();
    assert_eq!(said, "s3://images/vms/e: 5 chunks; nothing has changed\n");
    assert_eq!(scene.run(&["push", "-q", "qmp:e", "s3://images/vms/e"]).ok(), "");
    // Ctrl-C cancels the job.
    let mut client = server.client("d");
    let outcome = scene.run(&["push", "-r", "1", "qmp:d", NAME]).interrupted_when(|| {
        let job = job_of(&mut qmp);
        client.write(0, &[1; 4096]).expect("a write");
        // A second operator's push cancelled the first one's.
        let refused = scene.run(&["push", "qmp:d", NAME]).fails();
        let first = job.strip_prefix("push-d-").expect("the process is named");
        assert!(refused.contains(&format!("process {first} is pushing node \"d\"")), "{refused}");
        assert_eq!(job_of(&mut qmp), job);
    });
    assert!(
        !outcome.status.success() && outcome.stderr.contains("interrupted; the job was cancelled"),
        "{outcome}"
    );
    assert_eq!(scene.keys("d.json"), Vec::<String>::new());
    assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
    // One that is killed leaves its job, which the next one cancels.
    let outcome = scene.run(&["push", "-r", "1", "qmp:d", NAME]).outcome_telling(|pid| {
        job_of(&mut qmp);
        Run::new("kill").args(["-KILL", &pid.to_string()]).ok();
    });
    assert!(!outcome.status.success());
    let outcome = scene.run(&["push", "-q", "qmp:d", NAME]).outcome();
    assert!(outcome.status.success() && outcome.stderr.contains("it is cancelled"), "{outcome}");
    scene.assert_reads_as(NAME, &server.client("d").read_all().expect("the disk"));
    scene.way.plan(&[("GET /images/vms/d.json", StoreFault::Status(403))]);
    let outcome = scene.run(&["push", "qmp:d", NAME]).outcome();
    assert!(outcome.status.code() == Some(1) && outcome.stderr.contains("403"), "{outcome}");
}
