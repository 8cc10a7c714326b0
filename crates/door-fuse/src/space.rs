//! The file's size, and what of it is stored.

use export::{ErrorKind, Pace, RequestKind, ZeroFlags};
use rustix::io::Errno;

use crate::abi::{Fallocate, SeekTarget};
use crate::limits::STEP_BYTES;
use crate::requests::Failed;
use crate::server::FuseExport;

/// Makes the disk at least `size` bytes long.
pub(crate) async fn grow(export: &FuseExport, size: u64) -> Result<(), Failed> {
    if size > export.entry.disk().size() { resize(export, size).await } else { Ok(()) }
}

/// Gives the disk `size` bytes; a disk that is not growable keeps those that it has.
pub(crate) async fn truncate(export: &FuseExport, size: u64) -> Result<(), Failed> {
    let disk = export.entry.disk();
    if disk.read_only() {
        return Err(Errno::ROFS.into());
    }
    if size == disk.size() {
        return Ok(());
    }
    if !export.options.growable {
        return Err(Errno::PERM.into());
    }
    resize(export, size).await?;
    export.kept.lock().was_written();
    Ok(())
}

async fn resize(export: &FuseExport, size: u64) -> Result<(), Failed> {
    // The kernel rounds nothing, the disk has whole sectors: the rest reads as zeroes.
    let sectors = size.checked_next_multiple_of(512).ok_or(Errno::FBIG)?;
    export.resize(sectors).await.map_err(|error| Failed::Disk(RequestKind::Zero, error))
}

/// Zeroes, frees or adds bytes. `is_interrupted` is asked between two steps.
pub(crate) async fn fallocate(
    (export, pace): (&FuseExport, &Pace),
    what: Fallocate,
    offset: u64,
    len: u64,
    is_interrupted: impl Fn() -> bool,
) -> Result<(), Failed> {
    let disk = export.entry.disk();
    if disk.read_only() {
        return Err(Errno::ROFS.into());
    }
    let end = offset.checked_add(len).filter(|_| len > 0).ok_or(Errno::INVAL)?;
    let unmap = match what {
        Fallocate::PunchHole => true,
        Fallocate::ZeroRange { keep_size } => {
            if !keep_size && end > disk.size() {
                may_grow(export)?;
                grow(export, end).await?;
            }
            false
        }
        // Behind the end alone: a hole in the middle may be written by another process at this moment.
        Fallocate::Allocate if offset >= disk.size() => {
            may_grow(export)?;
            grow(export, end).await?;
            // Space is what the caller asks for: zeroes that are not freed have it.
            false
        }
        Fallocate::Allocate | Fallocate::Other => return Err(Errno::OPNOTSUPP.into()),
    };
    let end = end.min(disk.size());
    let mut at = offset;
    while at < end {
        if is_interrupted() {
            return Err(Errno::INTR.into());
        }
        let step = (end - at).min(STEP_BYTES);
        let result = disk.zero(at, step, ZeroFlags { unmap, ..ZeroFlags::default() }, pace).await;
        export.entry.counters().ended(RequestKind::Zero, result.is_ok(), step);
        result.map_err(|error| Failed::Disk(RequestKind::Zero, error))?;
        at += step;
    }
    Ok(())
}

/// Whether `fallocate` may make the disk longer. QEMU's exports let it also where writes behind the end are refused.
fn may_grow(export: &FuseExport) -> Result<(), Failed> {
    if export.options.growable || export.options.as_qemu { Ok(()) } else { Err(Errno::NOSPC.into()) }
}

/// Where data, or a hole, begins, at `offset` or behind it. A hole is what reads as zeroes.
pub(crate) async fn seek(export: &FuseExport, offset: u64, target: SeekTarget) -> Result<u64, Failed> {
    let size = export.entry.disk().size();
    if offset >= size {
        return Err(Errno::NXIO.into());
    }
    let mut at = offset;
    while at < size {
        let result = export.entry.disk().block_status(at, (size - at).min(STEP_BYTES)).await;
        export.entry.counters().ended(RequestKind::BlockStatus, result.is_ok(), 0);
        let extent = match result {
            Ok(extent) => extent,
            // The disk became smaller: it ends here.
            Err(error) if error.kind() == ErrorKind::PastEnd => break,
            Err(error) => return Err(Failed::Disk(RequestKind::BlockStatus, error)),
        };
        if extent.zero == (target == SeekTarget::Hole) {
            return Ok(at);
        }
        // At least one byte: it goes on.
        at = at.saturating_add(extent.len.max(1));
        reactor::yield_now().await;
    }
    match target {
        SeekTarget::Hole => Ok(size),
        SeekTarget::Data => Err(Errno::NXIO.into()),
    }
}
