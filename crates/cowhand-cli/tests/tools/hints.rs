//! Errors for a small mistake: they say what, where, what was found, what is allowed, and what to do.

use std::fs;
use std::sync::Arc;

use crate::peer::Bench;
use storage::{FileLock, Role};

/// The words of a command that must fail.
fn refused(bench: &Bench, words: &[&str]) -> String {
    let ran = bench.cowhand(words);
    assert_eq!(ran.code, 1, "{words:?}: {}{}", ran.out, ran.err);
    ran.err
}

/// "say format=raw" is no option of any tool: it was tried as `format=raw x.raw` and as `--format=raw`.
#[test]
fn a_raw_disk_is_to_be_named_as_such_in_words_that_work() {
    let bench = Bench::new();
    fs::write(bench.path("x.raw"), vec![1; 1 << 20]).unwrap();
    for words in [&["serve", "x.raw"][..], &["resize", "x.raw", "2M"]] {
        let text = refused(&bench, words);
        assert!(text.contains("-f raw") && text.contains("file=PATH,format=raw"), "{text}");
    }
    for words in [&["resize", "-f", "raw", "x.raw", "2M"][..], &["resize", "file=x.raw,format=raw", "3M"]] {
        let ran = bench.cowhand(words);
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
    }
    assert_eq!(fs::metadata(bench.path("x.raw")).unwrap().len(), 3 << 20);
}

#[test]
fn shrinking_that_is_not_asked_for_names_its_option_and_both_sizes() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "x.qcow2", "2M"]);
    fs::write(bench.path("x.raw"), vec![1; 2 << 20]).unwrap();
    for words in [&["resize", "x.qcow2", "1M"][..], &["resize", "-f", "raw", "x.raw", "-1M"]] {
        let text = refused(&bench, words);
        let expected = "\
cowhand: the new size (1048576 bytes) is below the old one (2097152 bytes): what lies beyond would be lost
  hint: if that is meant, add --shrink
";
        assert_eq!(text, expected);
        let ran = bench.cowhand(&[words, &["--shrink"]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
}

/// The name alone does not say where it was looked for: relative names start at the image, not at the user.
#[test]
fn a_backing_file_that_is_not_found_is_shown_with_the_path_it_leads_to() {
    let bench = Bench::new();
    fs::create_dir(bench.path("dir")).unwrap();
    bench.qemu(
        "qemu-img",
        &["create", "-f", "qcow2", "-u", "-b", "base.qcow2", "-F", "qcow2", "dir/top.qcow2", "1M"],
    );
    let looked_for = bench.path("dir/base.qcow2");
    let looked_for = looked_for.to_str().unwrap();
    for words in [
        &["serve", "dir/top.qcow2"][..],
        &["info", "--backing-chain", "dir/top.qcow2"],
        &["map", "dir/top.qcow2"],
    ] {
        let text = refused(&bench, words);
        for part in ["\"base.qcow2\"", looked_for, "No such file"] {
            assert!(text.contains(part), "{words:?} {part}: {text}");
        }
    }
    let text = refused(&bench, &["create", "-b", "base.qcow2", "-F", "qcow2", "dir/x.qcow2"]);
    for part in
        ["backing file base.qcow2 of dir/x.qcow2", looked_for, "starts at the directory of the new image"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// An overlay was created over `../base` and worked with qemu-img; the server that was to start it at night refused.
#[test]
fn create_warns_of_a_name_that_serving_will_refuse_and_of_no_other() {
    let bench = Bench::new();
    fs::create_dir(bench.path("dir")).unwrap();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "base.qcow2", "1M"]);
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "dir/near.qcow2", "1M"]);
    let ran = bench.cowhand(&["create", "-b", "../base.qcow2", "-F", "qcow2", "dir/x.qcow2"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let allow = format!("--allow-path {}", bench.path("").canonicalize().unwrap().display());
    for part in [
        "cowhand: warning:",
        "serve will refuse",
        "../base.qcow2",
        "outside the image's own directory",
        &allow,
    ] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    let text = refused(&bench, &["serve", "dir/x.qcow2"]);
    assert!(text.contains("outside the image's own directory"), "{text}");
    let quiet: [&[&str]; 3] = [
        &["create", "-b", "near.qcow2", "-F", "qcow2", "dir/y.qcow2"],
        &["create", "-u", "-b", "later.qcow2", "-F", "qcow2", "dir/y.qcow2", "1M"],
        &["create", "-o", "data_file=data.raw", "dir/z.qcow2", "1M"],
    ];
    for words in quiet {
        let ran = bench.cowhand(words);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{words:?}");
    }
}

#[test]
fn a_lock_that_stands_against_reading_names_the_option_that_reads_all_the_same() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "x.qcow2", "1M"]);
    let file = fs::File::open(bench.path("x.qcow2")).unwrap();
    let _writer = FileLock::acquire_role(&Arc::new(file.into()), Role::Writer).unwrap();
    let readers: [&[&str]; 5] = [
        &["info", "x.qcow2"],
        &["map", "x.qcow2"],
        &["check", "x.qcow2"],
        &["snapshot", "-l", "x.qcow2"],
        &["measure", "x.qcow2"],
    ];
    for words in readers {
        let text = refused(&bench, words);
        assert!(text.contains("hint: -U reads it all the same"), "{words:?}: {text}");
        let ran = bench.cowhand(&[words, &["-U"]].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
    }
    for words in [&["check", "-r", "all", "x.qcow2"][..], &["resize", "x.qcow2", "2M"]] {
        let text = refused(&bench, words);
        assert!(!text.contains("-U"), "nobody writes past a lock: {text}");
    }
}

#[test]
fn a_size_that_is_rounded_is_reported_as_it_was_made() {
    let bench = Bench::new();
    for (format, file) in [("qcow2", "x.qcow2"), ("raw", "x.raw")] {
        let ran = bench.cowhand(&["create", "-f", format, file, "1000"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.contains("1 KiB (1024 bytes, rounded up from 1000)"), "{}", ran.out);
        let info = bench.qemu("qemu-img", &["info", "-f", format, "--output=json", file]).json();
        assert_eq!(info["virtual-size"], 1024);
    }
    let ran = bench.cowhand(&["resize", "-f", "raw", "x.raw", "3000"]);
    assert_eq!(
        ran.out,
        "Image resized: the file has 3000 bytes, the disk 3072 (rounded up to whole sectors).\n"
    );
    let info = bench.qemu("qemu-img", &["info", "-f", "raw", "--output=json", "x.raw"]).json();
    assert_eq!(info["virtual-size"], 3072);
}
