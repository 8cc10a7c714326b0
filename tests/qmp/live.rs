//! Jobs for people: mirror, stream, commit, snapshots of a server's disk under a client that writes all the time.

use std::path::Path;

use black_box::peer::{assert_clean, qemu_img, qemu_io_ok};
use black_box::ports::free_port;
use black_box::ready::eventually;
use black_box::server::Start;
use black_box::{QemuNbd, Run, Scratch, cowhand};
use serde_json::json;

use super::jobs::{Load, holds};
use super::{Steered, create};

fn qmp(steered: &Steered) -> String {
    steered.qmp.to_string_lossy().into_owned()
}

#[test]
fn a_disk_is_snapshotted_committed_streamed_and_moved_while_it_is_written() {
    let steered = Steered::new();
    let (scratch, socket) = (&steered.scratch, qmp(&steered));
    let load = Load::on(steered.server.socket(), "a", 2048);
    let over = scratch.name("over.qcow2");
    let said = cowhand(["snapshot", "--live", &socket, "--overlay", &over]).ok();
    assert_eq!(said, format!("a writes to {over}: name that image at the next start\n"));
    load.goes_on();
    assert_eq!(cowhand(["commit", "--live", "-p", &socket]).ok(), "Image committed.\n");
    load.goes_on();
    let second = scratch.name("second.qcow2");
    cowhand(["snapshot", "--live", &socket, "--overlay", &second]).ok();
    load.goes_on();
    cowhand(["stream", &socket]).ok();
    load.goes_on();
    cowhand(["snapshot", "--live", &socket, "-c", "inside"]).ok();
    cowhand(["snapshot", "--live", &socket, "-d", "inside"]).ok();
    let copy = scratch.name("copy.raw");
    cowhand(["mirror", &socket, &copy, "-O", "raw"]).ok();
    let target = scratch.name("target.qcow2");
    let said = cowhand(["mirror", &socket, &target, "--switch"]).ok();
    assert!(said.ends_with(&format!(" has switched to {target}: name that at the next start\n")), "{said}");
    load.goes_on();
    let mut qmp = black_box::qmp::Qmp::connect(&steered.qmp);
    let pauses = qmp.ok("query-blockstats", json!({}))[0]["driver-specific"]["pauses"].take();
    let figure = |name: &str| pauses[name].as_u64().expect("a number");
    // Each of the seven changes kept requests out at least once.
    assert!(figure("count") >= 7 && figure("last-ns") > 0, "{pauses}");
    assert!(
        figure("longest-ns") >= figure("last-ns") && figure("total-ns") > figure("longest-ns"),
        "{pauses}"
    );
    drop(qmp);
    let held = load.end();
    assert_eq!(steered.talk().ok("query-jobs", json!({})), json!([]));
    steered.server.stop();
    holds(&target, &held, scratch);
    assert_clean(second.as_ref());
    assert_eq!(std::fs::metadata(&copy).expect("it is there").len(), 64 << 20);
}

/// Without `-b` the image directly below is the base, live as in a file: those further down belong to others.
#[test]
fn a_live_commit_goes_to_the_image_directly_below() {
    let steered = Steered::new();
    let (scratch, socket) = (&steered.scratch, qmp(&steered));
    let layers = ["mid.qcow2", "top.qcow2"].map(|name| scratch.name(name));
    for (layer, pattern) in layers.iter().zip([2, 3]) {
        cowhand(["snapshot", "--live", &socket, "--overlay", layer]).ok();
        qemu_io_ok(&["-f", "raw"], &steered.server.uri("a"), &[format!("write -P {pattern} 64k 64k")]);
    }
    cowhand(["commit", "--live", "-q", &socket]).ok();
    let base = steered.scratch.name("a.qcow2");
    let found = Run::new("qemu-io").args(["-U", "-r", "-c", "read -P 0 64k 64k", &base]).outcome();
    assert!(found.status.success() && !found.stdout.contains("failed"), "the base was written: {found}");
    steered.server.stop();
    qemu_io_ok(&["-r"], &layers[0], &["read -P 3 64k 64k"]);
}

/// A disk moves to another machine: another cowhand, and qemu-nbd.
#[test]
fn a_disk_moves_to_another_server_while_it_is_written() {
    for is_qemu in [false, true] {
        let steered = Steered::new();
        let scratch = &steered.scratch;
        let far = create(scratch, "far.qcow2", "64M");
        let listens = scratch.name("far.sock");
        // In a directory that the first server may connect in.
        let ours = (!is_qemu).then(|| {
            let start = Start::new([&*far, "--socket", &listens]).listening_on(&listens);
            start.listen().unwrap_or_else(|error| panic!("{}", error.0))
        });
        let theirs = is_qemu.then(|| QemuNbd::start_image(Path::new(&far), &["-x", "far", "-k", &listens]));
        let place = match &ours {
            Some(server) => server.uri("far"),
            None => format!("nbd+unix:///far?socket={listens}"),
        };
        let load = Load::on(steered.server.socket(), "a", 2048);
        cowhand(["mirror", &qmp(&steered), &place, "--switch"]).ok();
        load.goes_on();
        let held = load.end();
        // The first server is not needed any more: what was answered is at the other one.
        steered.server.stop();
        if let Some(server) = theirs {
            server.stop();
        }
        if let Some(server) = ours {
            server.stop();
        }
        holds(&far, &held, scratch);
    }
}

/// A job of a command that people type says what they have to do, too.
#[test]
fn a_mirror_to_a_server_that_is_not_allowed_names_the_option_and_works_with_it() {
    let elsewhere = Scratch::new();
    let (socket, address) = (elsewhere.name("far.sock"), format!("127.0.0.1:{}", free_port()));
    for (listen, at, place, allowed) in [
        ("--socket", &socket, format!("nbd+unix:///far?socket={socket}"), format!("unix:{socket}")),
        ("--listen", &address, format!("nbd://{address}/far"), address.clone()),
    ] {
        let far = create(&elsewhere, "far.qcow2", "64M");
        let mut there = Start::new([listen, at, &far]).listening_on(&socket).spawn();
        there.wait_until(|there| there.stdout().contains("URI").then_some(())).expect("it serves");
        let steered = Steered::new();
        let refused = cowhand(["mirror", &qmp(&steered), &place]).fails();
        assert!(refused.contains(&format!("--allow-connect {allowed}")), "{refused}");
        assert_eq!(steered.talk().ok("query-jobs", json!({})), json!([]));
        steered.server.stop();
        let steered = Steered::with(&["--allow-connect", &allowed]);
        steered.server.client("a").write(0, &[4; 65536]).expect("a write");
        cowhand(["mirror", &qmp(&steered), &place]).ok();
        steered.server.stop();
        there.stop();
        qemu_io_ok(&["-f", "qcow2"], &far, &["read -P 4 0 64k"]);
        std::fs::remove_file(&far).expect("a file");
    }
}

#[test]
fn a_mirror_that_is_interrupted_leaves_nothing_and_one_that_is_killed_goes_on() {
    let steered = Steered::new();
    let socket = qmp(&steered);
    steered.server.client("a").write(0, &[1; 8 << 20]).expect("a write");
    let target = steered.scratch.name("target.qcow2");
    let mirror = || cowhand(["mirror", &socket, &target, "-r", "1M"]);
    let begins = |signal: &'static str| {
        let socket = steered.qmp.clone();
        move |pid: u32| {
            std::thread::spawn(move || {
                let mut qmp = black_box::qmp::Qmp::connect(&socket);
                eventually("a job", || qmp.ok("query-jobs", json!({}))[0]["status"] == "running");
                Run::new("kill").args([signal, &pid.to_string()]).ok();
            });
        }
    };
    let interrupted = mirror().outcome_telling(begins("-INT"));
    assert!(interrupted.stderr.contains("cancelled") && !interrupted.status.success(), "{interrupted}");
    let mut qmp = steered.talk();
    assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
    assert!(!Path::new(&target).exists());
    mirror().outcome_telling(begins("-KILL"));
    assert_eq!(qmp.ok("query-jobs", json!({}))[0]["id"], "mirror-a");
    qmp.ok("block-job-set-speed", json!({ "device": "mirror-a", "speed": 0 }));
    mirror().ok();
    assert_eq!(qmp.ok("query-jobs", json!({})), json!([]));
    let source = steered.scratch.name("a.qcow2");
    steered.server.stop();
    qemu_img(["compare", "-q", &target, &source]).ok();
    assert_clean(target.as_ref());
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_left() {
    let steered = Steered::new();
    let socket = qmp(&steered);
    let target = steered.scratch.name("target.qcow2");
    let small = create(&steered.scratch, "small.qcow2", "1M");
    for (words, reported) in [
        (vec!["mirror", &socket, &target, "--disk", "none"], "no disk"),
        (vec!["mirror", &socket, &small], "exists"),
        (vec!["mirror", &socket, &small, "-n"], "bytes"),
        (vec!["mirror", &socket, "nbd://host:port/x"], "no place"),
        (vec!["commit", "--live", &socket], "nothing to commit"),
        (vec!["snapshot", "--live", &socket], "--overlay"),
        (vec!["stream", &target], "cannot talk"),
    ] {
        let refused = cowhand(words.clone()).fails();
        assert!(refused.contains(reported), "{words:?}: {refused}");
    }
    assert!(!Path::new(&target).exists());
    let nodes = steered.talk().ok("query-named-block-nodes", json!({}));
    assert!(nodes.as_array().expect("nodes").iter().all(|node| node["node-name"] != "mirror-a-to"));
    steered.server.stop();
}
