//! Disks as files: the kernel's own FUSE, and the programs that know only files.

#![forbid(unsafe_code)]

mod data;
mod mounts;
mod sizes;
mod steering;

use std::fs::File;
use std::path::{Path, PathBuf};

use black_box::peer::qemu_img;
use black_box::ready::eventually;
use black_box::server::Start;
use black_box::{Run, Scratch, Server};

/// A disk, and a file to mount it over.
struct Place {
    scratch: Scratch,
    disk: String,
    file: PathBuf,
}

/// Bytes of its disk.
const SIZE: u64 = 64 << 20;

impl Place {
    /// A new disk of 64 MiB.
    fn new() -> Self {
        let scratch = Scratch::new();
        let (disk, file) = (scratch.name("disk.qcow2"), scratch.file("disk.raw"));
        qemu_img(["create", "-q", "-f", "qcow2", &disk, "64M"]).ok();
        File::create(&file).expect("a file to mount over");
        Self { scratch, disk, file }
    }

    fn name(&self) -> &str {
        self.file.to_str().expect("a path in UTF-8")
    }

    /// Serves the disk as the file, with these options of the drive and arguments, until it can be used.
    fn serve(&self, options: &str, more: &[&str]) -> Server {
        let drive = format!("file={}{options}", self.disk);
        let start = Start::new(["--fuse"]).arg(&self.file).args(more).arg(drive);
        let mut server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
        // It listens before it mounts.
        let mounted = |server: &Server| server.stdout().contains("as a file").then_some(());
        server.wait_until(mounted).expect("it mounts the disk");
        assert!(is_mounted(&self.file), "{}", server.stderr());
        server
    }

    /// Mounts it by `cowhand mount`, which goes into the background.
    fn mount(&self, more: &[&str]) {
        black_box::program::cowhand(["mount", "--background"])
            .args(more)
            .arg(&self.disk)
            .arg(&self.file)
            .ok();
        assert!(is_mounted(&self.file));
    }

    /// Takes the file away by hand, and waits until no client has the disk open.
    fn unmount(&self) {
        Run::new("umount").arg(&self.file).ok();
        self.wait_for_the_disk();
    }

    /// QEMU's lock tells: it opens the disk for writing when no other process has it.
    fn wait_for_the_disk(&self) {
        let free = || {
            let writes = ["-f", "qcow2", "-c", "flush", &self.disk];
            Run::new("qemu-io").args(writes).outcome().status.success()
        };
        eventually("the disk is given back", free);
        assert!(!is_mounted(&self.file));
    }

    /// What the disk holds, by QEMU.
    fn content(&self) -> Vec<u8> {
        let raw = self.scratch.file("content.raw");
        qemu_img(["convert", "-f", "qcow2", "-O", "raw", &self.disk]).arg(&raw).ok();
        let content = std::fs::read(&raw).expect("a copy");
        std::fs::remove_file(&raw).expect("a copy");
        content
    }
}

/// A test that fails leaves nothing mounted.
impl Drop for Place {
    fn drop(&mut self) {
        if is_mounted(&self.file) {
            let _ = Run::new("umount").arg("-l").arg(&self.file).outcome();
        }
    }
}

/// Whether something lies over `file`.
fn is_mounted(file: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
    table.lines().any(|line| line.split(' ').nth(4) == file.to_str())
}

/// Bytes that tell where they belong.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    black_box::Random::new(seed).bytes(len)
}
