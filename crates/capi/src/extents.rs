//! Which ranges of a disk hold data.

use std::ffi::c_int;

use cowhand::Extent;

use crate::disk::{CowhandDisk, open_disk};
use crate::failure::call;
use crate::pointers::OutArray;

/// An image of the chain knows of the range, be it data or zeroes.
pub const COWHAND_EXTENT_PRESENT: u32 = 1;
/// There are bytes to read.
pub const COWHAND_EXTENT_DATA: u32 = 2;
/// It reads as zeroes, as far as maps and file systems know.
pub const COWHAND_EXTENT_ZERO: u32 = 4;
/// No space is behind it in the disk's own file, reserved space included.
pub const COWHAND_EXTENT_HOLE: u32 = 8;
/// The bytes are compressed.
pub const COWHAND_EXTENT_COMPRESSED: u32 = 16;
/// file_offset is where the bytes are in the file of their image, as they are.
pub const COWHAND_EXTENT_FILE_OFFSET: u32 = 32;

/// A range of a disk in one state.
#[repr(C)]
pub struct CowhandExtent {
    /// First byte.
    pub offset: u64,
    /// Bytes, never 0.
    pub len: u64,
    /// Valid with COWHAND_EXTENT_FILE_OFFSET, otherwise 0.
    pub file_offset: u64,
    /// Which image knows of the range: 0 is the disk's own, 1 its backing image, and so on.
    pub depth: u32,
    /// Bits COWHAND_EXTENT_....
    pub flags: u32,
}

impl CowhandExtent {
    fn new(extent: &Extent) -> Self {
        let bits = [
            (extent.present, COWHAND_EXTENT_PRESENT),
            (extent.data, COWHAND_EXTENT_DATA),
            (extent.zero, COWHAND_EXTENT_ZERO),
            (extent.hole, COWHAND_EXTENT_HOLE),
            (extent.compressed, COWHAND_EXTENT_COMPRESSED),
            (extent.file_offset.is_some(), COWHAND_EXTENT_FILE_OFFSET),
        ];
        Self {
            offset: extent.offset,
            len: extent.len,
            file_offset: extent.file_offset.unwrap_or(0),
            depth: extent.depth,
            flags: bits.iter().filter(|(is_so, _)| *is_so).map(|(_, flag)| flag).sum(),
        }
    }
}

/// Gives the extents from offset on, in order and without gaps, of len bytes; returns their count. There are at most
/// max, and at most 4096 a call: the next call begins where the last extent ends. Asks maps and file systems, reads no
/// data, and blocks until that is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_extents(
    disk: *mut CowhandDisk,
    offset: u64,
    len: u64,
    extents: *mut CowhandExtent,
    max: usize,
) -> c_int {
    call(|| {
        // SAFETY: the header requires it of the caller.
        let extents = unsafe { OutArray::new(extents, max, "extents") }?;
        let found = open_disk(disk)?.extents(offset, len).wait()?;
        Ok(extents.fill(found.iter().map(CowhandExtent::new)))
    })
}
