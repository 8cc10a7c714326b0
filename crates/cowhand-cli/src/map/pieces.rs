//! How many pieces the map of a disk may have. Tables can name one table many times, so that an image of a MiB describes some milliard pieces: what looks at
//! each of them must end.

use std::sync::Arc;

use block::Block;

/// Pieces of a disk for each byte of its files, at most: an extended entry of 16 bytes describes 32.
const PIECES_PER_BYTE: u64 = 4;
/// Pieces that every disk may have.
const PIECES_BASE: u64 = 1 << 20;

/// The most pieces of a disk whose files have `bytes` together.
pub fn pieces_max(bytes: u64) -> u64 {
    bytes.saturating_mul(PIECES_PER_BYTE).saturating_add(PIECES_BASE)
}

/// Bytes of the files of a disk's images. What is no file here has no limit.
pub fn file_bytes(top: Arc<dyn Block>) -> u64 {
    let length = |layer: Arc<dyn Block>| {
        std::fs::metadata(layer.name()).map_or(u64::MAX, |file| match file.is_file() {
            true => file.len(),
            false => u64::MAX,
        })
    };
    block::layers(top).map(length).fold(0, u64::saturating_add)
}

/// Why looking ends.
pub fn too_many(pieces_max: u64) -> String {
    format!("its tables describe more than {pieces_max} pieces, which its files have no room for")
}
