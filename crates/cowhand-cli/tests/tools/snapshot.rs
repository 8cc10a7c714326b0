//! `cowhand snapshot` and `cowhand resize` beside qemu-img, each on what the other made.

use crate::peer::Bench;

fn io(bench: &Bench, commands: &[&str]) {
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let words: Vec<_> = ["-f", "qcow2"].into_iter().chain(commands).chain(["x.qcow2"]).collect();
    let ran = bench.qemu("qemu-io", &words);
    assert!(!ran.out.contains("rror") && !ran.out.contains("failed"), "{}", ran.out);
}

fn ours(bench: &Bench, words: &[&str]) -> String {
    let ran = bench.cowhand(words);
    assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
    bench.qemu("qemu-img", &["check", "-q", "x.qcow2"]);
    ran.out
}

fn theirs(bench: &Bench, words: &[&str]) {
    bench.qemu("qemu-img", words);
    ours(bench, &["check", "x.qcow2"]);
}

#[test]
fn snapshots_of_either_are_the_others_too() {
    for options in ["cluster_size=64k", "cluster_size=512,refcount_bits=8", "compat=0.10", "extended_l2=on"] {
        let bench = Bench::new();
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", options, "x.qcow2", "6M"]);
        io(&bench, &["write -P 1 0 3M"]);
        ours(&bench, &["snapshot", "-c", "first", "x.qcow2"]);
        io(&bench, &["write -P 2 1M 3M", "read -P 1 0 1M"]);
        theirs(&bench, &["snapshot", "-c", "second", "x.qcow2"]);
        io(&bench, &["write -P 3 0 512", "discard 2M 1M"]);
        let listed = bench.cowhand(&["snapshot", "-l", "--output", "json", "x.qcow2"]).json();
        let names: Vec<_> = listed.as_array().unwrap().iter().map(|one| (&one["id"], &one["name"])).collect();
        assert_eq!(names, [(&"1".into(), &"first".into()), (&"2".into(), &"second".into())]);
        ours(&bench, &["snapshot", "-a", "1", "x.qcow2"]);
        io(&bench, &["read -P 1 0 3M", "read -P 0 3M 3M", "write -P 4 5M 64k"]);
        theirs(&bench, &["snapshot", "-a", "second", "x.qcow2"]);
        io(&bench, &["read -P 1 0 1M", "read -P 2 1M 3M", "read -P 0 4M 2M"]);
        ours(&bench, &["snapshot", "-d", "first", "x.qcow2"]);
        io(&bench, &["write -P 5 0 1M", "read -P 2 1M 3M"]);
        ours(&bench, &["snapshot", "-a", "2", "x.qcow2"]);
        io(&bench, &["read -P 1 0 1M", "read -P 2 1M 3M"]);
        theirs(&bench, &["snapshot", "-d", "second", "x.qcow2"]);
        io(&bench, &["read -P 1 0 1M", "write -P 6 0 6M", "read -P 6 0 6M"]);
    }
}

#[test]
fn going_back_brings_back_the_size_on_either_side() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", "x.qcow2", "1M"]);
    io(&bench, &["write -P 1 0 1M"]);
    ours(&bench, &["snapshot", "-c", "small", "x.qcow2"]);
    assert_eq!(ours(&bench, &["resize", "x.qcow2", "+3M"]), "Image resized.\n");
    io(&bench, &["read -P 0 1M 3M", "write -P 2 3M 1M"]);
    theirs(&bench, &["snapshot", "-c", "large", "x.qcow2"]);
    ours(&bench, &["snapshot", "-a", "small", "x.qcow2"]);
    assert_eq!(bench.qemu("qemu-img", &["info", "--output=json", "x.qcow2"]).json()["virtual-size"], 1 << 20);
    ours(&bench, &["snapshot", "-a", "large", "x.qcow2"]);
    io(&bench, &["read -P 1 0 1M", "read -P 0 1M 2M", "read -P 2 3M 1M"]);
    theirs(&bench, &["snapshot", "-a", "small", "x.qcow2"]);
    ours(&bench, &["resize", "--shrink", "x.qcow2", "-512k"]);
    theirs(&bench, &["resize", "-q", "x.qcow2", "2M"]);
    io(&bench, &["read -P 1 0 512k"]);
}

#[test]
fn what_qemu_img_refuses_is_refused_with_its_exit_code() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "x.qcow2", "4M"]);
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "refcount_bits=1", "one.qcow2", "4M"]);
    bench.qemu("qemu-io", &["-c", "write 0 1M", "one.qcow2"]);
    bench.qemu("qemu-img", &["snapshot", "-c", "a", "x.qcow2"]);
    for words in [
        &["snapshot", "-d", "1", "x.qcow2"][..],
        &["snapshot", "-a", "none", "x.qcow2"],
        &["snapshot", "-c", "a", "one.qcow2"],
        &["snapshot", "-l", "-c", "a", "x.qcow2"],
        &["resize", "x.qcow2", "1M"],
        &["resize", "--shrink", "--preallocation=full", "x.qcow2", "1M"],
        &["resize", "--preallocation=some", "x.qcow2", "8M"],
        &["resize", "x.qcow2", "+100"],
    ] {
        // On a copy: some of its refusals leak clusters.
        let copy = |word: &&str| {
            if !word.ends_with(".qcow2") {
                return (*word).to_owned();
            }
            let name = format!("theirs-{word}");
            std::fs::copy(bench.path(word), bench.path(&name)).unwrap();
            name
        };
        let copied: Vec<String> = words.iter().map(copy).collect();
        let copied: Vec<&str> = copied.iter().map(String::as_str).collect();
        let theirs = bench.run(std::path::Path::new("qemu-img"), &copied);
        let ours = bench.cowhand(words);
        assert_eq!((ours.code, theirs.code), (1, 1), "{words:?}: {}{}", ours.err, theirs.err);
    }
    for image in ["x.qcow2", "one.qcow2"] {
        bench.qemu("qemu-img", &["check", "-q", image]);
    }
}

#[test]
fn a_raw_disk_is_as_long_as_its_file() {
    let bench = Bench::new();
    std::fs::write(bench.path("x.raw"), [7; 1000 * 512]).unwrap();
    let resize = |words: &[&str]| bench.cowhand(&[&["resize", "-f", "raw"], words].concat()).code;
    assert_eq!(resize(&["--preallocation=falloc", "x.raw", "1M"]), 0);
    assert_eq!(std::fs::metadata(bench.path("x.raw")).unwrap().len(), 1 << 20);
    assert_eq!(resize(&["x.raw", "-1k"]), 1);
    assert_eq!(resize(&["--shrink", "x.raw", "-1M"]), 0);
    assert_eq!(std::fs::metadata(bench.path("x.raw")).unwrap().len(), 0);
}
