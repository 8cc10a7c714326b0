//! A new image that a storage driver keeps elsewhere: in a Ceph cluster, or under QEMU's names in what an NBD server exports.

use std::error::Error;
use std::io;
use std::path::Path;

use graph::drivers;
use graph::options::{Discard, DiskOptions};
use graph::probe::Format;
use qcow2::{CreateOptions, Preallocation};
use tool::create::options::NewImage;
use tool::failure::Failure;
use tool::voice;

use super::reactor;
use crate::drive::disk_options;

/// The image. It has its name from the beginning: a cluster has no place to keep it in before it is whole.
#[derive(Debug)]
pub struct NewElsewhere {
    options: DiskOptions,
    /// It was there before, and what the copy does not write reads as anything.
    holds_something: bool,
}

impl NewElsewhere {
    /// Whether a driver makes what `name` means.
    pub fn is_meant(name: &Path) -> bool {
        let is_made = |name: &str| drivers::is_creatable(name) || is_overwritten(name);
        name.to_str().is_some_and(is_made) && name.symlink_metadata().is_err()
    }

    /// Makes an image of `size` bytes called `name`.
    ///
    /// # Errors
    /// When the name exists, when it cannot be made, or not in that format.
    pub fn make(name: &Path, image: &NewImage, size: u64) -> Result<Self, Failure> {
        let shown = name.to_string_lossy().into_owned();
        let refused = |error: &dyn Error| {
            Failure::because(format!("cannot create {}", graph::drive::shown(name.as_os_str())), error)
        };
        check(image).map_err(|error| refused(&error))?;
        let mut options = disk_options(&name.into(), |_| false)?;
        options.layer.format = Some(image.format);
        options.layer.discard = Discard::Unmap;
        options.layer.qcow2.allocation_reserve = Some(0);
        reactor()?.run(fill(&shown, image, size)).map_err(|error| refused(&*error))?;
        let holds_something = is_overwritten(&shown) && image.format == Format::Raw;
        Ok(Self { options, holds_something })
    }

    /// Whether what is not written reads as anything but zeroes.
    pub fn holds_something(&self) -> bool {
        self.holds_something
    }

    /// How it is opened to be filled.
    pub fn options(&self) -> DiskOptions {
        self.options.clone()
    }

    /// Says of a failure that the image is there.
    pub fn explain(&self, failure: Failure) -> Failure {
        failure.with_hint("the image was made and holds a part of the copy; remove it before the next try")
    }
}

/// Whether an image is written over what `name` means, as qemu-img does it. Under our own name that needs `-n`.
fn is_overwritten(name: &str) -> bool {
    voice::is_qemu() && drivers::is_overwritable(name)
}

/// Refuses what a driver cannot keep.
fn check(image: &NewImage) -> io::Result<()> {
    let options = &image.options;
    let wrong = match image.format {
        Format::Raw | Format::Qcow2 if options.preallocation != Preallocation::Off => {
            "preallocation is off there: a cluster allocates what is written"
        }
        Format::Qcow2 if options.data_file.is_some() => "its data file would be a file of this machine",
        Format::Raw | Format::Qcow2 if image.encryption.is_none() => return Ok(()),
        _ => "its format is raw there, or qcow2 without encryption",
    };
    Err(io::Error::new(io::ErrorKind::Unsupported, wrong))
}

/// A raw image is the storage itself. A qcow2 image begins with a few tables, and its storage becomes longer with it.
async fn fill(name: &str, image: &NewImage, size: u64) -> Result<(), Box<dyn Error>> {
    if image.format == Format::Raw {
        return Ok(drivers::create(name, size).await?);
    }
    drivers::create(name, 0).await?;
    let storage = drivers::open_created(name).await?;
    let options = CreateOptions { size, ..image.options.clone() };
    qcow2::create(&*storage, None, &options).await?;
    storage.flush().await?;
    Ok(storage.end_writing().await?)
}
