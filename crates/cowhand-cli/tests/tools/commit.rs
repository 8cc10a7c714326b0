//! `cowhand commit` beside `qemu-img commit`: base and overlay hold the same afterwards.

use std::fs;

use crate::peer::{Bench, Ran};

fn io(bench: &Bench, file: &str, commands: &[&str]) {
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    let format = if file.ends_with("raw") { "raw" } else { "qcow2" };
    bench.qemu("qemu-io", &[&["-f", format], &commands[..], &[file]].concat());
}

/// A base, an image in between, and an overlay that is longer than both.
fn chain(bench: &Bench, base: &str, shape: &str) {
    let format = if base.ends_with("raw") { "raw" } else { "qcow2" };
    bench.qemu("qemu-img", &["create", "-q", "-f", format, base, "4M"]);
    io(bench, base, &["write -P 1 0 3M"]);
    let create = |below: &str, format: &str, name: &str, size: &str| {
        bench.qemu(
            "qemu-img",
            &["create", "-q", "-f", "qcow2", "-o", shape, "-b", below, "-F", format, name, size],
        );
    };
    create(base, format, "mid.qcow2", "4M");
    io(bench, "mid.qcow2", &["write -P 2 1M 200k", "write -P 5 2M 4k"]);
    create("mid.qcow2", "qcow2", "top.qcow2", "5M");
    io(bench, "top.qcow2", &["write -P 3 100k 70k", "write -z 1M 64k", "write -P 4 4500k 9k"]);
}

fn committed(bench: &Bench, words: &[&str]) -> Ran {
    let ran = bench.cowhand(&[&["commit"], words].concat());
    assert_eq!((ran.code, &*ran.out), (0, "Image committed.\n"), "{words:?}: {}", ran.err);
    ran
}

fn sound(bench: &Bench, images: &[&str]) {
    for image in images.iter().filter(|image| image.ends_with("qcow2")) {
        bench.qemu("qemu-img", &["check", "-q", image]);
    }
}

const SHAPES: [&str; 4] =
    ["cluster_size=64k", "cluster_size=4k,refcount_bits=1", "extended_l2=on", "compat=0.10"];

#[test]
fn what_the_overlay_held_is_in_the_image_below_and_the_overlay_is_empty() {
    for shape in SHAPES {
        let bench = Bench::new();
        chain(&bench, "base.raw", shape);
        bench.qemu("qemu-img", &["convert", "-O", "raw", "top.qcow2", "before.raw"]);
        committed(&bench, &["top.qcow2"]);
        sound(&bench, &["top.qcow2", "mid.qcow2"]);
        bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
        bench.qemu("qemu-img", &["compare", "-q", "mid.qcow2", "before.raw"]);
        let check = bench.qemu("qemu-img", &["check", "--output", "json", "top.qcow2"]).json();
        assert_eq!(check["allocated-clusters"].as_u64().unwrap_or(0), 0, "{shape}: {check}");
        // And down to the raw file, which becomes longer.
        committed(&bench, &["-d", "mid.qcow2"]);
        bench.qemu("qemu-img", &["compare", "-q", "-f", "raw", "base.raw", "before.raw"]);
    }
}

#[test]
fn an_image_further_down_gets_what_all_above_it_hold_and_they_stay_as_they_are() {
    for (base, shape) in [("base.qcow2", SHAPES[0]), ("base.raw", SHAPES[2])] {
        let bench = Bench::new();
        chain(&bench, base, shape);
        bench.qemu("qemu-img", &["convert", "-O", "raw", "top.qcow2", "before.raw"]);
        let top = fs::read(bench.path("top.qcow2")).unwrap();
        committed(&bench, &["-b", base, "top.qcow2"]);
        bench.qemu("qemu-img", &["compare", "-q", base, "before.raw"]);
        assert!(fs::read(bench.path("top.qcow2")).unwrap() == top, "the overlay was changed");
        sound(&bench, &[base, "mid.qcow2", "top.qcow2"]);
    }
}

#[test]
fn ours_and_theirs_leave_the_same_in_every_image() {
    for words in [&["top.qcow2"][..], &["-d", "top.qcow2"]] {
        let (ours, theirs) = (Bench::new(), Bench::new());
        for bench in [&ours, &theirs] {
            chain(bench, "base.qcow2", SHAPES[0]);
        }
        committed(&ours, words);
        theirs.qemu("qemu-img", &[&["commit", "-q"], words].concat());
        for name in ["top.qcow2", "mid.qcow2", "base.qcow2"] {
            let (a, b) = (ours.path(name), theirs.path(name));
            let words = ["compare", "-q", "-U", a.to_str().unwrap(), b.to_str().unwrap()];
            ours.qemu("qemu-img", &words);
        }
    }
}

/// The base is a half copy then, and the overlay has everything: it can be done again.
#[test]
fn a_commit_that_was_killed_or_met_a_full_disk_can_be_repeated() {
    let bench = Bench::new();
    chain(&bench, "base.qcow2", SHAPES[0]);
    io(&bench, "top.qcow2", &["write -P 7 2M 2M"]);
    bench.qemu("qemu-img", &["convert", "-O", "raw", "top.qcow2", "before.raw"]);
    let still_whole = || {
        bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
        for image in ["top.qcow2", "mid.qcow2"] {
            let check = bench.run(std::path::Path::new("qemu-img"), &["check", "-q", image]);
            assert!(check.code == 0 || check.code == 3, "{image}: {}", check.code);
        }
    };
    let mut running = std::process::Command::new(env!("CARGO_BIN_EXE_cowhand"))
        .args(["commit", "-r", "500k", "top.qcow2"])
        .current_dir(bench.path(""))
        .spawn()
        .unwrap();
    let length = |name: &str| fs::metadata(bench.path(name)).unwrap().len();
    let old = length("mid.qcow2");
    while length("mid.qcow2") == old {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    running.kill().unwrap();
    running.wait().unwrap();
    still_whole();
    let script = "ulimit -f 1500; exec \"$0\" commit top.qcow2";
    let full = bench.run(std::path::Path::new("sh"), &["-c", script, env!("CARGO_BIN_EXE_cowhand")]);
    assert_eq!((full.code, &*full.out), (1, ""), "{}", full.err);
    still_whole();
    committed(&bench, &["top.qcow2"]);
    still_whole();
    bench.qemu("qemu-img", &["compare", "-q", "mid.qcow2", "before.raw"]);
}

#[test]
fn what_cannot_be_committed_is_told_and_nothing_changes() {
    let bench = Bench::new();
    chain(&bench, "base.raw", SHAPES[0]);
    let top = fs::read(bench.path("top.qcow2")).unwrap();
    for words in [&["base.raw"][..], &["-b", "elsewhere.qcow2", "top.qcow2"], &["missing.qcow2"]] {
        let ran = bench.cowhand(&[&["commit"], words].concat());
        assert_eq!((ran.code, &*ran.out), (1, ""), "{words:?}: {}", ran.err);
    }
    assert!(fs::read(bench.path("top.qcow2")).unwrap() == top);
}
