//! The sessions of the README and of docs/guide/backup.md run as they are written.
//!
//! Its third line once started a server that kept the lock on the image, and every line behind it failed.

use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use black_box::peer::assert_clean;
use black_box::run::{ended, pidfd};
use black_box::{Scratch, program};

const README: &str = include_str!("../../README.md");
const BACKUP: &str = include_str!("../../docs/guide/backup.md");

/// The lines that somebody types, under this title.
fn session(text: &'static str, title: &str) -> Vec<&'static str> {
    let (_, text) = text.split_once(title).expect("a session");
    text.lines()
        .map_while(|line| if line.starts_with("##") { None } else { Some(line.strip_prefix("    $ ")) })
        .flatten()
        .collect()
}

#[test]
fn the_short_session_runs_as_it_is_written() {
    runs(&session(README, "## A short session"));
}

#[test]
fn the_walk_through_backups_runs_as_it_is_written() {
    runs(&session(BACKUP, "## A walk"));
}

fn runs(lines: &[&str]) {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.file("bin")).expect("a directory");
    std::os::unix::fs::symlink(program::path(), scratch.file("bin/cowhand")).expect("a link");
    let path = format!("{}:{}", scratch.name("bin"), std::env::var("PATH").expect("a path"));
    let log = File::create(scratch.file("said")).expect("a file");
    let mut shell = Command::new("bash")
        // Each line is shown before it runs, and the first that fails ends it.
        .args(["-e", "-v"])
        .current_dir(scratch.path())
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(log.try_clone().expect("a file"))
        .stderr(log)
        .spawn()
        .expect("bash");
    let end = pidfd(&shell);
    let mut keyboard = shell.stdin.take().expect("a pipe");
    let said = || std::fs::read_to_string(scratch.file("said")).expect("what it said");
    assert!(lines.len() > 10, "{lines:?}");
    for line in lines {
        writeln!(keyboard, "{line}").unwrap_or_else(|error| panic!("{line}: {error}\n{}", said()));
        if line.ends_with('&') {
            // A person sees that it serves before the next line is typed.
            while ["disk.sock", "disk.qmp"]
                .iter()
                .any(|name| UnixStream::connect(scratch.file(name)).is_err())
            {
                assert!(!ended(&end, Duration::from_millis(1)), "{}", said());
            }
        }
    }
    drop(keyboard);
    let status = shell.wait().expect("wait");
    assert!(status.success(), "{status}: {}", said());
    assert_clean(Path::new(&scratch.name("disk.qcow2")));
}
