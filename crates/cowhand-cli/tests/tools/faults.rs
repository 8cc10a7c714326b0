//! `cowhand io` over blkdebug beside `qemu-io`: rules that make requests fail, in each form in which they are written, and
//! breakpoints.

use std::fs;
use std::path::Path;

use crate::peer::{Bench, Ran};

fn run(bench: &Bench, whose: &str, words: &[&str]) -> Ran {
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "disk.qcow2", "4M"]);
    bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -q -P 7 0 1M", "disk.qcow2"]);
    fs::write(bench.path("disk.raw"), vec![7; 1 << 20]).unwrap();
    match whose {
        "ours" => bench.cowhand(&[&["io"], words].concat()),
        _ => bench.run(Path::new("qemu-io"), words),
    }
}

/// Without times and rates.
fn masked(out: &str) -> String {
    out.lines().map(|line| line.split(" ops; ").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn same(bench: &Bench, words: &[&str]) -> String {
    let (ours, theirs) = (run(bench, "ours", words), run(bench, "theirs", words));
    let said = format!("{words:?}\n{}{}", ours.err, theirs.err);
    assert_eq!(masked(&ours.out), masked(&theirs.out), "{said}");
    assert_eq!(ours.code, theirs.code, "{said}");
    ours.out
}

#[test]
fn rules_make_the_same_requests_fail() {
    let bench = Bench::new();
    fs::write(
        bench.path("no-space"),
        "[inject-error]\nevent = \"write_aio\"\nerrno = \"28\"\nonce = \"on\"\n",
    )
    .unwrap();
    let states = "[set-state]\nevent = \"write_aio\"\nstate = \"1\"\nnew_state = \"2\"\n\
                  [inject-error]\nevent = \"write_aio\"\nstate = \"2\"\nerrno = \"5\"\nonce = \"on\"\n";
    fs::write(bench.path("second"), states).unwrap();
    let writes =
        ["-c", "write 0 64k", "-c", "write 0 64k", "-c", "write 64k 64k", "-c", "read -P 7 128k 64k"];
    let mut failures = 0;
    for drive in ["blkdebug:no-space:disk.qcow2", "blkdebug:second:disk.qcow2", "blkdebug::disk.qcow2"] {
        let out = same(&bench, &[&["-f", "qcow2", "-t", "writeback"], &writes[..], &[drive]].concat());
        failures += out.matches("failed").count();
    }
    let image = r#""image":{"driver":"file","filename":"disk.qcow2"}"#;
    for rule in [
        r#"{"event":"read_aio","errno":5,"once":true}"#,
        r#"{"event":"write_aio","errno":28}"#,
        r#"{"event":"none","iotype":"write","errno":1,"sector":0}"#,
        r#"{"event":"none","iotype":"read","errno":12}"#,
        r#"{"event":"l2_load","errno":2,"once":true}"#,
        r#"{"event":"read_aio","errno":5,"state":2}"#,
    ] {
        let drive = format!(
            r#"json:{{"driver":"qcow2","file":{{"driver":"blkdebug",{image},"inject-error":[{rule}]}}}}"#
        );
        let out = same(&bench, &[&["-t", "writeback"], &writes[..], &["-c", "read 0 64k", &drive]].concat());
        failures += out.matches("failed").count();
    }
    assert!(failures >= 8, "{failures}");
    let keyed = "driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename=disk.raw,file.inject-error.0.event=write_aio";
    let out = same(
        &bench,
        &[&["--image-opts", "-t", "writeback"], &writes[..2], &["-c", "read 0 1k", keyed]].concat(),
    );
    assert!(out.starts_with("write failed: Input/output error\n"), "{out}");
}

/// qemu-io prints it and exits with 0.
#[test]
fn what_cannot_be_written_when_the_disk_is_closed_is_a_failure() {
    let bench = Bench::new();
    let rules = "[inject-error]\nevent = \"flush_to_disk\"\niotype = \"flush\"\nimmediately = \"on\"\n";
    fs::write(bench.path("flushes"), rules).unwrap();
    let words = ["-f", "qcow2", "-t", "writeback", "-c", "write -q 2M 64k", "blkdebug:flushes:disk.qcow2"];
    let ran = run(&bench, "ours", &words);
    assert_eq!((ran.out.as_str(), ran.code), ("", 1));
    assert!(
        ran.err.contains("cannot close") && ran.err.contains("flushing: Input/output error"),
        "{}",
        ran.err
    );
}

#[test]
fn breakpoints_hold_requests_back() {
    let bench = Bench::new();
    let commands = [
        "break write_aio A",
        "aio_write -P 3 0 64k",
        "wait_break A",
        "read -P 7 128k 64k",
        "resume A",
        "aio_flush",
        "read -P 3 0 64k",
        "resume A",
        "break nonsense A",
        "remove_break A",
        "break write_aio B",
        "remove_break B",
        "write -P 4 0 64k",
    ];
    let commands = commands.iter().flat_map(|command| ["-c", command]);
    let words: Vec<&str> =
        ["-f", "qcow2"].into_iter().chain(commands).chain(["blkdebug::disk.qcow2"]).collect();
    let out = same(&bench, &words);
    assert!(out.starts_with("blkdebug: Suspended request 'A'\nread 65536/65536"), "{out}");
    same(
        &bench,
        &["-f", "qcow2", "-c", "break write_aio A", "-c", "resume A", "-c", "remove_break A", "disk.qcow2"],
    );
}

/// qemu-io waits for ever.
#[test]
fn a_command_that_waits_for_what_is_held_back_fails_and_the_script_ends() {
    let bench = Bench::new();
    for waiting in ["write 0 64k", "aio_write 0 64k;aio_flush", "wait_break B"] {
        let commands =
            ["break write_aio A"].into_iter().chain(waiting.split(';')).chain(["resume A", "length"]);
        let commands: Vec<&str> = commands.flat_map(|command| ["-c", command]).collect();
        let words = [&["-f", "qcow2"], &commands[..], &["blkdebug::disk.qcow2"]].concat();
        let ran = run(&bench, "ours", &words);
        assert_eq!(ran.code, 1, "{waiting}: {}", ran.out);
        assert!(ran.out.contains("4 MiB"), "{waiting}: {}{}", ran.out, ran.err);
        bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
    }
}

#[test]
fn storage_that_keeps_nothing_is_what_it_is_in_qemu() {
    let bench = Bench::new();
    let commands = [
        "-c",
        "length",
        "-c",
        "write -P 3 0 64k",
        "-c",
        "read -P 0 0 64k",
        "-c",
        "flush",
        "-c",
        "discard 0 64k",
    ];
    for drive in [
        "driver=raw,file.driver=null-co,file.size=1M,file.read-zeroes=on",
        "driver=raw,file.driver=null-aio,file.size=1M,file.read-zeroes=on",
        "driver=raw,file.driver=null-co,file.read-zeroes=on",
    ] {
        same(&bench, &[&["--image-opts"], &commands[..], &[drive]].concat());
    }
}
