//! Dirty bitmaps: found, listed, changed, kept up to date while the disk changes, and stored so that a crash leaves them true.

mod change;
mod draft;
mod fit;
mod load;
mod merge;
mod store;

use block::{Blame, BlockFuture};
use qcow2_layout::{
    Autoclear, BITMAP_DIRECTORY_BYTES_MAX, BitmapEntry, BitmapError, BitmapFlags, BitmapsExtension, Geometry,
    Header, decode_bitmap_directory, encode_bitmap_directory,
};
use storage::Storage;

pub use change::{BitmapChange, NewBitmap};

pub use crate::tracking::{Bitmap, Dirtiness, out_of_date};

use crate::Error;
use crate::table_io::{read_bytes, write_bytes};

/// The bitmaps of the image in `file`. Empty if the header says that they cannot be trusted at all.
pub fn list<'a>(
    file: &'a dyn Storage,
    header: &'a Header,
) -> BlockFuture<'a, Result<Vec<BitmapEntry>, Error>> {
    Box::pin(async move {
        let blame = Blame::new(file.name());
        let geometry = header.geometry().map_err(|error| blame.corrupt(error.to_string()))?;
        read_directory(file, header, &geometry, &blame).await
    })
}

/// Where the directory lies, if the header has one that can be trusted.
fn directory_of(
    file: &dyn Storage,
    header: &Header,
    blame: &Blame,
) -> Result<Option<BitmapsExtension>, Error> {
    let trusted = header.autoclear.contains(Autoclear::BITMAPS);
    let Some(bitmaps) = header.extensions.bitmaps.filter(|_| trusted) else { return Ok(None) };
    let (offset, len) = (bitmaps.directory_offset.0, bitmaps.directory_size);
    if len > BITMAP_DIRECTORY_BYTES_MAX || offset.checked_add(len).is_none_or(|end| end > file.length()) {
        return Err(blame.corrupt(format!(
            "the bitmap directory ({len} bytes at {offset:#x}) reaches past the end of the file ({:#x})",
            file.length()
        )));
    }
    Ok(Some(bitmaps))
}

async fn read_directory(
    file: &dyn Storage,
    header: &Header,
    geometry: &Geometry,
    blame: &Blame,
) -> Result<Vec<BitmapEntry>, Error> {
    let Some(bitmaps) = directory_of(file, header, blame)? else { return Ok(Vec::new()) };
    let (offset, len) = (bitmaps.directory_offset.0, bitmaps.directory_size);
    let bytes = read_bytes(file, offset, len).await.map_err(blame.io("reading the bitmap directory"))?;
    decode_bitmap_directory(&bytes, bitmaps.count, geometry).map_err(|error| match error {
        BitmapError::NoMemory(_) => blame.no_memory("the bitmap directory"),
        error => blame.corrupt(format!("the bitmap directory: {error}")),
    })
}

/// Sets the "in use" flag of every bitmap that records changes, in place: where there is no room for anything better. QEMU shows them as
/// inconsistent from then on, and so do we after a crash; a clean close stores them. Not flushed.
async fn mark_in_use(
    file: &dyn Storage,
    header: &Header,
    geometry: &Geometry,
    blame: &Blame,
) -> Result<(), Error> {
    let Some(bitmaps) = header.extensions.bitmaps else { return Ok(()) };
    let mut entries = read_directory(file, header, geometry, blame).await?;
    for entry in entries.iter_mut().filter(|entry| entry.flags.contains(BitmapFlags::AUTO)) {
        entry.flags.set(BitmapFlags::IN_USE, true);
    }
    let bytes = encode_bitmap_directory(&entries, geometry)
        .map_err(|error| blame.corrupt(format!("the bitmap directory: {error}")))?;
    // In place: nothing but flags differs, so it does not matter where a crash tears the write.
    debug_assert_eq!(bytes.len() as u64, bitmaps.directory_size);
    let written = write_bytes(file, bitmaps.directory_offset.0, &bytes).await;
    written.map_err(blame.io("marking bitmaps as in use"))
}
