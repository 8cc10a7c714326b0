//! `cowhand amend` beside `qemu-img amend`: the same image afterwards, with the same disk.

use std::path::Path;

use crate::peer::Bench;

fn io(bench: &Bench, image: &str, commands: &[&str]) {
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    bench.qemu("qemu-io", &[&["-f", "qcow2"], &commands[..], &[image]].concat());
}

const SNAPSHOTS: [&str; 2] = ["one", "two"];

/// Two images alike, with zeroes of every kind, of which snapshots share some; over `base.qcow2` if `create` says so.
fn images(bench: &Bench, create: &str) {
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "base.qcow2", "20M"]);
    io(bench, "base.qcow2", &["write -q -P 9 0 20M"]);
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", create, "a.qcow2", "40M"]);
    let first =
        ["write -P 1 0 5M", "write -z 1M 1M", "write -P 3 30M 3M", "write -z 10M 3M", "write -z -u 31M 1M"];
    io(bench, "a.qcow2", &first);
    bench.qemu("qemu-img", &["snapshot", "-c", SNAPSHOTS[0], "a.qcow2"]);
    io(bench, "a.qcow2", &["write -z 2M 1M", "write -P 4 11M 1M"]);
    bench.qemu("qemu-img", &["snapshot", "-c", SNAPSHOTS[1], "a.qcow2"]);
    bench.qemu("cp", &["a.qcow2", "b.qcow2"]);
    bench.qemu("qemu-img", &["convert", "-O", "raw", "a.qcow2", "before.raw"]);
    for snapshot in SNAPSHOTS {
        bench.qemu("qemu-img", &["convert", "-l", snapshot, "-O", "raw", "a.qcow2", snapshot]);
    }
}

/// The disk and its snapshots read as before.
fn content_stays(bench: &Bench) {
    bench.qemu("qemu-img", &["check", "-q", "a.qcow2"]);
    assert_eq!(bench.cowhand(&["check", "-q", "a.qcow2"]).code, 0);
    bench.qemu("qemu-img", &["compare", "-q", "a.qcow2", "before.raw"]);
    for snapshot in SNAPSHOTS {
        bench.qemu("qemu-img", &["convert", "-l", snapshot, "-O", "raw", "a.qcow2", "now.raw"]);
        bench.qemu("cmp", &["now.raw", snapshot]);
    }
}

/// What `qemu-img info` says of an image that is not of the file's own.
fn info(bench: &Bench, image: &str) -> String {
    let mut info = bench.qemu("qemu-img", &["info", "--output", "json", image]).json();
    let fields = info.as_object_mut().unwrap();
    for own in ["filename", "actual-size", "children"] {
        fields.remove(own);
    }
    info.to_string()
}

/// Both tools with the same options, each on its image: they end alike and with the same image.
fn both(bench: &Bench, words: &[&str]) -> i32 {
    let done = bench.cowhand(&[&["amend"], words, &["a.qcow2"]].concat());
    // Some widths after others keep qemu-img 7.2 busy for ever (32 and then 64 bits, clusters of 2 MiB).
    let peer = [&["120", "qemu-img", "amend"], words, &["b.qcow2"]].concat();
    let peer = bench.run(Path::new("timeout"), &peer);
    assert_eq!((done.code, &*done.out), (peer.code, &*peer.out), "{words:?}: {} {}", done.err, peer.err);
    assert_eq!(info(bench, "a.qcow2"), info(bench, "b.qcow2"), "{words:?}");
    done.code
}

#[test]
fn an_image_becomes_what_qemu_img_makes_of_it_and_its_disk_stays() {
    let steps: [(&str, i32); 15] = [
        ("refcount_bits=64", 0),
        ("refcount_bits=8", 0),
        ("compat=0.10", 1),
        ("compat=0.10,refcount_bits=16", 0),
        ("lazy_refcounts=on", 1),
        ("compat=1.1", 0),
        ("lazy_refcounts=on", 0),
        ("compat=v2", 0),
        ("refcount_bits=8", 1),
        ("compat=v3,lazy_refcounts=on,refcount_bits=32", 0),
        ("refcount_bits=4,lazy_refcounts=off", 0),
        ("refcount_bits=1", 1),
        ("refcount_bits=16", 0),
        ("compat=0.10", 0),
        ("compat=0.10,refcount_bits=16,lazy_refcounts=off", 0),
    ];
    for create in
        ["cluster_size=64k", "cluster_size=4k,backing_file=base.qcow2,backing_fmt=qcow2", "cluster_size=1k"]
    {
        let bench = Bench::new();
        images(&bench, create);
        for (options, code) in steps {
            assert_eq!(both(&bench, &["-o", options]), code, "{create} {options}");
            content_stays(&bench);
        }
        // Each program uses what the other one made.
        io(&bench, "a.qcow2", &["write -P 5 12M 1M"]);
        bench.qemu("qemu-img", &["check", "-q", "a.qcow2"]);
    }
}

#[test]
fn what_is_refused_there_is_refused_here_and_nothing_changes() {
    let bench = Bench::new();
    images(&bench, "cluster_size=64k,backing_file=base.qcow2,backing_fmt=qcow2");
    let before = std::fs::read(bench.path("a.qcow2")).unwrap();
    for options in [
        "compat=0.9",
        "refcount_bits=3",
        "refcount_bits=128",
        "cluster_size=4k",
        "preallocation=full",
        "compression_type=zstd",
        "extended_l2=on",
        "data_file=x",
        "data_file_raw=on",
        "backing_file=before.raw",
        "backing_file=base.qcow2,backing_fmt=raw",
        "encrypt.format=luks",
        "encryption=on",
        "nonsense=1",
        "lazy_refcounts=maybe",
        "size=x",
    ] {
        assert_eq!(both(&bench, &["-o", options]), 1, "{options}");
        assert!(std::fs::read(bench.path("a.qcow2")).unwrap() == before, "{options}");
    }
    for options in
        ["data_file_raw=off", "backing_file=base.qcow2,backing_fmt=qcow2", "compat=1.1,refcount_bits=16"]
    {
        assert_eq!(both(&bench, &["-q", "-f", "qcow2", "-t", "none", "-p", "-o", options]), 0, "{options}");
    }
    let raw = bench.cowhand(&["amend", "-f", "raw", "-o", "size=50M", "before.raw"]);
    assert!(raw.code == 1 && raw.err.contains("is raw"), "{}", raw.err);
    assert_eq!(bench.cowhand(&["amend", "a.qcow2"]).code, 1);
    let help = bench.cowhand(&["amend", "-o", "help"]);
    let theirs = bench.qemu("qemu-img", &["amend", "-f", "qcow2", "-o", "help", "b.qcow2"]).out;
    for name in theirs.lines().skip(1).filter_map(|line| line.trim().split('=').next()) {
        assert!(name.starts_with("encrypt.") || help.out.contains(name), "{name}: {}", help.out);
    }
}

#[test]
fn the_size_changes_with_the_version_in_one_command() {
    for (create, options) in [
        ("compat=0.10", "compat=1.1,size=50M"),
        ("cluster_size=4k", "compat=0.10,size=50M,refcount_bits=16"),
        ("cluster_size=4k", "size=41M,refcount_bits=64"),
        ("backing_file=base.qcow2,backing_fmt=qcow2", "size=90M"),
    ] {
        let bench = Bench::new();
        images(&bench, create);
        for image in ["a.qcow2", "b.qcow2"] {
            for snapshot in SNAPSHOTS {
                bench.qemu("qemu-img", &["snapshot", "-d", snapshot, image]);
            }
        }
        assert_eq!(both(&bench, &["-o", options]), 0, "{create} {options}");
        bench.qemu("qemu-img", &["compare", "-q", "a.qcow2", "b.qcow2"]);
        bench.qemu("qemu-img", &["check", "-q", "a.qcow2"]);
    }
}

#[test]
fn a_smaller_size_must_be_meant() {
    let bench = Bench::new();
    images(&bench, "cluster_size=64k");
    let ran = bench.cowhand(&["amend", "-o", "size=20M,lazy_refcounts=on", "a.qcow2"]);
    assert!(ran.code == 1 && ran.err.contains("--force"), "{}", ran.err);
    content_stays(&bench);
    assert_eq!(both(&bench, &["--force", "-o", "size=20M,lazy_refcounts=on"]), 0);
    bench.qemu("qemu-img", &["check", "-q", "a.qcow2"]);
}

/// qemu-img leaves the clusters of bitmaps behind as leaks.
#[test]
fn bitmaps_go_with_the_version_that_knows_them_and_leave_nothing_behind() {
    let bench = Bench::new();
    images(&bench, "cluster_size=64k");
    for image in ["a.qcow2", "b.qcow2"] {
        bench.qemu("qemu-img", &["bitmap", "--add", image, "x"]);
        io(&bench, image, &["write -P 1 0 64k"]);
    }
    assert_eq!(both(&bench, &["-o", "lazy_refcounts=on"]), 0);
    assert!(info(&bench, "a.qcow2").contains("bitmaps"), "they stay with every other change");
    assert_eq!(both(&bench, &["-o", "refcount_bits=32"]), 0);
    assert_eq!(both(&bench, &["-o", "compat=0.10,refcount_bits=16"]), 0);
    content_stays(&bench);
}

#[test]
fn the_name_of_a_data_file_changes_where_there_is_one() {
    let bench = Bench::new();
    for (image, data) in [("a.qcow2", "a.raw"), ("b.qcow2", "b.raw")] {
        let options = format!("data_file={data},data_file_raw=on");
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &options, image, "4M"]);
        io(&bench, image, &["write -P 7 1M 1M"]);
        bench.qemu("cp", &["-f", data, "moved.raw"]);
    }
    assert_eq!(both(&bench, &["-o", "data_file=moved.raw"]), 0);
    assert_eq!(both(&bench, &["-o", "data_file_raw=off,lazy_refcounts=on"]), 0);
    assert_eq!(both(&bench, &["-o", "data_file_raw=on"]), 1);
    assert_eq!(both(&bench, &["-o", "compat=0.10"]), 1);
    io(&bench, "a.qcow2", &["read -P 7 1M 1M"]);
    bench.qemu("qemu-img", &["check", "-q", "a.qcow2"]);
}

/// Runs out of room, or is killed by the system (`killed`), after so many KiB of a file more than it has.
fn amend_with_room(bench: &Bench, options: &str, kib: u64, killed: bool) -> i32 {
    let file_kib = std::fs::metadata(bench.path("a.qcow2")).unwrap().len() / 1024;
    let trap = if killed { "" } else { "trap '' XFSZ; " };
    let script =
        format!("{trap}ulimit -c 0; ulimit -f {}; exec \"$0\" amend -o {options} a.qcow2", file_kib + kib);
    bench.run(Path::new("bash"), &["-c", &script, env!("CARGO_BIN_EXE_cowhand")]).code
}

#[test]
fn without_room_or_killed_in_the_middle_the_disk_stays_and_the_image_is_sound() {
    for killed in [false, true] {
        let bench = Bench::new();
        images(&bench, "cluster_size=512,backing_file=base.qcow2,backing_fmt=qcow2");
        let (mut failed, mut options) = (0, "refcount_bits=64");
        for kib in [0, 1, 7, 50, 200, 400, 3000, 0, 1, 50, 700, 2000, 5000, 40000] {
            match amend_with_room(&bench, options, kib, killed) {
                0 => options = "compat=0.10,refcount_bits=16",
                _ => failed += 1,
            }
            // A process that was killed leaves what it had in reserve.
            if killed {
                bench.cowhand(&["check", "-q", "-r", "leaks", "a.qcow2"]);
            }
            content_stays(&bench);
        }
        assert!(failed > 2, "there was always room");
        assert_eq!(bench.cowhand(&["amend", "-o", "compat=0.10,refcount_bits=16", "a.qcow2"]).code, 0);
        content_stays(&bench);
    }
}
