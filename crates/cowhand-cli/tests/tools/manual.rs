//! The manual: its examples do what they say, and every command has a page that `man` can read.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cowhand_cli::manual::examples;

use crate::peer::Bench;

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that an example leaves running.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is typed, and what is printed then.
fn steps(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut steps: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(typed), _) => steps.push((typed, Vec::new())),
            (None, Some((_, printed))) => printed.push(line),
            (None, None) => panic!("{line} is printed by nothing"),
        }
    }
    steps
}

/// Whether lines are those of an example, in which `...` stands for any number of them.
fn agree(expected: &[&str], lines: &[&str]) -> bool {
    match expected.split_first() {
        None => lines.is_empty(),
        Some((&"...", rest)) => (0..=lines.len()).any(|skipped| agree(rest, &lines[skipped..])),
        Some((first, rest)) => {
            lines.first().is_some_and(|line| line.trim_end() == *first) && agree(rest, &lines[1..])
        }
    }
}

fn shell(bench: &Bench, line: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_cowhand"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-c", line]).current_dir(bench.path(".")).env("PATH", path).stdin(Stdio::null());
    command
}

fn serve(bench: &Bench, line: &str) -> Server {
    let child = shell(bench, &format!("exec {line}")).spawn().unwrap();
    let (server, started) = (Server(child), Instant::now());
    while !bench.path("disk.qmp").exists() {
        assert!(started.elapsed() < PATIENCE, "{line} does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

#[test]
fn the_examples_print_what_they_say() {
    let bench = Bench::new();
    let mut servers = Vec::new();
    for (name, text) in examples::sections() {
        for (typed, expected) in steps(text) {
            if let Some(line) = typed.strip_suffix(" &") {
                servers.push(serve(&bench, line));
                continue;
            }
            // Not every machine has it; the pages are checked below, too.
            if typed.starts_with("man ") {
                continue;
            }
            let output = shell(&bench, typed).output().unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{name}: {typed}: {err}");
            let lines: Vec<&str> = out.lines().collect();
            assert!(agree(&expected, &lines), "{name}: {typed} printed\n{out}{err}");
        }
    }
    assert_eq!(servers.len(), 1);
}

#[test]
fn every_command_has_a_page() {
    let bench = Bench::new();
    let ran = bench.cowhand(&["manual", "pages"]);
    assert_eq!((ran.code, &*ran.out), (0, ""), "{}", ran.err);
    let mut pages: Vec<String> = std::fs::read_dir(bench.path("pages"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    for page in ["cowhand.1", "cowhand-info.1", "cowhand-cache-advise.1", "cowhand-show.1"] {
        assert!(pages.iter().any(|found| found == page), "{page}: {pages:?}");
    }
    for page in &pages {
        let text = std::fs::read_to_string(bench.path("pages").join(page)).unwrap();
        for section in [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"] {
            assert!(text.contains(section), "{page} has no {section}");
        }
    }
    assert_eq!(bench.cowhand(&["manual"]).code, 1);
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let bench = Bench::new();
    std::fs::File::create(bench.path("file")).unwrap().write_all(b"x").unwrap();
    let ran = bench.cowhand(&["manual", "file/pages"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("cannot make file/pages"), "{}", ran.err);
}
