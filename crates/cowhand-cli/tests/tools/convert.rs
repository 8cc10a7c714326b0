//! `cowhand convert` beside `qemu-img convert`: each reads what the other wrote, and checks it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::peer::{Bench, Ran};

fn io(bench: &Bench, format: &str, file: &str, commands: &[&str]) {
    let commands: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
    bench.qemu("qemu-io", &[&["-f", format], &commands[..], &[file]].concat());
}

/// A raw disk with data, zeroes that were written, and holes.
fn source(bench: &Bench) -> &'static str {
    bench.qemu("qemu-img", &["create", "-q", "-f", "raw", "plain.raw", "9M"]);
    let content = [
        "write -P 1 0 300k",
        "write -P 2 1M 1536k",
        "write -P 3 3800k 4k",
        "write -P 0 320k 100k",
        "write -P 7 9436160 512",
    ];
    io(bench, "raw", "plain.raw", &content);
    // Text, so that it can be compressed, and noise, so that it cannot.
    let file = fs::File::options().write(true).open(bench.path("plain.raw")).unwrap();
    let text: String = (0..40_000).map(|line| format!("line {line} of a log\n")).collect();
    file.write_all_at(text.as_bytes(), 4 << 20).unwrap();
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(500_000)
    .collect();
    file.write_all_at(&noise, (7 << 20) + 12_345).unwrap();
    "plain.raw"
}

fn convert(bench: &Bench, words: &[&str]) -> Ran {
    let ran = bench.cowhand(&[&["convert"], words].concat());
    assert_eq!((ran.code, &*ran.out), (0, ""), "{words:?}: {}", ran.err);
    ran
}

/// Both hold the same, and the image is as QEMU wants it.
fn same(bench: &Bench, source: &str, target: &str) {
    bench.qemu("qemu-img", &["compare", "-q", source, target]);
    if target.ends_with("qcow2") {
        bench.qemu("qemu-img", &["check", "-q", target]);
    }
}

/// A compressed cluster of a layer below is not what the disk has there, if a layer above has a part of it, or the layer ends inside.
#[test]
fn a_compressed_cluster_of_which_a_part_is_hidden_is_made_anew() {
    for (above, commands) in [
        ("cluster_size=512", "write -P 5 120k 3584"),
        ("cluster_size=4k", "write -z 96k 4k"),
        ("cluster_size=64k,extended_l2=on", "write -P 5 126k 2k"),
        ("cluster_size=2M", "write -P 5 8k 1k"),
    ] {
        let bench = Bench::new();
        bench.qemu(
            "qemu-img",
            &["create", "-q", "-f", "qcow2", "-o", "cluster_size=64k", "base.qcow2", "224k"],
        );
        io(&bench, "qcow2", "base.qcow2", &["write -c -P 3 64k 64k", "write -c -P 4 128k 64k"]);
        let over = [
            "create",
            "-q",
            "-f",
            "qcow2",
            "-b",
            "base.qcow2",
            "-F",
            "qcow2",
            "-o",
            above,
            "top.qcow2",
            "256k",
        ];
        bench.qemu("qemu-img", &over);
        io(&bench, "qcow2", "top.qcow2", &[commands]);
        for more in [&["-B", "base.qcow2", "-F", "qcow2"][..], &[]] {
            convert(
                &bench,
                &[more, &["-c", "-f", "qcow2", "-O", "qcow2", "top.qcow2", "new.qcow2"]].concat(),
            );
            same(&bench, "top.qcow2", "new.qcow2");
        }
        fs::copy(bench.path("top.qcow2"), bench.path("flat.qcow2")).unwrap();
        assert_eq!(bench.cowhand(&["flatten", "-q", "-c", "flat.qcow2"]).code, 0);
        same(&bench, "top.qcow2", "flat.qcow2");
    }
}

const SHAPES: [&str; 8] = [
    "cluster_size=64k",
    "cluster_size=512",
    "cluster_size=4k,refcount_bits=1",
    "cluster_size=2M",
    "compat=0.10",
    "extended_l2=on",
    "cluster_size=16k,extended_l2=on,lazy_refcounts=on",
    "compression_type=zstd,refcount_bits=64",
];

#[test]
fn every_shape_of_image_holds_what_was_copied_both_ways() {
    let bench = Bench::new();
    let source = source(&bench);
    for shape in SHAPES {
        for how in [&[][..], &["-c"], &["-W", "-m", "3"], &["-S", "64k"], &["--memory-limit", "4M"]] {
            convert(&bench, &[how, &["-O", "qcow2", "-o", shape, source, "ours.qcow2"]].concat());
            same(&bench, source, "ours.qcow2");
        }
        // What ours is, plain and compressed, is read by theirs and by ours; theirs by ours.
        convert(&bench, &["-c", "-O", "qcow2", "-o", shape, "ours.qcow2", "again.qcow2"]);
        convert(&bench, &["again.qcow2", "again.raw"]);
        assert_eq!(
            fs::read(bench.path("again.raw")).unwrap(),
            fs::read(bench.path(source)).unwrap(),
            "{shape}"
        );
        bench.qemu("qemu-img", &["convert", "-c", "-O", "qcow2", "-o", shape, source, "theirs.qcow2"]);
        convert(&bench, &["-O", "qcow2", "theirs.qcow2", "ours.qcow2"]);
        same(&bench, source, "ours.qcow2");
    }
}

/// A compressed image that is a few percent larger than QEMU's fills a store of images sooner.
#[test]
fn compressed_images_are_as_small_as_theirs() {
    let bench = Bench::new();
    let source = source(&bench);
    for shape in ["cluster_size=64k", "compression_type=zstd", "cluster_size=4k"] {
        convert(&bench, &["-c", "-O", "qcow2", "-o", shape, source, "ours.qcow2"]);
        bench.qemu("qemu-img", &["convert", "-c", "-W", "-O", "qcow2", "-o", shape, source, "theirs.qcow2"]);
        let clusters = |name: &str| {
            let check = bench.qemu("qemu-img", &["check", "--output", "json", name]).json();
            (check["compressed-clusters"].as_u64().unwrap(), check["image-end-offset"].as_u64().unwrap())
        };
        let (ours, theirs) = (clusters("ours.qcow2"), clusters("theirs.qcow2"));
        assert!(ours.0 > 0 && ours.0 == theirs.0, "{shape}: {ours:?}, {theirs:?}");
        // One cluster and one percent apart at most.
        let room = theirs.1 / 100 + (64 << 10);
        assert!(ours.1.abs_diff(theirs.1) <= room, "{shape}: {ours:?}, {theirs:?}");
    }
}

#[test]
fn a_hole_stays_a_hole_and_s_0_writes_all_of_them() {
    let bench = Bench::new();
    let source = source(&bench);
    let space =
        |name: &str| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(bench.path(name)).unwrap()) * 512;
    convert(&bench, &[source, "sparse.raw"]);
    convert(&bench, &["-S", "0", source, "dense.raw"]);
    assert!(space("sparse.raw") < 6 << 20 && space("dense.raw") >= 9 << 20);
    same(&bench, source, "sparse.raw");
    same(&bench, source, "dense.raw");
}

#[test]
fn several_disks_become_one() {
    let bench = Bench::new();
    let source = source(&bench);
    convert(&bench, &["-O", "qcow2", source, "one.qcow2"]);
    convert(&bench, &["-c", "-O", "qcow2", "--verify", "one.qcow2", source, "two.qcow2"]);
    bench.qemu("qemu-img", &["convert", "-O", "raw", "one.qcow2", source, "theirs.raw"]);
    same(&bench, "theirs.raw", "two.qcow2");
}

/// Copied whole, an overlay would be as large as the disk.
#[test]
fn over_a_backing_file_only_what_lies_above_is_copied() {
    let bench = Bench::new();
    let base = source(&bench);
    for shape in ["cluster_size=64k", "extended_l2=on", "cluster_size=2M"] {
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", "top.qcow2", "11M"]);
        io(&bench, "qcow2", "top.qcow2", &["write -P 9 1M 70k", "write -z 4M 64k", "write -P 8 10M 5k"]);
        for how in [&[][..], &["-c"]] {
            let words =
                [how, &["-O", "qcow2", "-B", base, "-F", "raw", "-o", shape, "top.qcow2", "copy.qcow2"]];
            convert(&bench, &words.concat());
            same(&bench, "top.qcow2", "copy.qcow2");
            let check = bench.qemu("qemu-img", &["check", "--output", "json", "copy.qcow2"]).json();
            assert!(check["allocated-clusters"].as_u64().unwrap() <= 5, "{shape}: {check}");
        }
    }
}

/// The old content of a device must not show where the source has zeroes.
#[test]
fn a_target_that_is_there_is_overwritten_and_proved_zero() {
    let bench = Bench::new();
    let source = source(&bench);
    fs::write(bench.path("used.raw"), vec![0xff; 10 << 20]).unwrap();
    convert(&bench, &["-n", "--verify", source, "used.raw"]);
    let used = fs::read(bench.path("used.raw")).unwrap();
    assert_eq!(used[..9 << 20], fs::read(bench.path(source)).unwrap());
    assert!(used[9 << 20..].iter().all(|byte| *byte == 0xff), "what lies behind is nobody's");
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "used.qcow2", "9M"]);
    io(&bench, "qcow2", "used.qcow2", &["write -P 5 0 9M"]);
    convert(&bench, &["-n", "-O", "qcow2", source, "used.qcow2"]);
    same(&bench, source, "used.qcow2");
    let small = bench.cowhand(&["convert", "-n", source, "used.raw", "used.raw"]);
    assert_eq!(small.code, 1, "{}", small.err);
}

/// An interrupted copy, or one that met a full disk, must not leave something that looks like the image.
#[test]
fn what_fails_leaves_what_was_there_before() {
    let bench = Bench::new();
    let source = source(&bench);
    fs::write(bench.path("old.qcow2"), b"old").unwrap();
    let failing: [&[&str]; 4] = [
        &["-O", "qcow2", "-o", "cluster_size=3", source, "old.qcow2"],
        &["-O", "qcow2", "-o", "size=1M", source, "old.qcow2"],
        &["-O", "qcow2", "missing.raw", "old.qcow2"],
        &["-O", "qcow2", "-B", "missing", source, "old.qcow2"],
    ];
    for words in failing {
        let ran = bench.cowhand(&[&["convert"], words].concat());
        assert_eq!(ran.code, 1, "{words:?}");
        assert_eq!(fs::read(bench.path("old.qcow2")).unwrap(), b"old", "{words:?}");
    }
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(bench.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["old.qcow2", "plain.raw"]);
    for signal in ["INT", "TERM", "KILL"] {
        let mut running = Command::new(env!("CARGO_BIN_EXE_cowhand"))
            .args(["convert", "-r", "100k", source, "new.raw"])
            .current_dir(bench.path(""))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while names().len() < 3 {
            sleep(Duration::from_millis(5));
        }
        sleep(Duration::from_millis(100));
        let id = running.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &*id]).status().unwrap().success());
        assert!(!running.wait().unwrap().success(), "{signal}");
        assert!(!bench.path("new.raw").exists(), "{signal}");
        let left = names().len() - 2;
        assert_eq!(left, usize::from(signal == "KILL"), "{signal}: {:?}", names());
    }
}

/// A full disk is not always full at once: the file cannot grow beyond a limit that is met in the middle.
#[test]
fn a_full_disk_in_the_middle_leaves_the_old_image_and_nothing_else() {
    let bench = Bench::new();
    let source = source(&bench);
    fs::write(bench.path("old.qcow2"), b"old").unwrap();
    for how in [&["-O", "qcow2"][..], &["-O", "qcow2", "-c", "-o", "cluster_size=4k"], &["-O", "raw"]] {
        let script = "ulimit -f 800; exec \"$0\" convert \"$@\"";
        let words = [&["-c", script, env!("CARGO_BIN_EXE_cowhand")], how, &[source, "old.qcow2"]].concat();
        let ran = bench.run(std::path::Path::new("sh"), &words);
        assert!(ran.code == 1 && ran.err.contains("arge"), "{how:?}: {} {}", ran.code, ran.err);
        assert_eq!(fs::read(bench.path("old.qcow2")).unwrap(), b"old", "{how:?}");
        assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 2, "{how:?}");
    }
}

#[test]
fn a_file_that_is_replaced_keeps_its_rights_and_its_other_name() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let bench = Bench::new();
    let source = source(&bench);
    fs::write(bench.path("there.raw"), b"old").unwrap();
    fs::set_permissions(bench.path("there.raw"), fs::Permissions::from_mode(0o600)).unwrap();
    symlink("there.raw", bench.path("link.raw")).unwrap();
    convert(&bench, &[source, "link.raw"]);
    assert!(bench.path("link.raw").symlink_metadata().unwrap().is_symlink());
    let mode = fs::metadata(bench.path("there.raw")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    same(&bench, source, "there.raw");
}

/// Data that the kernel copies, where it can, is the same data; and zeroes that were written stay data.
#[test]
fn data_goes_from_file_to_file_without_being_read() {
    let bench = Bench::new();
    let source = source(&bench);
    convert(&bench, &["-O", "qcow2", "-S", "0", source, "dense.qcow2"]);
    for shape in SHAPES {
        convert(&bench, &["-C", "-O", "qcow2", "-o", shape, source, "ours.qcow2"]);
        same(&bench, source, "ours.qcow2");
        convert(&bench, &["-C", "-O", "qcow2", "-o", shape, "dense.qcow2", "copy.qcow2"]);
        same(&bench, source, "copy.qcow2");
        convert(&bench, &["-C", "ours.qcow2", "again.raw"]);
        same(&bench, source, "again.raw");
    }
    // Through the page cache or beside it, the result is the same.
    convert(&bench, &["-C", "-t", "none", "-T", "none", "dense.qcow2", "direct.raw"]);
    same(&bench, source, "direct.raw");
    convert(&bench, &["-C", "-n", "-O", "qcow2", source, "copy.qcow2"]);
    same(&bench, source, "copy.qcow2");
    let joined = ["-C", "-O", "qcow2", source, "dense.qcow2", "joined.qcow2"];
    convert(&bench, &joined);
    let size = bench.qemu("qemu-img", &["info", "--output", "json", "joined.qcow2"]).json();
    assert_eq!(size["virtual-size"], 18_874_368);
}

/// What was packed once is not packed again: the clusters are the very same bytes.
#[test]
fn compressed_clusters_are_copied_as_they_are() {
    let bench = Bench::new();
    let source = source(&bench);
    for shape in ["cluster_size=64k", "cluster_size=4k", "compression_type=zstd"] {
        // The lowest level, which is not what is written here: packing again gives other lengths.
        bench.qemu("qemu-img", &["convert", "-c", "-O", "qcow2", "-o", shape, source, "theirs.qcow2"]);
        convert(&bench, &["-c", "-O", "qcow2", "-o", shape, "theirs.qcow2", "ours.qcow2"]);
        same(&bench, source, "ours.qcow2");
        let packed = |name: &str| {
            let check = bench.qemu("qemu-img", &["check", "--output", "json", name]).json();
            check["compressed-clusters"].as_u64().unwrap()
        };
        assert_eq!(packed("ours.qcow2"), packed("theirs.qcow2"), "{shape}");
        // Of another size, or packed otherwise: packed anew.
        convert(&bench, &["-c", "-O", "qcow2", "-o", "cluster_size=32k", "theirs.qcow2", "other.qcow2"]);
        same(&bench, source, "other.qcow2");
    }
}

/// A compressed cluster that cannot be unpacked is reported, even if its data is not needed.
#[test]
fn a_broken_compressed_cluster_is_not_copied() {
    let bench = Bench::new();
    let source = source(&bench);
    convert(&bench, &["-c", "-O", "qcow2", source, "packed.qcow2"]);
    let map = bench.qemu("qemu-img", &["check", "--output", "json", "packed.qcow2"]).json();
    assert!(map["compressed-clusters"].as_u64().unwrap() > 0);
    let file = fs::File::options().write(true).open(bench.path("packed.qcow2")).unwrap();
    let end = file.metadata().unwrap().len();
    file.write_all_at(&vec![0xff; (end - 0x60000) as usize], 0x60000).unwrap();
    let ran = bench.cowhand(&["convert", "-c", "-O", "qcow2", "packed.qcow2", "copy.qcow2"]);
    assert!(ran.code == 1 && !bench.path("copy.qcow2").exists(), "{}", ran.err);
}

/// A backup of a snapshot must hold what the disk was then, whatever happened to it since.
#[test]
fn a_snapshot_is_converted_as_the_disk_was_then() {
    let bench = Bench::new();
    let source = source(&bench);
    bench.qemu("qemu-img", &["convert", "-O", "qcow2", source, "disk.qcow2"]);
    bench.qemu("qemu-img", &["snapshot", "-c", "then", "disk.qcow2"]);
    io(&bench, "qcow2", "disk.qcow2", &["write -P 9 0 2M"]);
    bench.qemu("qemu-img", &["resize", "-q", "disk.qcow2", "12M"]);
    bench.qemu("qemu-img", &["snapshot", "-c", "1", "disk.qcow2"]);
    for named in ["then", "1", "snapshot.id=1", "snapshot.name=then", "snapshot.id=1,snapshot.name=then"] {
        convert(&bench, &["-l", named, "disk.qcow2", "ours.raw"]);
        bench.qemu("qemu-img", &["convert", "-l", named, "-O", "raw", "disk.qcow2", "theirs.raw"]);
        same(&bench, "ours.raw", "theirs.raw");
        // Of the size that it had; theirs is as large as the disk is now.
        assert_eq!(fs::metadata(bench.path("ours.raw")).unwrap().len(), 9 << 20);
        same(&bench, source, "ours.raw");
    }
    convert(&bench, &["-C", "-l", "snapshot.name=1", "-O", "qcow2", "disk.qcow2", "later.qcow2"]);
    same(&bench, "disk.qcow2", "later.qcow2");
    let none = bench.cowhand(&["convert", "-l", "no", "disk.qcow2", "none.raw"]);
    assert!(none.code == 1 && none.err.contains("no snapshot has id or name"), "{}", none.err);
    let two = bench.cowhand(&["convert", "-l", "1", "disk.qcow2", "disk.qcow2", "none.raw"]);
    assert!(two.code == 1 && two.err.contains("several disks"), "{}", two.err);
}

#[test]
fn names_lead_where_they_lead_with_qemu_img() {
    let bench = Bench::new();
    source(&bench);
    fs::create_dir(bench.path("store")).unwrap();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, bench.path(name)).unwrap();
    let is_link = |name: &str| bench.path(name).symlink_metadata().unwrap().is_symlink();
    // Nothing is there yet, behind two links.
    link("store/new.qcow2", "inner.qcow2");
    link("inner.qcow2", "outer.qcow2");
    convert(&bench, &["-O", "qcow2", "plain.raw", "outer.qcow2"]);
    assert!(is_link("outer.qcow2") && is_link("inner.qcow2") && !is_link("store/new.qcow2"));
    same(&bench, "plain.raw", "store/new.qcow2");
    // And when it is there, it is replaced.
    convert(&bench, &["-O", "raw", "plain.raw", "outer.qcow2"]);
    assert!(is_link("outer.qcow2"));
    assert_eq!(fs::read(bench.path("store/new.qcow2")).unwrap(), fs::read(bench.path("plain.raw")).unwrap());
    // `create`, too; of an image that is there the file stays and is filled anew.
    link("store/made.qcow2", "created.qcow2");
    for size in ["1M", "2M"] {
        assert_eq!(bench.cowhand(&["create", "-f", "qcow2", "created.qcow2", size]).code, 0);
        assert!(is_link("created.qcow2") && bench.path("store/made.qcow2").is_file());
    }
    bench.qemu("qemu-img", &["check", "-q", "created.qcow2"]);
    link("round.qcow2", "round.qcow2");
    let rounds: [&[&str]; 2] = [
        &["convert", "-O", "qcow2", "plain.raw", "round.qcow2"],
        &["create", "-f", "qcow2", "round.qcow2", "1M"],
    ];
    for words in rounds {
        let refused = bench.cowhand(words);
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains("Too many levels of symbolic links"), "{}", refused.err);
    }
    // `file:` says that what follows is a path.
    convert(&bench, &["-O", "qcow2", "file:plain.raw", "file:a:b.qcow2"]);
    same(&bench, "plain.raw", "file:a:b.qcow2");
    assert_eq!(bench.cowhand(&["info", "file:a:b.qcow2"]).code, 0);
    assert_eq!(bench.cowhand(&["create", "file:nbd:c", "1M"]).code, 0);
    assert!(bench.path("a:b.qcow2").exists() && bench.path("nbd:c").exists());
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    let bench = Bench::new();
    let source = source(&bench);
    let refused: [(&[&str], &str); 10] = [
        (&["-C", "-c", source, "x"], "-C"),
        (&["-C", "-S", "4k", source, "x"], "-C"),
        (&["-l", "snap", source, "x"], "is a raw disk, which has no snapshots"),
        (&["--skip-broken-bitmaps", source, "x"], "--bitmaps"),
        (&["-c", source, "x"], "-c: a raw image has no compressed clusters"),
        (&["-S", "100", source, "x"], "-S is 100; allowed: multiples of 512 up to 16M, and 0"),
        (&["-F", "raw", source, "x"], "-F is the format of the backing file"),
        (&["-B", "x", "-F", "raw", source, "y"], "a raw image has no backing file"),
        (&["--memory-limit", "1M", source, "x"], "--memory-limit is 1048576"),
        (&[source], "convert takes what is copied"),
    ];
    for (words, reason) in refused {
        let ran = bench.cowhand(&[&["convert"], words].concat());
        assert!(ran.code == 1 && ran.err.contains(reason), "{words:?}: {}", ran.err);
        assert!(!bench.path("x").exists());
    }
}
