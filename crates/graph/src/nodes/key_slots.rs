//! Where the key slots of an encrypted disk are, for a change of keys while the disk is used.

use std::sync::Arc;

use block::{Blame, Error};
use luks::{Area, VolumeHeader, read_volume};
use storage::Storage;

use super::disk_node::DiskNode;
use crate::layers::Layer;
use crate::probe::Format;

/// Where the keys of the uppermost image of a disk are. Requests of guests read and write elsewhere; the file stays locked as long as
/// this is there.
#[derive(Debug)]
pub struct KeySlots {
    /// The file.
    pub file: Arc<dyn Storage>,
    /// The LUKS header and its key slots, in bytes of the file.
    pub area: Area,
    /// The id of the password that the disk was opened with.
    pub key_secret: Option<String>,
    _layer: Arc<Layer>,
}

impl DiskNode {
    /// The format of the uppermost image; `None` where that is a filter.
    pub fn format(&self) -> Option<Format> {
        let layers = self.disk.layers();
        layers.first().and_then(|layer| layer.files.as_ref()).map(|files| files.format)
    }

    /// Where the keys are. What changes them must hold [`super::Change`] meanwhile: then the disk stays on this image.
    ///
    /// # Errors
    /// When the image is not encrypted, is open for reading, or has a header that is only read here.
    pub async fn key_slots(&self) -> Result<KeySlots, Error> {
        let layers = self.disk.layers();
        let image = self.disk.top_image();
        let blame = Blame::new(image.name());
        let not_encrypted = || blame.refused("it is not encrypted: it has no keys");
        let layer = layers.first().cloned().ok_or_else(not_encrypted)?;
        let files = layer.files.as_ref().ok_or_else(not_encrypted)?;
        let file = Arc::clone(&files.written.file);
        if self.disk.read_only() || file.capabilities().read_only {
            return Err(blame.refused("it is open for reading"));
        }
        let area = match self.disk.image() {
            Some(image) => qcow2::luks_area(&image.header().await).ok_or_else(not_encrypted)?,
            None if files.format != Format::Luks => return Err(not_encrypted()),
            None if files.luks_header.is_some() => {
                return Err(
                    blame.unsupported("its LUKS header lies in a file of its own, which is only read")
                );
            }
            None => match read_volume(&*file).await? {
                VolumeHeader::Luks2(_) => {
                    return Err(blame.unsupported("key slots of LUKS version 2 are only read here"));
                }
                _ => Area::whole(&*file),
            },
        };
        let key_secret = files.options.key_secret.clone();
        Ok(KeySlots { file, area, key_secret, _layer: Arc::clone(&layer) })
    }
}
