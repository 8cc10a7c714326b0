//! `cowhand create` against what `qemu-img create` makes of the same words.

use std::fs;

use serde_json::Value;

use crate::peer::Bench;

fn qemu_info(bench: &Bench, file: &str) -> Value {
    let mut info = bench.qemu("qemu-img", &["info", "--output=json", file]).json();
    // Names and space differ; everything else must not.
    for name in ["filename", "actual-size", "full-backing-filename", "children"] {
        info.as_object_mut().unwrap().remove(name);
    }
    info
}

#[test]
fn the_same_words_make_the_same_image_as_qemu_imgs() {
    let bench = Bench::new();
    fs::write(bench.path("base.raw"), vec![1; 1 << 20]).unwrap();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "base.qcow2", "3M"]);
    let table: &[(&[&str], &[&str])] = &[
        (&[], &["20G"]),
        (&[], &["1.5G"]),
        (&[], &["1000"]),
        (&["-o", "compat=0.10"], &["1M"]),
        (&["-o", "cluster_size=512"], &["1M"]),
        (&["-o", "cluster_size=2M,refcount_bits=1"], &["1G"]),
        (&["-o", "extended_l2=on", "-o", "lazy_refcounts=on"], &["1G"]),
        (&["-o", "compression_type=zstd,size=5M"], &[]),
        (&["-o", "preallocation=metadata"], &["10M"]),
        (&["-o", "preallocation=falloc"], &["10M"]),
        (&["-o", "preallocation=full"], &["2M"]),
        (&["-b", "base.raw", "-F", "raw"], &[]),
        (&["-b", "base.qcow2", "-F", "qcow2"], &["10M"]),
        (&["-u", "-b", "missing", "-F", "raw"], &["10M"]),
        (&["-o", "data_file=data.raw,data_file_raw=on"], &["1M"]),
        (&["-o", "data_file=data.raw"], &["1M"]),
    ];
    for (options, size) in table {
        let words = |file| [&["create", "-f", "qcow2"], *options, &[file], *size].concat();
        bench.qemu("qemu-img", &words("theirs.qcow2"));
        let theirs = qemu_info(&bench, "theirs.qcow2");
        fs::remove_file(bench.path("theirs.qcow2")).unwrap();
        let ran = bench.cowhand(&words("ours.qcow2"));
        assert_eq!(ran.code, 0, "{options:?}: {}", ran.err);
        assert_eq!(qemu_info(&bench, "ours.qcow2"), theirs, "{options:?} {size:?}");
        if options.contains(&"-u") {
            continue;
        }
        bench.qemu("qemu-img", &["check", "ours.qcow2"]);
    }
}

#[test]
fn a_raw_image_is_as_long_as_asked() {
    let bench = Bench::new();
    for options in [&[][..], &["-o", "preallocation=falloc"], &["-o", "preallocation=full"]] {
        let ran = bench.cowhand(&[&["create", "-f", "raw"], options, &["x.raw", "1000000"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert_eq!(fs::metadata(bench.path("x.raw")).unwrap().len(), 1_000_448);
    }
}

#[test]
fn what_cannot_be_made_leaves_nothing_behind() {
    let bench = Bench::new();
    fs::write(bench.path("base.raw"), vec![1; 1 << 20]).unwrap();
    let table: &[(&[&str], &str)] = &[
        (&["x.qcow2"], "size of x.qcow2 is not given"),
        (&["x.qcow2", "1Q"], "ends in \"Q\""),
        (&["-o", "cluster_size=3k", "x.qcow2", "1M"], "cluster_size is 3072"),
        (&["-o", "compat=0.10,lazy_refcounts=on", "x.qcow2", "1M"], "lazy_refcounts=on"),
        (&["-o", "extended_l2=on,cluster_size=8k", "x.qcow2", "1M"], "extended_l2=on"),
        (&["-b", "base.raw", "x.qcow2"], "needs its format"),
        (&["-b", "missing", "-F", "raw", "x.qcow2"], "cannot open backing file missing"),
        (&["-u", "-b", "missing", "-F", "raw", "x.qcow2"], "is not given"),
        (&["-f", "raw", "-b", "base.raw", "-F", "raw", "x.qcow2"], "a raw image has no backing file"),
        (&["-o", "data_file_raw=on", "x.qcow2", "1M"], "data_file"),
        (&["missing/x.qcow2", "1M"], "No such file"),
    ];
    for (words, text) in table {
        let ran = bench.cowhand(&[&["create"], *words].concat());
        assert_eq!(ran.code, 1, "{words:?}");
        assert!(ran.err.contains(text), "{words:?}: {}", ran.err);
        assert!(!bench.path("x.qcow2").exists(), "{words:?} left a file behind");
    }
    assert_eq!(fs::read(bench.path("base.raw")).unwrap().len(), 1 << 20);
}

#[test]
fn a_file_never_becomes_its_own_backing_file() {
    let bench = Bench::new();
    fs::write(bench.path("x"), vec![1; 4096]).unwrap();
    let ran = bench.cowhand(&["create", "-b", "x", "-F", "raw", "x"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("its own backing file"), "{}", ran.err);
    assert_eq!(fs::read(bench.path("x")).unwrap(), vec![1; 4096]);
}

#[test]
fn an_image_in_use_is_not_replaced() {
    use std::sync::Arc;

    use storage::{FileLock, Role};

    let bench = Bench::new();
    fs::write(bench.path("x"), "precious").unwrap();
    let file = fs::File::open(bench.path("x")).unwrap();
    let _reader = FileLock::acquire_role(&Arc::new(file.into()), Role::Reader).unwrap();
    let ran = bench.cowhand(&["create", "x", "1M"]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert_eq!(fs::read(bench.path("x")).unwrap(), b"precious");
}

#[test]
fn create_says_what_it_made_unless_asked_not_to() {
    let bench = Bench::new();
    let ran = bench.cowhand(&["create", "x.qcow2", "1G"]);
    assert_eq!(
        ran.out,
        "Created x.qcow2: qcow2, 1 GiB (1073741824 bytes), clusters of 64 KiB, 16-bit refcounts, zlib\n"
    );
    assert_eq!(bench.cowhand(&["create", "-q", "x.qcow2", "1G"]).out, "");
    assert!(bench.cowhand(&["create", "-o", "help"]).out.contains("cluster_size=SIZE"));
}

#[test]
fn a_suggestion_makes_nothing_and_its_command_makes_what_it_says() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "base.qcow2", "40G"]);
    let table: &[(&[&str], &str, u64, bool)] = &[
        (&["--suggest", "20G"], "general", 64 << 10, false),
        (&["--suggest=1T"], "general", 256 << 10, false),
        (&["--suggest=40G", "--use=database"], "database", 128 << 10, true),
        (&["--suggest=40G", "-b", "base.qcow2", "-F", "qcow2"], "overlay", 128 << 10, true),
        (&["--suggest=40G", "--use=overlay"], "overlay", 128 << 10, true),
        (&["--suggest=1G", "--use=archive", "-b", "base.qcow2", "-F", "qcow2"], "archive", 2 << 20, true),
    ];
    for (words, purpose, cluster_bytes, extended) in table {
        let words = [&["create", "--output=json"], *words, &["new disk.qcow2"]].concat();
        let ran = bench.cowhand(&words);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}");
        assert!(!bench.path("new disk.qcow2").exists(), "{words:?} made a file");
        let suggestion = ran.json();
        assert_eq!(suggestion["use"], *purpose);
        assert_eq!(suggestion["suggested"]["cluster-bytes"], *cluster_bytes);
        assert_eq!(suggestion["default"]["cluster-bytes"], 64 << 10);
        assert_eq!(suggestion["suggested"]["subcluster-bytes"].is_u64(), *extended, "{suggestion}");
        assert!(!suggestion["reasons"].as_array().unwrap().is_empty());
        let command: Vec<&str> = suggestion["command"].as_array().unwrap()[1..]
            .iter()
            .map(|word| word.as_str().unwrap())
            .collect();
        let made = bench.cowhand(&command);
        assert_eq!(made.code, 0, "{command:?}: {}", made.err);
        let info = qemu_info(&bench, "new disk.qcow2");
        assert_eq!(info["cluster-size"], *cluster_bytes);
        assert_eq!(info["format-specific"]["data"]["extended-l2"], *extended);
        assert_eq!(info["backing-filename"].is_string(), words.contains(&"-b") || *purpose == "overlay");
        fs::remove_file(bench.path("new disk.qcow2")).unwrap();
    }
}

#[test]
fn a_suggestion_for_people_ends_with_the_command_to_paste() {
    let bench = Bench::new();
    let ran = bench.cowhand(&["create", "--suggest", "40G", "-b", "my base.qcow2", "-F", "qcow2"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let command =
        "cowhand create -o cluster_size=128k,extended_l2=on -b 'my base.qcow2' -F qcow2 disk.qcow2 40G\n";
    assert!(ran.out.ends_with(command), "{}", ran.out);
    for figure in ["map in QEMU                     5 MiB           5 MiB", "60 KiB", "because"] {
        assert!(ran.out.contains(figure), "{}", ran.out);
    }
}

#[test]
fn what_nothing_can_be_suggested_for_is_refused() {
    let bench = Bench::new();
    let table: &[(&[&str], &str)] = &[
        (&["--suggest=1Q"], "ends in \"Q\""),
        (&["--suggest=4E"], "larger than qcow2 can map"),
        (&["--suggest=1G", "-f", "raw"], "no clusters"),
        (&["--suggest=1G", "-b", "base"], "needs its format"),
        (&["--suggest=1G", "-o", "cluster_size=4k"], "cannot be used with"),
        (&["--use=database", "x.qcow2", "1G"], "--suggest"),
    ];
    for (words, text) in table {
        let ran = bench.cowhand(&[&["create"], *words].concat());
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{words:?}");
        assert!(ran.err.contains(text), "{words:?}: {}", ran.err);
    }
    assert!(!bench.path("x.qcow2").exists());
}

#[test]
fn a_plain_create_never_comments_on_its_options() {
    let bench = Bench::new();
    let ran = bench.cowhand(&["create", "-o", "cluster_size=4k", "x.qcow2", "1T"]);
    assert_eq!((ran.code, ran.err.as_str(), ran.out.lines().count()), (0, "", 1));
}
