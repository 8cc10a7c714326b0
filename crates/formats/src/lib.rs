//! Images of other hypervisors, read-only: VirtualBox's vdi, and vpc (VHD) of Virtual PC and Hyper-V.
//!
//! A format decodes its header into an [`Image`]: where its table of blocks is and what an entry says. What is common lies there: the table is
//! read in pages under a limit, and nothing is allocated in proportion to a field of the header.

#![forbid(unsafe_code)]

mod fields;
mod image;
mod table;
mod vdi;
mod vpc;

pub use image::Image;

use block::Error;
use std::sync::Arc;
use storage::Storage;

pub use vdi::SIGNATURE as VDI_SIGNATURE;
pub use vdi::SIGNATURE_OFFSET as VDI_SIGNATURE_OFFSET;
pub use vpc::COOKIE as VPC_COOKIE;

/// A format of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// VirtualBox's.
    Vdi,
    /// Virtual PC's and Hyper-V's older one (VHD).
    Vpc,
}

impl Kind {
    /// QEMU's name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vdi => "vdi",
            Self::Vpc => "vpc",
        }
    }

    /// The format of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Vdi, Self::Vpc].into_iter().find(|kind| kind.name() == name)
    }
}

/// Opens the image in `file` for reading. Reads its headers, at most 2 KiB.
///
/// # Errors
/// [`block::ErrorKind::Corrupt`] where the header contradicts itself or the file's length, [`block::ErrorKind::Unsupported`] for a
/// variant that is not read, and what reading the file reports.
pub async fn open(kind: Kind, file: Arc<dyn Storage>) -> Result<Image, Error> {
    match kind {
        Kind::Vdi => vdi::open(file).await,
        Kind::Vpc => vpc::open(file).await,
    }
}

#[cfg(test)]
mod tests;
