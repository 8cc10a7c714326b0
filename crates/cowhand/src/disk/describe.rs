//! What a disk is, and what of it holds data.

use block::BlockStatus;

use super::Disk;
use crate::error::Error;
use crate::pending::Pending;

/// Extents that one question gives at most: a list of 256 KiB.
const EXTENTS_MAX: usize = 4096;

/// What a disk is, for a device model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// The format's driver: `qcow2` or `raw`.
    pub driver: &'static str,
    /// Offsets and lengths of requests that are multiples of this go to the device as they are. Any others work too, at the
    /// price of reading before writing.
    pub alignment_bytes: u32,
    /// Multiples of this cost least.
    pub preferred_bytes: u32,
    /// What is allocated and given back together; `None` for raw images.
    pub cluster_bytes: Option<u64>,
    /// A discard gives space back: the disk was opened with discard.
    pub discards: bool,
    /// The paths of the images of the chain, as they were opened, the disk's own first.
    pub chain: Vec<String>,
}

/// A range of a disk in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes, never 0.
    pub len: u64,
    /// An image of the chain knows of the range, be it data or zeroes.
    pub present: bool,
    /// Which one: 0 is the disk's own, 1 its backing image, and so on.
    pub depth: u32,
    /// There are bytes to read.
    pub data: bool,
    /// It reads as zeroes, as far as maps and file systems tell.
    pub zero: bool,
    /// No space is behind it in the disk's own file, reserved space included.
    pub hole: bool,
    /// The bytes are compressed.
    pub compressed: bool,
    /// Where they are in the file of their image, if they can be read there as they are.
    pub file_offset: Option<u64>,
}

impl Extent {
    fn new(offset: u64, status: BlockStatus) -> Self {
        let BlockStatus { len, depth, present, zero, hole, data, compressed, offset: file_offset } = status;
        Self { offset, len, present, depth, data, zero, hole, compressed, file_offset }
    }
}

impl Disk {
    /// Size in bytes now.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn size(&self) -> Result<u64, Error> {
        Ok(self.handle.enter()?.disk().size())
    }

    /// What the disk is.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed).
    pub fn info(&self) -> Result<Info, Error> {
        let inside = self.handle.enter()?;
        let disk = inside.disk();
        let capabilities = disk.root().capabilities();
        let chain = std::iter::successors(Some(disk.root()), |layer| layer.below());
        Ok(Info {
            size_bytes: disk.size(),
            read_only: disk.read_only(),
            driver: disk.root().driver(),
            alignment_bytes: capabilities.alignment,
            preferred_bytes: disk.preferred_bytes(),
            cluster_bytes: capabilities.cluster_bytes,
            discards: disk.runtime_options().discard == graph::options::Discard::Unmap,
            chain: chain.map(|layer| layer.name().to_owned()).collect(),
        })
    }

    /// The extents from `offset` on, in order and without gaps: of `len` bytes, or at least the first 4096 extents. Asks maps and
    /// file systems, and reads no data.
    pub fn extents(&self, offset: u64, len: u64) -> Pending<Vec<Extent>> {
        self.run(async move |inside| {
            let mut extents = Vec::new();
            let (mut at, mut left) = (offset, len);
            while left > 0 && extents.len() < EXTENTS_MAX {
                let status = inside.disk().block_status(at, left).await?;
                let len = status.len.min(left);
                extents.push(Extent::new(at, BlockStatus { len, ..status }));
                (at, left) = (at + len, left - len);
            }
            Ok(extents)
        })
    }
}
