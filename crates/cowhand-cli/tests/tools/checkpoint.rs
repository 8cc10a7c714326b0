//! Checkpoints of images that no process has open: what QEMU's tools see of them.

use serde_json::{Value, json};

use crate::peer::{Bench, Ran};

fn io(bench: &Bench, image: &str, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let words: Vec<_> = ["-f", "qcow2"].into_iter().chain(commands).chain([image]).collect();
    let ran = bench.qemu("qemu-io", &words);
    assert!(!ran.out.contains("rror") && !ran.out.contains("failed"), "{image}: {}", ran.out);
}

/// Reads without a lock for writing: a layer is read-only.
fn reads(bench: &Bench, image: &str, command: &str) {
    let ran = bench.qemu("qemu-io", &["-r", "-f", "qcow2", "-c", command, image]);
    assert!(!ran.out.contains("rror") && !ran.out.contains("failed"), "{image}: {}", ran.out);
}

fn ok(bench: &Bench, words: &[&str]) -> Ran {
    let ran = bench.cowhand(words);
    assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
    ran
}

fn refused(bench: &Bench, words: &[&str]) -> String {
    let ran = bench.cowhand(words);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{words:?}");
    ran.err
}

fn log(bench: &Bench) -> Value {
    ok(bench, &["log", "--output", "json", "."]).json()
}

/// A disk with three layers: 1 in all of it, then 2 in the second 64 KiB, then 3 in the third.
fn built() -> Bench {
    let bench = Bench::new();
    ok(&bench, &["create", "-q", "d.qcow2", "4M"]);
    io(&bench, "d.qcow2", &["write -P 1 0 1M"]);
    ok(&bench, &["checkpoint", "-q", "d.qcow2", "one", "--label", "owner=me"]);
    io(&bench, "d.qcow2", &["write -P 2 64k 64k"]);
    ok(&bench, &["checkpoint", "-q", "d.qcow2", "two"]);
    io(&bench, "d.qcow2", &["write -P 3 128k 64k"]);
    bench
}

/// The chain by `qemu-img info --backing-chain`: file names from the disk down.
fn chain_by_qemu(bench: &Bench, disk: &str) -> Vec<String> {
    let chain = bench.qemu("qemu-img", &["info", "--backing-chain", "--output=json", disk]).json();
    let images = chain.as_array().unwrap().iter().map(|image| image["filename"].as_str().unwrap());
    images.map(|name| name.rsplit('/').next().unwrap().to_owned()).collect()
}

fn all_are_sound(bench: &Bench) {
    let log = log(bench);
    for image in log["layers"].as_array().unwrap().iter().chain(log["disks"].as_array().unwrap()) {
        bench.qemu("qemu-img", &["check", "-q", image["file"].as_str().unwrap()]);
    }
    for disk in log["disks"].as_array().unwrap() {
        let layers =
            disk["layers"].as_array().unwrap().iter().map(|id| format!("{}.qcow2", id.as_str().unwrap()));
        let name = disk["name"].as_str().unwrap();
        let expected: Vec<String> = [name.to_owned()].into_iter().chain(layers).collect();
        assert_eq!(chain_by_qemu(bench, name), expected);
    }
}

#[test]
fn qemu_reads_each_disk_and_each_layer_as_it_was() {
    let bench = built();
    all_are_sound(&bench);
    ok(&bench, &["fork", "-q", "d.qcow2@one", "f.qcow2", "--count", "2"]);
    ok(&bench, &["rollback", "-q", "d.qcow2", "@two"]);
    io(
        &bench,
        "d.qcow2",
        &["read -P 1 0 64k", "read -P 2 64k 64k", "read -P 1 128k 64k", "write -P 4 0 64k"],
    );
    for fork in ["f-1.qcow2", "f-2.qcow2"] {
        io(&bench, fork, &["read -P 1 0 1M", "write -P 5 0 64k"]);
    }
    let log = log(&bench);
    let layers = log["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 3);
    for layer in layers {
        let file = layer["file"].as_str().unwrap();
        let expected = match layer["name"].as_str() {
            Some("one") => "read -P 1 0 1M",
            Some("two") => "read -P 2 64k 64k",
            // Left by the rollback.
            _ => "read -P 3 128k 64k",
        };
        reads(&bench, file, expected);
        assert_eq!(layer.get("changed"), None);
        assert_eq!(
            layer["labels"],
            if layer["name"] == "one" { json!({ "owner": "me" }) } else { json!({}) }
        );
    }
    all_are_sound(&bench);
}

/// An overlay that QEMU made over a layer is a disk of the lineage, and a disk that QEMU resized goes on having checkpoints.
#[test]
fn what_qemu_makes_over_a_layer_belongs_to_the_lineage() {
    let bench = built();
    let one = log(&bench)["layers"].as_array().unwrap().iter().find(|layer| layer["name"] == "one").unwrap()
        ["id"]
        .clone();
    let backing = format!("layers/{}.qcow2", one.as_str().unwrap());
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-b", &backing, "-F", "qcow2", "q.qcow2"]);
    bench.qemu("qemu-img", &["resize", "-q", "q.qcow2", "8M"]);
    io(&bench, "q.qcow2", &["read -P 1 0 1M", "write -P 6 7M 64k"]);
    ok(&bench, &["checkpoint", "q.qcow2", "large"]);
    io(&bench, "q.qcow2", &["read -P 6 7M 64k"]);
    ok(&bench, &["rollback", "q.qcow2", "@one"]);
    assert_eq!(bench.qemu("qemu-img", &["info", "--output=json", "q.qcow2"]).json()["virtual-size"], 4 << 20);
    ok(&bench, &["rollback", "q.qcow2", "@large"]);
    io(&bench, "q.qcow2", &["read -P 6 7M 64k"]);
    all_are_sound(&bench);
    let said = ok(&bench, &["checkpoint", "--delete", "-n", "d.qcow2@one"]).out;
    assert!(said.contains("q.qcow2") || said.contains("needs it"), "{said}");
}

#[test]
fn diff_shows_what_layers_say_and_compare_finds_no_other_difference() {
    let bench = built();
    let ranges = |one: &str, other: &str| ok(&bench, &["diff", "--output", "json", one, other]).json();
    let range = |start: u64, length: u64, one: &str, other: &str| json!({ "start": start, "length": length, "a": one, "b": other });
    assert_eq!(ranges("d.qcow2@one", "d.qcow2@one"), json!([]));
    assert_eq!(ranges("d.qcow2@one", "d.qcow2@two"), json!([range(65536, 65536, "shared", "data")]));
    assert_eq!(ranges("d.qcow2", "d.qcow2@one"), json!([range(65536, 131072, "data", "shared")]));
    ok(&bench, &["fork", "-q", "d.qcow2@one", "f.qcow2"]);
    io(&bench, "f.qcow2", &["write -z 0 64k"]);
    bench.qemu("qemu-img", &["resize", "-q", "f.qcow2", "5M"]);
    assert_eq!(
        ranges("f.qcow2", "d.qcow2@two"),
        json!([
            range(0, 65536, "zero", "shared"),
            range(65536, 65536, "shared", "data"),
            range(4 << 20, 1 << 20, "zero", "nothing"),
        ])
    );
    // Where what both are backed by has ended, both read as zeroes.
    ok(&bench, &["fork", "-q", "d.qcow2@one", "g.qcow2"]);
    bench.qemu("qemu-img", &["resize", "-q", "g.qcow2", "6M"]);
    assert_eq!(
        ranges("f.qcow2", "g.qcow2"),
        json!([range(0, 65536, "zero", "shared"), range(5 << 20, 1 << 20, "nothing", "zero")])
    );
    let human = ok(&bench, &["diff", "d.qcow2@one", "d.qcow2@two"]).out;
    assert!(human.ends_with("64 KiB in 1 ranges may differ\n"), "{human}");
    // A layer that another program has written is not what was sealed.
    let layer = log(&bench)["layers"][0]["file"].as_str().expect("a path").to_owned();
    io(&bench, &layer, &["write -q -P 7 2M 64k"]);
    let error = refused(&bench, &["diff", "f.qcow2", "d.qcow2@two"]);
    assert!(error.contains("has changed since it was sealed"), "{error}");
}

#[test]
fn what_a_lineage_cannot_have_is_refused_by_name() {
    let bench = built();
    let make = |words: &[&str]| drop(bench.qemu("qemu-img", words));
    make(&["create", "-q", "-f", "raw", "r.raw", "1M"]);
    make(&["create", "-q", "-f", "qcow2", "s.qcow2", "1M"]);
    make(&["snapshot", "-c", "x", "s.qcow2"]);
    make(&["create", "-q", "-f", "qcow2", "b.qcow2", "1M"]);
    make(&["bitmap", "--add", "b.qcow2", "x"]);
    let secret = ["--object", "secret,id=s,data=hush"];
    make(
        &[
            &["create", "-q"][..],
            &secret,
            &[
                "-f",
                "qcow2",
                "-o",
                "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
                "l.qcow2",
                "1M",
            ],
        ]
        .concat(),
    );
    make(&["create", "-q", "-f", "qcow2", "-o", "data_file=x.raw", "x.qcow2", "1M"]);
    std::fs::create_dir(bench.path("sub")).unwrap();
    make(&["create", "-q", "-f", "raw", "sub/base.raw", "1M"]);
    make(&["create", "-q", "-f", "qcow2", "-b", "sub/base.raw", "-F", "raw", "o.qcow2"]);
    for (disk, why) in [
        ("r.raw", "convert -O qcow2"),
        ("s.qcow2", "internal snapshots"),
        ("b.qcow2", "persistent bitmaps"),
        ("l.qcow2", "encrypted"),
        ("x.qcow2", "in another file"),
        ("o.qcow2", "rebase -u"),
    ] {
        let said = refused(&bench, &["checkpoint", disk]);
        assert!(said.contains(why), "{disk}: {said}");
    }
    // A base by an absolute name, raw or a block device, stays where it is.
    let base = bench.path("sub/base.raw");
    make(&["rebase", "-u", "-b", base.to_str().unwrap(), "-F", "raw", "o.qcow2"]);
    ok(&bench, &["checkpoint", "o.qcow2", "over-raw"]);
    bench.qemu("qemu-img", &["check", "-q", "o.qcow2"]);
    io(&bench, "o.qcow2", &["read -P 0 0 1M"]);
    for (words, why) in [
        (&["checkpoint", "d.qcow2", "one"][..], "already"),
        (&["checkpoint", "d.qcow2", "a b"], "must be 1 to"),
        (&["checkpoint", "d.qcow2", "--label", "x"], "KEY=VALUE"),
        (&["checkpoint", "d.qcow2", "one", "two"], "no more"),
        (&["rollback", "d.qcow2", "@none"], "no checkpoint none"),
        (&["fork", "d.qcow2@one", "d.qcow2"], "exists"),
        (&["fork", "d.qcow2@one", "sub/f.qcow2"], "directory of its lineage"),
        (&["fork", "d.qcow2", "f.qcow2"], "DISK@NAME"),
        (&["log", "sub"], "no lineage"),
        (&["gc", "sub"], "no lineage"),
    ] {
        let said = refused(&bench, words);
        assert!(said.contains(why), "{words:?}: {said}");
    }
}

/// QEMU has the disk open: its process is named, and nothing has changed.
#[test]
fn a_disk_in_use_is_refused_and_its_holder_named() {
    let bench = built();
    let mut holder = std::process::Command::new("qemu-io")
        .args(["-f", "qcow2", "d.qcow2"])
        .current_dir(bench.path("."))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Its prompt comes when the disk is open. A tool that asks in the meantime would take the lock itself.
    let mut prompt = [0; 7];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut prompt).unwrap();
    assert_eq!(&prompt, b"qemu-io");
    let before = log(&bench);
    for words in [&["checkpoint", "d.qcow2", "three"][..], &["rollback", "d.qcow2", "@one"]] {
        let said = refused(&bench, words);
        assert!(said.contains("qemu-io") && said.contains("control socket"), "{said}");
    }
    // Layers are sealed: a fork needs no lock of the disk.
    ok(&bench, &["fork", "-q", "d.qcow2@two", "f.qcow2"]);
    let count = |log: &Value| log["layers"].as_array().unwrap().len();
    assert_eq!(count(&log(&bench)), count(&before));
    drop(holder.stdin.take());
    holder.wait().unwrap();
    ok(&bench, &["checkpoint", "d.qcow2", "three"]);
    all_are_sound(&bench);
}

/// What is to be deleted is listed first, and what anything needs stays.
#[test]
fn gc_removes_what_nothing_needs_and_nothing_else() {
    let bench = built();
    ok(&bench, &["fork", "-q", "d.qcow2@two", "f.qcow2"]);
    ok(&bench, &["rollback", "-q", "d.qcow2", "@one"]);
    let dry = ok(&bench, &["checkpoint", "--delete", "-n", "--output", "json", "d.qcow2@two"]).json();
    assert_eq!((dry["deleted"].as_bool(), dry["layers"].as_array().unwrap().len()), (Some(false), 0));
    assert_eq!(log(&bench)["layers"].as_array().unwrap().len(), 3);
    ok(&bench, &["checkpoint", "--delete", "d.qcow2@two"]);
    assert!(refused(&bench, &["fork", "d.qcow2@two", "g.qcow2"]).contains("no checkpoint two"));
    io(&bench, "f.qcow2", &["read -P 2 64k 64k"]);
    std::fs::remove_file(bench.path("f.qcow2")).unwrap();
    assert!(ok(&bench, &["gc", "d.qcow2"]).out.contains("no file would be removed"));
    let listed = ok(&bench, &["gc", "--unnamed", "--output", "json", "."]).json();
    assert_eq!(listed["layers"].as_array().unwrap().len(), 2);
    assert_eq!(
        ok(&bench, &["gc", "--unnamed", "--remove", "--output", "json", "."]).json()["layers"],
        listed["layers"]
    );
    let left = log(&bench);
    assert_eq!(left["layers"].as_array().unwrap().len(), 1);
    io(&bench, "d.qcow2", &["read -P 1 0 1M"]);
    all_are_sound(&bench);
}

/// More layers than links that the system follows: a name of each parent is as short as that of the first, for QEMU too.
#[test]
fn a_deep_chain_opens_by_qemu() {
    let bench = Bench::new();
    ok(&bench, &["create", "-q", "d.qcow2", "1M"]);
    for layer in 0..60 {
        ok(&bench, &["checkpoint", "-q", "d.qcow2", &format!("n{layer}")]);
    }
    assert_eq!(chain_by_qemu(&bench, "d.qcow2").len(), 61);
    io(&bench, "d.qcow2", &["read -P 0 0 1M"]);
    all_are_sound(&bench);
}

/// Layers of other clusters, shorter ones, zeroes: merged, every disk and every checkpoint that stays reads as QEMU read it before.
#[test]
fn unlike_layers_are_merged_and_all_that_stays_reads_the_same() {
    let bench = Bench::new();
    let checkpoint = |disk: &str, name: &[&str]| {
        let taken = ok(&bench, &[&["checkpoint", "--output", "json", disk], name].concat()).json();
        taken["id"].as_str().unwrap().to_owned()
    };
    let raw = |image: &str| {
        bench.qemu("qemu-img", &["convert", "-U", "-f", "qcow2", "-O", "raw", image, "out.raw"]);
        std::fs::read(bench.path("out.raw")).unwrap()
    };
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "s.qcow2", "4M"]);
    io(&bench, "s.qcow2", &["write -P 1 0 4M"]);
    let mut below = checkpoint("s.qcow2", &[]);
    let bottom = below.clone();
    std::fs::remove_file(bench.path("s.qcow2")).unwrap();
    // Each disk is over the last one's checkpoint, and goes when it has one itself.
    type Layer<'a> = (&'a str, &'a str, &'a str, &'a [&'a str], &'a [&'a str]);
    let disks: [Layer<'_>; 7] = [
        ("a", "cluster_size=4k", "6M", &["write -P 2 0 12k", "write -z 1M 64k", "write -P 3 5M 8k"], &[]),
        // Behind its end the layers above read zeroes, whatever the layers below hold.
        ("b", "cluster_size=2M", "3M", &["write -P 4 2M 64k", "write -z -u 0 2M", "write -P 4 64k 4k"], &[]),
        ("c", "cluster_size=512", "6M", &["write -P 5 4M 512", "discard 2M 64k"], &["kept"]),
        ("e", "cluster_size=64k,extended_l2=on", "6M", &["write -P 6 2k 2k", "write -z 2M 128k"], &[]),
        ("f", "compat=0.10,cluster_size=16k", "5M", &["write -P 7 3M 16k", "write -z 4M 64k"], &[]),
        ("g", "cluster_size=64k", "8M", &["write -P 8 7M 4k", "write -P 8 2M 4k"], &[]),
        ("h", "cluster_size=1M", "7M", &["write -P 9 1M 4k"], &["last"]),
    ];
    let mut kept = Vec::new();
    for (name, options, size, commands, checkpoint_name) in disks {
        let (disk, backing) = (format!("{name}.qcow2"), format!("layers/{below}.qcow2"));
        let create =
            ["create", "-q", "-f", "qcow2", "-o", options, "-b", &backing, "-F", "qcow2", &disk, size];
        bench.qemu("qemu-img", &create);
        io(&bench, &disk, commands);
        below = checkpoint(&disk, checkpoint_name);
        if name == "h" || !checkpoint_name.is_empty() {
            kept.push((format!("layers/{below}.qcow2"), raw(&format!("layers/{below}.qcow2"))));
        }
        if name != "h" {
            std::fs::remove_file(bench.path(&disk)).unwrap();
        }
    }
    io(&bench, "h.qcow2", &["write -P 10 0 4k"]);
    ok(&bench, &["fork", "-q", "h.qcow2@kept", "k.qcow2"]);
    let disks = ["h.qcow2", "k.qcow2"].map(|disk| (disk.to_owned(), raw(disk)));
    let forget = ["forget", "--keep", "last:0", "--output", "json", "."];
    let listed = ok(&bench, &[&forget[..], &["-n"]].concat()).json();
    let merged = listed["merged"].as_array().unwrap();
    assert_eq!(
        merged.iter().map(|merge| merge["layers"].as_array().unwrap().len()).collect::<Vec<_>>(),
        [3, 3]
    );
    assert!(merged.iter().any(|merge| merge["layers"].as_array().unwrap().contains(&json!(bottom))));
    assert_eq!(log(&bench)["layers"].as_array().unwrap().len(), 8);
    let done = ok(&bench, &forget).json();
    assert_eq!((&done["merged"], &done["forgotten"]), (&listed["merged"], &listed["forgotten"]));
    let log = log(&bench);
    assert_eq!(log["layers"].as_array().unwrap().len(), 2, "{log}");
    for (image, before) in kept.iter().chain(&disks) {
        assert!(raw(image) == *before, "{image} reads otherwise");
    }
    all_are_sound(&bench);
    for layer in log["layers"].as_array().unwrap() {
        assert_eq!(layer.get("changed"), None);
    }
    // A layer that goes on being used has the same name, so that a disk in another directory finds it.
    ok(&bench, &["fork", "-q", "k.qcow2@kept", "l.qcow2"]);
    ok(&bench, &["checkpoint", "-q", "h.qcow2", "next"]);
    assert!(ok(&bench, &["forget", "."]).out.contains("no layers are merged"));
}

#[test]
fn a_policy_that_means_nothing_is_refused_by_name() {
    let bench = built();
    std::fs::create_dir(bench.path("sub")).unwrap();
    for (words, why) in [
        (&["forget", "--keep", "hourly", "."][..], "SPAN:NUMBER"),
        (&["forget", "--keep", "minutely:3", "."], "hourly, daily"),
        (&["forget", "--max-depth", "0", "."], "1.."),
        (&["forget", "sub"], "no lineage"),
    ] {
        let said = refused(&bench, words);
        assert!(said.contains(why), "{words:?}: {said}");
    }
    // All have names.
    let said = ok(&bench, &["forget", "--keep", "last:0", "--max-depth", "1", "d.qcow2"]);
    assert!(said.err.contains("backed by 2 layers, and --max-depth is 1"), "{}", said.err);
    assert_eq!(log(&bench)["layers"].as_array().unwrap().len(), 2);
}
