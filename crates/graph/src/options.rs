//! The options of a drive: from a tree of texts to values that cannot be wrong.
//!
//! Names, defaults and rules are QEMU's (FACTS 1.4, 1.5). What depends on the image itself (a cache
//! entry larger than its clusters, lazy refcounts in version 2) is checked when it is opened.

pub(crate) mod entry;
mod error;
mod file;
mod fixed;
mod layer;
mod luks;
mod qcow2;
mod raw;
mod reader;
mod spec;
pub mod table;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
mod throttling;
#[cfg(test)]
mod throttling_tests;

use std::path::PathBuf;

pub use self::entry::Entry;
use self::entry::read_all;
pub use self::error::OptionError;
pub use self::file::{Aio, FileOptions};
pub use self::fixed::{Opened, first_fixed};
use self::layer::Inherited;
pub use self::layer::{Backing, DetectZeroes, Discard, Encryption, LayerOptions};
pub use self::qcow2::{CACHE_CLEAN_INTERVAL_S_DEFAULT, Qcow2Options};
pub use self::raw::{RawOptions, Window};
pub use self::reader::Reader;
pub use self::spec::{Changes, DefaultValue, Group, Kind, Qmp, Spec};
pub use self::throttling::{DiscardCharge, ThrottleOptions};
use crate::drive::OptionTree;

/// A drive to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// `id`: how exports and messages call it.
    pub id: Option<String>,
    /// The image.
    pub filename: PathBuf,
    /// How it is opened.
    pub layer: LayerOptions,
    /// `throttling.*`: its limits.
    pub throttling: ThrottleOptions,
}

impl DiskOptions {
    /// Checks every option of `tree`.
    ///
    /// # Errors
    /// For the first option that is unknown, has a value it does not take, or contradicts another.
    pub fn of_tree(tree: OptionTree) -> Result<Self, OptionError> {
        let mut reader = Reader::new(tree, String::new());
        let mut options = Self::of_path(PathBuf::new());
        read_all(table::DISK, &mut reader, &mut options)?;
        options.throttling = throttling::read(&mut reader)?;
        options.layer = LayerOptions::read(reader, Inherited::by_nobody())?;
        options.filename = options.layer.file.shown().ok_or(OptionError::NoFile)?;
        Ok(options)
    }

    /// A drive that is a path and nothing else.
    pub fn of_path(filename: impl Into<PathBuf>) -> Self {
        let filename = filename.into();
        let top = Inherited::by_nobody();
        let mut layer = LayerOptions::defaults(top);
        layer.file.filename = Some(filename.clone());
        Self { id: None, filename, layer, throttling: ThrottleOptions::default() }
    }
}
