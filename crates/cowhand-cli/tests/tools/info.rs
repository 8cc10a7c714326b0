//! `cowhand info` against `qemu-img info`, and against images that mean harm.

use std::fs;

use crate::peer::Bench;
use serde_json::Value;

/// What qemu-img says since 8.0 and ours always says: compared only where the peer says it.
fn without_children(mut info: Value) -> Value {
    match &mut info {
        Value::Array(list) => list.iter_mut().for_each(|info| *info = without_children(info.take())),
        Value::Object(object) => {
            object.remove("children");
        }
        _ => {}
    }
    info
}

fn agree(bench: &Bench, words: &[&str]) {
    let theirs = bench.qemu("qemu-img", &[&["info", "--output=json"], words].concat()).json();
    let ours = bench.cowhand(&[&["info", "--output=json"], words].concat());
    assert_eq!(ours.code, 0, "{words:?}: {}", ours.err);
    let ours = ours.json();
    if theirs.get("children").is_some() {
        assert_eq!(ours, theirs, "{words:?}");
    }
    assert_eq!(without_children(ours), without_children(theirs), "{words:?}");
}

#[test]
fn every_kind_of_image_reads_as_qemu_img_reads_it() {
    let bench = Bench::new();
    let creations: &[&[&str]] = &[
        &["-o", "compat=0.10"],
        &["-o", "compat=1.1"],
        &["-o", "cluster_size=512"],
        &["-o", "cluster_size=2M"],
        &["-o", "refcount_bits=1"],
        &["-o", "refcount_bits=64"],
        &["-o", "extended_l2=on"],
        &["-o", "compression_type=zstd"],
        &["-o", "lazy_refcounts=on"],
        &["-o", "preallocation=metadata"],
        &["-o", "data_file=data.raw"],
        &["-o", "data_file=data2.raw,data_file_raw=on"],
    ];
    for options in creations {
        bench.qemu("qemu-img", &[&["create", "-f", "qcow2"], *options, &["x.qcow2", "10M"]].concat());
        agree(&bench, &["x.qcow2"]);
        fs::remove_file(bench.path("x.qcow2")).unwrap();
    }
    fs::write(bench.path("odd.raw"), b"abc").unwrap();
    agree(&bench, &["-f", "raw", "odd.raw"]);
}

#[test]
fn snapshots_and_bitmaps_are_listed_as_qemu_img_lists_them() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "x.qcow2", "10M"]);
    for name in ["one", "two", "with space and ü"] {
        bench.qemu("qemu-img", &["snapshot", "-c", name, "x.qcow2"]);
    }
    bench.qemu("qemu-img", &["bitmap", "--add", "-g", "512", "x.qcow2", "b0"]);
    bench.qemu("qemu-img", &["bitmap", "--add", "--disable", "x.qcow2", "b1"]);
    agree(&bench, &["x.qcow2"]);
    let human = bench.cowhand(&["info", "x.qcow2"]).out;
    assert!(human.contains("with space and ü") && human.contains("name: b1"), "{human}");
}

#[test]
fn a_chain_reads_as_qemu_img_reads_it() {
    let bench = Bench::new();
    fs::create_dir(bench.path("dir")).unwrap();
    bench.qemu("qemu-img", &["create", "-f", "raw", "dir/base.raw", "10M"]);
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "dir/mid.qcow2"]);
    bench.qemu(
        "qemu-img",
        &["create", "-f", "qcow2", "-b", "mid.qcow2", "-F", "qcow2", "dir/top.qcow2", "20M"],
    );
    agree(&bench, &["dir/top.qcow2"]);
    agree(&bench, &["--backing-chain", "dir/top.qcow2"]);
}

#[test]
fn a_chain_that_is_a_circle_ends_with_an_error() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "a.qcow2", "1M"]);
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "-b", "a.qcow2", "-F", "qcow2", "b.qcow2"]);
    bench.qemu("qemu-img", &["rebase", "-u", "-b", "b.qcow2", "-F", "qcow2", "a.qcow2"]);
    let ran = bench.cowhand(&["info", "--backing-chain", "a.qcow2"]);
    assert_eq!(ran.code, 1);
    let circle = format!(
        "cowhand: cannot follow the chain below b.qcow2\n  because: the backing chain is a circle: {}, 2 images down, \
         is image 0 of the chain again\n",
        bench.path("a.qcow2").canonicalize().unwrap().display()
    );
    assert_eq!(ran.err, circle);
    assert_eq!(bench.cowhand(&["info", "a.qcow2"]).code, 0);
}

#[test]
fn a_chain_follows_no_name_out_of_the_images_directory() {
    let bench = Bench::new();
    for directory in ["images", "elsewhere"] {
        fs::create_dir(bench.path(directory)).unwrap();
    }
    fs::write(bench.path("elsewhere/secret"), b"secret").unwrap();
    let names = [
        ("../elsewhere/secret", "outside the image's own directory"),
        ("/dev/zero", "is a character device"),
        ("/proc/self/environ", "belongs to the kernel"),
        ("json:{\"file.filename\":\"/etc/passwd\"}", "json: inside an image is not followed"),
        ("nbd://127.0.0.1/x", "nbd: inside an image is not followed"),
    ];
    for (name, words) in names {
        bench.qemu(
            "qemu-img",
            &["create", "-u", "-f", "qcow2", "-b", name, "-F", "raw", "images/x.qcow2", "1M"],
        );
        let alone = bench.cowhand(&["info", "--output=json", "images/x.qcow2"]);
        assert_eq!(alone.json()["backing-filename"], name);
        let ran = bench.cowhand(&["info", "--backing-chain", "images/x.qcow2"]);
        assert_eq!(ran.code, 1, "{name}: {}", ran.out);
        assert!(ran.err.contains(words), "{name}: {}", ran.err);
    }
    bench.qemu(
        "qemu-img",
        &["create", "-u", "-f", "qcow2", "-b", "../elsewhere/secret", "-F", "raw", "images/x.qcow2", "1M"],
    );
    let ran = bench.cowhand(&["info", "--backing-chain", "--allow-path", "elsewhere", "images/x.qcow2"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn a_raw_backing_file_stays_raw_whatever_its_guest_wrote() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "base", "1M"]);
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "-b", "base", "-F", "raw", "top.qcow2"]);
    let chain = bench.cowhand(&["info", "--backing-chain", "--output=json", "top.qcow2"]).json();
    assert_eq!(chain[1]["format"], "raw");
}

#[test]
fn a_cut_header_is_an_error_message() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "x.qcow2", "1M"]);
    let whole = fs::read(bench.path("x.qcow2")).unwrap();
    for length in [4, 49, 50, 71, 72, 103, 104] {
        fs::write(bench.path("cut.qcow2"), &whole[..length]).unwrap();
        let ran = bench.cowhand(&["info", "cut.qcow2"]);
        assert!(
            ran.code == 1 && ran.err.starts_with("cowhand: cannot open cut.qcow2"),
            "{length}: {}",
            ran.err
        );
    }
}

#[test]
fn a_fifo_is_an_error_and_never_a_wait() {
    let bench = Bench::new();
    bench.qemu("mkfifo", &["fifo"]);
    let ran = bench.cowhand(&["info", "fifo"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("is a pipe; storage must be a regular file or a block device"), "{}", ran.err);
}

/// `info` refused such a chain and `serve` guessed: what one of them showed was not what the other would use.
#[test]
fn a_backing_file_of_an_unknown_format_is_refused_by_all_and_its_content_never_decides() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "base.qcow2", "1M"]);
    bench.qemu(
        "qemu-img",
        &["create", "-u", "-f", "qcow2", "-b", "base.qcow2", "-F", "qed", "top.qcow2", "1M"],
    );
    for words in [
        &["info", "--backing-chain", "top.qcow2"][..],
        &["map", "top.qcow2"],
        &["bench", "-c", "1", "top.qcow2"],
        &["serve", "top.qcow2"],
    ] {
        let ran = bench.cowhand(words);
        assert_eq!(ran.code, 1, "{words:?}: {}", ran.out);
        let reported = "the backing file's format is given as \"qed\"; allowed: qcow2, raw, luks, vdi, vpc, vmdk, qcow, vhdx";
        assert!(ran.err.contains(reported), "{words:?}: {}", ran.err);
    }
    let given = bench.cowhand(&["map", "file=top.qcow2,backing.driver=qcow2"]);
    assert_eq!(given.code, 0, "{}", given.err);
    assert_eq!(bench.cowhand(&["info", "top.qcow2"]).code, 0);
}
