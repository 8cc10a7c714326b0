//! What is written: a new image, or a disk that is there.

use std::ffi::OsString;
use std::path::Path;

use graph::options::{Discard, DiskOptions};
use job::{Content, Counters};
use tool::failure::Failure;
use tool::voice;

use super::args::Args;
use super::plan::Plan;
use crate::copying::made::Made;
use crate::drive::disk_options;

/// The target.
#[derive(Debug)]
pub struct Target {
    /// How it is opened.
    pub options: DiskOptions,
    /// Without it the target was there before.
    new: Option<Made>,
}

impl Target {
    /// Makes the image, or finds out how the one that is there is opened.
    ///
    /// # Errors
    /// When the image cannot be made, or its name not be understood.
    pub fn prepare(args: &Args, name: &OsString, plan: &Plan) -> Result<Self, Failure> {
        let new = match args.no_create {
            true => None,
            false => {
                let made = Made::make(Path::new(name), &plan.image, plan.size)?;
                // qemu-img's default is "unsafe".
                let unsafe_mode = args.target_cache.is_none_or(|mode| mode.no_flush);
                Some(if voice::is_qemu() && unsafe_mode { made.left_to_kernel() } else { made })
            }
        };
        let mut options = match &new {
            Some(made) => made.options(),
            None => Self::in_place(args, name)?,
        };
        if let Some(mode) = args.target_cache {
            options.set_cache(mode);
        }
        Ok(Self { options, new })
    }

    /// Whether nothing of it is flushed.
    pub fn is_left_to_kernel(&self) -> bool {
        self.new.as_ref().is_some_and(Made::is_left_to_kernel)
    }

    /// How a disk that is there is opened.
    fn in_place(args: &Args, name: &OsString) -> Result<DiskOptions, Failure> {
        let is_path = |path: &Path| !args.target_image_opts && path.symlink_metadata().is_ok();
        let mut options = disk_options(name, is_path)?;
        options.layer.format = options.layer.format.or(Some(args.target_format));
        options.layer.discard = Discard::Unmap;
        Ok(options)
    }

    /// What the target reads as before the copy: as `planned`, but a new one without a backing file reads as new
    /// ones of its kind do.
    pub fn content(&self, planned: Content<'static>) -> Content<'static> {
        match (&self.new, planned) {
            (Some(made), Content::Zeroes) => made.content(),
            (_, planned) => planned,
        }
    }

    /// Runs `filling`, during which the target is written, and which counts in `counters` what it writes.
    ///
    /// # Errors
    /// As `filling`; also when what was written cannot be made durable.
    pub async fn while_filled<T>(
        &self,
        counters: &Counters,
        filling: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match &self.new {
            Some(made) => made.while_filled(counters, filling).await,
            None => filling.await,
        }
    }

    /// The copy is complete, durable and closed.
    ///
    /// # Errors
    /// When a device cannot be written.
    pub async fn filled(&self) -> Result<(), Failure> {
        match &self.new {
            Some(made) => made.filled().await,
            None => Ok(()),
        }
    }

    /// Says of a failure what became of the target, to which something `was_written`.
    pub fn explain(&self, failure: Failure, was_written: bool) -> Failure {
        match &self.new {
            Some(made) => made.explain(failure),
            None if was_written => {
                failure.with_hint("the target holds a part of the copy: it was written in place (-n)")
            }
            None => failure,
        }
    }

    /// The copy is whole.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub fn keep(self) -> Result<(), Failure> {
        match self.new {
            Some(made) => made.keep(),
            None => Ok(()),
        }
    }
}
