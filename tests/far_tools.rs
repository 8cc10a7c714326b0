//! Tools on disks that are far away, by every driver that reads one: what works is what works on the file, and the rest is refused in plain
//! words, before anything is changed. docs/reference/remote.md has the table; the same of RBD images is in `rbd.rs`.

use std::time::Duration;

use black_box::ports::free_port;
use black_box::{Moto, QemuNbd, Run, cowhand};

use crate::remote::Scene as Files;

const MIB: usize = 1 << 20;

/// The disks of [`Files`] in a store, and behind an NBD server, too.
struct Scene {
    files: Files,
    store: Moto,
    nbd: QemuNbd,
    port: u16,
}

impl Scene {
    fn new() -> Self {
        let (files, store, port) = (Files::new(), Moto::start(), free_port());
        store.put("/images", b"");
        let image = std::fs::read(files.scratch.file("disk.qcow2")).expect("an image");
        store.put("/images/disk.qcow2", &image);
        // An export does not become longer: there is room for what is written to it.
        let mut image = image;
        image.resize(16 * MIB, 0);
        let copy = files.scratch.write("nbd.qcow2", &image);
        let nbd = QemuNbd::start(&copy, &["-p", &port.to_string()]);
        let scene = Self { files, store, nbd, port };
        scene.run(&["push", "-q", "-f", "raw", "disk.raw", "s3://images/base/disk"]).ok();
        scene
    }

    fn run(&self, words: &[&str]) -> Run {
        let run = cowhand(words).current_dir(self.files.scratch.path()).limit(Duration::from_secs(60));
        self.store.below(run)
    }

    fn nbd(&self) -> String {
        format!("nbd://127.0.0.1:{}/disk", self.port)
    }

    /// Each disk, its file, and their format.
    fn disks(&self) -> [(String, &'static str, &'static str); 5] {
        [
            (self.files.nginx.url("/disk.qcow2"), "disk.qcow2", "qcow2"),
            ("s3://images/disk.qcow2".to_owned(), "disk.qcow2", "qcow2"),
            (self.nbd(), "disk.qcow2", "qcow2"),
            (self.files.nginx.url("/disk.raw"), "disk.raw", "raw"),
            ("chunked:s3://images/base/disk".to_owned(), "disk.raw", "raw"),
        ]
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.files.scratch.file(name)).expect("a file")
    }
}

#[test]
fn every_tool_that_reads_says_of_a_disk_far_away_what_it_says_of_its_file() {
    let scene = Scene::new();
    for (far, file, format) in scene.disks() {
        let of = |words: &[&str], name: &str| {
            let words: Vec<&str> =
                words.iter().map(|word| if *word == "DISK" { name } else { word }).collect();
            scene.run(&words)
        };
        let info = |name: &str| {
            let found = of(&["info", "-f", format, "--output", "json", "DISK"], name).json();
            (found["virtual-size"].clone(), found["format"].clone(), found["cluster-size"].clone())
        };
        assert_eq!(info(&far), info(file), "{far}");
        let measure = |name: &str| {
            of(&["measure", "-f", format, "-O", "qcow2", "--output", "json", "DISK"], name).json()
        };
        let (there, here) = (measure(&far), measure(file));
        let may_differ = format == "raw";
        // A web server tells no holes: what they would take is counted.
        assert!(
            there == here || may_differ && there["required"].as_u64() >= here["required"].as_u64(),
            "{far}: {there}"
        );
        let sum = |name: &str| {
            of(&["verify", "-f", format, "DISK"], name).ok().split(' ').next().map(str::to_owned)
        };
        assert_eq!(sum(&far), sum(file), "{far}");
        let map = of(&["map", "-f", format, "--output", "json", "DISK"], &far).json();
        let mapped: u64 =
            map.as_array().expect("a list").iter().filter_map(|part| part["length"].as_u64()).sum();
        assert_eq!(mapped, 6 * MIB as u64, "{far}");
        if format == "qcow2" {
            assert_eq!(map, of(&["map", "-f", format, "--output", "json", "DISK"], file).json(), "{far}");
            of(&["check", "DISK"], &far).ok();
        } else {
            let said = of(&["check", "-f", "raw", "DISK"], &far).fails();
            assert!(said.contains("a raw image has no metadata to check"), "{said}");
        }
        of(&["compare", "-f", format, "-F", "raw", "DISK", "disk.raw"], &far).ok();
        of(&["compare", "-f", "raw", "-F", format, "disk.raw", "DISK"], &far).ok();
        of(&["convert", "-f", format, "-O", "raw", "DISK", "copy.raw"], &far).ok();
        assert!(scene.bytes("copy.raw") == scene.bytes("disk.raw"), "{far}");
        of(&["dd", "-f", format, &format!("if={far}"), "of=part.raw", "bs=64k", "skip=3", "count=40"], &far)
            .ok();
        assert!(scene.bytes("part.raw") == scene.bytes("disk.raw")[3 << 16..40 << 16], "{far}");
        let source = format!("driver={format},read-only=on,file={far}");
        of(&["backup", "DISK", "points"], &source).ok();
        of(&["backup", "--restore", "points", "restored.qcow2"], &far).ok();
        of(&["compare", "-f", "qcow2", "-F", "raw", "restored.qcow2", "disk.raw"], &far).ok();
        for made in ["copy.raw", "part.raw", "restored.qcow2"] {
            std::fs::remove_file(scene.files.scratch.file(made)).expect("it was made");
        }
        std::fs::remove_dir_all(scene.files.scratch.file("points")).expect("a directory");
    }
}

/// A tool opened what is only read, changed something of its own, and then found out.
#[test]
fn every_tool_that_writes_is_refused_where_a_disk_is_only_read() {
    let scene = Scene::new();
    let objects = scene.store.keys("images");
    for (far, file, format) in scene.disks() {
        if far.starts_with("nbd:") {
            continue;
        }
        let before = scene.bytes(file);
        let target = format!("of={far}");
        for words in [
            &["resize", "-f", format, &far, "+1M"][..],
            &["amend", "-f", format, "-o", "lazy_refcounts=on", &far],
            &["commit", "-f", format, &far],
            &["flatten", "-f", format, &far],
            &["compact", "-f", format, &far],
            &["rebase", "-f", format, "-u", "-b", "", &far],
            &["snapshot", "-c", "point", &far],
            &["bitmap", "-f", format, "--add", &far, "b"],
            &["io", "-f", format, "-c", "write 0 512", &far],
            &["convert", "-n", "-f", "raw", "-O", format, "disk.raw", &far],
            &["convert", "-f", "raw", "-O", format, "disk.raw", &far],
            &["create", "-f", format, &far, "6M"],
            &["dd", "-f", "raw", "-O", format, "if=disk.raw", &target],
        ] {
            let said = scene.run(words).fails();
            let is_plain = [
                "only read",
                "read-only",
                "creates nothing",
                "there is an object already",
                "is raw",
                "raw image",
            ];
            assert!(is_plain.iter().any(|words| said.contains(words)), "{words:?}: {said}");
            assert!(!said.contains("panicked"), "{said}");
        }
        if format == "qcow2" {
            let said = scene.run(&["check", "-r", "all", &far]).fails();
            assert!(said.contains("only read") || said.contains("read-only"), "{said}");
        }
        assert!(scene.bytes(file) == before, "{far}");
    }
    assert_eq!(scene.store.keys("images"), objects);
    let object = scene.store.get("/images/disk.qcow2").expect("an object");
    assert!(object == scene.bytes("disk.qcow2"));
}

/// An export is written where it is, and nothing is made in its place.
#[test]
fn an_nbd_export_is_written_by_the_tools_that_write_to_what_is_there() {
    let scene = Scene::new();
    let nbd = scene.nbd();
    scene.run(&["snapshot", "-c", "point", &nbd]).ok();
    scene.run(&["bitmap", "--add", &nbd, "b"]).ok();
    scene.run(&["io", "-c", "write -P 9 1M 64k", &nbd]).ok();
    scene.run(&["check", &nbd]).ok();
    let listed = scene.run(&["snapshot", "-l", &nbd]).ok();
    assert!(listed.contains("point"), "{listed}");
    scene.run(&["snapshot", "-a", "point", &nbd]).ok();
    scene.run(&["compare", "-F", "raw", &nbd, "disk.raw"]).ok();
    for words in [
        &["create", "-f", "raw", &nbd, "6M"][..],
        &["convert", "-f", "raw", "-O", "raw", "disk.raw", &nbd],
        &["dd", "-f", "raw", "if=disk.raw", &format!("of={nbd}")],
    ] {
        let said = scene.run(words).fails();
        assert!(said.contains("driver nbd creates nothing") && said.contains("convert -n"), "{said}");
    }
    let said = scene.run(&["resize", "-f", "raw", &nbd, "+1M"]).fails();
    assert!(said.contains("whose size is what it is"), "{said}");
    scene.run(&["compare", "-F", "raw", &nbd, "disk.raw"]).ok();
    // By QEMU, of the file behind the export.
    scene.nbd.stop();
    let file = scene.files.scratch.name("nbd.qcow2");
    Run::new("qemu-img").args(["check", "-q", "-f", "qcow2", &file]).ok();
}
