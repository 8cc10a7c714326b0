//! A process of QEMU's that has an image open.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{ended, pidfd};
use crate::scratch::Scratch;

/// How long it may take to open the image.
const PATIENCE: Duration = Duration::from_secs(20);

/// A program of QEMU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// qemu-io, waiting for a command.
    Io,
    /// qemu-nbd.
    Nbd,
    /// qemu-storage-daemon.
    StorageDaemon,
}

/// How it has the image open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For reading.
    Read,
    /// For writing.
    Write,
}

/// A process that holds QEMU's locks on an image; ended when dropped.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    _scratch: Scratch,
}

impl Holder {
    /// Starts it and waits until it has locked the image.
    pub fn new(program: Program, image: &Path, mode: Mode) -> Self {
        let scratch = Scratch::new();
        let command = command(program, image, mode, &scratch);
        Self::started(command, image, scratch)
    }

    fn started(mut command: Command, image: &Path, scratch: Scratch) -> Self {
        // qemu-io ends with its input, which stays open as long as we hold it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let mut holder = Self { child, _scratch: scratch };
        holder.wait_for_lock(image);
        holder
    }

    /// qemu-io on a raw image, for writing.
    pub fn of_raw(image: &Path) -> Self {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]).arg(image);
        Self::started(command, image, Scratch::new())
    }

    /// Has qemu-io do all this, and then end in order: everything is flushed, the lock is given back.
    pub fn finish(mut self, commands: &[&str]) {
        let mut input = self.child.stdin.take().expect("qemu-io has an input");
        for command in commands.iter().chain(&["quit"]) {
            writeln!(input, "{command}").expect("qemu-io reads its input");
        }
        drop(input);
        let status = self.child.wait().expect("cannot wait for qemu-io");
        assert!(status.success(), "qemu-io ended with {status}");
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_for_lock(&mut self, image: &Path) {
        let inode = std::fs::metadata(image).expect("an image").ino();
        let end = pidfd(&self.child);
        let start = Instant::now();
        while !is_locked(self.pid(), inode) {
            assert!(start.elapsed() < PATIENCE, "QEMU does not lock {}", image.display());
            assert!(!ended(&end, Duration::from_millis(1)), "QEMU does not open {}", image.display());
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the process has a lock on the file.
fn is_locked(pid: u32, inode: u64) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let text = std::fs::read_to_string(descriptor.path()).unwrap_or_default();
        text.lines().any(|line| line.starts_with("lock:") && line.contains(&format!(":{inode} ")))
    })
}

fn command(program: Program, image: &Path, mode: Mode, scratch: &Scratch) -> Command {
    let path = image.display();
    let read_only = mode == Mode::Read;
    let socket = scratch.name("holder.sock");
    match program {
        Program::Io => {
            let mut command = Command::new("qemu-io");
            command.args(["-f", "qcow2"]).args(read_only.then_some("-r")).arg(image);
            command
        }
        Program::Nbd => {
            let mut command = Command::new("qemu-nbd");
            command.args(["-t", "-f", "qcow2", "-k", &socket]).args(read_only.then_some("-r")).arg(image);
            command
        }
        Program::StorageDaemon => {
            let mut command = Command::new("qemu-storage-daemon");
            let switch = if read_only { "on" } else { "off" };
            let node = |driver: &str, name: &str, file: String| {
                format!("driver={driver},node-name={name},read-only={switch},{file}")
            };
            command.args(["--blockdev", &node("file", "file", format!("filename={path}"))]);
            command.args(["--blockdev", &node("qcow2", "disk", "file=file".to_owned())]);
            command.args(["--nbd-server", &format!("addr.type=unix,addr.path={socket}")]);
            let writable = if read_only { "off" } else { "on" };
            let export = format!("type=nbd,id=export,node-name=disk,name=disk,writable={writable}");
            command.args(["--export", &export]);
            command
        }
    }
}
