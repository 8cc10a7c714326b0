//! The image that a copy makes: a file, a block device, or what a storage driver keeps elsewhere.

use std::path::Path;
use std::sync::Arc;

use graph::memory_of_process;
use graph::options::{Discard, DiskOptions};
use graph::probe::Format;
use job::{Content, Counters};
use rustix::fs::{Advice, fadvise};
use tool::create::options::NewImage;
use tool::failure::Failure;
use tool::voice;

use super::fixed_name::fixed_name;
use super::new_device::NewDevice;
use super::new_elsewhere::NewElsewhere;
use super::new_file::NewFile;
use super::write_behind::writing_behind;
use crate::create::{check_creatable, foreign};
use crate::drive::{is_device, new_path};

/// With less memory Linux writes the pages of a full container a few at a time: minutes for what takes a second.
const MEMORY_TO_SPARE: u64 = 1 << 30;

/// How an image that is being made is opened to be filled.
pub(super) fn to_be_filled(path: &Path, format: Format, key_secret: Option<&String>) -> DiskOptions {
    let mut options = DiskOptions::of_path(path);
    let layer = &mut options.layer;
    layer.format = Some(format);
    layer.key_secret = key_secret.cloned();
    layer.discard = Discard::Unmap;
    // No request flushes before the end: clusters that are counted ahead would only be left as gaps.
    layer.qcow2.allocation_reserve = Some(0);
    options
}

/// An image on its way.
#[derive(Debug)]
pub enum Made {
    /// A file, which gets its name when it is whole.
    File(NewFile),
    /// A device, or a file whose name no other file can get. It holds nothing that looks like an image before it is whole.
    Device(NewDevice),
    /// What a storage driver keeps elsewhere.
    Elsewhere(Box<NewElsewhere>),
}

impl Made {
    /// Makes an image of `size` bytes that will be called `name`.
    ///
    /// # Errors
    /// When `name` is in use, or the image cannot be made there.
    pub fn make(name: &Path, image: &NewImage, size: u64) -> Result<Self, Failure> {
        if NewElsewhere::is_meant(name) {
            return NewElsewhere::make(name, image, size).map(|new| Self::Elsewhere(Box::new(new)));
        }
        let name = &new_path(name)?;
        check_creatable(name)?;
        if image.foreign.is_some() {
            foreign::check_place(name)?;
        }
        if is_device(name) {
            return NewDevice::make(name, image, size).map(Self::Device);
        }
        match fixed_name(name) {
            // As QEMU's programs do it anyway.
            Some(_) if voice::is_qemu() => NewDevice::make(name, image, size).map(Self::Device),
            Some(fixed) => Err(fixed.refused(name)),
            None => NewFile::make(name, image, size).map(Self::File),
        }
    }

    /// Leaves a file to the kernel, as qemu-img does: nothing is flushed, and a power cut soon after may lose the copy. What is no file of its own stays durable,
    /// and so does a file where there is little memory.
    #[must_use]
    pub fn left_to_kernel(mut self) -> Self {
        if let Self::File(file) = &mut self
            && memory_of_process() >= MEMORY_TO_SPARE
        {
            file.leave_to_kernel();
        }
        self
    }

    /// Whether it is.
    pub fn is_left_to_kernel(&self) -> bool {
        matches!(self, Self::File(file) if !file.is_durable())
    }

    /// How it is opened to be filled.
    pub fn options(&self) -> DiskOptions {
        match self {
            Self::File(file) => file.options(),
            Self::Device(device) => device.options(),
            Self::Elsewhere(image) => image.options(),
        }
    }

    /// What it reads as, where nothing below it does.
    pub fn content(&self) -> Content<'static> {
        match self {
            Self::Device(device) if device.holds_something() => Content::Unknown,
            Self::Elsewhere(image) if image.holds_something() => Content::Unknown,
            Self::File(_) | Self::Device(_) | Self::Elsewhere(_) => Content::Zeroes,
        }
    }

    /// Runs `filling` of the open disk, which counts in `counters` what it writes. The data is written back
    /// continuously, rather than all at the end, and then dropped from the page cache: it is not read soon,
    /// and would displace what other processes read.
    ///
    /// # Errors
    /// As `filling`; also when writeback fails.
    pub async fn while_filled<T>(
        &self,
        counters: &Counters,
        filling: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        if self.is_left_to_kernel() {
            return filling.await;
        }
        let file = match self {
            Self::File(file) => file.file(),
            Self::Device(device) => {
                device.hide().await?;
                device.file()
            }
            Self::Elsewhere(_) => return filling.await,
        };
        writing_behind(file, counters, filling).await
    }

    /// The disk is complete, durable and closed: it can be read under the name that it was opened by.
    ///
    /// # Errors
    /// When a device cannot be written.
    pub async fn filled(&self) -> Result<(), Failure> {
        match self {
            Self::File(_) | Self::Elsewhere(_) => Ok(()),
            Self::Device(device) => device.reveal().await,
        }
    }

    /// Makes it durable, unless it is left to the kernel, and gives it its name.
    ///
    /// # Errors
    /// When either is not possible. It is then removed, or is no image.
    pub fn keep(self) -> Result<(), Failure> {
        let left_to_kernel = self.is_left_to_kernel();
        let file = match &self {
            Self::File(file) => Arc::clone(file.file()),
            Self::Device(device) => Arc::clone(device.file()),
            // The copy has flushed it.
            Self::Elsewhere(_) => return Ok(()),
        };
        match self {
            Self::File(file) => file.keep()?,
            Self::Device(device) => device.keep()?,
            Self::Elsewhere(_) => {}
        }
        if !left_to_kernel {
            // What was written last, too. Advice that is not taken changes nothing.
            let _ = fadvise(&*file, 0, None, Advice::DontNeed);
        }
        Ok(())
    }

    /// Adds to a failure what became of the old content.
    pub fn explain(&self, failure: Failure) -> Failure {
        match self {
            Self::File(file) => file.explain(failure),
            Self::Device(device) => device.explain(failure),
            Self::Elsewhere(image) => image.explain(failure),
        }
    }
}
