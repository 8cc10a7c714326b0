//! `cowhand show`: its numbers are those of qemu-img, and a picture costs nothing but reading.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde_json::Value;
use storage::{FileLock, Role};

use crate::peer::Bench;

const CLUSTER: u64 = 64 << 10;

fn numbers(bench: &Bench, file: &str) -> Value {
    let ran = bench.cowhand(&["show", "--output", "json", file]);
    assert_eq!(ran.code, 0, "{file}: {}", ran.err);
    ran.json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Bytes of a kind, in all cells of a map.
fn bytes(map: &Value, kind: &str) -> u64 {
    let place = map["kinds"].as_array().unwrap().iter().position(|name| name == kind).unwrap();
    map["cells"].as_array().unwrap().iter().map(|cell| number(&cell[place])).sum()
}

fn io(bench: &Bench, file: &str, commands: &[&str]) {
    let words = commands.iter().flat_map(|command| ["-c", command]).chain([file]).collect::<Vec<_>>();
    bench.qemu("qemu-io", &words);
}

#[test]
fn the_disk_is_shown_as_qemu_img_maps_it_and_clusters_as_it_counts_them() {
    let bench = Bench::new();
    for options in [
        "cluster_size=64k",
        "cluster_size=512",
        "cluster_size=2M",
        "extended_l2=on",
        "compat=0.10",
        "refcount_bits=1",
        "preallocation=metadata",
        "data_file=data.raw",
    ] {
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", options, "x.qcow2", "24M"]);
        io(
            &bench,
            "x.qcow2",
            &["write 4M 3M", "write 1M 100k", "write 20M 5k", "write 3M 64k", "discard 5M 128k"],
        );
        let theirs = bench.qemu("qemu-img", &["map", "--output=json", "x.qcow2"]).json();
        let rows = theirs.as_array().unwrap();
        let sum = |wanted: &dyn Fn(&Value) -> bool| {
            rows.iter().filter(|row| wanted(row)).map(|row| number(&row["length"])).sum::<u64>()
        };
        let ours = numbers(&bench, "x.qcow2");
        assert_eq!(number(&ours["virtual-size"]), 24 << 20);
        let (disk, layer) = (&ours["disk"], &ours["layers"][0]);
        let data = sum(&|row| row["data"] == true);
        assert_eq!((bytes(disk, "data"), number(&layer["data"])), (data, data), "{options}");
        let zeroes = sum(&|row| row["data"] == false && row["present"] == true);
        assert_eq!((bytes(disk, "zeroes"), number(&layer["zeroes"])), (zeroes, zeroes), "{options}");
        assert_eq!(bytes(disk, "nothing"), (24 << 20) - data - zeroes, "{options}");
        let check = bench.qemu("qemu-img", &["check", "--output=json", "x.qcow2"]).json();
        let clusters = &ours["image"]["clusters"];
        assert_eq!(clusters["total"], check["total-clusters"], "{options}");
        let stored = number(&clusters["data"]) + number(&clusters["mixed"]);
        let kept = number(&ours["image"]["usage"]["reserved"]) / number(&ours["image"]["cluster-size"]);
        assert_eq!(stored + kept, number(&check["allocated-clusters"]), "{options}");
        assert_eq!(number(&ours["image"]["check"]["corruptions"]), 0, "{options}");
        let usage = ours["image"]["usage"].as_object().unwrap();
        let all: u64 =
            usage.iter().filter(|(name, _)| *name != "reclaimable").map(|(_, bytes)| number(bytes)).sum();
        assert_eq!(
            all,
            number(&ours["image"]["file-length"]),
            "{options}: every byte of the file is something"
        );
        fs::remove_file(bench.path("x.qcow2")).unwrap();
    }
}

#[test]
fn each_image_of_a_chain_is_shown_with_what_the_guest_reads_from_it() {
    let bench = Bench::new();
    fs::write(bench.path("base.raw"), vec![7; 1 << 20]).unwrap();
    bench
        .qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "mid.qcow2", "4M"]);
    io(&bench, "mid.qcow2", &["write 512k 1M"]);
    bench.qemu(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-b", "mid.qcow2", "-F", "qcow2", "top.qcow2", "4M"],
    );
    io(&bench, "top.qcow2", &["write 0 128k", "write -z 1M 64k", "write 3M 64k", "write -c -P 9 2M 64k"]);
    let ours = numbers(&bench, "top.qcow2");
    let held = |depth: usize| {
        let layer = &ours["layers"][depth];
        ["data", "compressed", "zeroes"].map(|kind| number(&layer[kind]) >> 10)
    };
    assert_eq!([held(0), held(1), held(2)], [[192, 64, 64], [960, 0, 0], [384, 0, 0]]);
    assert_eq!(bytes(&ours["disk"], "below") >> 10, 960 + 384);
    let drawn = bench.cowhand(&["show", "top.qcow2"]).out;
    for text in
        ["top.qcow2", "mid.qcow2", "base.raw", "What the guest sees", "Who holds it", "data of backing files"]
    {
        assert!(drawn.contains(text), "{text}: {drawn}");
    }
}

#[test]
fn what_is_leaked_is_shown_where_it_is_and_called_reclaimable() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "x.qcow2", "4M"]);
    io(&bench, "x.qcow2", &["write 0 1M"]);
    let file = fs::File::options().read(true).write(true).open(bench.path("x.qcow2")).unwrap();
    let clusters = file.metadata().unwrap().len().div_ceil(CLUSTER);
    file.set_len((clusters + 3) * CLUSTER).unwrap();
    // The first refcount block is the third cluster. Two clusters behind the end get a refcount without a
    // reference.
    file.write_all_at(&[0, 1, 0, 1], 2 * CLUSTER + (clusters + 1) * 2).unwrap();
    let image = &numbers(&bench, "x.qcow2")["image"];
    let usage = &image["usage"];
    assert_eq!((number(&image["check"]["leaks"]), number(&usage["leaked"])), (2, 2 * CLUSTER));
    assert_eq!(number(&usage["free"]), CLUSTER, "the one before them");
    assert!(number(&usage["reclaimable"]) >= 2 * CLUSTER);
    let cells = image["file"]["cells"].as_array().unwrap();
    assert_eq!(number(&image["file"]["cell-bytes"]), CLUSTER);
    let place = image["file"]["kinds"].as_array().unwrap().iter().position(|kind| kind == "leaked").unwrap();
    let leaked: Vec<u64> = (0..).zip(cells).filter(|(_, cell)| cell[place] != 0).map(|(at, _)| at).collect();
    assert_eq!(leaked, [clusters + 1, clusters + 2]);
    assert!(bench.cowhand(&["show", "x.qcow2"]).out.contains("2 clusters leaked; check -r leaks"));
}

#[test]
fn snapshots_and_bitmaps_are_named_and_their_clusters_are_not_the_disks() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "x.qcow2", "8M"]);
    io(&bench, "x.qcow2", &["write 0 2M"]);
    bench.qemu("qemu-img", &["snapshot", "-c", "before", "x.qcow2"]);
    io(&bench, "x.qcow2", &["write 0 1M"]);
    bench.qemu("qemu-img", &["bitmap", "--add", "x.qcow2", "nightly"]);
    let image = &numbers(&bench, "x.qcow2")["image"];
    assert_eq!(
        (&image["snapshots"][0]["name"], &image["bitmaps"][0]["name"]),
        (&"before".into(), &"nightly".into())
    );
    let usage = &image["usage"];
    assert_eq!(number(&usage["data"]), 2 << 20);
    assert!(number(&usage["other"]) >= 1 << 20, "what only the snapshot has");
    let drawn = bench.cowhand(&["show", "x.qcow2"]).out;
    assert!(drawn.contains("before (20") && drawn.contains("nightly (64 KiB a bit)"), "{drawn}");
}

#[test]
fn scattered_clusters_are_many_runs() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "x.qcow2", "8M"]);
    io(&bench, "x.qcow2", &["write 1M 64k", "write 0 64k", "write 2M 128k"]);
    let found = &numbers(&bench, "x.qcow2")["image"]["fragmentation"];
    let expected = serde_json::json!({
        "runs": 3,
        "average-run-bytes": (4 * CLUSTER) / 3,
        "longest-run-bytes": 2 * CLUSTER,
        "median-jump-bytes": 2 * CLUSTER,
        "furthest-jump-bytes": 2 * CLUSTER,
    });
    assert_eq!(*found, expected);
}

#[test]
fn a_drawing_keeps_to_its_columns_and_a_pipe_gets_no_colours() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "x.qcow2", "64T"]);
    io(&bench, "x.qcow2", &["write 33T 9M", "write 1T 64k"]);
    for width in ["50", "80", "133"] {
        let ran = bench.cowhand(&["show", "--width", width, "x.qcow2"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let longest = ran.out.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= width.parse().unwrap() && !ran.out.contains('\x1b'), "{width}: {}", ran.out);
        assert!(ran.out.contains('▪'), "64 KiB of 64 TiB are seen: {}", ran.out);
    }
    let ascii = bench.cowhand(&["show", "--ascii", "x.qcow2"]).out;
    assert!(ascii.is_ascii(), "{ascii}");
    assert_eq!(bench.cowhand(&["show", "--width", "49", "x.qcow2"]).code, 1);
}

#[test]
fn pages_and_drawings_obey_no_name_and_replace_no_disk() {
    let bench = Bench::new();
    let name = "<script>&\"x\".qcow2";
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", name, "4M"]);
    let before = fs::read(bench.path(name)).unwrap();
    let ran = bench.cowhand(&["show", "--html", "x.html", "--svg", "x.svg", name]);
    assert_eq!((ran.code, &*ran.out), (0, ""), "{}", ran.err);
    for (file, begins) in [("x.html", "<!DOCTYPE html>"), ("x.svg", "<svg ")] {
        let text = fs::read_to_string(bench.path(file)).unwrap();
        assert!(
            text.starts_with(begins) && !text.contains("<script") && text.contains("&lt;script&gt;"),
            "{file}"
        );
        assert!(text.contains("prefers-color-scheme: dark"), "{file}");
        let python = format!("import xml.dom.minidom as m; m.parse('{file}')");
        if file == "x.svg" {
            bench.qemu("/usr/bin/python3", &["-c", &python]);
        }
    }
    let ran = bench.cowhand(&["show", "--svg", name, name]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("is no picture"), "{}", ran.err);
    assert_eq!(fs::read(bench.path(name)).unwrap(), before, "nothing was written to the image");
    assert_eq!(fs::read_dir(bench.path(".")).unwrap().count(), 3, "nothing else is left");
}

#[test]
fn an_image_that_names_one_table_many_times_is_refused_at_once() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", "x.qcow2", "1G"]);
    io(&bench, "x.qcow2", &["write 0 512"]);
    let image = fs::File::options().read(true).write(true).open(bench.path("x.qcow2")).unwrap();
    let mut place = [0; 8];
    image.read_exact_at(&mut place, 40).unwrap();
    let l1 = u64::from_be_bytes(place);
    let mut entry = [0; 8];
    image.read_exact_at(&mut entry, l1).unwrap();
    assert_ne!(entry, [0; 8]);
    image.write_all_at(&entry.repeat((1 << 30) / (512 * 64)), l1).unwrap();
    let ran = bench.cowhand(&["show", "x.qcow2"]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains("more L2 tables than its file has clusters"), "{}", ran.err);
}

#[test]
fn an_image_in_use_is_refused_unless_shared_by_force() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "x.qcow2", "1M"]);
    let file = fs::File::open(bench.path("x.qcow2")).unwrap();
    let _writer = FileLock::acquire_role(&Arc::new(file.into()), Role::Writer).unwrap();
    let (refused, shared) = (bench.cowhand(&["show", "x.qcow2"]), bench.cowhand(&["show", "-U", "x.qcow2"]));
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains(&std::process::id().to_string()), "names the holder: {}", refused.err);
    assert_eq!(shared.code, 0, "{}", shared.err);
}
