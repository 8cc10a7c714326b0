//! One layer of a backing chain.

use std::sync::Arc;

use storage::{IoBuf, IoVec, Storage, Zeroing};

use crate::error::Blame;
use crate::{Error, Qcow2, ReadKind};

/// What sizes of disks are multiples of.
pub(crate) const SECTOR_BYTES: u64 = 512;

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
    /// The whole of `storage` as a disk, which is a whole number of sectors: what the last one lacks
    /// in the storage reads as zeroes.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        let size = storage.length().next_multiple_of(SECTOR_BYTES);
        Self { storage, offset: 0, size }
    }
}

/// Requests on a raw disk, with the same errors as an image's.
impl Raw {
    /// Whether `len` bytes at `offset` lie inside the disk.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size)
    }

    /// Reads into `buf` from `offset` if that needs no waiting; see [`Qcow2::try_read`].
    pub fn try_read(&self, offset: u64, buf: &mut [u8]) -> Option<ReadKind> {
        let inside = self.contains(offset, buf.len() as u64);
        (inside && self.storage.try_read(self.offset + offset, buf)).then_some(ReadKind::Data)
    }

    fn check_range(&self, offset: u64, len: u64) -> Result<u64, Error> {
        if self.contains(offset, len) {
            return Ok(self.offset + offset);
        }
        let size = self.size;
        Err(self
            .blame()
            .invalid(format!("{len} bytes at offset {offset} reach past the end of the disk ({size} bytes)")))
    }

    pub(crate) fn blame(&self) -> Blame {
        Blame::new(self.storage.name())
    }

    /// Makes an error of a failure. The name is copied only then: a copy a request would cost as much as the way
    /// through the map.
    fn failing(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |error| self.blame().io(doing)(error)
    }

    /// Fills `buf` from `offset` and gives it back.
    pub async fn read(&self, offset: u64, buf: IoBuf) -> (Result<(), Error>, IoBuf) {
        match self.check_range(offset, buf.len() as u64) {
            Ok(host) => {
                let (result, buf) = self.storage.read(host, buf).await;
                (result.map_err(self.failing("reading data")), buf)
            }
            Err(error) => (Err(error), buf),
        }
    }

    /// Writes `data` at `offset`.
    pub async fn write(&self, offset: u64, data: IoVec) -> Result<(), Error> {
        let host = self.check_range(offset, data.len() as u64)?;
        self.storage.write(host, data).await.map_err(self.failing("writing data"))
    }

    /// Makes the range read as zeroes.
    pub async fn zero(&self, offset: u64, len: u64, how: Zeroing) -> Result<(), Error> {
        let host = self.check_range(offset, len)?;
        self.storage.zero(host, len, how).await.map_err(self.failing("zeroing"))
    }

    /// Gives the space of the range back where that is possible.
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        let host = self.check_range(offset, len)?;
        self.storage.discard(host, len).await.map_err(self.failing("discarding"))
    }

    /// Makes everything durable that completed before this call.
    pub async fn flush(&self) -> Result<(), Error> {
        self.storage.flush().await.map_err(self.failing("flushing"))
    }
}

impl Raw {
    /// An error that says that raw disks have no such thing.
    pub fn unsupported(&self, detail: &str) -> Error {
        self.blame().unsupported(detail)
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

    /// Whether data of this layer, or of one below, may be in memory. Constant while open.
    pub fn has_cached_data(&self) -> bool {
        std::iter::successors(Some(self), |layer| layer.backing()).any(|layer| match layer {
            Layer::Qcow2(image) => image.inner.data.limits().cached,
            Layer::Raw(raw) => raw.storage.limits().cached,
        })
    }

    /// The layer below.
    pub fn backing(&self) -> Option<&Layer> {
        match self {
            Layer::Qcow2(image) => image.backing(),
            Layer::Raw(_) => None,
        }
    }
}
