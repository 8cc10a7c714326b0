//! A disk as one export shows it: what of it clients may see and do.

use std::path::Path;
use std::sync::Arc;

use block::{Block, ZeroOptions};
use export::{
    Abilities, BlockSizes, Depth, Dirtiness, Error, ErrorKind, Export, Extent, IoFuture, Pace, ReadKind,
    ZeroFlags,
};
use graph::{Disk, DiskNode};
use job::{Above, Says};
use lineage::LayerId;
use storage::{ForeignBytes, Hints, IoBuf, IoVec};

/// What names of bitmaps begin with that `cowhand backup` has on a disk: clients are not shown them unless they ask, so that they can be removed.
pub const BACKUPS_BITMAPS: &str = "cowhand-backup-";

/// What an export shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Clients may write.
    pub writable: bool,
    /// Names of the bitmaps that clients may ask for.
    pub bitmaps: Vec<String>,
    /// Checkpoints from which clients may ask what differs.
    pub since: Vec<Since>,
    /// Clients may ask which image of the chain holds a range.
    pub allocation_depth: bool,
    /// Every write is durable when it is answered.
    pub writethrough: bool,
    /// The disk may be inactive: then clients read, and their writes fail.
    pub allows_inactive: bool,
}

/// A checkpoint that the disk is backed by: a bitmap of the export has as dirty what a layer above it says something about. That bitmap is kept nowhere; it is what the
/// maps say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// What clients call the bitmap: `@` and the checkpoint.
    pub bitmap: String,
    /// The checkpoint's layer.
    pub layer: LayerId,
}

impl Since {
    /// What a disk has above the checkpoint; `None` once it continues from another one.
    pub fn above(&self, disk: &Disk) -> Option<Above> {
        let file_name = self.layer.file_name();
        let is_it = |layer: &Arc<dyn Block>| Path::new(layer.name()).file_name() == Some(file_name.as_ref());
        let (at, layer) = block::layers(disk.top_image()).enumerate().find(|(_, layer)| is_it(layer))?;
        Some(Above { layers: u32::try_from(at).ok()?, end: layer.size() })
    }

    async fn status(&self, disk: &Disk, offset: u64, len: u64) -> Result<Dirtiness, Error> {
        loop {
            // A checkpoint puts a layer over the others: then the depth is counted from another one.
            let Some(above) = self.above(disk) else { return Ok(Dirtiness { len, dirty: true }) };
            let (scope, known) = above.at(offset, len);
            let status = disk.block_status(offset, known).await?;
            if self.above(disk) == Some(above) {
                return Ok(Dirtiness { len: status.len, dirty: scope.says(&status) != Says::Nothing });
            }
        }
    }
}

/// A disk behind an export.
#[derive(Debug)]
pub struct ExportView {
    disk: Arc<Disk>,
    shown: Shown,
    lent: Vec<LentBitmap>,
}

/// A bitmap of another disk of the same size, which an export shows as one of its own: what changed of the disk of which the export is a backup.
#[derive(Clone, Debug)]
pub struct LentBitmap {
    /// Its name.
    pub name: String,
    /// The disk that has it.
    pub of: Arc<DiskNode>,
}

impl ExportView {
    /// `disk`, as far as `shown` goes; some of the bitmaps are `lent`.
    pub fn new(disk: Arc<Disk>, shown: Shown, lent: Vec<LentBitmap>) -> Self {
        Self { disk, shown, lent }
    }

    /// All of a disk.
    pub fn everything(disk: &Disk) -> Shown {
        Shown {
            writable: !disk.read_only(),
            bitmaps: disk
                .bitmap_names()
                .into_iter()
                .filter(|name| !name.starts_with(BACKUPS_BITMAPS))
                .collect(),
            since: Vec::new(),
            allocation_depth: true,
            writethrough: false,
            allows_inactive: false,
        }
    }
}

impl Export for ExportView {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.disk.allocated_bytes()
    }

    fn read_only(&self) -> bool {
        !self.shown.writable
    }

    fn writes_through(&self) -> bool {
        self.shown.writethrough || self.disk.writes_through()
    }

    fn block_sizes(&self) -> BlockSizes {
        BlockSizes { minimum: 1, preferred: self.disk.preferred_bytes(), discard: self.disk.discard_bytes() }
    }

    fn abilities(&self) -> Abilities {
        let writable = !self.disk.read_only();
        let allocation_depth = self.shown.allocation_depth;
        Abilities { discard: writable, zero: writable, fast_zero: writable, prefetch: true, allocation_depth }
    }

    fn bitmaps(&self) -> Vec<String> {
        let since = self.shown.since.iter().map(|since| &since.bitmap);
        self.shown.bitmaps.iter().chain(since).cloned().collect()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.disk.try_read(offset, buf, hints)
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        self.disk.try_read_into(offset, memory, hints)
    }

    fn holds_back(&self) -> bool {
        self.disk.is_limited()
    }

    fn read<'a>(
        &'a self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            let (result, buf) = self.disk.read_paced(offset, buf, hints, pace).await;
            (result.map_err(Error::from), buf)
        })
    }

    fn write<'a>(
        &'a self,
        offset: u64,
        data: IoVec,
        fua: bool,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        let fua = fua || self.shown.writethrough;
        Box::pin(async move { Ok(self.disk.write_paced(offset, data, fua, hints, pace).await?) })
    }

    fn read_into<'a>(
        &'a self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<ReadKind, Error>> {
        Box::pin(async move { Ok(self.disk.read_into(offset, memory, hints, pace).await?) })
    }

    fn write_from<'a>(
        &'a self,
        offset: u64,
        memory: ForeignBytes,
        fua: bool,
        hints: Hints,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        let fua = fua || self.shown.writethrough;
        Box::pin(async move { Ok(self.disk.write_from(offset, memory, fua, hints, pace).await?) })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), Error>> {
        Box::pin(async move { Ok(self.disk.flush().await?) })
    }

    fn hand_to_kernel(&self) -> IoFuture<'_, Result<(), Error>> {
        Box::pin(async move { Ok(self.disk.hand_to_kernel().await?) })
    }

    fn discard<'a>(
        &'a self,
        offset: u64,
        len: u64,
        fua: bool,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        let fua = fua || self.shown.writethrough;
        Box::pin(async move { Ok(self.disk.discard(offset, len, fua, pace).await?) })
    }

    fn zero<'a>(
        &'a self,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
        pace: &'a Pace,
    ) -> IoFuture<'a, Result<(), Error>> {
        let fua = flags.fua || self.shown.writethrough;
        let options = ZeroOptions { unmap: flags.unmap, fast_only: flags.fast_only };
        Box::pin(async move { Ok(self.disk.zero(offset, len, options, fua, pace).await?) })
    }

    fn prefetch<'a>(&'a self, offset: u64, len: u64, pace: &'a Pace) -> IoFuture<'a, Result<(), Error>> {
        Box::pin(async move { Ok(self.disk.prefetch_paced(offset, len, pace).await?) })
    }

    fn idle(&self) -> IoFuture<'_, ()> {
        Box::pin(self.disk.idle())
    }

    fn block_status(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Extent, Error>> {
        Box::pin(async move {
            let status = self.disk.block_status(offset, len).await?;
            Ok(Extent { len: status.len, hole: status.hole, zero: status.zero })
        })
    }

    fn allocation_depth(&self, offset: u64, len: u64) -> IoFuture<'_, Result<Depth, Error>> {
        Box::pin(async move {
            let status = self.disk.block_status(offset, len).await?;
            let depth = if status.present { status.depth + 1 } else { 0 };
            Ok(Depth { len: status.len, depth })
        })
    }

    fn bitmap_status<'a>(
        &'a self,
        bitmap: &'a str,
        offset: u64,
        len: u64,
    ) -> IoFuture<'a, Result<Dirtiness, Error>> {
        Box::pin(async move {
            if let Some(since) = self.shown.since.iter().find(|since| since.bitmap == bitmap) {
                return since.status(&self.disk, offset, len).await;
            }
            let lent = self.lent.iter().find(|lent| lent.name == bitmap);
            let disk = lent.map_or(&self.disk, |lent| &lent.of.disk);
            match disk.bitmap_status(bitmap, offset, len).await? {
                Some(status) => Ok(Dirtiness { len: status.len, dirty: status.dirty }),
                None => Err(ErrorKind::Invalid.into()),
            }
        })
    }
}
