//! `file.*`, `data-file.*`: how the file below an image is opened.

use std::path::PathBuf;

use super::entry::{Entry, at, choice_at, in_group, read_all};
use super::error::OptionError;
use super::reader::Reader;
use super::spec::Group;
use crate::cache_mode::CacheMode;

/// How the file below an image is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// `driver`; `None`: what the file is.
    pub driver: Option<FileDriver>,
    /// `node-name`.
    pub node_name: Option<String>,
    /// `filename`: instead of the name that the image (or its overlay) gives.
    pub filename: Option<PathBuf>,
    /// `aio`; `None`: the best that the kernel permits.
    pub aio: Option<Aio>,
    /// `cache.direct`: O_DIRECT.
    pub direct: bool,
    /// `cache.no-flush`.
    pub no_flush: bool,
    /// `locking`: `off` takes no locks.
    pub locking: bool,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDriver {
    /// A regular file.
    File,
    /// A block device.
    HostDevice,
}

impl FileDriver {
    /// Refuses a driver that is not for what the file is.
    ///
    /// # Errors
    /// When it is for the other kind of file.
    pub fn check(asked: Option<Self>, is_device: bool) -> Result<(), OptionError> {
        let refused = |driver, needs, found| {
            Err(OptionError::FileDriver { option: "file.driver", driver, needs, found })
        };
        match (asked, is_device) {
            (Some(Self::File), true) => {
                refused("file", "regular files", "a block device: host_device is for it")
            }
            (Some(Self::HostDevice), false) => {
                refused("host_device", "block devices", "a regular file: file is for it")
            }
            (None | Some(Self::File | Self::HostDevice), _) => Ok(()),
        }
    }
}

/// How requests reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// Submission and completion rings.
    IoUring,
    /// Blocking calls on a pool of threads.
    Threads,
}

pub(super) const AIO: [(&str, Aio); 2] = [("io_uring", Aio::IoUring), ("threads", Aio::Threads)];
const FILE_DRIVERS: [(&str, FileDriver); 2] =
    [("file", FileDriver::File), ("host_device", FileDriver::HostDevice)];
const LOCKING: [(&str, bool); 3] = [("auto", true), ("on", true), ("off", false)];

/// The part of the table for the file below an image, and likewise for its data file.
pub const FILE: &[Entry<FileOptions>] = &in_group(
    Group::File,
    [
        Entry::choice("driver", choice_at!(FileOptions, FILE_DRIVERS, driver), "what the file is")
            .default_follows("what it is"),
        Entry::text("node-name", at!(FileOptions, node_name), "the file's name among the nodes")
            .default_follows("none"),
        Entry::path("filename", at!(FileOptions, filename), "its path").needed(),
        Entry::choice("aio", choice_at!(FileOptions, AIO, aio), "how requests reach the kernel")
            .default_follows("as aio of the image; else the best that the kernel permits"),
        Entry::switch("cache.direct", at!(FileOptions, direct), "bypass the host's page cache (O_DIRECT)")
            .default_follows("as cache.direct of the image"),
        Entry::switch("cache.no-flush", at!(FileOptions, no_flush), "do not flush")
            .default_follows("as cache.no-flush of the image"),
        Entry::choice("locking", choice_at!(FileOptions, LOCKING, locking), "take QEMU's file locks")
            .default("auto"),
    ],
);

impl FileOptions {
    pub(super) fn defaults(cache: CacheMode, aio: Option<Aio>) -> Self {
        Self {
            driver: None,
            node_name: None,
            filename: None,
            aio,
            direct: cache.direct,
            no_flush: cache.no_flush,
            locking: true,
        }
    }

    pub(super) fn read(
        group: Option<Reader>,
        cache: CacheMode,
        aio: Option<Aio>,
    ) -> Result<Self, OptionError> {
        let mut options = Self::defaults(cache, aio);
        let Some(mut reader) = group else { return Ok(options) };
        read_all(FILE, &mut reader, &mut options)?;
        reader.finish(FILE.iter().map(|entry| entry.spec().name), &[])?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_for_one_kind_of_file() {
        use FileDriver::{File, HostDevice};
        let check = |asked, is_device| FileDriver::check(asked, is_device).map_err(|error| error.to_string());
        for (asked, is_device) in [(None, false), (None, true), (Some(File), false), (Some(HostDevice), true)]
        {
            assert_eq!(check(asked, is_device), Ok(()));
        }
        let refused = "option file.driver is file, which is for regular files; this is a block device: host_device is for it";
        assert_eq!(check(Some(File), true).unwrap_err(), refused);
        let refused = "option file.driver is host_device, which is for block devices; this is a regular file: file is for it";
        assert_eq!(check(Some(HostDevice), false).unwrap_err(), refused);
    }
}
