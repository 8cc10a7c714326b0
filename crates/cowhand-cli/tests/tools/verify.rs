//! `cowhand verify` beside `qemu-img convert` and sha256sum.

use std::path::Path;

use crate::peer::Bench;

/// Data, holes, zeroes over data, compressed clusters, a chain, odd sizes.
fn images(bench: &Bench) -> [&'static str; 4] {
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "base.qcow2", "5M"]);
    let io = ["-f", "qcow2", "-c", "write -P 1 0 1M", "-c", "write -c -P 2 3M 64k", "base.qcow2"];
    bench.qemu("qemu-io", &io);
    let overlay = ["create", "-q", "-f", "qcow2", "-b", "base.qcow2", "-F", "qcow2", "top.qcow2", "70M"];
    bench.qemu("qemu-img", &overlay);
    let io = ["-f", "qcow2", "-c", "write -z 512k 64k", "-c", "write -P 3 60M 100k", "top.qcow2"];
    bench.qemu("qemu-io", &io);
    bench.qemu("qemu-img", &["create", "-q", "-f", "raw", "disk.raw", "1234944"]);
    bench.qemu("qemu-io", &["-f", "raw", "-c", "write -P 4 700k 100k", "disk.raw"]);
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "empty.qcow2", "0"]);
    ["base.qcow2", "top.qcow2", "disk.raw", "empty.qcow2"]
}

/// What sha256sum prints of the disks as QEMU reads them.
fn expected(bench: &Bench, names: &[&str]) -> String {
    let each = names.iter().map(|name| {
        let format = if name.ends_with("raw") { "raw" } else { "qcow2" };
        bench.qemu("qemu-img", &["convert", "-f", format, "-O", "raw", name, "plain.raw"]);
        let sum = bench.qemu("sha256sum", &["plain.raw"]).out;
        format!("{}  {name}\n", &sum[..64])
    });
    each.collect()
}

#[test]
fn checksums_are_those_of_the_raw_disks_in_the_order_of_the_names() {
    let bench = Bench::new();
    let names = images(&bench);
    let ran = bench.cowhand(&[&["verify"], &names[..]].concat());
    assert_eq!((ran.code, ran.out), (0, expected(&bench, &names)), "{}", ran.err);
    let json = bench.cowhand(&["verify", "--output", "json", "top.qcow2"]).json();
    assert_eq!(json[0]["size"], 70 << 20);
    assert_eq!(json[0]["algorithm"], "sha256");
}

#[test]
fn what_was_printed_is_checked_by_us_and_by_sha256sum() {
    let bench = Bench::new();
    let names = images(&bench);
    let sums = bench.cowhand(&[&["verify"], &names[..]].concat()).out;
    std::fs::write(bench.path("SUMS"), &sums).unwrap();
    let ran = bench.cowhand(&["verify", "--check", "SUMS"]);
    let all: String = names.iter().map(|name| format!("{name}: OK\n")).collect();
    assert_eq!((ran.code, ran.out), (0, all), "{}", ran.err);
    std::fs::write(bench.path("RAW"), sums.lines().find(|line| line.ends_with("disk.raw")).unwrap()).unwrap();
    bench.qemu("sha256sum", &["-c", "RAW"]);
    bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -P 9 4M 1", "top.qcow2"]);
    std::fs::remove_file(bench.path("empty.qcow2")).unwrap();
    let ran = bench.cowhand(&["verify", "--check", "SUMS"]);
    let said = "base.qcow2: OK\ntop.qcow2: FAILED\ndisk.raw: OK\nempty.qcow2: FAILED open or read\n";
    assert_eq!((ran.code, &*ran.out), (1, said), "{}", ran.err);
    assert!(ran.err.contains("2 of 4 disks"), "{}", ran.err);
    let ran = bench.cowhand(&["verify", "-q", "--check", "SUMS"]);
    assert_eq!((ran.code, &*ran.out), (1, ""));
    let json = bench.cowhand(&["verify", "--output", "json", "--check", "SUMS"]).json();
    let verdicts: Vec<_> =
        json.as_array().unwrap().iter().map(|disk| disk["ok"].as_bool().unwrap()).collect();
    assert_eq!(verdicts, [true, false, true, false]);
}

/// The vector of the algorithm's authors for the empty input.
#[test]
fn blake3_is_blake3() {
    let bench = Bench::new();
    images(&bench);
    let ran = bench.cowhand(&["verify", "--algorithm", "blake3", "empty.qcow2", "top.qcow2"]);
    let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262  empty.qcow2";
    assert_eq!(ran.out.lines().next(), Some(empty), "{}", ran.err);
    std::fs::write(bench.path("SUMS"), &ran.out).unwrap();
    assert_eq!(bench.cowhand(&["verify", "-a", "blake3", "--check", "SUMS"]).code, 0);
    assert_eq!(bench.cowhand(&["verify", "--check", "SUMS"]).code, 1);
}

#[test]
fn one_disk_that_cannot_be_read_does_not_keep_others_from_being_read() {
    let bench = Bench::new();
    let names = images(&bench);
    std::fs::write(bench.path("bad.qcow2"), b"QFI\xfb no header").unwrap();
    let ran = bench.cowhand(&["verify", "-f", "qcow2", "bad.qcow2", names[0], "missing.qcow2"]);
    assert_eq!((ran.code, ran.out), (1, expected(&bench, &names[..1])));
    assert!(ran.err.contains("bad.qcow2") && ran.err.contains("missing.qcow2"), "{}", ran.err);
}

#[test]
fn a_list_that_is_none_is_refused() {
    let bench = Bench::new();
    for (list, said) in [("", "no checksums"), ("hello\n", "line 1"), ("0123  disk\n", "line 1")] {
        std::fs::write(bench.path("SUMS"), list).unwrap();
        let ran = bench.cowhand(&["verify", "--check", "SUMS"]);
        assert_eq!(ran.code, 1);
        assert!(ran.err.contains(said), "{list:?}: {}", ran.err);
    }
    let both = bench.run(Path::new(env!("CARGO_BIN_EXE_cowhand")), &["verify", "--check", "SUMS", "disk"]);
    assert_eq!(both.code, 1);
    assert_eq!(bench.cowhand(&["verify"]).code, 1);
}
