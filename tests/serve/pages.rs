//! The README's session and the walks of docs/guide run as they are written: each line that begins with `$`, in one shell.
//!
//! The README's third line once started a server that kept the lock on the image, and every line behind it failed. Later the lines were typed once
//! each server was ready, and a reader who pasted them saw up to six of them fail.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use black_box::peer::assert_clean;
use black_box::ports::free_port;
use black_box::run::{ended, pidfd};
use black_box::{Moto, Scratch, program};
use rustix::process::{Pid, Signal, kill_process_group};

/// What a page says before its first block if no test runs it.
const NOT_RUN: &str = "not run by our tests";

/// Pages and the tests that run them; every other page of docs/guide says that it is not run.
const RUN: [(&str, &str); 13] = [
    ("backup", include_str!("../../docs/guide/backup.md")),
    ("checkpoints", include_str!("../../docs/guide/checkpoints.md")),
    ("encryption", include_str!("../../docs/guide/encryption.md")),
    ("first-disk", include_str!("../../docs/guide/first-disk.md")),
    ("from-qemu", include_str!("../../docs/guide/from-qemu.md")),
    // By the suite `libvirt`.
    ("libvirt", include_str!("../../docs/guide/libvirt.md")),
    ("limits", include_str!("../../docs/guide/limits.md")),
    ("monitoring", include_str!("../../docs/guide/monitoring.md")),
    ("moving", include_str!("../../docs/guide/moving.md")),
    ("object-stores", include_str!("../../docs/guide/object-stores.md")),
    ("trouble", include_str!("../../docs/guide/trouble.md")),
    ("upgrade", include_str!("../../docs/guide/upgrade.md")),
    ("virtual-machines", include_str!("../../docs/guide/virtual-machines.md")),
];

#[test]
fn the_short_session_runs_as_it_is_written() {
    walk(include_str!("../../README.md"), &[]);
}

#[test]
fn the_walk_through_backups_runs_as_it_is_written() {
    runs("backup");
}

#[test]
fn the_walk_through_checkpoints_runs_as_it_is_written() {
    runs("checkpoints");
}

#[test]
fn the_walk_through_encryption_runs_as_it_is_written() {
    let scratch = walk(page("encryption"), &[]);
    let header = std::fs::read(scratch.file("disk.luks")).expect("a LUKS file");
    assert!(header.starts_with(b"LUKS"));
}

#[test]
fn the_first_disk_is_made_as_it_is_written() {
    runs("first-disk");
}

#[test]
fn the_walk_under_the_names_of_qemu_runs_as_it_is_written() {
    runs("from-qemu");
}

#[test]
fn the_walk_through_limits_runs_as_it_is_written() {
    let scratch = walk(page("limits"), &[]);
    assert_clean(Path::new(&scratch.name("data.qcow2")));
}

#[test]
fn the_walk_through_monitoring_runs_as_it_is_written() {
    let port = free_port().to_string();
    walk(page("monitoring"), &[("PORT", &port)]);
}

#[test]
fn the_move_to_another_server_runs_as_it_is_written() {
    let port = free_port().to_string();
    let scratch = walk(page("moving"), &[("PORT", &port)]);
    ["disk.qcow2", "data.qcow2"].iter().for_each(|disk| assert_clean(Path::new(&scratch.name(disk))));
}

#[test]
fn the_walk_through_object_stores_runs_as_it_is_written() {
    let store = Moto::start();
    store.put("/images", b"");
    let endpoint = store.endpoint();
    let environment = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_ACCESS_KEY_ID", "A"),
        ("AWS_SECRET_ACCESS_KEY", "hush"),
    ];
    let scratch = walk(page("object-stores"), &environment);
    assert_clean(Path::new(&scratch.name("copy.qcow2")));
}

#[test]
fn the_walk_through_trouble_runs_as_it_is_written() {
    runs("trouble");
}

#[test]
fn the_walk_through_an_upgrade_runs_as_it_is_written() {
    runs("upgrade");
}

#[test]
fn a_virtual_machine_gets_the_disk_as_it_is_written() {
    runs("virtual-machines");
}

#[test]
fn a_page_that_no_test_runs_says_so() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide");
    for entry in std::fs::read_dir(guide).expect("docs/guide") {
        let path = entry.expect("a page").path();
        let name = path.file_stem().expect("a name").to_str().expect("text");
        let text = std::fs::read_to_string(&path).expect("a page");
        // Its examples are programs, which the tests of the crate `capi` build and run.
        if name == "library" {
            continue;
        }
        let run = RUN.iter().any(|&(page, _)| page == name);
        assert_eq!(session(&text).is_empty(), !run, "{name}: lines that begin with $");
        assert_eq!(text.contains(NOT_RUN), !run, "{name}: {NOT_RUN}");
    }
}

/// The text of a page.
pub fn page(name: &str) -> &'static str {
    RUN.iter().find(|&&(page, _)| page == name).expect("a page").1
}

fn runs(name: &str) {
    let scratch = walk(page(name), &[]);
    assert_clean(Path::new(&scratch.name("disk.qcow2")));
}

/// The lines that a reader types.
pub fn session(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix("$ ")).collect()
}

/// Pastes the lines of a page into one shell, in an empty directory: none waits for the one before but by what is written.
fn walk(text: &str, environment: &[(&str, &str)]) -> Scratch {
    let lines = session(text);
    assert!(lines.len() > 3, "{lines:?}");
    let scratch = Scratch::new();
    let mut shell = Shell::start(&scratch, &[], environment);
    shell.runs(&lines.join("\n"), &scratch.file("done"));
    shell.finish();
    scratch
}

/// bash, with a keyboard; what it started ends with it.
pub struct Shell {
    child: Child,
    end: OwnedFd,
    keyboard: Option<ChildStdin>,
    /// Until the last line has succeeded.
    failed: bool,
    log: std::path::PathBuf,
}

impl Shell {
    /// Starts one in a directory; `enter` is the program, with its words, that starts it.
    pub fn start(scratch: &Scratch, enter: &[&str], environment: &[(&str, &str)]) -> Self {
        std::fs::create_dir(scratch.file("bin")).expect("a directory");
        std::os::unix::fs::symlink(program::path(), scratch.file("bin/cowhand")).expect("a link");
        let path = format!("{}:{}", scratch.name("bin"), std::env::var("PATH").expect("a path"));
        let log = File::create(scratch.file("said")).expect("a file");
        // Each line is shown before it runs, and the first that fails ends it.
        let words = [enter, &["bash", "-e", "-v"]].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .current_dir(scratch.path())
            .env("PATH", path)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("bash");
        let (end, keyboard) = (pidfd(&child), child.stdin.take());
        Self { child, end, keyboard, failed: true, log: scratch.file("said") }
    }

    /// Types lines and waits until the next one could be typed, by the file `done`.
    pub fn runs(&mut self, line: &str, done: &Path) {
        self.types(line);
        self.types(&format!(": > {}", done.display()));
        self.waits(line, || done.exists());
    }

    fn types(&mut self, line: &str) {
        let keyboard = self.keyboard.as_mut().expect("a keyboard");
        // A shell that has ended is noticed by `waits`, which knows what it said.
        drop(writeln!(keyboard, "{line}"));
    }

    /// Waits until something happens that `line` leads to; fails when the shell ends before.
    pub fn waits(&self, line: &str, mut happens: impl FnMut() -> bool) {
        while !happens() {
            assert!(!ended(&self.end, Duration::from_millis(1)), "{line}\n{}", self.said());
        }
    }

    /// Ends it: all lines have succeeded.
    pub fn finish(mut self) {
        self.keyboard = None;
        let status = self.child.wait().expect("wait");
        self.failed = !status.success();
        assert!(status.success(), "{status}: {}", self.said());
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("what it said")
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // A walk that failed leaves servers in the group of the shell.
        if self.failed {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            drop(self.child.wait());
        }
    }
}
