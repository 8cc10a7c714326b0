//! Clients and guests that work while one process takes over from another, again and again.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use black_box::at_end::SetAtEnd;
use black_box::peer::{converted, fio, qemu_img};
use black_box::qmp::Qmp;
use black_box::vhost_user::{Ask, FrontEnd, Machine, Ways};
use black_box::{Client, Scratch};
use serde_json::json;

use super::writer::write_until;
use super::{Daemon, PAUSE_MAX};
use crate::vhost_user::crashes::{BLOCK, Guest};
use crate::vhost_user::pattern;

/// Upgrades of each test: few, or as many as `COWHAND_UPGRADES` says.
fn upgrades() -> usize {
    std::env::var("COWHAND_UPGRADES").map_or(6, |count| count.parse().expect("COWHAND_UPGRADES: a number"))
}

/// On a machine that does other things, too, a pause is longer than what the program takes: only the daemon's own figure is held to the promise,
/// and of several upgrades the shortest.
fn assert_short(pauses: &[Duration]) {
    let shortest = pauses.iter().min().expect("upgrades");
    assert!(*shortest < PAUSE_MAX, "pauses {pauses:?}");
}

#[test]
fn a_client_that_writes_sees_no_error_and_loses_nothing_in_several_upgrades() {
    let mut daemon = Daemon::start(|_| Vec::new());
    let stop = AtomicBool::new(false);
    let client = Client::connect(&daemon.socket, "disk").expect("a connection");
    let written = std::thread::scope(|scope| {
        let end = SetAtEnd(&stop);
        let writer = scope.spawn(|| write_until(client, &stop));
        for _ in 0..upgrades() {
            std::thread::sleep(Duration::from_millis(150));
            daemon.upgrade();
        }
        std::thread::sleep(Duration::from_millis(150));
        drop(end);
        writer.join().expect("the client's thread")
    });
    println!("{} writes, the longest wait {:?}", written.answered, written.longest);
    assert!(written.answered > 100, "{written:?}");
    assert_short(&daemon.pauses);
    daemon.stop();
}

#[test]
fn fio_verifies_what_it_wrote_through_several_upgrades() {
    let mut daemon = Daemon::start(|_| Vec::new());
    let uri = daemon.server.uri("disk");
    std::thread::scope(|scope| {
        // A loop takes about as long as three upgrades.
        let loops = format!("--loops={}", upgrades().div_ceil(6));
        let job = scope.spawn(move || {
            let options = [
                "--name=verify",
                "--rw=randwrite",
                "--bs=4k",
                "--size=48M",
                "--iodepth=16",
                "--rate_iops=4000",
                "--verify=crc32c",
                "--verify_state_save=0",
                &loops,
            ];
            fio(&uri, &options, Duration::from_secs(600))
        });
        for _ in 0..upgrades().div_ceil(2) {
            std::thread::sleep(Duration::from_millis(700));
            daemon.upgrade();
        }
        let said = job.join().expect("fio's thread");
        assert_eq!(said["jobs"][0]["error"], 0, "{said}");
    });
    daemon.stop();
}

/// Rings of both forms, with records of requests in flight and without.
#[test]
fn a_guest_that_writes_sees_no_error_and_loses_nothing_in_several_upgrades() {
    for ways in [
        Ways { queues: 3, ..Ways::default() },
        Ways { queues: 2, inflight: false, slots: false, ..Ways::default() },
        Ways { queues: 2, packed: true, ..Ways::default() },
        Ways { queues: 1, indirect: false, event_index: false, flush: false, ..Ways::default() },
    ] {
        let mut guest = Guest::new(ways, 5);
        let mut daemon = Daemon::start(|scratch| vec!["--vhost-user-blk".to_owned(), scratch.name("v.sock")]);
        let mut front = FrontEnd::start(&daemon.scratch.file("v.sock"), &mut guest.machine);
        let mut longest = Duration::ZERO;
        std::thread::scope(|scope| {
            let upgrades = scope.spawn(|| {
                for _ in 0..upgrades() {
                    std::thread::sleep(Duration::from_millis(100));
                    daemon.upgrade();
                }
            });
            while !upgrades.is_finished() {
                let start = Instant::now();
                guest.work(guest.acknowledged + 1);
                longest = longest.max(start.elapsed());
            }
        });
        guest.work(guest.acknowledged + 100);
        guest.finish();
        // The connection itself goes on, too.
        assert_eq!(front.config(0, 8), (64u64 << 20 >> 9).to_le_bytes());
        if ways.flush {
            guest.machine.ok(0, &Ask::Flush);
        }
        println!("{ways:?}: {} requests, the longest wait {longest:?}", guest.acknowledged);
        assert_short(&daemon.pauses);
        drop(front);
        let (disk, raw) = (daemon.disk.clone(), daemon.scratch.file("raw"));
        let blocks = std::mem::take(&mut guest.blocks);
        daemon.server.signal(rustix::process::Signal::TERM);
        assert!(daemon.server.outcome().status.success());
        let raw = converted(&disk, "qcow2", &[], &raw);
        assert!(blocks.len() > 100, "{} blocks", blocks.len());
        for (block, seed) in &blocks {
            let at = *block as usize * BLOCK;
            assert!(
                raw[at..at + BLOCK] == pattern(*seed, BLOCK),
                "{ways:?}: block {block} is not what was written"
            );
        }
    }
}

/// What a guest has learned of discards stays, though an image of smaller clusters comes to the top, and another process serves it.
#[test]
fn a_guest_is_never_given_another_least_discard() {
    let mut machine = Machine::new(Ways::default());
    let options = |scratch: &Scratch| {
        let [socket, qmp, place] = ["v.sock", "qmp", ""].map(|name| scratch.name(name));
        ["--vhost-user-blk", &socket, "--qmp", &qmp, "--allow-path", &place].map(str::to_owned).to_vec()
    };
    let mut daemon = Daemon::start(options);
    let mut front = FrontEnd::start(&daemon.scratch.file("v.sock"), &mut machine);
    let sectors =
        |front: &mut FrontEnd| u32::from_le_bytes(front.config(44, 4).try_into().expect("four bytes"));
    assert_eq!(sectors(&mut front), 128);
    daemon.upgrade();
    assert_eq!(sectors(&mut front), 128);
    let above = daemon.scratch.name("above.qcow2");
    qemu_img(["create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", &above, "64M"]).ok();
    let mut qmp = Qmp::connect(&daemon.scratch.file("qmp"));
    let file = json!({ "driver": "file", "filename": above });
    qmp.ok("blockdev-add", json!({ "driver": "qcow2", "node-name": "above", "file": file, "backing": null }));
    qmp.ok("blockdev-snapshot", json!({ "node": "disk", "overlay": "above" }));
    assert_eq!(sectors(&mut front), 128);
    machine.ok(0, &Ask::Write(0, &[0x11; 512]));
    drop(front);
    daemon.server.stop();
}
