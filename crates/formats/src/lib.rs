//! Images of other hypervisors: VirtualBox's vdi, vpc (VHD) of Virtual PC and Hyper-V, Hyper-V's vhdx, VMware's vmdk, and QEMU's own first format.
//! They are read, and some are made whole ([`sink`]).
//!
//! A format decodes its header into a layout, which says piece by piece where the bytes of the disk are; [`Image`] is that of a table in one file. What is common lies there: tables are read in pages under a limit, and nothing is allocated in proportion to a field of the header.

#![forbid(unsafe_code)]

mod fields;
mod image;
mod kind;
mod pages;
mod pieces;
pub mod qcow1;
pub mod sink;
mod table;
mod vdi;
pub mod vhdx;
pub mod vmdk;
mod vpc;

pub use image::Image;
pub use kind::Kind;

use block::{Block, Error};
use std::sync::Arc;
use storage::Storage;

pub use vdi::Finding;
pub use vdi::SIGNATURE as VDI_SIGNATURE;
pub use vdi::SIGNATURE_OFFSET as VDI_SIGNATURE_OFFSET;
pub use vpc::COOKIE as VPC_COOKIE;

/// Opens the image in `file` for reading, whose disk is in that file alone. Reads its headers; of a vmdk the descriptor, too.
///
/// # Errors
/// [`block::ErrorKind::Corrupt`] where the header contradicts itself or the file's length, [`block::ErrorKind::Unsupported`] for a
/// variant that is not read, and what reading the file reports.
pub async fn open(kind: Kind, file: Arc<dyn Storage>) -> Result<Arc<dyn Block>, Error> {
    Ok(match kind {
        Kind::Vdi => Arc::new(vdi::open(file).await?),
        Kind::Vpc => Arc::new(vpc::open(file).await?),
        Kind::Qcow => Arc::new(qcow1::open(file, None).await?),
        Kind::Vmdk => {
            let description = vmdk::describe(&*file).await?;
            Arc::new(vmdk::open(file, &description, Vec::new(), None).await?)
        }
        Kind::Vhdx => Arc::new(vhdx::open(file).await?),
    })
}

/// Whether images of the kind have a check ([`check`]).
pub fn has_check(kind: Kind) -> bool {
    match kind {
        Kind::Vpc | Kind::Qcow => false,
        Kind::Vdi | Kind::Vmdk | Kind::Vhdx => true,
    }
}

/// Looks at all places that the tables of an open image name, shows `found` those that are wrong, and gives how many there are. Reads no data.
///
/// # Errors
/// What reading the tables reports, and the first wrong place of a vmdk image, behind which nothing is looked at.
pub async fn check(image: &dyn Block, found: &mut dyn FnMut(Finding)) -> Result<u64, Error> {
    if let Some(image) = image.downcast_ref::<vmdk::Vmdk>() {
        return vmdk::check(image).await.map(|()| 0);
    }
    if let Some(image) = image.downcast_ref::<vhdx::Vhdx>() {
        return vhdx::check(image).await;
    }
    match image.downcast_ref::<Image>() {
        Some(image) if image.layout.kind == Kind::Vdi => vdi::check(image, found).await,
        Some(_) | None => Ok(0),
    }
}

#[cfg(test)]
mod tests;
