//! Images that are written whole and in order: a format makes the bytes of its file from those of the disk, and touches no file itself.
//!
//! The caller gives the disk's data in ascending order and puts the pieces that come back where they say. What is left out of the disk reads as
//! zeroes, and what no piece covers in the file must read as zeroes too. Memory holds tables only, never more than a few MiB.

mod descriptor;
mod monolithic_sparse;
mod sparse_extent;
mod stream_optimized;
mod vhd;

use std::fmt;
use std::io;

use memory::IoBytes;
use thiserror::Error;

use monolithic_sparse::MonolithicSparse;
use stream_optimized::StreamOptimized;
use vhd::Vhd;

/// Bytes of an image file at a place of it.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Where they belong.
    pub at: u64,
    /// The bytes.
    pub bytes: IoBytes,
}

/// Stores a unit of the disk (the last one may be shorter) in the form that it has in the file.
pub type Packing = fn(&[u8]) -> io::Result<Vec<u8>>;

/// An image on its way. [`Sink::begin`] comes first and [`Sink::finish`] last.
pub trait Sink: fmt::Debug + Send {
    /// Bytes of the disk that are stored together: data begins at multiples of them, and ends there or at the end of the disk.
    fn unit_bytes(&self) -> u64;

    /// How a unit is stored, where that is not as it is. It runs on any thread, for several units at a time.
    fn packing(&self) -> Option<Packing>;

    /// Whether each piece begins where the one before it ends, or behind that: such a file goes through a pipe.
    fn is_sequential(&self) -> bool;

    /// Begins the image of a disk of `size` bytes, whole sectors.
    ///
    /// # Errors
    /// When the format has no disks of that size.
    fn begin(&mut self, size: u64) -> Result<Vec<Piece>, SinkError>;

    /// The disk has `bytes` at `offset`, behind all that was given before: whole units, or one that [`Sink::packing`] made.
    ///
    /// # Errors
    /// When the file would become longer than the format can have it.
    fn data(&mut self, offset: u64, bytes: IoBytes) -> Result<Vec<Piece>, SinkError>;

    /// That was all. The file is whole with these pieces.
    ///
    /// # Errors
    /// As [`Sink::data`].
    fn finish(&mut self) -> Result<Vec<Piece>, SinkError>;
}

/// Why an image is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SinkError {
    /// The disk is too large.
    #[error("the disk has {found} bytes; a {format} image has at most {max}")]
    Disk {
        /// The format.
        format: &'static str,
        /// Its size.
        found: u64,
        /// What is allowed.
        max: u64,
    },
    /// The disk is empty.
    #[error("the disk has no bytes; a {format} image has at least a sector")]
    Empty {
        /// The format.
        format: &'static str,
    },
    /// The file would be too long.
    #[error("the file of a {format} image has at most {max} bytes, and the disk's data does not fit")]
    File {
        /// The format.
        format: &'static str,
        /// What is allowed.
        max: u64,
    },
}

/// What tells one image from another and is no part of its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// When it is made.
    pub unix_seconds: u64,
    /// Random bytes.
    pub id: [u8; 16],
    /// What its file is called, without directories.
    pub file_name: String,
}

/// An image that is to be made, with QEMU's options of its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewImage {
    /// A VHD.
    Vpc(VpcOptions),
    /// A vmdk.
    Vmdk(VmdkOptions),
}

/// Options of a VHD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VpcOptions {
    /// Its form.
    pub subformat: VpcSubformat,
    /// The disk has the size that was given, rather than the next one that cylinders, heads and sectors make.
    pub force_size: bool,
}

/// Forms of a VHD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VpcSubformat {
    /// Blocks with data, and a table of them.
    #[default]
    Dynamic,
    /// The disk as it is, and a footer.
    Fixed,
}

/// Options of a vmdk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmdkOptions {
    /// Its form.
    pub subformat: VmdkSubformat,
    /// The controller that a machine made of it has.
    pub adapter: Adapter,
    /// Version of that machine's hardware.
    pub hardware_version: Option<String>,
    /// It is 6, in place of 4.
    pub compat6: bool,
    /// Version of the tools in the guest.
    pub tools_version: Option<String>,
}

/// Forms of a vmdk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VmdkSubformat {
    /// Grains as they are, behind the tables that find them.
    #[default]
    MonolithicSparse,
    /// Compressed grains in their order, as in an OVA.
    StreamOptimized,
}

/// Controllers that a vmdk can name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adapter {
    /// IDE.
    #[default]
    Ide,
    /// BusLogic SCSI.
    BusLogic,
    /// LSI Logic SCSI.
    LsiLogic,
    /// The one of ESX before version 3.
    LegacyEsx,
}

impl Adapter {
    /// All of them, with QEMU's names.
    pub const NAMED: [(&str, Self); 4] = [
        ("ide", Self::Ide),
        ("buslogic", Self::BusLogic),
        ("lsilogic", Self::LsiLogic),
        ("legacyESX", Self::LegacyEsx),
    ];

    /// QEMU's name.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, adapter)| *adapter == self).map_or("ide", |(name, _)| name)
    }
}

/// The largest number of 32 bits with a sign: others than VMware look after the tools.
const TOOLS_VERSION_DEFAULT: &str = "2147483647";
/// The hardware of Workstation 5 and ESX 3, which all later products take.
const HARDWARE_VERSION_DEFAULT: &str = "4";
/// That of Workstation 6.
const HARDWARE_VERSION_COMPAT6: &str = "6";

impl VmdkOptions {
    fn hardware_version(&self) -> &str {
        let default = if self.compat6 { HARDWARE_VERSION_COMPAT6 } else { HARDWARE_VERSION_DEFAULT };
        self.hardware_version.as_deref().unwrap_or(default)
    }

    fn tools_version(&self) -> &str {
        self.tools_version.as_deref().unwrap_or(TOOLS_VERSION_DEFAULT)
    }
}

impl NewImage {
    /// An image of the format of that name with the default options; `None` of one that is not made so.
    pub fn of_name(format: &str) -> Option<Self> {
        match format {
            "vpc" => Some(Self::Vpc(VpcOptions::default())),
            "vmdk" => Some(Self::Vmdk(VmdkOptions::default())),
            _ => None,
        }
    }

    /// What of the options contradicts itself.
    ///
    /// # Errors
    /// The rest of a sentence about it.
    pub fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Vmdk(VmdkOptions { compat6: true, hardware_version: Some(_), .. }) => {
                Err("-o compat6 is hardware version 6, and hwversion says another; give one of them")
            }
            Self::Vpc(_) | Self::Vmdk(_) => Ok(()),
        }
    }

    /// Whether data is stored compressed.
    pub fn is_compressed(&self) -> bool {
        matches!(self, Self::Vmdk(VmdkOptions { subformat: VmdkSubformat::StreamOptimized, .. }))
    }

    /// Makes the image.
    pub fn sink(&self, stamp: Stamp) -> Box<dyn Sink> {
        match self {
            Self::Vpc(options) => Box::new(Vhd::new(*options, stamp)),
            Self::Vmdk(options) => match options.subformat {
                VmdkSubformat::StreamOptimized => Box::new(StreamOptimized::new(options.clone(), stamp)),
                VmdkSubformat::MonolithicSparse => Box::new(MonolithicSparse::new(options.clone(), stamp)),
            },
        }
    }
}

#[cfg(test)]
mod tests;
