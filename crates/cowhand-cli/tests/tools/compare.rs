//! `cowhand compare` beside `qemu-img compare`: the same lines and exit codes for the same words.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use storage::{FileLock, Role};

use crate::peer::{Bench, Ran};

/// Runs both with the same words, which must end alike.
fn both(bench: &Bench, words: &[&str]) -> (Ran, Ran) {
    let words = [&["compare"], words].concat();
    let theirs = bench.run(Path::new("qemu-img"), &words);
    let ours = bench.cowhand(&words);
    assert_eq!(ours.code, theirs.code, "{words:?}: {}{}{}{}", ours.out, ours.err, theirs.out, theirs.err);
    (ours, theirs)
}

fn agree(bench: &Bench, words: &[&str]) -> Ran {
    let (ours, theirs) = both(bench, words);
    assert_eq!(ours.out, theirs.out, "{words:?}: {}", ours.err);
    ours
}

fn create(bench: &Bench, words: &[&str]) {
    bench.qemu("qemu-img", &[&["create", "-q", "-f", "qcow2"], words].concat());
}

fn io(bench: &Bench, file: &str, commands: &[&str]) {
    let format = if file.ends_with("raw") { "raw" } else { "qcow2" };
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    bench.qemu("qemu-io", &[&["-f", format], &commands[..], &[file]].concat());
}

/// Images of the same content, stored in different ways, and some that differ from it.
fn images(bench: &Bench) -> Vec<&'static str> {
    bench.qemu("qemu-img", &["create", "-q", "-f", "raw", "plain.raw", "4M"]);
    let content = ["write -P 1 0 300k", "write -P 2 1M 1536k", "write -P 3 3800k 4k", "write -P 0 320k 100k"];
    io(bench, "plain.raw", &content);
    let convert = |words: &[&str]| bench.qemu("qemu-img", &[&["convert", "-f", "raw"], words].concat());
    convert(&["-O", "qcow2", "plain.raw", "same.qcow2"]);
    convert(&["-c", "-O", "qcow2", "plain.raw", "compressed.qcow2"]);
    convert(&["-S", "0", "-O", "qcow2", "-o", "cluster_size=4k", "plain.raw", "written.qcow2"]);
    create(bench, &["-o", "cluster_size=512,compat=0.10", "small.qcow2", "4M"]);
    io(bench, "small.qcow2", &content);
    create(bench, &["-o", "extended_l2=on", "half.qcow2", "4M"]);
    io(bench, "half.qcow2", &content[..2]);
    create(bench, &["-b", "half.qcow2", "-F", "qcow2", "top.qcow2", "4M"]);
    io(bench, "top.qcow2", &["write -P 3 3800k 4k", "write -z 640k 64k"]);
    create(bench, &["-b", "plain.raw", "-F", "raw", "sector.qcow2", "4M"]);
    io(bench, "sector.qcow2", &["write -P 9 2000384 512"]);
    create(bench, &["-b", "plain.raw", "-F", "raw", "hidden.qcow2", "4M"]);
    io(bench, "hidden.qcow2", &["write -z 1M 64k"]);
    create(bench, &["-b", "plain.raw", "-F", "raw", "long.qcow2", "6M"]);
    create(bench, &["-b", "long.qcow2", "-F", "qcow2", "longer.qcow2", "7M"]);
    io(bench, "longer.qcow2", &["write -P 0 5M 1M", "write -P 4 7000k 8k"]);
    let mut bytes = fs::read(bench.path("plain.raw")).unwrap();
    bytes.truncate(4_000_111);
    fs::write(bench.path("odd.raw"), &bytes).unwrap();
    bytes[4_000_110] = 1;
    fs::write(bench.path("odder.raw"), &bytes).unwrap();
    fs::write(bench.path("empty.raw"), []).unwrap();
    create(bench, &["zero.qcow2", "4M"]);
    vec![
        "plain.raw",
        "same.qcow2",
        "compressed.qcow2",
        "written.qcow2",
        "small.qcow2",
        "half.qcow2",
        "top.qcow2",
        "sector.qcow2",
        "hidden.qcow2",
        "long.qcow2",
        "longer.qcow2",
        "odd.raw",
        "odder.raw",
        "empty.raw",
        "zero.qcow2",
    ]
}

fn format(name: &str) -> &'static str {
    if name.ends_with("raw") { "raw" } else { "qcow2" }
}

#[test]
fn any_two_images_compare_as_qemu_img_compares_them() {
    let bench = Bench::new();
    let images = images(&bench);
    let mut results = std::collections::BTreeMap::new();
    for first in &images {
        for second in &images {
            let ran = agree(&bench, &["-f", format(first), "-F", format(second), first, second]);
            *results.entry((ran.code, ran.out.contains("Warning"))).or_insert(0) += 1;
        }
    }
    // Every kind of result was seen.
    assert_eq!(results.len(), 4, "{results:?}");
}

#[test]
fn strict_mode_finds_what_qemu_imgs_finds() {
    let bench = Bench::new();
    let images = images(&bench);
    for first in &images {
        for second in &images {
            both(&bench, &["-s", "-f", format(first), "-F", format(second), first, second]);
        }
    }
}

/// qemu-img also compares whether its own answers reach the end of the disk, which depends on fragments.
#[test]
fn in_strict_mode_it_does_not_matter_where_data_lies_in_the_file() {
    let bench = Bench::new();
    for (name, order) in [("a.qcow2", [0, 64, 128]), ("b.qcow2", [128, 64, 0])] {
        create(&bench, &[name, "192k"]);
        let writes = order.map(|at| format!("write {at}k 64k"));
        io(&bench, name, &writes.each_ref().map(String::as_str));
    }
    let ran = bench.cowhand(&["compare", "-s", "a.qcow2", "b.qcow2"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "Images are identical.\n"));
    create(&bench, &["c.qcow2", "192k"]);
    io(&bench, "c.qcow2", &["write 0 128k", "write -z 128k 64k"]);
    let ran = bench.cowhand(&["compare", "-s", "a.qcow2", "c.qcow2"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, "Strict mode: Offset 131072 block status mismatch!\n"));
}

#[test]
fn progress_is_for_terminals_and_for_those_who_ask() {
    let bench = Bench::new();
    create(&bench, &["x.qcow2", "20M"]);
    io(&bench, "x.qcow2", &["write 0 20M"]);
    let ran = bench.cowhand(&["compare", "-p", "x.qcow2", "x.qcow2"]);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("Images are identical.\n", ""));
    for (option, is_shown) in [("-p", true), ("-q", false)] {
        let line = format!("{} compare {option} x.qcow2 x.qcow2", env!("CARGO_BIN_EXE_cowhand"));
        let ran = bench.qemu("script", &["-qec", &line, "/dev/null"]);
        assert_eq!(ran.out.contains(" %  ") && ran.out.contains("/s"), is_shown, "{:?}", ran.out);
    }
}

#[test]
fn every_cache_mode_and_way_to_name_an_image_compares_alike() {
    let bench = Bench::new();
    images(&bench);
    for mode in ["writeback", "writethrough", "none", "directsync", "unsafe"] {
        agree(&bench, &["-T", mode, "same.qcow2", "top.qcow2"]);
        agree(&bench, &["-T", mode, "same.qcow2", "sector.qcow2"]);
    }
    let name = |file| format!("driver=qcow2,file.filename={file}");
    agree(&bench, &["--image-opts", &name("same.qcow2"), &name("sector.qcow2")]);
    agree(&bench, &["-U", "same.qcow2", "same.qcow2"]);
    let quiet = agree(&bench, &["-q", "same.qcow2", "sector.qcow2"]);
    assert_eq!((quiet.code, quiet.out.as_str(), quiet.err.as_str()), (1, "", ""));
}

#[test]
fn programs_learn_what_differs_where_and_both_sizes() {
    let bench = Bench::new();
    images(&bench);
    let table = [
        (&["same.qcow2", "top.qcow2"][..], r#"{"identical":true,"sizes":[4194304,4194304]}"#),
        (
            &["same.qcow2", "sector.qcow2"],
            r#"{"identical":false,"difference":"content","offset":2000384,"sizes":[4194304,4194304]}"#,
        ),
        (&["same.qcow2", "long.qcow2"], r#"{"identical":true,"sizes":[4194304,6291456]}"#),
        (
            &["-s", "same.qcow2", "long.qcow2"],
            r#"{"identical":false,"difference":"size","sizes":[4194304,6291456]}"#,
        ),
        (
            &["-s", "compressed.qcow2", "same.qcow2"],
            r#"{"identical":false,"difference":"allocation","offset":0,"sizes":[4194304,4194304]}"#,
        ),
    ];
    for (words, expected) in table {
        let ran = bench.cowhand(&[&["compare", "--output=json"], words].concat());
        let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
        assert_eq!(ran.json(), expected, "{words:?}");
        assert_eq!(ran.code, if expected["identical"] == true { 0 } else { 1 });
    }
}

/// A script took the exit code of a typing error for "the backup differs".
#[test]
fn an_error_never_looks_like_a_verdict() {
    let bench = Bench::new();
    images(&bench);
    let table: [(&[&str], &str); 7] = [
        (&["missing.qcow2", "same.qcow2"], "cannot compare missing.qcow2\n  because: No such file"),
        (&["same.qcow2", "missing.qcow2"], "cannot compare missing.qcow2"),
        (&["-f", "qcow2", "plain.raw", "same.qcow2"], "plain.raw"),
        (&["-T", "bad", "same.qcow2", "same.qcow2"], "writeback"),
        (&["-f", "qed", "same.qcow2", "same.qcow2"], "qcow2, raw"),
        (&["same.qcow2"], "DRIVE2"),
        (&["--nonsense", "same.qcow2", "same.qcow2"], "--nonsense"),
    ];
    for (words, text) in table {
        let ran = bench.cowhand(&[&["compare"], words].concat());
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(text) && ran.out.is_empty(), "{words:?}: {}", ran.err);
    }
    assert_eq!(bench.cowhand(&["compare", "--help"]).code, 0);
}

#[test]
fn an_image_in_use_is_not_compared_unless_that_is_meant() {
    let bench = Bench::new();
    create(&bench, &["x.qcow2", "1M"]);
    create(&bench, &["y.qcow2", "1M"]);
    let file = fs::File::open(bench.path("y.qcow2")).unwrap();
    let _writer = FileLock::acquire_role(&Arc::new(file.into()), Role::Writer).unwrap();
    for words in [["x.qcow2", "y.qcow2"], ["y.qcow2", "x.qcow2"]] {
        let (ours, _) = both(&bench, &words);
        assert_eq!(ours.code, 2);
        assert!(ours.err.contains("hint: -U reads it all the same"), "{}", ours.err);
        let shared = agree(&bench, &[&["-U"], &words[..]].concat());
        assert_eq!(shared.code, 0);
    }
}

/// Writes a word of an image's file.
fn poke(bench: &Bench, file: &str, offset: u64, word: u64) {
    let file = fs::File::options().write(true).open(bench.path(file)).unwrap();
    file.write_all_at(&word.to_be_bytes(), offset).unwrap();
}

/// The L2 table of a fresh image of default clusters with 1 MiB written.
const L2_TABLE: u64 = 4 << 16;

#[test]
fn a_map_that_is_wrong_and_data_that_is_damaged_have_their_own_exit_codes() {
    let bench = Bench::new();
    for name in ["good.qcow2", "map.qcow2"] {
        create(&bench, &[name, "1M"]);
        io(&bench, name, &["write -P 7 0 1M"]);
    }
    // A reserved place in the middle of a cluster.
    poke(&bench, "map.qcow2", L2_TABLE, 1 << 63 | 0x50200);
    let (ours, _) = both(&bench, &["good.qcow2", "map.qcow2"]);
    assert_eq!(ours.code, 3);
    assert!(ours.err.starts_with("cowhand: cannot read the map of map.qcow2 at offset 0"), "{}", ours.err);

    bench.qemu("qemu-img", &["convert", "-c", "-O", "qcow2", "good.qcow2", "data.qcow2"]);
    let bytes = fs::read(bench.path("data.qcow2")).unwrap();
    let l1 = u64::from_be_bytes(bytes[40..48].try_into().unwrap());
    let word = |at: u64| u64::from_be_bytes(bytes[at as usize..][..8].try_into().unwrap());
    let entry = word(word(l1) & 0x00ff_ffff_ffff_fe00);
    poke(&bench, "data.qcow2", entry & 0x003f_ffff_ffff_ffff, u64::MAX);
    let (ours, _) = both(&bench, &["data.qcow2", "good.qcow2"]);
    assert_eq!(ours.code, 4);
    assert!(ours.err.starts_with("cowhand: cannot read data.qcow2 at offset 0"), "{}", ours.err);

    // A difference before the damage is reported, however far ahead the map was read.
    for (name, pattern) in [("late.qcow2", 7), ("early.qcow2", 8)] {
        create(&bench, &[name, "4M"]);
        let second = format!("write -P {pattern} 64k 960k");
        io(&bench, name, &["write -P 7 0 64k", &second, "write 3M 64k"]);
    }
    poke(&bench, "late.qcow2", L2_TABLE + 48 * 8, 1 << 63 | 0x50200);
    let ran = agree(&bench, &["early.qcow2", "late.qcow2"]);
    assert_eq!((ran.code, ran.out.as_str()), (1, "Content mismatch at offset 65536!\n"));
}

#[test]
fn the_first_difference_is_reported_of_many_that_are_read_at_the_same_time() {
    let bench = Bench::new();
    create(&bench, &["-o", "cluster_size=4k", "a.qcow2", "40M"]);
    io(&bench, "a.qcow2", &["write -P 1 0 40M"]);
    fs::copy(bench.path("a.qcow2"), bench.path("b.qcow2")).unwrap();
    for offset in ["39M", "20000k", "17M", "9000k", "1048064", "512"] {
        io(&bench, "b.qcow2", &[&format!("write -P 2 {offset} 512")]);
        let ran = agree(&bench, &["a.qcow2", "b.qcow2"]);
        assert_eq!(ran.code, 1);
    }
    // Every second sector in a map of its own: data of one lies beside holes of the other.
    create(&bench, &["-o", "cluster_size=512", "c.qcow2", "1M"]);
    let writes: Vec<String> = (0..200).map(|n| format!("write -P {} {} 512", n + 1, n * 1024)).collect();
    io(&bench, "c.qcow2", &writes.iter().map(String::as_str).collect::<Vec<_>>());
    bench.qemu("qemu-img", &["convert", "-O", "raw", "c.qcow2", "c.raw"]);
    agree(&bench, &["-F", "raw", "c.qcow2", "c.raw"]);
    io(&bench, "c.raw", &["write -P 9 150k 512"]);
    agree(&bench, &["-F", "raw", "c.qcow2", "c.raw"]);
}

#[test]
fn vast_disks_without_data_are_compared_by_their_maps_alone() {
    let bench = Bench::new();
    create(&bench, &["a.qcow2", "64T"]);
    create(&bench, &["-o", "cluster_size=2M", "b.qcow2", "65T"]);
    let begun = std::time::Instant::now();
    let ran = agree(&bench, &["a.qcow2", "b.qcow2"]);
    assert_eq!(ran.code, 0);
    assert!(begun.elapsed() < std::time::Duration::from_secs(60));
}
