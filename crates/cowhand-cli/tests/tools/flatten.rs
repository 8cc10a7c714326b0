//! `cowhand flatten` beside `qemu-img`: the disk's content stays the same, and the backing files are not
//! changed.

use crate::peer::Bench;

fn io(bench: &Bench, file: &str, commands: &[&str]) {
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    bench.qemu("qemu-io", &[&["-f", "qcow2"], &commands[..], &[file]].concat());
}

fn overlay(bench: &Bench, shape: &str, below: &str, name: &str, size: &str) {
    let words = ["create", "-q", "-f", "qcow2", "-o", shape, "-b", below, "-F", "qcow2", name, size];
    bench.qemu("qemu-img", &words);
}

/// Four images: the lowest longer than the one over it, zeroes that hide data, compressed data.
fn chain(bench: &Bench, shape: &str) {
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "base.qcow2", "6M"]);
    io(bench, "base.qcow2", &["write -P 1 0 1M", "write -P 2 3M 2M"]);
    overlay(bench, "cluster_size=64k", "base.qcow2", "low.qcow2", "3M");
    io(bench, "low.qcow2", &["write -P 3 1500k 100k", "write -c -P 7 2M 64k"]);
    overlay(bench, shape, "low.qcow2", "mid.qcow2", "5M");
    io(bench, "mid.qcow2", &["write -P 4 100k 70k", "write -z 512k 64k", "write -P 0 2560k 128k"]);
    overlay(bench, shape, "mid.qcow2", "top.qcow2", "5M");
    io(bench, "top.qcow2", &["write -P 5 300k 9k", "write -z 640k 64k", "discard 1500k 64k"]);
    bench.qemu("qemu-img", &["convert", "-O", "raw", "top.qcow2", "before.raw"]);
}

const SHAPES: [&str; 5] = [
    "cluster_size=64k",
    "cluster_size=4k",
    "extended_l2=on",
    "compat=0.10",
    "cluster_size=2M,compression_type=zstd",
];

fn flatten(bench: &Bench, words: &[&str]) -> serde_json::Value {
    let ran = bench.cowhand(&[&["flatten", "--output", "json"], words, &["top.qcow2"]].concat());
    assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
    assert_unchanged(bench);
    ran.json()
}

fn assert_unchanged(bench: &Bench) {
    bench.qemu("qemu-img", &["check", "-q", "top.qcow2"]);
    bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
}

fn info(bench: &Bench, name: &str) -> serde_json::Value {
    bench.qemu("qemu-img", &["info", "--output", "json", name]).json()
}

#[test]
fn an_image_stands_alone_or_on_any_image_of_its_chain_and_its_disk_stays() {
    for shape in SHAPES {
        for compress in [&[][..], &["-c"]] {
            let bench = Bench::new();
            chain(&bench, shape);
            let below =
                ["base.qcow2", "low.qcow2", "mid.qcow2"].map(|name| std::fs::read(bench.path(name)).unwrap());
            for base in ["mid.qcow2", "low.qcow2", "./base.qcow2"] {
                let done = flatten(&bench, &[compress, &["--base", base]].concat());
                let now = info(&bench, "top.qcow2");
                let name = base.trim_start_matches("./");
                assert_eq!(
                    (&done["backing-filename"], &now["backing-filename"]),
                    (&name.into(), &name.into())
                );
                assert_eq!(now["backing-filename-format"], "qcow2");
            }
            let done = flatten(&bench, compress);
            assert!(done["backing-filename"].is_null(), "{done}");
            assert!(info(&bench, "top.qcow2")["backing-filename"].is_null());
            let again = flatten(&bench, compress);
            assert_eq!((&again["copied"], &again["zeroed"]), (&0.into(), &0.into()), "{again}");
            for (name, bytes) in ["base.qcow2", "low.qcow2", "mid.qcow2"].into_iter().zip(below) {
                assert!(std::fs::read(bench.path(name)).unwrap() == bytes, "{name} was written");
            }
        }
    }
}

#[test]
fn only_what_goes_is_copied_and_zeroes_take_no_space() {
    let bench = Bench::new();
    chain(&bench, SHAPES[0]);
    let done = flatten(&bench, &["--base", "low.qcow2"]);
    // mid.qcow2 has data in three clusters at 100k, of which top.qcow2 has none, and zeroes in others.
    let copied = done["copied"].as_u64().unwrap();
    assert!((70 << 10..=256 << 10).contains(&copied), "{done}");
    let done = flatten(&bench, &[]);
    let copied = done["copied"].as_u64().unwrap();
    assert!(copied < 2 << 20, "zeroes were copied: {done}");
    let check = bench.qemu("qemu-img", &["check", "--output", "json", "top.qcow2"]).json();
    assert!(check["allocated-clusters"].as_u64().unwrap() < 32, "{check}");
}

#[test]
fn a_base_in_another_directory_is_named_so_that_it_is_found() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("golden")).unwrap();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "golden/base.qcow2", "1M"]);
    io(&bench, "golden/base.qcow2", &["write -P 1 0 300k"]);
    overlay(&bench, "cluster_size=4k", "base.qcow2", "golden/mid.qcow2", "1M");
    io(&bench, "golden/mid.qcow2", &["write -P 2 100k 50k"]);
    overlay(&bench, "cluster_size=4k", "golden/mid.qcow2", "top.qcow2", "1M");
    bench.qemu("qemu-img", &["convert", "-O", "raw", "top.qcow2", "before.raw"]);
    flatten(&bench, &["--allow-path", ".", "--base", "golden/base.qcow2"]);
    let named = info(&bench, "top.qcow2")["backing-filename"].as_str().unwrap().to_owned();
    let whole = bench.path("golden/base.qcow2").canonicalize().unwrap();
    assert_eq!(named, whole.to_str().unwrap());
}

#[test]
fn a_full_disk_leaves_the_disk_and_the_name_as_they_were() {
    let bench = Bench::new();
    chain(&bench, SHAPES[0]);
    let script = "ulimit -f 800; exec \"$0\" flatten top.qcow2";
    let full = bench.run(std::path::Path::new("sh"), &["-c", script, env!("CARGO_BIN_EXE_cowhand")]);
    assert_eq!(full.code, 1, "{}", full.err);
    assert_eq!(info(&bench, "top.qcow2")["backing-filename"], "mid.qcow2");
    bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
    flatten(&bench, &[]);
}

/// Killed, or ended by a signal, in the middle: the image is still the same overlay, and the next run
/// continues.
#[test]
fn an_interrupted_flatten_can_be_repeated() {
    let bench = Bench::new();
    chain(&bench, SHAPES[1]);
    for signal in ["KILL", "INT"] {
        let script = format!("timeout -s {signal} 0.3 \"$0\" flatten -r 300k top.qcow2");
        let ended = bench.run(std::path::Path::new("sh"), &["-c", &script, env!("CARGO_BIN_EXE_cowhand")]);
        assert_ne!(ended.code, 0, "{signal}: {}{}", ended.out, ended.err);
        bench.wait_for_lock("top.qcow2");
        assert_eq!(info(&bench, "top.qcow2")["backing-filename"], "mid.qcow2", "{signal}");
        bench.qemu("qemu-img", &["compare", "-q", "top.qcow2", "before.raw"]);
    }
    flatten(&bench, &[]);
}

#[test]
fn what_cannot_be_is_reported_and_nothing_changes() {
    let bench = Bench::new();
    chain(&bench, SHAPES[0]);
    let before = std::fs::read(bench.path("top.qcow2")).unwrap();
    let refused: [(&[&str], &str); 5] = [
        (&["--base", "other.qcow2", "top.qcow2"], "not in the backing chain"),
        (&["--base", "top.qcow2", "top.qcow2"], "not in the backing chain"),
        (&["--memory-limit", "1M", "top.qcow2"], "allowed: 4M and more"),
        (&["-f", "raw", "before.raw"], "no image below"),
        (&["missing.qcow2"], "No such file"),
    ];
    for (words, said) in refused {
        let ran = bench.cowhand(&[&["flatten"], words].concat());
        assert_eq!(ran.code, 1, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    }
    assert!(std::fs::read(bench.path("top.qcow2")).unwrap() == before);
}

/// The image that stays below is a part of a file: the header names that part, as QEMU does, and not the file.
#[test]
fn a_base_that_is_a_part_of_a_file_stays_that_part() {
    let bench = Bench::new();
    let bytes: Vec<u8> = (0..2 << 20).map(|at| if at < 1 << 20 { 1 } else { 2 }).collect();
    std::fs::write(bench.path("disk"), bytes).unwrap();
    for (name, below, format) in [("mid", "disk", "raw"), ("top", "mid", "qcow2")] {
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-u", "-b", below, "-F", format, name, "1M"]);
    }
    let part = "backing.backing.driver=raw,backing.backing.offset=1M,backing.backing.size=1M,backing.backing.file.filename=disk";
    let chain =
        format!("driver=qcow2,file.filename=top,backing.driver=qcow2,backing.file.filename=mid,{part}");
    let ran = bench.cowhand(&["flatten", "-q", "--base", "disk", "--image-opts", &chain]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    io(&bench, "top", &["read -P 2 0 1M"]);
}
