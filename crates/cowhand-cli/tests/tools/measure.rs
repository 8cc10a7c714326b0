//! `cowhand measure` beside `qemu-img measure`: the same numbers for the same words.

use std::fs;
use std::path::Path;

use crate::peer::{Bench, Ran};

/// Runs both with the same words, which must end alike; what ours said.
fn both(bench: &Bench, words: &[&str]) -> (Ran, Ran) {
    let words = [&["measure"], words].concat();
    let theirs = bench.run(Path::new("qemu-img"), &words);
    let ours = bench.cowhand(&words);
    assert_eq!(ours.code, theirs.code, "{words:?}: {}{}", ours.err, theirs.err);
    (ours, theirs)
}

fn agree(bench: &Bench, words: &[&str]) {
    let (ours, theirs) = both(bench, &[words, &["--output=json"]].concat());
    match theirs.code {
        0 => assert_eq!(ours.json(), theirs.json(), "{words:?}"),
        _ => assert!(ours.out.is_empty() && ours.err.starts_with("cowhand: "), "{}", ours.err),
    }
}

#[test]
fn an_empty_image_of_every_geometry_and_size_measures_as_qemu_img_measures_it() {
    let bench = Bench::new();
    let mut lines = 0;
    for cluster_size in ["512", "4k", "64k", "2M"] {
        for refcount_bits in ["1", "8", "16", "64"] {
            for size in ["0", "1", "512", "1M", "1234567", "128G", "1T", "64T"] {
                let preallocation = ["off", "metadata", "falloc", "full"][lines % 4];
                // The refcount table of such a full disk would be too large: create refuses it, and measure too.
                let wide = ["16", "64"].contains(&refcount_bits);
                let fits = !(cluster_size == "512" && wide && size == "128G");
                let preallocation = if fits { preallocation } else { "off" };
                let options = format!(
                    "cluster_size={cluster_size},refcount_bits={refcount_bits},preallocation={preallocation}"
                );
                agree(&bench, &["-O", "qcow2", "-o", &options, "--size", size]);
                lines += 1;
            }
            // Each mode meets each size.
            lines += 1;
        }
    }
    assert!(lines > 120);
}

#[test]
fn every_other_option_measures_as_in_qemu_img() {
    let bench = Bench::new();
    let options = [
        "compat=0.10",
        "compat=1.1,lazy_refcounts=on",
        "extended_l2=on",
        "extended_l2=on,cluster_size=16k",
        "extended_l2=on,cluster_size=2M,preallocation=full",
        "compression_type=zstd",
        "data_file=x",
        "data_file=x,data_file_raw=on",
        "backing_file=x,backing_fmt=raw",
    ];
    for options in options {
        for size in ["0", "1M", "40000000", "64T"] {
            agree(&bench, &["-O", "qcow2", "-o", options, "--size", size]);
        }
    }
    for words in [&[][..], &["-o", "preallocation=full"], &["-U"]] {
        agree(&bench, &[words, &["-O", "raw", "--size", "1234567"]].concat());
    }
    agree(&bench, &["--size", "0"]);
}

/// Images with all that a map can say, by name and format.
fn images(bench: &Bench) -> Vec<(&'static str, &'static str)> {
    let create = |words: &[&str]| bench.qemu("qemu-img", &[&["create", "-q", "-f", "qcow2"], words].concat());
    let io = |format: &str, file: &str, commands: &[&str]| {
        let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
        bench.qemu("qemu-io", &[&["-f", format], &commands[..], &[file]].concat());
    };
    bench.qemu("qemu-img", &["create", "-q", "-f", "raw", "sparse.raw", "9M"]);
    io("raw", "sparse.raw", &["write 0 4k", "write 100k 300k", "write 5M 8k", "write 5130k 4k"]);
    fs::write(bench.path("odd.raw"), vec![7; 1_234_567]).unwrap();
    fs::write(bench.path("empty.raw"), []).unwrap();
    create(&["zeroes.qcow2", "5M"]);
    io("qcow2", "zeroes.qcow2", &["write 1k 300k", "write -z 128k 64k", "write -z 2M 1M", "write 4M 512"]);
    create(&["-o", "compat=0.10,cluster_size=512", "old.qcow2", "5M"]);
    io("qcow2", "old.qcow2", &["write 1k 3k", "write 1M 200k"]);
    create(&["-b", "sparse.raw", "-F", "raw", "top.qcow2", "12M"]);
    io("qcow2", "top.qcow2", &["write -z 128k 64k", "write 4M 64k", "write 11M 1k"]);
    create(&["-o", "extended_l2=on", "-b", "zeroes.qcow2", "-F", "qcow2", "sub.qcow2", "3M"]);
    io("qcow2", "sub.qcow2", &["write 1M 2k", "write -z 10k 6k", "write 2500k 30k"]);
    bench.qemu("qemu-img", &["convert", "-c", "-O", "qcow2", "top.qcow2", "compressed.qcow2"]);
    create(&["bitmaps.qcow2", "1G"]);
    for (name, granularity) in [("a", "512"), ("a longer name of it", "64k"), ("c", "2M")] {
        bench.qemu("qemu-img", &["bitmap", "--add", "-g", granularity, "bitmaps.qcow2", name]);
    }
    bench.qemu("qemu-img", &["bitmap", "--disable", "bitmaps.qcow2", "c"]);
    create(&["-o", "data_file=data.raw", "outside.qcow2", "3M"]);
    io("qcow2", "outside.qcow2", &["write 1M 200k", "write -z 2M 64k"]);
    let mut all = vec![("sparse.raw", "raw"), ("odd.raw", "raw"), ("empty.raw", "raw")];
    let names = [
        "zeroes.qcow2",
        "old.qcow2",
        "top.qcow2",
        "sub.qcow2",
        "compressed.qcow2",
        "bitmaps.qcow2",
        "outside.qcow2",
    ];
    all.extend(names.map(|name| (name, "qcow2")));
    all
}

#[test]
fn a_copy_of_every_kind_of_image_measures_as_qemu_img_measures_it() {
    let bench = Bench::new();
    let targets = [
        "cluster_size=64k",
        "cluster_size=512",
        "cluster_size=4k,refcount_bits=1",
        "cluster_size=2M,refcount_bits=64",
        "extended_l2=on,cluster_size=16k",
        "compat=0.10",
        "preallocation=metadata",
        "preallocation=falloc",
        "preallocation=full,cluster_size=512",
        "backing_file=x,backing_fmt=qcow2",
    ];
    for (file, format) in images(&bench) {
        for options in targets {
            agree(&bench, &["-O", "qcow2", "-o", options, "-f", format, file]);
        }
        agree(&bench, &["-O", "raw", "-f", format, file]);
        agree(&bench, &["-f", format, "-U", file]);
    }
    agree(&bench, &["-O", "qcow2", "--image-opts", "driver=qcow2,file.filename=top.qcow2"]);
}

#[test]
fn a_sparse_file_measures_as_in_qemu_img_wherever_it_lies() {
    let bench = Bench::new();
    // Memory, and what the tests' own directory is on.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let beside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for directory in [elsewhere.path(), beside.path()] {
        let path = directory.join("x.raw");
        fs::write(&path, vec![5; 100_000]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(3 << 40).unwrap();
        for options in ["cluster_size=4k", "cluster_size=64k"] {
            agree(&bench, &["-O", "qcow2", "-o", options, "-f", "raw", path.to_str().unwrap()]);
        }
    }
}

/// `measure` does not look for holes inside an image file: what its tables call data is counted.
#[test]
fn an_image_with_preallocated_tables_measures_as_full() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "preallocation=metadata", "x.qcow2", "9M"]);
    let (ours, theirs) = both(&bench, &["-O", "qcow2", "--output=json", "x.qcow2"]);
    let (ours, theirs) = (ours.json(), theirs.json());
    assert_eq!(ours["required"], ours["fully-allocated"]);
    assert_eq!(ours["fully-allocated"], theirs["fully-allocated"]);
    assert!(ours["required"].as_u64() > theirs["required"].as_u64(), "it would be enough all the same");
}

#[test]
fn people_read_the_lines_that_qemu_img_prints() {
    let bench = Bench::new();
    images(&bench);
    let words: [&[&str]; 5] = [
        &["--size", "1G"],
        &["--size", "1G", "-O", "qcow2"],
        &["-O", "qcow2", "bitmaps.qcow2"],
        &["-O", "qcow2", "old.qcow2"],
        &["-O", "raw", "top.qcow2"],
    ];
    for words in words {
        let (ours, theirs) = both(&bench, words);
        assert_eq!((ours.out, ours.err), (theirs.out, theirs.err), "{words:?}");
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "x.qcow2", "1M"]);
    let table: [(&[&str], &str); 14] = [
        (&[], "neither --size nor DRIVE"),
        (&["--size", "1M", "x.qcow2"], "give one of them"),
        (&["--size", "1M", "-f", "qcow2"], "-f is about DRIVE"),
        (&["--size", "1M", "-l", "s"], "-l is about DRIVE"),
        (&["-l", "s", "x.qcow2"], "cannot read a snapshot"),
        (&["-O", "qcow2", "-o", "size=1M"], "--size measures"),
        (&["-O", "qcow2", "--size", "7E"], "the L1 table"),
        (&["-O", "raw", "--size", "9E"], "below 2^63"),
        (&["-O", "qcow2", "-o", "cluster_size=3k", "--size", "1M"], "a power of two"),
        (&["-O", "qcow2", "-o", "compat=0.10,refcount_bits=1", "--size", "1M"], "compat=1.1"),
        (&["-O", "qcow2", "-o", "extended_l2=on,cluster_size=8k", "x.qcow2"], "16384"),
        (&["-O", "raw", "-o", "cluster_size=4k", "--size", "1M"], "not for raw"),
        (&["-O", "vmdk", "--size", "1M"], "is known when it is made"),
        (&["missing.qcow2"], "cannot measure missing.qcow2\n  because: No such file"),
    ];
    for (words, text) in table {
        let (ours, _) = both(&bench, words);
        assert_eq!(ours.code, 1);
        assert!(ours.err.contains(text) && ours.out.is_empty(), "{words:?}: {}", ours.err);
    }
    // qemu-img measures what it will not create.
    for options in ["compat=0.10,extended_l2=on", "preallocation=full,backing_file=x", "data_file_raw=on"] {
        let ran = bench.cowhand(&["measure", "-O", "qcow2", "-o", options, "--size", "1M"]);
        assert_eq!(ran.code, 1, "{options}");
    }
    let help = bench.cowhand(&["measure", "-O", "qcow2", "-o", "help"]);
    assert!(help.code == 0 && help.out.contains("cluster_size=SIZE"), "{}", help.out);
}

#[test]
fn a_new_image_takes_what_was_measured() {
    let bench = Bench::new();
    for options in ["cluster_size=4k,refcount_bits=64", "extended_l2=on", "cluster_size=2M"] {
        let options = format!("{options},preallocation=falloc");
        let words = ["measure", "-O", "qcow2", "-o", &options, "--size", "9M", "--output=json"];
        let measured = bench.cowhand(&words).json();
        assert_eq!(bench.cowhand(&["create", "-o", &options, "x.qcow2", "9M"]).code, 0);
        let made = fs::metadata(bench.path("x.qcow2")).unwrap().len();
        assert_eq!(measured["required"], made);
        assert_eq!(measured["fully-allocated"], made);
    }
}

/// A disk larger than any file: only the map is asked, in bounded time.
#[test]
fn a_disk_that_is_vast_and_empty_is_measured_at_once() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "vast.qcow2", "64T"]);
    let begun = std::time::Instant::now();
    agree(&bench, &["-O", "qcow2", "-o", "cluster_size=2M", "vast.qcow2"]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(60));
}

/// A volume of the size that `measure` says had room for the disk and not for its bitmaps: each bitmap wrote
/// a new directory beside the old one, and a record of changes that no reader needed. QEMU's figure is
/// enough, so the copy may not need more for a moment either.
#[test]
fn a_copy_with_bitmaps_fits_into_what_measure_says() {
    for cluster_size in ["64k", "4k"] {
        let bench = Bench::new();
        let option = format!("cluster_size={cluster_size}");
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &option, "disk.qcow2", "256M"]);
        let names: Vec<String> = (0..11).map(|number| format!("b{number}")).collect();
        for name in &names {
            bench.qemu("qemu-img", &["bitmap", "--add", "-g", "64k", "disk.qcow2", name]);
        }
        bench.qemu("qemu-img", &["bitmap", "--disable", "disk.qcow2", "b3"]);
        bench.qemu(
            "qemu-io",
            &["-f", "qcow2", "-c", "write -P 1 0 8M", "-c", "write -P 1 250M 3M", "disk.qcow2"],
        );
        let words = ["-O", "qcow2", "-o", &option, "disk.qcow2"];
        let (ours, theirs) = both(&bench, &[&words[..], &["--output=json"]].concat());
        assert_eq!(ours.json(), theirs.json());
        // Scripts compare texts.
        let order = |text: &str| ["required", "fully-allocated", "bitmaps"].map(|name| text.find(name));
        let places = [order(&ours.out), order(&theirs.out)].map(|mut places| {
            let before = places;
            places.sort_unstable();
            before.map(|place| places.iter().position(|sorted| *sorted == place))
        });
        assert_eq!(places[0], places[1], "{}{}", ours.out, theirs.out);
        let bytes = |field: &str| ours.json()[field].as_u64().unwrap();
        let limit = format!("--fsize={}", bytes("required") + bytes("bitmaps"));
        let cowhand = env!("CARGO_BIN_EXE_cowhand");
        // Beyond the limit a write fails, as behind the end of a device.
        let limited = ["--ignore-signal=XFSZ", "prlimit", &limit, cowhand, "convert", "--bitmaps"];
        let copied = bench.run(Path::new("env"), &[&limited[..], &words, &["copy.qcow2"]].concat());
        assert_eq!(copied.code, 0, "{cluster_size}: {}", copied.err);
        bench.qemu("qemu-img", &["check", "-q", "copy.qcow2"]);
        bench.qemu("qemu-img", &["compare", "-q", "disk.qcow2", "copy.qcow2"]);
        let bitmaps = |name: &str| {
            let info = bench.qemu("qemu-img", &["info", "--output=json", name]).json();
            info["format-specific"]["data"]["bitmaps"].clone()
        };
        assert_eq!(bitmaps("copy.qcow2"), bitmaps("disk.qcow2"));
        // Bitmaps that record changes do so in the copy.
        bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -P 2 100M 64k", "copy.qcow2"]);
        let ran = bench.cowhand(&["io", "-c", "write -P 3 120M 64k", "copy.qcow2"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        bench.qemu("qemu-img", &["check", "-q", "copy.qcow2"]);
    }
}
