//! The options of a drive: from a tree of texts to values that cannot be wrong.
//!
//! Names, defaults and rules are QEMU's (FACTS 1.4, 1.5). What depends on the image itself (a cache
//! entry larger than its clusters, lazy refcounts in version 2) is checked when it is opened.

pub(crate) mod entry;
mod error;
mod file;
pub(crate) mod filter;
mod fixed;
mod layer;
mod luks;
mod name;
mod qcow2;
mod raw;
mod reader;
mod setting;
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
pub use self::file::{Aio, FileOptions, Locking};
pub use self::filter::FilterOptions;
pub use self::fixed::{Opened, first_fixed};
pub(crate) use self::fixed::{first_fixed_of_file, is_other_part, is_same_file, moves};
use self::layer::Inherited;
pub use self::layer::{Backing, DetectZeroes, Discard, Encryption, LayerOptions};
pub use self::qcow2::{CACHE_CLEAN_INTERVAL_S_DEFAULT, Qcow2Options};
pub use self::raw::{RawOptions, Window};
pub use self::reader::Reader;
pub use self::spec::{Changes, DefaultValue, Group, Kind, Qmp, Spec};
pub use self::throttling::{DiscardCharge, ThrottleOptions};
use crate::drive::OptionTree;
use crate::error::OpenError;

/// What can be said of a filter as of an image.
pub(crate) const LAYER_OF_FILTERS: [&str; 8] = [
    "read-only",
    "force-share",
    "discard",
    "detect-zeroes",
    "cache",
    "cache.direct",
    "cache.no-flush",
    "cache.writeback",
];

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
    /// Filters over it, the outermost first.
    pub filters: Vec<FilterOptions>,
}

/// Whether a drive is a filter over its disk.
pub(crate) fn has_filters(tree: &OptionTree) -> bool {
    filter::named(tree).is_some()
}

impl DiskOptions {
    /// Checks every option of `tree`.
    ///
    /// # Errors
    /// For the first option that is unknown, has a value it does not take, or contradicts another.
    pub fn of_tree(tree: OptionTree) -> Result<Self, OptionError> {
        Self::of_tree_below(tree, 0)
    }

    /// Likewise, of a disk that is below so many filters.
    fn of_tree_below(tree: OptionTree, filters: usize) -> Result<Self, OptionError> {
        let tree = Reader::new(tree, String::new()).with_format()?.into_tree();
        if let Some(named) = filter::named(&tree) {
            return filter::read(&named, tree, filters);
        }
        let mut reader = Reader::new(tree, String::new());
        let mut options = Self::of_path(PathBuf::new());
        read_all(table::DISK, &mut reader, &mut options)?;
        options.throttling = throttling::read(&mut reader)?;
        options.layer = LayerOptions::read(reader, Inherited::by_nobody())?;
        options.filename = options.layer.file.shown().ok_or(OptionError::NoFile)?;
        Ok(options)
    }

    /// Refuses filters, for what works on an image itself.
    pub(crate) fn check_without_filters(&self) -> Result<(), OpenError> {
        match self.filters.is_empty() {
            true => Ok(()),
            false => Err(OpenError::Filters { path: self.filename.clone() }),
        }
    }

    /// A drive that is a path and nothing else.
    pub fn of_path(filename: impl Into<PathBuf>) -> Self {
        let filename = filename.into();
        let top = Inherited::by_nobody();
        let mut layer = LayerOptions::defaults(top);
        layer.file.filename = Some(filename.clone());
        let (throttling, filters) = (ThrottleOptions::default(), Vec::new());
        Self { id: None, filename, layer, throttling, filters }
    }
}
