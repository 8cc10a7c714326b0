//! Persistent bitmaps: found, listed, and marked out of date when the image changes under them.

use qcow2_layout::{
    Autoclear, BITMAP_DIRECTORY_BYTES_MAX, BitmapEntry, BitmapFlags, Geometry, Header,
    decode_bitmap_directory, encode_bitmap_directory,
};
use storage::{IoBuf, IoBytes, IoVec, Storage};

use crate::Error;
use crate::error::Blame;

/// The bitmaps of the image in `file`. Empty if the header says that they cannot be trusted at all.
pub async fn list(file: &dyn Storage, header: &Header) -> Result<Vec<BitmapEntry>, Error> {
    let blame = Blame::new(file.name());
    let geometry = header.geometry().map_err(|error| blame.corrupt(error.to_string()))?;
    read_directory(file, header, &geometry, &blame).await
}

async fn read_directory(
    file: &dyn Storage,
    header: &Header,
    geometry: &Geometry,
    blame: &Blame,
) -> Result<Vec<BitmapEntry>, Error> {
    let Some(bitmaps) = header.extensions.bitmaps else { return Ok(Vec::new()) };
    if !header.autoclear.contains(Autoclear::BITMAPS) {
        return Ok(Vec::new());
    }
    let (offset, len) = (bitmaps.directory_offset.0, bitmaps.directory_size);
    if len > BITMAP_DIRECTORY_BYTES_MAX || offset.checked_add(len).is_none_or(|end| end > file.length()) {
        return Err(blame.corrupt(format!(
            "the bitmap directory ({len} bytes at {offset:#x}) reaches past the end of the file ({:#x})",
            file.length()
        )));
    }
    let (result, bytes) = file.read(offset, IoBuf::uninit(len as usize)).await;
    result.map_err(blame.io("reading the bitmap directory"))?;
    decode_bitmap_directory(&bytes, bitmaps.count, geometry)
        .map_err(|error| blame.corrupt(format!("the bitmap directory: {error}")))
}

/// Sets the "in use" flag of every bitmap: QEMU then knows that they miss writes, shows them as
/// inconsistent and lets the user remove them. Returns whether anything was written (not flushed).
pub(crate) async fn mark_in_use(
    file: &dyn Storage,
    header: &Header,
    geometry: &Geometry,
    blame: &Blame,
) -> Result<bool, Error> {
    let Some(bitmaps) = header.extensions.bitmaps else { return Ok(false) };
    let mut entries = read_directory(file, header, geometry, blame).await?;
    if entries.iter().all(|entry| entry.flags.contains(BitmapFlags::IN_USE)) {
        return Ok(false);
    }
    entries.iter_mut().for_each(|entry| entry.flags.set(BitmapFlags::IN_USE, true));
    let bytes = encode_bitmap_directory(&entries, geometry)
        .map_err(|error| blame.corrupt(format!("the bitmap directory: {error}")))?;
    // In place: nothing but flags differs, so it does not matter where a crash tears the write.
    debug_assert_eq!(bytes.len() as u64, bitmaps.directory_size);
    let data = IoVec::from(IoBytes::copy_from(&bytes));
    let written = file.write(bitmaps.directory_offset.0, data).await;
    written.map_err(blame.io("marking bitmaps as out of date"))?;
    Ok(true)
}
