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
fn what_cannot_be_committed_is_reported_and_nothing_changes() {
    let bench = Bench::new();
    chain(&bench, "base.raw", SHAPES[0]);
    let top = fs::read(bench.path("top.qcow2")).unwrap();
    for words in [&["base.raw"][..], &["-b", "elsewhere.qcow2", "top.qcow2"], &["missing.qcow2"]] {
        let ran = bench.cowhand(&[&["commit"], words].concat());
        assert_eq!((ran.code, &*ran.out), (1, ""), "{words:?}: {}", ran.err);
    }
    assert!(fs::read(bench.path("top.qcow2")).unwrap() == top);
}

/// A base that is a part of a disk (`backing.offset`): the commit wrote to the start of the disk, over a partition table, said "Image
/// committed." and emptied the overlay. The base was opened by its path, without its options.
#[test]
fn a_base_that_is_a_part_of_a_disk_is_written_there_and_nowhere_else() {
    let disk = |bench: &Bench| {
        let mut bytes = vec![0x11_u8; 4 << 20];
        bytes[1 << 20..2 << 20].fill(0x22);
        fs::write(bench.path("disk"), &bytes).unwrap();
        bytes
    };
    let part = "driver=raw,offset=1048576,size=1048576,file.driver=file,file.filename=disk";
    let below = |part: &str| part.split(',').map(|option| format!(",backing.{option}")).collect::<String>();
    let top = format!("driver=qcow2,file.filename=top.qcow2{}", below(part));
    let (ours, theirs) = (Bench::new(), Bench::new());
    for bench in [&ours, &theirs] {
        disk(bench);
        bench.qemu(
            "qemu-img",
            &["create", "-q", "-f", "qcow2", "-u", "-b", "x", "-F", "raw", "top.qcow2", "1M"],
        );
        bench.qemu("qemu-io", &["--image-opts", "-c", "write -P 7 64k 64k", &top]);
    }
    committed(&ours, &["--image-opts", &top]);
    theirs.qemu("qemu-img", &["commit", "-q", "--image-opts", &top]);
    assert!(fs::read(ours.path("disk")).unwrap() == fs::read(theirs.path("disk")).unwrap());
    let mut expected = disk(&Bench::new());
    expected[(1 << 20) + (64 << 10)..(1 << 20) + (128 << 10)].fill(7);
    assert!(fs::read(ours.path("disk")).unwrap() == expected);
    // And for an image between: its base keeps its options when it is named.
    ours.qemu(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-u", "-b", "top.qcow2", "-F", "qcow2", "over.qcow2", "1M"],
    );
    let over = format!(
        "driver=qcow2,file.filename=over.qcow2,backing.file.filename=top.qcow2{}",
        below(&below(part)[1..])
    );
    ours.qemu("qemu-io", &["--image-opts", "-c", "write -P 9 0 64k", &over]);
    committed(&ours, &["-b", "disk", "--image-opts", &over]);
    expected[1 << 20..(1 << 20) + (64 << 10)].fill(9);
    assert!(fs::read(ours.path("disk")).unwrap() == expected);
}

/// The password of the base was lost with its other options, and the commit was refused.
#[test]
fn an_encrypted_base_is_opened_with_its_password() {
    let bench = Bench::new();
    let secrets = ["--object", "secret,id=s0,data=a", "--object", "secret,id=s1,data=b"];
    let luks = |id: &str| format!("encrypt.format=luks,encrypt.key-secret={id},encrypt.iter-time=10");
    let create = |words: &[&str]| bench.qemu("qemu-img", &[&["create", "-q"][..], &secrets, words].concat());
    create(&["-f", "qcow2", "-o", &luks("s0"), "base.qcow2", "1M"]);
    create(&["-f", "qcow2", "-u", "-b", "base.qcow2", "-F", "qcow2", "-o", &luks("s1"), "top.qcow2", "1M"]);
    let top = "driver=qcow2,file.filename=top.qcow2,encrypt.key-secret=s1,backing.driver=qcow2,\
               backing.file.filename=base.qcow2,backing.encrypt.key-secret=s0";
    bench.qemu("qemu-io", &[&secrets[..], &["--image-opts", "-c", "write -P 9 0 64k", top]].concat());
    committed(&bench, &[&secrets[..], &["--image-opts", top]].concat());
    let base = "driver=qcow2,file.filename=base.qcow2,encrypt.key-secret=s0";
    bench.qemu("qemu-io", &[&secrets[..], &["--image-opts", "-c", "read -P 9 0 64k", base]].concat());
}

/// Names in a base start at the directory by which the chain found it, also where that is a link.
#[test]
fn the_names_in_a_base_mean_what_they_mean_in_the_chain() {
    let bench = Bench::new();
    fs::create_dir(bench.path("store")).unwrap();
    fs::write(bench.path("low.raw"), vec![3; 1 << 20]).unwrap();
    fs::write(bench.path("store/low.raw"), vec![4; 1 << 20]).unwrap();
    bench
        .qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "low.raw", "-F", "raw", "store/base.qcow2"]);
    std::os::unix::fs::symlink("store/base.qcow2", bench.path("base.qcow2")).unwrap();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", "top.qcow2"]);
    io(&bench, "top.qcow2", &["write -P 7 4k 4k"]);
    bench.qemu("qemu-img", &["convert", "-O", "raw", "top.qcow2", "before.raw"]);
    committed(&bench, &["top.qcow2", "--allow-path", bench.path("").to_str().unwrap()]);
    bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
}

/// A layer that ends early reads as zeroes behind its end. A commit of several layers dropped them, and old data of the base showed.
#[test]
fn the_end_of_a_short_layer_is_committed_as_zeroes() {
    for shape in SHAPES {
        let bench = Bench::new();
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "base.qcow2", "4M"]);
        io(&bench, "base.qcow2", &["write -P 1 0 4M"]);
        for (below, name, size) in
            [("base.qcow2", "short.qcow2", "1000k"), ("short.qcow2", "top.qcow2", "4M")]
        {
            bench.qemu(
                "qemu-img",
                &["create", "-q", "-f", "qcow2", "-o", shape, "-b", below, "-F", "qcow2", name, size],
            );
        }
        bench.qemu("qemu-img", &["convert", "-O", "raw", "top.qcow2", "before.raw"]);
        committed(&bench, &["-d", "-b", "base.qcow2", "top.qcow2"]);
        sound(&bench, &["base.qcow2"]);
        bench.qemu("qemu-img", &["compare", "-q", "base.qcow2", "before.raw"]);
    }
}

/// Bitmaps of a base that becomes longer do so, too, as when it is resized: the next incremental backup reads them.
#[test]
fn a_base_with_a_bitmap_becomes_as_long_as_the_overlay() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "base.qcow2", "2M"]);
    bench.qemu("qemu-img", &["bitmap", "--add", "-g", "64k", "base.qcow2", "b"]);
    let over = ["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", "top.qcow2", "4M"];
    bench.qemu("qemu-img", &over);
    io(&bench, "top.qcow2", &["write -P 3 3M 64k"]);
    committed(&bench, &["top.qcow2"]);
    sound(&bench, &["base.qcow2"]);
    io(&bench, "base.qcow2", &["read -P 3 3M 64k"]);
    let info = bench.qemu("qemu-img", &["info", "--output=json", "base.qcow2"]).json();
    assert_eq!(info["format-specific"]["data"]["bitmaps"][0]["name"], "b", "{info}");
}
