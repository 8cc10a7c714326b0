//! Formats, by name, and why an image is in none.

use std::fmt;

use thiserror::Error;

/// A format that is served. Those that other code treats in a way of their own have names here; the list of drivers has all
/// ([`crate::drivers::format_drivers`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Format(&'static str);

#[expect(
    non_upper_case_globals,
    reason = "they are what variants of an enum would be, and are matched like those"
)]
impl Format {
    /// QEMU's copy-on-write format, versions 2 and 3.
    pub const Qcow2: Self = Self("qcow2");
    /// The disk's bytes as they are.
    pub const Raw: Self = Self("raw");
    /// The disk's bytes, encrypted.
    pub const Luks: Self = Self("luks");
    /// QEMU's first copy-on-write format, version 1.
    pub const Qcow: Self = Self("qcow");
    /// VMware's format, whose disk may be in several files.
    pub const Vmdk: Self = Self("vmdk");
}

impl Format {
    /// What some callers write for the format of a raw disk: the driver of the file alone.
    pub const BARE: [&str; 5] = ["file", "host_device", "host_cdrom", "null-co", "null-aio"];

    /// That of the driver of this name.
    pub(crate) const fn called(name: &'static str) -> Self {
        Self(name)
    }

    /// QEMU's name of the format.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A format that cannot be decided on, or not be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Raw would be a guess.
    #[error(
        "the format is not given and the file has no qcow2 header; raw is never guessed for writing: \
         if it is a raw disk, say so with -f raw, or with file=PATH,format=raw as DRIVE"
    )]
    RawGuessed,
    /// A known format that is not served.
    #[error(
        "the file looks like {found}, which is not supported: {INSTEAD} (format=raw takes its bytes as they are)"
    )]
    Unsupported {
        /// Its name.
        found: &'static str,
    },
    /// The caller says a format, and the file does not.
    #[error("the format is given as {asked}, but the file does not begin with a {header} header")]
    NotAsAsked {
        /// The format.
        asked: Format,
        /// What its header is called.
        header: &'static str,
    },
}

/// What to do with an image of a format that is not served.
pub const INSTEAD: &str = "qemu-img convert -O qcow2 makes a qcow2 image of it";
