//! Changes under load: nothing is lost, stuck or left behind.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use black_box::client::Request;
use black_box::peer::assert_clean;
use serde_json::{Value, json};

use super::{Steered, create, qcow2};

/// Writes to a part of the disk and reads back until asked to stop; every request is answered.
fn load(steered: &Steered, part: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut client = steered.server.client("a");
    for round in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        for slot in 0..8 {
            let at = (part << 24) + (round % 64) * (256 << 10) + slot * (16 << 10);
            client.send(&Request::write(at, &[round as u8; 4096])).expect("it listens");
        }
        while client.in_flight() > 0 {
            assert_eq!(client.receive().expect("an answer").error, 0);
            done.fetch_add(1, Ordering::Relaxed);
        }
        let back = client.read((part << 24) + (round % 64) * (256 << 10), 4096);
        assert!(back.expect("a read") == [round as u8; 4096], "round {round} of part {part}");
    }
    client.flush().expect("a flush");
}

fn legacy(iops: u64) -> Value {
    json!({ "id": "a", "bps": 0, "bps_rd": 0, "bps_wr": 0, "iops": iops, "iops_rd": 0, "iops_wr": 0 })
}

#[test]
fn limits_change_a_thousand_times_under_load() {
    let steered = Steered::new();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let loads = [0, 1].map(|part| {
            let (steered, stop, done) = (&steered, &stop, &done);
            scope.spawn(move || load(steered, part, stop, done))
        });
        let mut qmp = steered.talk();
        for round in 0..1000 {
            match round % 4 {
                0 => qmp.ok("block_set_io_throttle", legacy(2000)),
                1 => qmp.ok("block_set_io_throttle", legacy(0)),
                2 => {
                    let mut limits = legacy(5000);
                    limits["group"] = json!("g");
                    qmp.ok("block_set_io_throttle", limits)
                }
                _ => qmp.ok("query-blockstats", json!({})),
            };
        }
        qmp.ok("block_set_io_throttle", legacy(0));
        let before = done.load(Ordering::Relaxed);
        while done.load(Ordering::Relaxed) < before + 100 {
            qmp.ok("query-status", json!({}));
        }
        stop.store(true, Ordering::Relaxed);
        loads.into_iter().for_each(|load| load.join().expect("every request was answered"));
    });
    steered.server.stop();
    assert_clean(steered.scratch.file("a.qcow2").as_ref());
}

#[test]
fn disks_that_come_and_go_under_load_leave_nothing_behind() {
    let steered = Steered::new();
    let path = create(&steered.scratch, "b.qcow2", "64M");
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut qmp = steered.talk();
    let mut descriptors = Vec::new();
    std::thread::scope(|scope| {
        let steady = scope.spawn(|| load(&steered, 0, &stop, &done));
        for round in 0..60_u64 {
            qmp.ok("blockdev-add", qcow2("b", &path));
            let export = json!({ "type": "nbd", "id": "e", "node-name": "b", "writable": true });
            qmp.ok("block-export-add", export);
            let mut client = steered.server.client("b");
            for slot in 0..16 {
                client.send(&Request::write(slot << 20, &[round as u8; 512])).expect("it listens");
            }
            if round % 2 == 0 {
                // In the middle of what it does.
                qmp.ok("block-export-del", json!({ "id": "e", "mode": "hard" }));
            } else {
                while client.in_flight() > 0 {
                    assert_eq!(client.receive().expect("an answer").error, 0);
                }
                client.disconnect();
                while qmp.ask("block-export-del", json!({ "id": "e" })).is_err() {}
            }
            qmp.event("BLOCK_EXPORT_DELETED");
            qmp.ok("blockdev-del", json!({ "node-name": "b" }));
            let open = steered.server.open_files();
            assert!(!open.contains(&path.clone().into()), "round {round}: {open:?}");
            // The socket of a client that was sent away is closed a moment later.
            let patience = Instant::now() + Duration::from_secs(20);
            let most = descriptors.get(10..20).and_then(|early| early.iter().max().copied());
            while most.is_some_and(|most| steered.server.descriptors() > most) && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
            descriptors.push(steered.server.descriptors());
        }
        stop.store(true, Ordering::Relaxed);
        steady.join().expect("every request was answered");
    });
    // The first rounds may start threads and clients of their own; after that nothing grows.
    let (early, late) = (descriptors[10..20].iter().max(), descriptors[50..].iter().max());
    assert!(late <= early, "{descriptors:?}");
    // No lock is held: QEMU may write.
    black_box::peer::qemu_io_ok(&["-f", "qcow2"], &path, &["write 0 512"]);
    assert_clean(path.as_ref());
    steered.server.stop();
}
