//! A new image on a block device, or in a file whose name no other file can get: there is no name to give away when it is whole.
//!
//! What was there is lost from the beginning, as with qemu-img. The first bytes of a qcow2 image, by which it is known, are taken
//! away while it is filled, and come back behind everything else: until then nothing takes it for an image.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cowhand::Existing;
use graph::options::DiskOptions;
use graph::probe::Format;
use reactor::blocking;
use tool::create::options::NewImage;
use tool::failure::Failure;

use super::made::to_be_filled;
use crate::create::make;
use crate::drive::is_device;

/// The magic of an image stands at the start.
const MAGIC_BYTES: usize = 4;

/// A device on its way.
#[derive(Debug)]
pub struct NewDevice {
    path: PathBuf,
    format: Format,
    /// The id of its password, where it is encrypted.
    key_secret: Option<String>,
    /// A descriptor of our own, also for the last flush.
    file: Arc<File>,
    magic: [u8; MAGIC_BYTES],
    whole: bool,
}

impl NewDevice {
    /// Makes an image of `size` bytes on the device, or in the file, called `name`.
    ///
    /// # Errors
    /// When the device is in use, read-only or too small.
    pub fn make(name: &Path, image: &NewImage, size: u64) -> Result<Self, Failure> {
        make(name, image, size, Existing::Replace)?;
        let failed = |error: io::Error| Failure::because(format!("cannot create {}", name.display()), &error);
        let file = File::options().read(true).write(true).open(name).map_err(failed)?;
        let mut magic = [0; MAGIC_BYTES];
        file.read_exact_at(&mut magic, 0).map_err(failed)?;
        let key_secret = image.encryption.as_ref().and_then(|encryption| encryption.key_secret.clone());
        let (path, format, file) = (name.to_owned(), image.format, Arc::new(file));
        Ok(Self { path, format, key_secret, file, magic, whole: false })
    }

    /// How it is opened to be filled.
    pub fn options(&self) -> DiskOptions {
        to_be_filled(&self.path, self.format, self.key_secret.as_ref())
    }

    /// Whether the image is known by its first bytes, and written behind them.
    fn hides(&self) -> bool {
        [Format::Qcow2, Format::Luks].contains(&self.format)
    }

    /// Whether zeroes have to be written: of a raw disk the device has what was there before.
    pub fn holds_something(&self) -> bool {
        self.format == Format::Raw && is_device(&self.path)
    }

    /// Adds to a failure what became of the old content.
    pub fn explain(&self, failure: Failure) -> Failure {
        failure.with_hint(match (is_device(&self.path), self.format) {
            (true, Format::Raw) => "the device holds a part of the copy",
            (true, _) => "the device holds a part of the copy, and no image",
            (false, Format::Raw) => "the file holds a part of the copy: it could only be written in place",
            (false, _) => {
                "the file holds a part of the copy, and no image: it could only be written in place"
            }
        })
    }

    /// The descriptor.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The disk is open: from now on until [`NewDevice::reveal`] nothing else takes the device for an image.
    ///
    /// # Errors
    /// When the device cannot be written.
    pub async fn hide(&self) -> Result<(), Failure> {
        self.put([0; MAGIC_BYTES]).await
    }

    /// The disk is complete and durable: makes its header visible.
    ///
    /// # Errors
    /// When the device cannot be written.
    pub async fn reveal(&self) -> Result<(), Failure> {
        self.put(self.magic).await
    }

    async fn put(&self, magic: [u8; MAGIC_BYTES]) -> Result<(), Failure> {
        if !self.hides() {
            return Ok(());
        }
        let file = Arc::clone(&self.file);
        let written = blocking(move || {
            file.write_all_at(&magic, 0)?;
            file.sync_all()
        });
        let failed =
            |error: io::Error| Failure::because(format!("cannot write {}", self.path.display()), &error);
        written.await.map_err(failed)
    }

    /// It stays as it is.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub fn keep(mut self) -> Result<(), Failure> {
        let synced = self.file.sync_all();
        synced.map_err(|error| Failure::because(format!("cannot finish {}", self.path.display()), &error))?;
        self.whole = true;
        Ok(())
    }
}

impl Drop for NewDevice {
    /// What did not become whole is no image. The reason for that is what the user has to know.
    fn drop(&mut self) {
        if !self.whole && self.format != Format::Raw {
            let _ = self.file.write_all_at(&[0; MAGIC_BYTES], 0).and_then(|()| self.file.sync_all());
        }
    }
}
