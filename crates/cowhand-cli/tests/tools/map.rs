//! `cowhand map` against `qemu-img map`.

use std::fs;

use serde_json::Value;

use crate::peer::Bench;

/// qemu-img says since 8.2 what is compressed; ours always does.
fn without_compressed(mut map: Value) -> Value {
    for row in map.as_array_mut().unwrap() {
        row.as_object_mut().unwrap().remove("compressed");
    }
    map
}

fn agree(bench: &Bench, words: &[&str]) {
    let theirs = bench.qemu("qemu-img", &[&["map", "--output=json"], words].concat()).json();
    let ran = bench.cowhand(&[&["map", "--output=json"], words].concat());
    assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
    assert_eq!(without_compressed(ran.json()), without_compressed(theirs), "{words:?}");
}

#[test]
fn a_chain_maps_as_qemu_img_maps_it() {
    let bench = Bench::new();
    let io = |file: &str, commands: &[&str]| {
        let words: Vec<&str> = commands.iter().flat_map(|command| ["-c", command]).collect();
        bench.qemu(
            "qemu-io",
            &[&["-f", if file.ends_with("raw") { "raw" } else { "qcow2" }], &words[..], &[file]].concat(),
        );
    };
    bench.qemu("qemu-img", &["create", "-f", "raw", "base.raw", "4M"]);
    io("base.raw", &["write 0 1M", "write 2M 64k"]);
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "-b", "base.raw", "-F", "raw", "mid.qcow2", "8M"]);
    io("mid.qcow2", &["write 128k 64k", "write -z 512k 128k", "write 5M 100k"]);
    bench.qemu("qemu-img", &["create", "-f", "qcow2", "-b", "mid.qcow2", "-F", "qcow2", "top.qcow2", "10M"]);
    io("top.qcow2", &["write 192k 64k", "write 256k 64k", "write -z 3M 64k", "write 9M 64k"]);
    for file in ["base.raw", "mid.qcow2", "top.qcow2"] {
        agree(&bench, &["-f", if file.ends_with("raw") { "raw" } else { "qcow2" }, file]);
    }
    agree(&bench, &["-s", "100k", "-l", "1M", "top.qcow2"]);
    agree(&bench, &["--start-offset=3M", "top.qcow2"]);
    let human = bench.cowhand(&["map", "top.qcow2"]).out;
    assert!(human.starts_with("Offset          Length          Mapped to       File\n"), "{human}");
    assert!(
        human.contains("top.qcow2") && human.contains("mid.qcow2") && human.contains("base.raw"),
        "{human}"
    );
}

#[test]
fn every_geometry_maps_as_qemu_img_maps_it() {
    let bench = Bench::new();
    for options in [
        "cluster_size=512",
        "cluster_size=4k",
        "cluster_size=2M",
        "extended_l2=on",
        "extended_l2=on,cluster_size=16k",
        "compat=0.10",
        "preallocation=full",
        "refcount_bits=64",
    ] {
        bench.qemu("qemu-img", &["create", "-f", "qcow2", "-o", options, "x.qcow2", "10M"]);
        bench.qemu(
            "qemu-io",
            &[
                "-c",
                "write 1k 3k",
                "-c",
                "write 1M 200k",
                "-c",
                "write 3M 5k",
                "-c",
                "discard 1M 64k",
                "x.qcow2",
            ],
        );
        agree(&bench, &["x.qcow2"]);
        fs::remove_file(bench.path("x.qcow2")).unwrap();
    }
}

#[test]
fn a_data_file_maps_as_qemu_img_maps_it() {
    let bench = Bench::new();
    for raw in ["on", "off"] {
        let options = format!("data_file=data.raw,data_file_raw={raw}");
        bench.qemu("qemu-img", &["create", "-f", "qcow2", "-o", &options, "x.qcow2", "4M"]);
        bench.qemu("qemu-io", &["-c", "write 1M 200k", "-c", "write -z 2M 64k", "x.qcow2"]);
        agree(&bench, &["x.qcow2"]);
    }
}

#[test]
fn zeroes_at_the_start_of_a_data_file_map_as_qemu_img_maps_them() {
    let bench = Bench::new();
    for more in ["data_file_raw=on", "data_file_raw=off", "data_file_raw=on,extended_l2=on"] {
        let options = format!("data_file=data.raw,{more}");
        bench.qemu("qemu-img", &["create", "-f", "qcow2", "-o", &options, "x.qcow2", "4M"]);
        bench.qemu("qemu-io", &["-c", "write 0 256k", "-c", "write -z 0 192k", "x.qcow2"]);
        agree(&bench, &["x.qcow2"]);
    }
}

#[test]
fn a_raw_file_that_ends_inside_a_sector_maps_as_qemu_img_maps_it() {
    let bench = Bench::new();
    let with_data_at_the_end = vec![7; 100_000];
    fs::write(bench.path("data"), &with_data_at_the_end).unwrap();
    fs::write(bench.path("less"), &with_data_at_the_end[..300]).unwrap();
    fs::write(bench.path("hole"), &with_data_at_the_end[..20_000]).unwrap();
    fs::File::options().write(true).open(bench.path("hole")).unwrap().set_len(100_000).unwrap();
    for base in ["data", "less", "hole"] {
        agree(&bench, &["-f", "raw", base]);
        bench.qemu("qemu-img", &["create", "-f", "qcow2", "-b", base, "-F", "raw", "x.qcow2", "1M"]);
        agree(&bench, &["x.qcow2"]);
    }
}

#[test]
fn compressed_clusters_are_shown_as_such() {
    let bench = Bench::new();
    fs::write(bench.path("plain"), vec![7; 256 << 10]).unwrap();
    bench.qemu("qemu-img", &["convert", "-f", "raw", "-c", "-O", "qcow2", "plain", "x.qcow2"]);
    let ran = bench.cowhand(&["map", "--output=json", "x.qcow2"]);
    let rows = ran.json();
    assert_eq!(rows[0]["compressed"], true);
    assert!(rows[0].get("offset").is_none() && rows[0]["data"] == true);
    agree(&bench, &["x.qcow2"]);
    assert!(bench.cowhand(&["map", "x.qcow2"]).out.contains("compressed"));
}

#[test]
fn names_in_an_image_start_at_the_path_it_was_opened_by_as_in_qemu() {
    let bench = Bench::new();
    for directory in ["store", "links"] {
        fs::create_dir(bench.path(directory)).unwrap();
    }
    fs::write(bench.path("links/base"), vec![1; 64 << 10]).unwrap();
    bench.qemu("qemu-img", &["create", "-u", "-f", "qcow2", "-b", "base", "-F", "raw", "store/top", "64k"]);
    std::os::unix::fs::symlink("../store/top", bench.path("links/top")).unwrap();
    agree(&bench, &["links/top"]);
    assert_eq!(bench.cowhand(&["map", "store/top"]).code, 1, "there is no base beside it");
}

#[test]
fn a_deep_chain_of_mixed_layers_maps_as_qemu_img_maps_it() {
    let bench = Bench::new();
    let shapes = [
        "cluster_size=64k",
        "cluster_size=4k",
        "cluster_size=16k,extended_l2=on",
        "compat=0.10,cluster_size=512",
        "cluster_size=64k,extended_l2=on",
        "cluster_size=2M",
    ];
    bench.qemu("qemu-img", &["create", "-f", "raw", "0.raw", "9M"]);
    bench.qemu("qemu-io", &["-f", "raw", "-c", "write -P 1 0 3M", "0.raw"]);
    for layer in 1..14u64 {
        let (below, format) = match layer {
            1 => ("0.raw".to_owned(), "raw"),
            _ => (format!("{}.qcow2", layer - 1), "qcow2"),
        };
        let (name, size) = (format!("{layer}.qcow2"), (8 << 20) + 512 * (layer * 7 % 5));
        let shape = shapes[layer as usize % shapes.len()];
        let created = [
            &["create", "-f", "qcow2", "-o", shape, "-b", &below, "-F", format, &name][..],
            &[&size.to_string()],
        ];
        bench.qemu("qemu-img", &created.concat());
        let at = layer * 530_000 % 7_000_000 / 512 * 512;
        let write = format!("write -P {layer} {at} 100k");
        bench.qemu("qemu-io", &["-f", "qcow2", "-c", &write, &name]);
        let more = match layer % 4 {
            0 => "write -c -P 9 6M 64k",
            1 if !shape.starts_with("compat") => "write -z 4M 200k",
            _ => "write -P 7 5M 512",
        };
        bench.qemu("qemu-io", &["-f", "qcow2", "-c", more, &name]);
    }
    for name in ["3.qcow2", "8.qcow2", "13.qcow2"] {
        agree(&bench, &[name]);
    }
}
