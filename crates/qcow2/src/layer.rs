//! One layer of a backing chain.

use std::sync::Arc;

use storage::Storage;

use crate::Qcow2;

/// What a disk is made of: a qcow2 image with what lies below it, or raw bytes.
#[derive(Clone, Debug)]
pub enum Layer {
    /// A qcow2 image, with its own backing layer inside.
    Qcow2(Qcow2),
    /// A raw file or device.
    Raw(Raw),
}

/// Bytes that are the disk.
#[derive(Clone, Debug)]
pub struct Raw {
    /// Where they are.
    pub storage: Arc<dyn Storage>,
    /// First byte of the disk in the storage.
    pub offset: u64,
    /// Size of the disk in bytes.
    pub size: u64,
}

impl Raw {
    /// The whole of `storage` as a disk.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        let size = storage.length();
        Self { storage, offset: 0, size }
    }
}

impl Layer {
    /// Size of the disk in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Layer::Qcow2(image) => image.size(),
            Layer::Raw(raw) => raw.size,
        }
    }

    /// The layer below.
    pub fn backing(&self) -> Option<&Layer> {
        match self {
            Layer::Qcow2(image) => image.backing(),
            Layer::Raw(_) => None,
        }
    }
}
