//! A disk at work switches to another file: `blockdev-reopen` with another `file`, as QEMU takes it.

use std::thread;
use std::time::Duration;

use black_box::peer::{assert_clean, assert_leaks_at_most, fio, qemu_io_ok};
use serde_json::{Value, json};

use super::filters::Counting;
use super::{Steered, qcow2};

fn file(path: &str) -> Value {
    json!({ "driver": "file", "filename": path })
}

fn with_file(path: &str, file: Value) -> Value {
    let mut options = qcow2("a", path);
    options["file"] = file;
    json!({ "options": [options] })
}

/// A disk had to be taken out of use to be put under a driver for tests, or to be moved to another file system.
#[test]
fn a_disk_that_clients_write_goes_on_with_other_storage_over_its_file_and_with_a_copy_of_it() {
    let steered = Steered::new();
    let (path, copy) = (steered.scratch.name("a.qcow2"), steered.scratch.name("copy.qcow2"));
    let (socket, mut qmp) = (steered.server.socket(), steered.talk());
    let fails = json!({ "driver": "blkdebug", "node-name": "fails", "image": "protocol",
        "inject-error": [{ "event": "read_aio", "errno": 5, "sector": 0 }] });
    qmp.ok("blockdev-add", json!({ "driver": "file", "node-name": "protocol", "filename": path }));
    qmp.ok("blockdev-add", json!({ "driver": "blkdebug", "node-name": "quiet", "image": "protocol" }));
    // QEMU's schema has the member of every node.
    for (name, driver) in [("protocol", "file"), ("quiet", "blkdebug")] {
        assert_eq!(super::node(&mut qmp, name).expect("it is there")["image"]["format"], driver);
    }
    let counting = Counting::on(socket, "a");
    let jobs = [
        "--name=verify",
        "--rw=randrw",
        "--bsrange=4k-64k",
        "--iodepth=8",
        "--size=16M",
        "--offset=32M",
        "--verify=crc32c-intel",
        "--verify_state_save=0",
        "--verify_backlog=256",
        "--verify_fatal=1",
        "--time_based",
        "--runtime=4",
    ];
    let uri = steered.server.uri("a");
    let verified = thread::spawn(move || fio(&uri, &jobs, Duration::from_secs(120)));
    let mut exchanges = 0;
    while exchanges < 6 || !verified.is_finished() {
        for other in [
            json!("quiet"),
            fails.clone(),
            json!({ "driver": "preallocate", "file": file(&path) }),
            file(&path),
        ] {
            qmp.ok("blockdev-reopen", with_file(&path, other));
            counting.goes_round();
            exchanges += 1;
        }
    }
    let result = verified.join().expect("fio ran");
    assert_eq!(result["jobs"][0]["error"], 0, "{result}");
    let last = counting.end();
    println!("{exchanges} exchanges beside {last} writes");
    // What is over the file does what it is for, and is gone without a trace.
    let mut client = steered.server.client("a");
    let mut with_rule = fails.clone();
    with_rule["inject-error"] = json!([{ "event": "read_aio", "errno": 5, "iotype": "read" }]);
    qmp.ok("blockdev-reopen", with_file(&path, with_rule));
    assert!(client.read(0, 4096).is_err(), "the file fails");
    qmp.ok("blockdev-reopen", with_file(&path, file(&path)));
    let bytes = client.read_all().expect("a read");
    // Moved while no client writes.
    client.flush().expect("a flush");
    std::fs::copy(&path, &copy).expect("a copy");
    qmp.ok("blockdev-reopen", with_file(&path, file(&copy)));
    let node = super::node(&mut qmp, "a");
    assert_eq!(node.expect("it is there")["file"], json!(copy));
    // The old file is free, and has all of it; others are kept out of the other one.
    assert_leaks_at_most(path.as_ref());
    qemu_io_ok(&["-f", "qcow2"], &path, &["write -P 77 0 64k"]);
    let denied = black_box::peer::qemu_io(&["-f", "qcow2"], &copy, &["read 0 4k"]).outcome();
    assert!(denied.stderr.contains("lock"), "{}", denied.stderr);
    assert!(client.read_all().expect("a read") == bytes);
    client.write(48 << 20, &[5; 65536]).expect("a write");
    steered.server.stop();
    assert_clean(copy.as_ref());
    qemu_io_ok(&["-f", "qcow2"], &copy, &["read -P 5 48M 64k"]);
}

/// QEMU takes any file; in one that is not the same, what is in memory would be written over what is there.
#[test]
fn a_wrong_file_is_refused_and_the_disk_serves_on() {
    let steered = Steered::new();
    let path = steered.scratch.name("a.qcow2");
    let mut qmp = steered.talk();
    let mut client = steered.server.client("a");
    client.write(0, &[3; 65536]).expect("a write");
    client.flush().expect("a flush");
    let other = super::create(&steered.scratch, "other.qcow2", "64M");
    std::fs::copy(&path, steered.scratch.name("stale.qcow2")).expect("a copy");
    client.write(1 << 20, &[3; 65536]).expect("a write");
    client.flush().expect("a flush");
    for (wrong, said) in [
        (file(&other), "other.qcow2"),
        (file(&steered.scratch.name("stale.qcow2")), "it is no copy of"),
        (file(&steered.scratch.name("missing")), "No such file"),
        (json!("a"), "it is over that itself"),
        (json!("nowhere"), "there is no device or node \"nowhere\""),
    ] {
        let refused = qmp.refused("blockdev-reopen", with_file(&path, wrong));
        assert!(refused.contains(said), "{refused}");
        client.write(2 << 20, &[4; 512]).expect("a write");
    }
    let mut options = with_file(&path, file(&path));
    options["options"][0]["data-file"] = file(&other);
    let refused = qmp.refused("blockdev-reopen", options);
    assert!(refused.contains("data-file"), "{refused}");
    steered.server.stop();
    assert_clean(path.as_ref());
    assert_clean(other.as_ref());
}
