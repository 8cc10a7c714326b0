//! Images that `convert` and `create` write whole, beside those that qemu-img makes of the same disk.

use std::fs;

use serde_json::Value;

use crate::peer::Bench;

/// A disk of 37 MiB and a sector: blocks and grains without data, ends that are no whole block, zeroes that were written.
fn source(bench: &Bench) {
    bench.qemu("qemu-img", &["create", "-q", "-f", "raw", "a.raw", "38798848"]);
    let commands = ["write -P 1 0 300k", "write -P 2 2M 6M", "write -P 0 9M 1M", "write -P 3 33000k 70k"];
    let last = "write -P 4 38798336 512";
    let commands: Vec<&str> = commands.iter().chain([&last]).flat_map(|line| ["-c", line]).collect();
    bench.qemu("qemu-io", &[&["-f", "raw"], &commands[..], &["a.raw"]].concat());
}

/// The extents of a map, with how they read.
fn map(text: &str) -> Vec<[Value; 4]> {
    let list: Vec<Value> = serde_json::from_str(text).expect("a list of extents");
    list.iter().map(|extent| ["start", "length", "zero", "data"].map(|name| extent[name].clone())).collect()
}

/// Footer or header of a VHD without its time, its sum and its id.
fn vhd_footer(bytes: &[u8]) -> Vec<u8> {
    let mut footer = bytes.to_vec();
    footer[0x18..0x1c].fill(0);
    footer[0x40..0x54].fill(0);
    footer
}

#[test]
fn vhds_are_those_that_qemu_img_makes() {
    let bench = Bench::new();
    source(&bench);
    for options in [
        "subformat=dynamic",
        "subformat=fixed",
        "subformat=dynamic,force_size",
        "force_size=on,subformat=fixed",
    ] {
        let convert = ["convert", "-f", "raw", "-O", "vpc", "-o", options, "a.raw"];
        let ran = bench.cowhand(&[&convert[..], &["--verify", "ours.vhd"]].concat());
        assert_eq!((ran.code, &*ran.err), (0, ""), "{options}");
        bench.qemu("qemu-img", &[&convert[..], &["theirs.vhd"]].concat());
        for (format, other) in [("raw", "a.raw"), ("vpc", "theirs.vhd")] {
            bench.qemu("qemu-img", &["compare", "-f", "vpc", "-F", format, "ours.vhd", other]);
        }
        let [ours, theirs] = ["ours.vhd", "theirs.vhd"].map(|name| fs::read(bench.path(name)).unwrap());
        assert_eq!(ours.len(), theirs.len(), "{options}");
        assert_eq!(
            vhd_footer(&ours[ours.len() - 512..]),
            vhd_footer(&theirs[theirs.len() - 512..]),
            "{options}"
        );
        if options.contains("dynamic") {
            assert_eq!(vhd_footer(&ours[..512]), vhd_footer(&theirs[..512]), "{options}");
            assert_eq!(ours[512..1536], theirs[512..1536], "{options}");
        }
        let mapped = |name| map(&bench.qemu("qemu-img", &["map", "-f", "vpc", "--output=json", name]).out);
        if options.contains("dynamic") {
            assert_eq!(mapped("ours.vhd"), mapped("theirs.vhd"), "{options}");
        }
    }
}

#[test]
fn an_empty_vhd_is_the_one_that_qemu_img_makes() {
    let bench = Bench::new();
    for (options, size) in
        [("subformat=dynamic", "1G"), ("subformat=fixed", "7M"), ("force_size", "3000000256")]
    {
        let create = |tool: &str, name| {
            let words = ["create", "-f", "vpc", "-o", options, name, size];
            match tool {
                "cowhand" => assert_eq!(bench.cowhand(&words).code, 0, "{options}"),
                tool => drop(bench.qemu(tool, &words)),
            }
            fs::read(bench.path(name)).unwrap()
        };
        let (ours, theirs) = (create("cowhand", "ours.vhd"), create("qemu-img", "theirs.vhd"));
        assert_eq!(ours.len(), theirs.len(), "{options}");
        assert_eq!(
            vhd_footer(&ours[ours.len() - 512..]),
            vhd_footer(&theirs[theirs.len() - 512..]),
            "{options}"
        );
        bench.qemu("qemu-img", &["compare", "-f", "vpc", "-F", "vpc", "ours.vhd", "theirs.vhd"]);
    }
}

#[test]
fn what_no_image_of_the_format_has_is_refused() {
    let bench = Bench::new();
    source(&bench);
    bench.qemu("qemu-img", &["create", "-q", "-f", "vpc", "there.vhd", "40M"]);
    let table: [(&[&str], &str); 8] = [
        (&["-n", "a.raw", "there.vhd"], "-n: a vpc image is written whole"),
        (&["-c", "a.raw", "x"], "-c: a vpc image has no compressed clusters"),
        (&["-B", "there.vhd", "-F", "vpc", "a.raw", "x"], "a vpc image has no backing file"),
        (&["--bitmaps", "a.raw", "x"], "can have no bitmaps"),
        (&["-o", "subformat=flat", "a.raw", "x"], "-o subformat is \"flat\"; allowed: dynamic, fixed"),
        (&["-o", "cluster_size=4k", "a.raw", "x"], "-o cluster_size is for qcow2 images, not for vpc"),
        (&["-o", "size=3T", "a.raw", "x"], "a vpc image has at most 2190433320960"),
        (&["a.raw", "s3://bucket/x.vhd"], "a vpc image is not made in a store"),
    ];
    let before = fs::read(bench.path("there.vhd")).unwrap();
    for (words, reported) in table {
        let ran = bench.cowhand(&[&["convert", "-O", "vpc"], words].concat());
        assert!(ran.code == 1 && ran.err.contains(reported), "{words:?}: {}", ran.err);
        assert!(!bench.path("x").exists(), "{words:?}");
    }
    assert!(fs::read(bench.path("there.vhd")).unwrap() == before);
    let dd = bench.cowhand(&["dd", "-O", "vpc", "if=a.raw", "of=x"]);
    assert!(dd.code == 1 && dd.err.contains("vpc images are made by create and convert only"), "{}", dd.err);
}

const STREAM: &str = "subformat=streamOptimized,adapter_type=lsilogic,hwversion=13";

#[test]
fn streams_for_ovas_are_read_by_qemu_and_have_the_headers_that_it_makes() {
    let bench = Bench::new();
    source(&bench);
    let convert = ["convert", "-f", "raw", "-O", "vmdk", "-o", STREAM];
    for more in [&["--verify"][..], &["-c"], &["-S", "0"], &["-m", "1"]] {
        let ran = bench.cowhand(&[&convert[..], more, &["a.raw", "ours.vmdk"]].concat());
        assert_eq!((ran.code, &*ran.err), (0, ""), "{more:?}");
        bench.qemu("qemu-img", &["compare", "-f", "vmdk", "-F", "raw", "ours.vmdk", "a.raw"]);
        bench.qemu("qemu-img", &["check", "-f", "vmdk", "ours.vmdk"]);
    }
    bench.cowhand(&[&convert[..], &["a.raw", "ours.vmdk"]].concat());
    bench.qemu("qemu-img", &[&convert[..], &["a.raw", "theirs.vmdk"]].concat());
    let shown = |name| {
        let info = bench.qemu("qemu-img", &["info", "--output=json", name]).json();
        let specific = &info["format-specific"]["data"];
        let extent = &specific["extents"][0];
        [&info["virtual-size"], &info["format"], &specific["create-type"], &specific["parent-cid"]]
            .into_iter()
            .chain([&extent["compressed"], &extent["cluster-size"], &extent["virtual-size"]])
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(shown("ours.vmdk"), shown("theirs.vmdk"));
    let [ours, theirs] = ["ours.vmdk", "theirs.vmdk"].map(|name| fs::read(bench.path(name)).unwrap());
    let field = |bytes: &Vec<u8>, at: usize, len: usize| bytes[at..at + len].to_vec();
    // Magic, version, capacity, size of grains, the descriptor, entries of a table, the characters and the method.
    for (at, len) in [(0, 8), (12, 8), (20, 8), (28, 16), (44, 4), (73, 6)] {
        assert_eq!(field(&ours, at, len), field(&theirs, at, len), "header at {at}");
    }
    let lines = |bytes: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(&bytes[512..2048]).into_owned();
        let known = |line: &&str| !line.is_empty() && !line.starts_with("CID=") && !line.starts_with('\0');
        text.lines().filter(known).map(|line| line.replace("theirs", "ours")).collect()
    };
    let of_ours = lines(&ours);
    for line in lines(&theirs) {
        assert!(of_ours.contains(&line), "{line:?} is not in {of_ours:?}");
    }
}

#[test]
fn sparse_vmdk_images_are_those_that_qemu_img_makes() {
    let bench = Bench::new();
    source(&bench);
    for (options, more) in [("adapter_type=ide", &["--verify"][..]), ("compat6", &["-S", "0"])] {
        let convert = ["convert", "-f", "raw", "-O", "vmdk", "-o", options];
        let ran = bench.cowhand(&[&convert[..], more, &["a.raw", "same.vmdk"]].concat());
        assert_eq!((ran.code, &*ran.err), (0, ""), "{options}");
        let ours = fs::read(bench.path("same.vmdk")).unwrap();
        bench.qemu("qemu-img", &["compare", "-f", "vmdk", "-F", "raw", "same.vmdk", "a.raw"]);
        bench.qemu("qemu-img", &["check", "-f", "vmdk", "same.vmdk"]);
        let map = |name| map(&bench.qemu("qemu-img", &["map", "-f", "vmdk", "--output=json", name]).out);
        let mapped = map("same.vmdk");
        let more = if more.contains(&"-S") { more } else { &[] };
        bench.qemu("qemu-img", &[&convert[..], more, &["a.raw", "same.vmdk"]].concat());
        assert_eq!(mapped, map("same.vmdk"), "{options}");
        let theirs = fs::read(bench.path("same.vmdk")).unwrap();
        assert_eq!(ours.len(), theirs.len(), "{options}");
        assert!(ours[..512] == theirs[..512], "{options}: header");
        assert!(ours[21 * 512..] == theirs[21 * 512..], "{options}: tables and grains");
    }
    for (tool, name) in [("cowhand", "ours.vmdk"), ("qemu-img", "theirs.vmdk")] {
        let words = ["create", "-f", "vmdk", name, "5000000000"];
        match tool {
            "cowhand" => assert_eq!(bench.cowhand(&words).code, 0),
            tool => drop(bench.qemu(tool, &words)),
        }
    }
    let [ours, theirs] = ["ours.vmdk", "theirs.vmdk"].map(|name| fs::read(bench.path(name)).unwrap());
    assert!(
        ours.len() == theirs.len() && ours[..512] == theirs[..512] && ours[21 * 512..] == theirs[21 * 512..]
    );
    let refused = bench.cowhand(&["convert", "-c", "-O", "vmdk", "a.raw", "x"]);
    assert!(refused.code == 1 && refused.err.contains("-c: this vmdk image"), "{}", refused.err);
}

#[test]
fn a_stream_and_a_fixed_disk_go_through_a_pipe_and_a_table_in_front_does_not() {
    let bench = Bench::new();
    source(&bench);
    let sh = |options: &str, to: &str| {
        let cowhand = env!("CARGO_BIN_EXE_cowhand");
        let script =
            format!("set -o pipefail; {cowhand} convert -f raw -O {options} a.raw {to} | cat > piped");
        bench.run(std::path::Path::new("bash"), &["-c", &script])
    };
    for (options, format) in
        [("vmdk -o subformat=streamOptimized", "vmdk"), ("vpc -o subformat=fixed", "vpc")]
    {
        for to in ["-", "/dev/stdout"] {
            let ran = sh(options, to);
            assert_eq!((ran.code, &*ran.err), (0, ""), "{options} {to}");
            bench.qemu("qemu-img", &["compare", "-f", format, "-F", "raw", "piped", "a.raw"]);
        }
    }
    for (options, reported) in [
        ("vpc", "this image has a table in front"),
        ("vmdk", "this image has a table in front"),
        ("qcow2", "qcow2 is not written in that order"),
    ] {
        let ran = sh(options, "-");
        assert!(ran.code == 1 && ran.err.contains(reported), "{options}: {}", ran.err);
    }
}
