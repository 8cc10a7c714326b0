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
fn create_says_what_it_made_unless_told_not_to() {
    let bench = Bench::new();
    let ran = bench.cowhand(&["create", "x.qcow2", "1G"]);
    assert_eq!(
        ran.out,
        "Created x.qcow2: qcow2, 1 GiB (1073741824 bytes), clusters of 64 KiB, 16-bit refcounts, zlib\n"
    );
    assert_eq!(bench.cowhand(&["create", "-q", "x.qcow2", "1G"]).out, "");
    assert!(bench.cowhand(&["create", "-o", "help"]).out.contains("cluster_size=SIZE"));
}
