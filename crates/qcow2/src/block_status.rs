//! What an image says of a guest range, for tools and clients that ask before they read.

use storage::ExtentKind;

use crate::Error;
use crate::image::Qcow2;
use crate::layer::{Layer, Raw, SECTOR_BYTES};
use crate::locate::Source;

/// A guest range in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockStatus {
    /// Bytes, never 0.
    pub len: u64,
    /// Which layer knows: 0 is the image itself, 1 its backing file, and so on. If none knows, the
    /// last one asked.
    pub depth: u32,
    /// A layer knows of the range, be it data or zeroes.
    pub present: bool,
    /// Reads as zeroes, as far as the tables tell.
    pub zero: bool,
    /// No space is behind it in the uppermost layer's file, reserved space included.
    pub hole: bool,
    /// There are bytes to read.
    pub data: bool,
    /// The bytes are compressed.
    pub compressed: bool,
    /// Where they are in the file of their layer, if they can be read there as they are.
    pub offset: Option<u64>,
}

impl Qcow2 {
    /// The state of the disk at `offset`, for at most `len` bytes. Reads tables only.
    pub async fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Error> {
        self.inner.check_range(offset, len)?;
        if len == 0 {
            return Err(self.inner.blame.invalid("the status of no bytes is not defined"));
        }
        let _pass = self.inner.enter().await?;
        let located = self.inner.locate(offset, len).await?;
        let status = BlockStatus {
            len: located.len,
            depth: located.depth,
            present: true,
            zero: false,
            hole: false,
            data: true,
            compressed: false,
            offset: None,
        };
        Ok(match located.source {
            Source::Zero { explicit, host } => {
                let hole = host.is_none() || !explicit || located.depth > 0;
                BlockStatus { present: explicit, zero: true, hole, data: false, offset: host, ..status }
            }
            Source::Compressed { .. } => BlockStatus { compressed: true, ..status },
            Source::Plain { offset: host, .. } => BlockStatus { offset: Some(host), ..status },
            Source::Raw(raw) => raw.status(offset, status).await?,
        })
    }
}

impl Raw {
    /// What the file system says of a raw layer: holes read as zeroes, and so does what the last sector
    /// lacks in the storage. Such an end is the one place where a status is not of whole sectors.
    async fn status(&self, guest: u64, status: BlockStatus) -> Result<BlockStatus, Error> {
        let host = self.offset + guest;
        let end = self.storage.length();
        if host >= end {
            return Ok(BlockStatus { zero: true, hole: true, data: false, offset: Some(host), ..status });
        }
        let extent = self.storage.extent(host, status.len).await;
        let extent = extent.map_err(self.blame().io("asking for holes"))?;
        let hole = extent.kind == ExtentKind::Hole;
        let to_end = hole && host + extent.len >= end;
        let len = if to_end { end.next_multiple_of(SECTOR_BYTES) - host } else { extent.len };
        let len = len.min(status.len);
        Ok(BlockStatus { len, zero: hole, hole, data: !hole, offset: Some(host), ..status })
    }
}

impl Layer {
    /// As [`Qcow2::block_status`].
    pub async fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Error> {
        match self {
            Layer::Qcow2(image) => image.block_status(offset, len).await,
            Layer::Raw(raw) => {
                let status = BlockStatus {
                    len,
                    depth: 0,
                    present: true,
                    zero: false,
                    hole: false,
                    data: true,
                    compressed: false,
                    offset: None,
                };
                raw.status(offset, status).await
            }
        }
    }
}
