//! A directory with an image.

use std::path::PathBuf;

use cowhand::{Disk, NewImage, OpenOptions, create};
use tempfile::TempDir;

/// Size of the images here.
pub const SIZE_BYTES: u64 = 64 << 20;

pub struct Scratch {
    directory: TempDir,
}

impl Scratch {
    /// With an empty image.
    pub fn new() -> Self {
        let scratch = Self { directory: tempfile::tempdir().unwrap() };
        create(scratch.path(), NewImage::qcow2(SIZE_BYTES)).wait().unwrap();
        scratch
    }

    pub fn path(&self) -> PathBuf {
        self.file("disk.qcow2")
    }

    /// Another name in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn options(&self) -> OpenOptions {
        OpenOptions::new(self.path())
    }

    pub fn open(&self) -> Disk {
        Disk::open(self.path()).wait().unwrap()
    }
}

/// The bytes at `offset`.
pub fn bytes_at(disk: &Disk, offset: u64, len: usize) -> Vec<u8> {
    disk.read(offset, vec![0xee; len]).wait().unwrap().into_vec()
}

/// Has `work` called by the loop of `disk`, when a write of zeroes to its last sector has ended. Other such writes may be in flight still: what `work` writes there has
/// no order with them.
pub fn on_loop(disk: &Disk, work: impl FnOnce() + Send + 'static) {
    disk.set_limits(&[("iops-total", 1)]).unwrap();
    // The limit holds the last of them back until its callback is there.
    let mut pending: Vec<_> = (0..8).map(|_| disk.write(SIZE_BYTES - 512, vec![0; 512])).collect();
    let here = std::thread::current().id();
    pending.pop().unwrap().on_completion(move |_| {
        assert_ne!(std::thread::current().id(), here);
        work();
    });
    disk.set_limits(&[]).unwrap();
}
