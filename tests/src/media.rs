//! File systems and block devices of a test's own, gone with it.

use std::path::{Path, PathBuf};

use crate::run::{Outcome, Run};
use crate::scratch::Scratch;

/// The largest sector that every Linux knows.
const PAGE_BYTES: u32 = 4096;

/// Whether this is root on a machine that lets it make block devices. There, what cannot be mounted is a failure.
fn may_make_devices() -> bool {
    let found = Run::new("losetup").arg("--find").outcome();
    found.status.success() && !found.stdout.is_empty()
}

/// Nothing, said aloud, where no devices can be made; a failure otherwise.
fn not_made(outcome: &Outcome) {
    assert!(!may_make_devices(), "{outcome}");
    eprintln!("not tried, nothing can be mounted here: {outcome}");
}

/// A file of `bytes` zeroes that takes no space.
fn sparse(path: &Path, bytes: u64) {
    let file = std::fs::File::create(path).expect("a file");
    file.set_len(bytes).expect("a length");
}

/// A loop device over a file of its own.
#[derive(Debug)]
pub struct LoopDevice {
    path: String,
    file: PathBuf,
    // Last: removed after the device.
    scratch: Option<Scratch>,
}

impl LoopDevice {
    /// One of `bytes` zeroes in sectors of `sector_bytes`. `None` where no devices can be made.
    pub fn new(bytes: u64, sector_bytes: u32) -> Option<Self> {
        let scratch = Scratch::new();
        let mut device = Self::over(&scratch.file("device"), bytes, sector_bytes)?;
        device.scratch = Some(scratch);
        Some(device)
    }

    /// The same over a new file at `file`.
    pub fn over(file: &Path, bytes: u64, sector_bytes: u32) -> Option<Self> {
        sparse(file, bytes);
        let sector = format!("--sector-size={sector_bytes}");
        let outcome = Run::new("losetup").args(["--find", "--show", &sector]).arg(file).outcome();
        if !outcome.status.success() && sector_bytes > PAGE_BYTES {
            eprintln!("not tried, this kernel has no sectors larger than a page: {outcome}");
            return None;
        }
        if !outcome.status.success() {
            not_made(&outcome);
            return None;
        }
        Some(Self { path: outcome.stdout.trim().to_owned(), file: file.to_owned(), scratch: None })
    }

    /// The same bytes on a device that takes no writes.
    #[must_use]
    pub fn made_read_only(mut self) -> Self {
        Run::new("losetup").args(["--detach", &self.path]).ok();
        // Not by `blockdev --setro`: that stays when the device is gone, for the next one of its name.
        let shown = Run::new("losetup").args(["--find", "--show", "--read-only"]).arg(&self.file).ok();
        self.path = shown.trim().to_owned();
        self
    }

    /// The file that holds its bytes.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Where it is.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Run::new("losetup").args(["--detach", &self.path]).outcome();
        assert!(detached.status.success() || std::thread::panicking(), "{detached}");
    }
}

/// A small file system, mounted.
#[derive(Debug)]
pub struct Mounted {
    scratch: Scratch,
    // After the file system that is on it.
    _device: Option<LoopDevice>,
}

impl Mounted {
    /// In memory. `None` where nothing may be mounted.
    pub fn tmpfs(bytes: u64) -> Option<Self> {
        Self::mount(&["-t", "tmpfs", "-o", &format!("size={bytes}"), "none"], None)
    }

    /// ext4 without a journal, on a device with sectors of `sector_bytes`.
    pub fn ext4(bytes: u64, sector_bytes: u32) -> Option<Self> {
        Self::on_device(bytes, sector_bytes, "mkfs.ext4", &["-q", "-m", "0", "-O", "^has_journal"])
    }

    /// XFS, with extents that files can share or without.
    pub fn xfs(bytes: u64, reflink: bool) -> Option<Self> {
        let reflink = format!("reflink={}", u8::from(reflink));
        Self::on_device(bytes, 512, "mkfs.xfs", &["-q", "-m", &reflink])
    }

    /// btrfs.
    pub fn btrfs(bytes: u64) -> Option<Self> {
        Self::on_device(bytes, 512, "mkfs.btrfs", &["-q"])
    }

    fn on_device(bytes: u64, sector_bytes: u32, mkfs: &str, options: &[&str]) -> Option<Self> {
        let device = LoopDevice::new(bytes, sector_bytes)?;
        Run::new(mkfs).args(options).arg(device.path()).ok();
        let at = device.path().to_owned();
        Self::mount(&[&at], Some(device))
    }

    fn mount(what: &[&str], device: Option<LoopDevice>) -> Option<Self> {
        let scratch = Scratch::new();
        let at = scratch.file("mounted");
        std::fs::create_dir(&at).expect("a directory");
        let outcome = Run::new("mount").args(what).arg(&at).outcome();
        if !outcome.status.success() {
            not_made(&outcome);
            return None;
        }
        Some(Self { scratch, _device: device })
    }

    /// The path of a file on it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.file("mounted").join(name)
    }

    /// The same as text.
    pub fn name(&self, name: &str) -> String {
        self.scratch.name(&format!("mounted/{name}"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Run::new("umount").arg("-l").arg(self.scratch.file("mounted")).outcome();
        assert!(unmounted.status.success() || std::thread::panicking(), "{unmounted}");
    }
}
