//! `cowhand rebase` beside `qemu-img rebase`: the disk stays what it was.

use crate::peer::Bench;

fn io(bench: &Bench, file: &str, commands: &[&str]) {
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    let format = if file.ends_with("raw") { "raw" } else { "qcow2" };
    bench.qemu("qemu-io", &[&["-f", format], &commands[..], &[file]].concat());
}

/// An overlay over `old.qcow2`, and other images that it could lie over, shorter and longer.
fn images(bench: &Bench, shape: &str) {
    let create = |name: &str, size: &str| {
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", name, size]);
    };
    create("old.qcow2", "3M");
    io(bench, "old.qcow2", &["write -P 1 0 1M", "write -P 2 1500k 100k"]);
    create("alike.qcow2", "3M");
    io(bench, "alike.qcow2", &["write -P 1 0 1M", "write -P 2 1500k 99k"]);
    create("long.qcow2", "6M");
    io(bench, "long.qcow2", &["write -P 9 500k 5M"]);
    create("short.qcow2", "1M");
    bench.qemu(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-o", shape, "-b", "old.qcow2", "-F", "qcow2", "top.qcow2", "4M"],
    );
    io(bench, "top.qcow2", &["write -P 3 100k 70k", "write -z 512k 64k", "write -P 4 3800k 9k"]);
    bench.qemu("qemu-img", &["convert", "-O", "raw", "top.qcow2", "before.raw"]);
}

const SHAPES: [&str; 5] = [
    "cluster_size=64k",
    "cluster_size=4k",
    "extended_l2=on",
    "compat=0.10",
    "cluster_size=2M,compression_type=zstd",
];

fn rebase(bench: &Bench, words: &[&str]) {
    let ran = bench.cowhand(&[&["rebase"], words, &["top.qcow2"]].concat());
    assert_eq!((ran.code, &*ran.out), (0, ""), "{words:?}: {}", ran.err);
    bench.qemu("qemu-img", &["check", "-q", "top.qcow2"]);
}

fn backing(bench: &Bench) -> Option<String> {
    let info = bench.qemu("qemu-img", &["info", "--output", "json", "top.qcow2"]).json();
    info["backing-filename"].as_str().map(str::to_owned)
}

#[test]
fn over_any_image_and_over_none_the_disk_stays_what_it_was() {
    for shape in SHAPES {
        for compress in [&[][..], &["-c"]] {
            let bench = Bench::new();
            images(&bench, shape);
            for name in ["alike.qcow2", "long.qcow2", "short.qcow2", "old.qcow2"] {
                rebase(&bench, &[compress, &["-b", name, "-F", "qcow2"]].concat());
                assert_eq!(backing(&bench).as_deref(), Some(name));
                bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
            }
            rebase(&bench, &[compress, &["-b", ""]].concat());
            assert_eq!(backing(&bench), None);
            bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
        }
    }
}

/// Without a backing file there is no entry for zeroes: they must hide what the new backing file has.
#[test]
fn an_image_that_stood_alone_reads_as_before_over_another() {
    for shape in SHAPES {
        let bench = Bench::new();
        images(&bench, shape);
        rebase(&bench, &["-b", ""]);
        rebase(&bench, &["-b", "long.qcow2", "-F", "qcow2"]);
        bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
    }
}

#[test]
fn what_both_images_below_have_is_not_copied() {
    let bench = Bench::new();
    images(&bench, SHAPES[0]);
    let allocated = || {
        let check = bench.qemu("qemu-img", &["check", "--output", "json", "top.qcow2"]).json();
        check["allocated-clusters"].as_u64().unwrap()
    };
    let before = allocated();
    rebase(&bench, &["-b", "alike.qcow2", "-F", "qcow2"]);
    assert_eq!(allocated(), before + 1, "they differ in one cluster");
}

#[test]
fn a_full_disk_leaves_the_disk_and_the_name_as_they_were() {
    let bench = Bench::new();
    images(&bench, SHAPES[0]);
    let script = "ulimit -f 800; exec \"$0\" rebase -b long.qcow2 -F qcow2 top.qcow2";
    let full = bench.run(std::path::Path::new("sh"), &["-c", script, env!("CARGO_BIN_EXE_cowhand")]);
    assert_eq!(full.code, 1, "{}", full.err);
    assert_eq!(backing(&bench).as_deref(), Some("old.qcow2"));
    bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
    rebase(&bench, &["-b", "long.qcow2", "-F", "qcow2"]);
    bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
}

#[test]
fn only_the_name_is_changed_where_that_is_asked_for() {
    let bench = Bench::new();
    images(&bench, SHAPES[0]);
    let long = "directory/".repeat(50) + "gone.raw";
    for name in ["nowhere.raw", &long, "old.qcow2"] {
        let ran = bench.cowhand(&["rebase", "-u", "-b", name, "-F", "raw", "top.qcow2"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(backing(&bench).as_deref(), Some(name));
    }
    rebase(&bench, &["-u", "-b", "old.qcow2", "-F", "qcow2"]);
    bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
}

#[test]
fn what_cannot_be_is_reported_and_nothing_changes() {
    let bench = Bench::new();
    images(&bench, SHAPES[0]);
    let refused: [&[&str]; 4] = [
        &["-b", "missing.qcow2", "-F", "qcow2"],
        &["-b", "long.qcow2"],
        &["-b", "top.qcow2", "-F", "qcow2"],
        &["-u", "-c", "-b", "long.qcow2", "-F", "qcow2"],
    ];
    for words in refused {
        let ran = bench.cowhand(&[&["rebase"], words, &["top.qcow2"]].concat());
        assert_eq!(ran.code, 1, "{words:?}: {}", ran.err);
        assert_eq!(backing(&bench).as_deref(), Some("old.qcow2"), "{words:?}");
    }
    let raw = bench.cowhand(&["rebase", "-u", "-b", "", "before.raw"]);
    assert_eq!(raw.code, 1, "{}", raw.err);
}

/// Cinder gives the format of an image that is not there any more.
#[test]
fn a_format_of_no_image_means_nothing() {
    let bench = Bench::new();
    images(&bench, SHAPES[0]);
    let ran = bench.cowhand(&["rebase", "-u", "-b", "", "-F", "qcow2", "top.qcow2"]);
    assert_eq!((ran.code, backing(&bench)), (0, None), "{}", ran.err);
}

/// Where data of the new image begins inside a cluster of the overlay, zeroes of the overlay were not written: that data showed.
#[test]
fn zeroes_hide_data_of_the_new_image_that_begins_inside_a_cluster() {
    for shape in SHAPES {
        let bench = Bench::new();
        let create = |words: &[&str]| {
            bench.qemu("qemu-img", &[&["create", "-q", "-f", "qcow2"], words].concat());
        };
        create(&["old.qcow2", "3M"]);
        create(&["-o", "cluster_size=512", "new.qcow2", "3M"]);
        io(&bench, "new.qcow2", &["write -P 9 8k 4k", "write -P 9 1101k 512"]);
        create(&["-o", shape, "-b", "old.qcow2", "-F", "qcow2", "top.qcow2", "3M"]);
        bench.qemu("qemu-img", &["convert", "-O", "raw", "top.qcow2", "before.raw"]);
        rebase(&bench, &["-b", "new.qcow2", "-F", "qcow2"]);
        bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
    }
}
