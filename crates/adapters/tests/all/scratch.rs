//! A directory with an image.

use std::path::PathBuf;

use cowhand::{Disk, NewImage, OpenOptions, create};
use tempfile::TempDir;

/// Size of the image.
pub const SIZE_BYTES: u64 = 64 << 20;

pub struct Scratch(TempDir);

impl Scratch {
    pub fn new() -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        create(scratch.path(), NewImage::qcow2(SIZE_BYTES)).wait().unwrap();
        scratch
    }

    pub fn path(&self) -> PathBuf {
        self.0.path().join("disk.qcow2")
    }

    pub fn options(&self) -> OpenOptions {
        OpenOptions::new(self.path()).discard(true)
    }

    pub fn open(&self) -> Disk {
        self.options().open().wait().unwrap()
    }
}

/// The bytes at `offset`.
pub fn bytes_at(disk: &Disk, offset: u64, len: usize) -> Vec<u8> {
    disk.read(offset, vec![0xee; len]).wait().unwrap().into_vec()
}
