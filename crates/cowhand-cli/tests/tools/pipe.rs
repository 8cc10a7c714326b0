//! Disks out of pipes and into them.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

use crate::peer::{Bench, Ran};

/// Runs cowhand with `input` in the pipe of its standard input; what it writes to standard output is bytes.
fn piped(bench: &Bench, words: &[&str], input: &[u8]) -> (Ran, Vec<u8>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cowhand"))
        .args(words)
        .current_dir(bench.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_owned());
    // A reader may stop before the end.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    (Ran { code: output.status.code().unwrap_or(-1), out: String::new(), err }, output.stdout)
}

fn content() -> Vec<u8> {
    (0..3_000_320_u32).map(|at| if at % 700_000 < 200_000 { 0 } else { (at / 513) as u8 }).collect()
}

#[test]
fn a_disk_comes_out_of_a_pipe_and_goes_into_one() {
    let bench = Bench::new();
    let bytes = content();
    fs::write(bench.path("a.raw"), &bytes).unwrap();
    for (words, target) in [
        (&["convert", "-f", "raw", "-O", "qcow2", "-", "t"][..], "qcow2"),
        (&["convert", "-f", "raw", "-O", "raw", "/dev/stdin", "t"], "raw"),
        (&["convert", "-f", "raw", "-O", "qcow2", "-c", "--verify", "-", "t"], "qcow2"),
        (&["dd", "-f", "raw", "-O", "qcow2", "if=-", "of=t"], "qcow2"),
    ] {
        let (ran, _) = piped(&bench, words, &bytes);
        assert_eq!(ran.code, 0, "{words:?}: {}", ran.err);
        bench.qemu("qemu-img", &["compare", "-f", "raw", "-F", target, "a.raw", "t"]);
    }
    bench.qemu("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "a.raw", "a.qcow2"]);
    let in_sectors = bytes.len().next_multiple_of(512);
    for words in [
        &["convert", "-O", "raw", "a.qcow2", "-"][..],
        &["convert", "a.qcow2", "/dev/stdout"],
        &["convert", "-f", "raw", "-", "-"],
        &["dd", "if=a.qcow2", "of=-"],
    ] {
        let (ran, out) = piped(&bench, words, &bytes);
        assert_eq!((ran.code, out.len()), (0, in_sectors), "{words:?}: {}", ran.err);
        assert!(out[..bytes.len()] == bytes && out[bytes.len()..].iter().all(|&byte| byte == 0), "{words:?}");
    }
    let (ran, out) =
        piped(&bench, &["dd", "if=a.qcow2", "of=/dev/stdout", "bs=1k", "skip=300", "count=400"], b"");
    assert_eq!((ran.code, &out[..]), (0, &bytes[300 << 10..400 << 10]), "{}", ran.err);
    assert!(!bench.path("-").exists());
}

#[test]
fn standard_streams_that_are_files_are_files() {
    let bench = Bench::new();
    let bytes = content();
    fs::write(bench.path("a.raw"), &bytes[..1 << 20]).unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_cowhand"))
        .args(["convert", "-f", "raw", "-", "-"])
        .stdin(File::open(bench.path("a.raw")).unwrap())
        .stdout(File::create(bench.path("b.raw")).unwrap())
        .status()
        .unwrap();
    assert!(ran.success());
    assert_eq!(fs::read(bench.path("b.raw")).unwrap(), bytes[..1 << 20]);
}

#[test]
fn what_does_not_go_through_a_pipe_is_refused_in_words() {
    let bench = Bench::new();
    fs::write(bench.path("a.raw"), [1; 1 << 16]).unwrap();
    for (words, reported) in [
        (&["convert", "-O", "qcow2", "a.raw", "-"][..], "qcow2 is not written in that order"),
        (&["dd", "-O", "qcow2", "if=a.raw", "of=-"], "qcow2 is not written in that order"),
        (&["convert", "--verify", "a.raw", "-"], "what went into a pipe is gone"),
    ] {
        let (ran, out) = piped(&bench, words, b"");
        assert_eq!((ran.code, out.len()), (1, 0), "{words:?}");
        assert!(ran.err.contains(reported), "{words:?}: {}", ran.err);
    }
}

/// A reader that leaves must not be written to for ever, nor be taken for one that has it all.
#[test]
fn a_reader_that_leaves_is_an_error() {
    let bench = Bench::new();
    fs::write(bench.path("a.raw"), vec![7; 8 << 20]).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_cowhand"))
        .args(["convert", "-f", "raw", "a.raw", "-"])
        .current_dir(bench.path(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("Broken pipe"), "{err}");
}
