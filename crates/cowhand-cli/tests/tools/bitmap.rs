//! `cowhand bitmap`, and `resize` of images with bitmaps, beside qemu-img: both make the same bitmaps, and
//! each uses those of the other.

use std::path::Path;

use crate::peer::Bench;

/// What a bitmap says of the whole disk, as QEMU serves it.
fn map(bench: &Bench, image: &str, bitmap: &str) -> String {
    let script = format!(
        "qemu-nbd -r -t -f qcow2 -k \"$PWD/nbd\" -B {bitmap} {image} & server=$!; \
         while ! nbdinfo --size \"nbd+unix:///?socket=$PWD/nbd\" >/dev/null 2>&1; do kill -0 $server || exit 1; sleep 0.05; done; \
         nbdinfo --map=qemu:dirty-bitmap:{bitmap} \"nbd+unix:///?socket=$PWD/nbd\"; done=$?; kill $server; wait $server; exit $done"
    );
    bench.qemu("timeout", &["60", "sh", "-c", &script]).out
}

/// Bitmaps as `qemu-img info` has them, without their order.
fn bitmaps(bench: &Bench, image: &str) -> Vec<String> {
    let info = bench.qemu("qemu-img", &["info", "--output", "json", image]).json();
    let found = info["format-specific"]["data"]["bitmaps"].as_array().cloned().unwrap_or_default();
    let mut found: Vec<_> = found.iter().map(ToString::to_string).collect();
    found.sort();
    found
}

/// Runs the same command on both images, each with its program; they must end alike and have the same
/// bitmaps. With `swapped` each program gets the other one's image.
fn both(bench: &Bench, words: &[&str], swapped: bool) -> i32 {
    let (ours, theirs) = if swapped { ("b.qcow2", "a.qcow2") } else { ("a.qcow2", "b.qcow2") };
    let of = |image| words.iter().map(|&word| if word == "IMAGE" { image } else { word }).collect();
    let (own, others): (Vec<&str>, Vec<&str>) = (of(ours), of(theirs));
    let done = bench.cowhand(&own);
    let peer = bench.run(Path::new("qemu-img"), &others);
    assert_eq!(done.code, peer.code, "{words:?}: {} {}", done.err, peer.err);
    assert_eq!(bitmaps(bench, ours), bitmaps(bench, theirs), "{words:?}");
    bench.qemu("qemu-img", &["check", "-q", "a.qcow2"]);
    assert_eq!(bench.cowhand(&["check", "-q", "a.qcow2"]).code, 0);
    done.code
}

fn images(bench: &Bench, create: &[&str]) {
    for image in ["a.qcow2", "b.qcow2"] {
        bench.qemu("qemu-img", &[&["create", "-q", "-f", "qcow2"], create, &[image, "70M"]].concat());
    }
}

fn write(bench: &Bench, at: &str) {
    for image in ["a.qcow2", "b.qcow2"] {
        bench.qemu("qemu-io", &["-f", "qcow2", "-c", &format!("write -q {at}"), image]);
    }
}

fn same_maps(bench: &Bench, names: &[&str]) {
    for name in names {
        assert_eq!(map(bench, "a.qcow2", name), map(bench, "b.qcow2", name), "{name}");
    }
}

#[test]
fn every_step_does_what_qemu_img_does() {
    let long = "n".repeat(1023);
    let too_long = "n".repeat(1024);
    let steps: [(&[&str], i32); 27] = [
        (&["bitmap", "IMAGE"], 1),
        (&["bitmap", "IMAGE", "x"], 1),
        (&["bitmap", "--add", "IMAGE", "x"], 0),
        (&["bitmap", "--add", "IMAGE", "x"], 1),
        (&["bitmap", "--remove", "IMAGE", "none"], 1),
        (&["bitmap", "--add", "-g", "1000", "IMAGE", "y"], 1),
        (&["bitmap", "--add", "-g", "256", "IMAGE", "y"], 1),
        (&["bitmap", "--add", "-g", "4G", "IMAGE", "y"], 1),
        (&["bitmap", "--add", "-g", "512", "IMAGE", "y"], 0),
        (&["bitmap", "--add", "--disable", "-g", "128k", "IMAGE", "z"], 0),
        (&["bitmap", "--add", "-g", "2G", "IMAGE", "whole"], 0),
        (&["bitmap", "--merge", "x", "--merge", "y", "IMAGE", "z"], 0),
        (&["bitmap", "--merge", "none", "IMAGE", "z"], 1),
        (&["bitmap", "--clear", "-g", "4k", "IMAGE", "x"], 1),
        (&["bitmap", "--disable", "--enable", "IMAGE", "x"], 0),
        (&["bitmap", "--add", "--merge", "x", "--disable", "-f", "qcow2", "IMAGE", "w"], 0),
        (&["bitmap", "--add", "--merge", "none", "IMAGE", "half"], 1),
        (&["bitmap", "-b", "IMAGE", "--clear", "IMAGE", "x"], 1),
        (&["bitmap", "-F", "qcow2", "--merge", "x", "IMAGE", "z"], 1),
        (&["bitmap", "--add", "IMAGE", ""], 1),
        (&["bitmap", "--add", "IMAGE", &too_long], 1),
        (&["bitmap", "--add", "IMAGE", &long], 0),
        (&["bitmap", "--remove", "--add", "IMAGE", "x"], 0),
        (&["bitmap", "--merge", "z", "IMAGE", "whole"], 0),
        (&["bitmap", "--clear", "IMAGE", "z"], 0),
        (&["bitmap", "--remove", "IMAGE", "w"], 0),
        (&["bitmap", "--add", "a", "IMAGE", "x"], 1),
    ];
    for create in [&[][..], &["-o", "cluster_size=512"], &["-o", "cluster_size=2M,refcount_bits=64"]] {
        let bench = Bench::new();
        images(&bench, create);
        for (at, (words, code)) in steps.iter().enumerate() {
            assert_eq!(both(&bench, words, at % 3 == 0), *code, "{words:?}");
            if *code == 0 {
                write(&bench, &format!("{}k {}k", at * 2011 + 3, at * 7));
            }
        }
        same_maps(&bench, &["x", "y", "z", "whole", "half"]);
        for (name, swapped) in
            [("x", false), ("y", true), ("z", false), ("whole", true), ("half", false), (&*long, true)]
        {
            assert_eq!(both(&bench, &["bitmap", "--remove", "IMAGE", name], swapped), 0);
        }
        assert!(bitmaps(&bench, "a.qcow2").is_empty());
    }
}

#[test]
fn bitmaps_of_another_image_are_merged() {
    let bench = Bench::new();
    images(&bench, &[]);
    both(&bench, &["bitmap", "--add", "-g", "4k", "IMAGE", "x"], false);
    write(&bench, "5M 3M");
    bench.qemu("cp", &["a.qcow2", "source.qcow2"]);
    both(&bench, &["bitmap", "--clear", "IMAGE", "x"], false);
    write(&bench, "30M 100k");
    let merge = ["bitmap", "--merge", "x", "-b", "source.qcow2", "-F", "qcow2", "IMAGE", "x"];
    assert_eq!(both(&bench, &merge, false), 0);
    same_maps(&bench, &["x"]);
    bench.qemu("qemu-img", &["resize", "-q", "source.qcow2", "80M"]);
    assert_eq!(both(&bench, &merge, true), 1);
    same_maps(&bench, &["x"]);
}

#[test]
fn a_resized_disk_has_its_bitmaps_as_qemu_resizes_them() {
    let bench = Bench::new();
    images(&bench, &["-o", "cluster_size=4k"]);
    for (name, granularity) in [("fine", "512"), ("coarse", "1M")] {
        both(&bench, &["bitmap", "--add", "-g", granularity, "IMAGE", name], false);
    }
    write(&bench, "1M 3M");
    write(&bench, "68M 2M");
    for words in [
        &["resize", "-q", "IMAGE", "700M"][..],
        &["resize", "-q", "--shrink", "IMAGE", "69000k"],
        &["resize", "-q", "IMAGE", "90M"],
        &["resize", "-q", "--shrink", "IMAGE", "2500k"],
    ] {
        assert_eq!(both(&bench, words, false), 0, "{words:?}");
        same_maps(&bench, &["fine", "coarse"]);
        bench.qemu("qemu-img", &["compare", "-q", "a.qcow2", "b.qcow2"]);
    }
}

/// Of qemu-img 7.2 the disk then shows pieces of the bitmaps: the content is compared with what a raw disk has.
#[test]
fn a_preallocated_part_is_zeroes_beside_bitmaps_too() {
    for how in ["metadata", "falloc", "full"] {
        let bench = Bench::new();
        images(&bench, &["-o", "cluster_size=4k"]);
        both(&bench, &["bitmap", "--add", "-g", "512", "IMAGE", "x"], false);
        write(&bench, "1M 69M");
        bench.qemu("qemu-img", &["convert", "-O", "raw", "a.qcow2", "before.raw"]);
        bench.qemu("qemu-img", &["resize", "-q", "-f", "raw", "before.raw", "75M"]);
        assert_eq!(both(&bench, &["resize", "-q", "--preallocation", how, "IMAGE", "75M"], false), 0);
        same_maps(&bench, &["x"]);
        bench.qemu("qemu-img", &["compare", "-q", "a.qcow2", "before.raw"]);
    }
}

/// Sets "in use" of the first bitmap in the directory, which lies where the header extension says.
fn make_inconsistent(bench: &Bench, image: &str) {
    let mut bytes = std::fs::read(bench.path(image)).unwrap();
    let kind = 0x2385_2875u32.to_be_bytes();
    let extension = bytes[..4096].windows(4).position(|word| word == kind).unwrap();
    let place = bytes[extension + 24..extension + 32].try_into().map(u64::from_be_bytes).unwrap() as usize;
    bytes[place + 15] |= 1;
    std::fs::write(bench.path(image), bytes).unwrap();
}

#[test]
fn an_inconsistent_bitmap_can_only_be_removed() {
    let bench = Bench::new();
    images(&bench, &[]);
    both(&bench, &["bitmap", "--add", "IMAGE", "x"], false);
    both(&bench, &["bitmap", "--add", "IMAGE", "y"], false);
    make_inconsistent(&bench, "a.qcow2");
    make_inconsistent(&bench, "b.qcow2");
    for words in [
        &["bitmap", "--clear", "IMAGE", "x"][..],
        &["bitmap", "--enable", "IMAGE", "x"],
        &["bitmap", "--disable", "IMAGE", "x"],
        &["bitmap", "--merge", "y", "IMAGE", "x"],
        &["bitmap", "--merge", "x", "IMAGE", "y"],
        &["resize", "-q", "IMAGE", "80M"],
    ] {
        assert_eq!(both(&bench, words, false), 1, "{words:?}");
    }
    assert_eq!(both(&bench, &["bitmap", "--remove", "IMAGE", "x"], false), 0);
    assert_eq!(both(&bench, &["resize", "-q", "IMAGE", "80M"], false), 0);
}

#[test]
fn a_converted_disk_brings_its_bitmaps_as_qemu_img_brings_them() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "s.qcow2", "70M"]);
    for words in [&["--add", "-g", "4k"][..], &["--add", "--disable"]] {
        let name = if words.contains(&"--disable") { "still" } else { "fine" };
        bench.qemu("qemu-img", &[&["bitmap"], words, &["s.qcow2", name]].concat());
    }
    bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -q 1M 100k", "-c", "write -q 69M 1k", "s.qcow2"]);
    bench.qemu("qemu-img", &["bitmap", "--merge", "fine", "s.qcow2", "still"]);
    for options in [&["-O", "qcow2"][..], &["-O", "qcow2", "-c", "-o", "cluster_size=4k"]] {
        let converted = |image| [&["convert", "--bitmaps"], options, &["s.qcow2", image]].concat();
        let measured = bench.cowhand(&["measure", "-O", "qcow2", "--output", "json", "s.qcow2"]).json();
        assert!(measured["bitmaps"].as_u64().is_some_and(|bytes| bytes > 0), "{measured}");
        let ours = bench.cowhand(&[&converted("a.qcow2")[..], &["--verify"]].concat());
        assert_eq!(ours.code, 0, "{}", ours.err);
        bench.qemu("qemu-img", &converted("b.qcow2"));
        assert_eq!(bitmaps(&bench, "a.qcow2").len(), 2);
        assert_eq!(bitmaps(&bench, "a.qcow2"), bitmaps(&bench, "b.qcow2"));
        same_maps(&bench, &["fine", "still"]);
        assert!(map(&bench, "a.qcow2", "fine").contains("dirty"));
        bench.qemu("qemu-img", &["check", "-q", "a.qcow2"]);
    }
    // Onto what is there, which must not have one of that name.
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "c.qcow2", "70M"]);
    let onto = ["convert", "-n", "--bitmaps", "-O", "qcow2", "s.qcow2", "c.qcow2"];
    assert_eq!(bench.cowhand(&onto).code, 0);
    assert_eq!(bitmaps(&bench, "c.qcow2"), bitmaps(&bench, "b.qcow2"));
    let twice = bench.cowhand(&onto);
    assert!(twice.code == 1 && twice.err.contains("already"), "{}", twice.err);
}

#[test]
fn bitmaps_that_cannot_go_with_the_disk_are_reported_before_anything_is_written() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "s.qcow2", "1M"]);
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "compat=0.10", "old.qcow2", "1M"]);
    bench.qemu("qemu-img", &["create", "-q", "-f", "raw", "plain.raw", "1M"]);
    bench.qemu("qemu-img", &["bitmap", "--add", "s.qcow2", "x"]);
    make_inconsistent(&bench, "s.qcow2");
    let into = ["-O", "qcow2"];
    for (words, said) in [
        (&["--bitmaps", "s.qcow2", "new"][..], "it will be raw"),
        (&["--bitmaps", "-O", "qcow2", "-o", "compat=0.10", "s.qcow2", "new"], "compat=0.10"),
        (&["--bitmaps", "-O", "qcow2", "-o", "size=2M", "s.qcow2", "new"], "another size"),
        (&["--bitmaps", "-O", "qcow2", "plain.raw", "new"], "it is raw"),
        (&["--bitmaps", "-O", "qcow2", "old.qcow2", "new"], "compat=0.10"),
        (&["--bitmaps", "-O", "qcow2", "s.qcow2", "old.qcow2", "new"], "several disks"),
        (&["--bitmaps", "-O", "qcow2", "s.qcow2", "new"], "is inconsistent"),
        (&["--skip-broken-bitmaps", "-O", "qcow2", "s.qcow2", "new"], "--bitmaps"),
    ] {
        let ran = bench.cowhand(&[&["convert"], words].concat());
        assert!(ran.code == 1 && ran.err.contains(said), "{words:?}: {}", ran.err);
        assert!(!bench.path("new").exists(), "{words:?}");
    }
    let skipped = bench.cowhand(
        &[&["convert", "--bitmaps", "--skip-broken-bitmaps"], &into[..], &["s.qcow2", "new"]].concat(),
    );
    assert_eq!(skipped.code, 0, "{}", skipped.err);
    assert!(skipped.err.contains("\"x\" is inconsistent; it is left out"), "{}", skipped.err);
    assert!(bitmaps(&bench, "new").is_empty());
}

#[test]
fn what_has_no_bitmaps_is_reported_and_nothing_changes() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "raw", "disk.raw", "1M"]);
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "compat=0.10", "old.qcow2", "1M"]);
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "large.qcow2", "4T"]);
    let refused: [(&[&str], &str); 3] = [
        (&["-f", "raw", "disk.raw", "x"], "is raw"),
        (&["old.qcow2", "x"], "version 2"),
        (&["-g", "512", "large.qcow2", "x"], "granularity"),
    ];
    for (words, why) in refused {
        let image = words.iter().find(|word| word.contains('.')).unwrap();
        let before = std::fs::read(bench.path(image)).unwrap();
        let ran = bench.cowhand(&[&["bitmap", "--add"], words].concat());
        assert_eq!(ran.code, 1, "{words:?}");
        assert!(ran.err.contains(why), "{words:?}: {}", ran.err);
        assert!(std::fs::read(bench.path(image)).unwrap() == before, "{words:?}");
    }
}

#[test]
fn without_room_the_bitmaps_are_as_before() {
    let bench = Bench::new();
    images(&bench, &["-o", "cluster_size=512"]);
    both(&bench, &["bitmap", "--add", "-g", "512", "IMAGE", "x"], false);
    write(&bench, "0 20M");
    let before = bitmaps(&bench, "a.qcow2");
    let kib = std::fs::metadata(bench.path("a.qcow2")).unwrap().len() / 1024 + 1;
    let script =
        format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" bitmap --add --merge x -g 512 a.qcow2 y");
    let ran = bench.run(Path::new("bash"), &["-c", &script, env!("CARGO_BIN_EXE_cowhand")]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    let after = bitmaps(&bench, "a.qcow2");
    assert!(after.starts_with(&before) && after.len() <= 2, "{after:?}");
    bench.qemu("qemu-img", &["check", "-q", "a.qcow2"]);
    same_maps(&bench, &["x"]);
}
