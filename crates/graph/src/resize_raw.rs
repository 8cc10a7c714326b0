//! Another size of a raw disk, and of the bitmaps that are kept beside it.

use block::{Blame, Block, Error, SECTOR_BYTES};
use qcow2::{Preallocation, ResizeOptions, WithBitmaps};
use storage::Allocation;

use crate::bitmaps_file::raw_of;

/// Gives `block`, which is raw, `size` bytes while it is in use; see [`block::Raw::resize`]. Bitmaps that a file of their own keeps have what is added as changed.
///
/// # Errors
/// When the block is not raw, or open for reading; when it would become smaller and `options` do not say that this is meant; as [`block::Raw::resize`].
///
/// # Crash
/// The old size or the new one. Bitmaps are made to fit when the disk is opened the next time.
pub async fn resize_raw(
    block: &dyn Block,
    size: u64,
    options: ResizeOptions,
    ended: impl AsyncFnOnce(),
) -> Result<(), Error> {
    let blame = Blame::new(block.name());
    let raw = raw_of(block).ok_or_else(|| blame.unsupported("a filter has the size of what it is over"))?;
    if raw.capabilities().read_only {
        return Err(blame.refused("the disk is open for reading"));
    }
    let old = raw.size();
    options.check_change(old, size).map_err(|why| blame.invalid(why))?;
    let how = match options.preallocation {
        Preallocation::Off => None,
        Preallocation::Falloc => Some(Allocation::Reserve),
        Preallocation::Full => Some(Allocation::Write),
        Preallocation::Metadata => {
            let driver = raw.driver;
            return Err(
                blame.unsupported(format!("a {driver} image has no metadata that could be preallocated"))
            );
        }
    };
    let bitmaps = block.downcast_ref::<WithBitmaps>();
    if let Some(bitmaps) = bitmaps.filter(|_| size > old) {
        // Before a request can write there.
        bitmaps.fit(size.next_multiple_of(SECTOR_BYTES)).await?;
    }
    let resized = raw.resize(size, how, ended).await;
    if let Some(bitmaps) = bitmaps {
        // Also after a failure: they are of what the disk has.
        bitmaps.fit(raw.size()).await?;
    }
    resized
}
