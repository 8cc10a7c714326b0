//! Compressing one cluster.

use std::cell::RefCell;
use std::io;

use qcow2_layout::Compression;
use storage::IoBytes;
use zlib_rs::{Deflate, DeflateFlush, Status};
use zstd_safe::{CCtx, CParameter};

/// Readers unpack with a window of 4 KiB (specification, "Compressed clusters"): a stream must not reach further back.
const DEFLATE_WINDOW_BITS: u8 = 12;
/// As QEMU's: what zlib has as its default.
const DEFLATE_LEVEL: i32 = 6;
/// As QEMU's: what zstd has as its default.
const ZSTD_LEVEL: i32 = 3;

thread_local! {
    /// What the thread packs with: made anew for each cluster its memory would be taken from the kernel and cleared each time.
    static ZSTD: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    /// Room for what is packed, likewise.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Compresses `cluster`, zeroes behind it up to `size`; `None` if that does not make it smaller than `size`.
pub(crate) fn pack(compression: Compression, cluster: &[u8], size: usize) -> io::Result<Option<IoBytes>> {
    let mut padded;
    let cluster = match cluster.len() < size {
        true => {
            padded = cluster.to_vec();
            padded.resize(size, 0);
            &padded
        }
        false => cluster,
    };
    ROOM.with_borrow_mut(|room| {
        // zstd is faster where all fits.
        room.resize(room.len().max(zstd_safe::compress_bound(cluster.len())), 0);
        let len = match compression {
            Compression::Deflate => deflate(cluster, &mut room[..cluster.len() - 1])?,
            Compression::Zstd => Some(pack_zstd(cluster, room)?),
        };
        let len = len.filter(|len| *len < cluster.len());
        Ok(len.map(|len| IoBytes::copy_from(&room[..len])))
    })
}

/// Gives how much of `room` was filled; `None` if that is not enough.
fn deflate(cluster: &[u8], room: &mut [u8]) -> io::Result<Option<usize>> {
    // Not kept for the next cluster: zlib-rs does not reset a stream whose output was full.
    let mut stream = Deflate::new(DEFLATE_LEVEL, false, DEFLATE_WINDOW_BITS);
    let status = stream.compress(cluster, room, DeflateFlush::Finish);
    let status = status.map_err(|error| io::Error::other(error.as_str()))?;
    // At most as long as the room that it was given.
    Ok((status == Status::StreamEnd).then_some(stream.total_out() as usize))
}

fn pack_zstd(cluster: &[u8], room: &mut [u8]) -> io::Result<usize> {
    ZSTD.with_borrow_mut(|kept| {
        let stream = match kept {
            Some(stream) => stream,
            None => kept.insert(new_zstd()?),
        };
        stream.compress2(room, cluster).map_err(zstd_error)
    })
}

fn new_zstd() -> io::Result<CCtx<'static>> {
    let mut stream = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
    stream.set_parameter(CParameter::CompressionLevel(ZSTD_LEVEL)).map_err(zstd_error)?;
    Ok(stream)
}

/// What zstd calls an error.
pub(crate) fn zstd_error(code: zstd_safe::ErrorCode) -> io::Error {
    io::Error::other(zstd_safe::get_error_name(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_get_smaller_is_not_packed() {
        let mut noise = vec![0u8; 4096];
        let mut state = 1u32;
        for byte in &mut noise {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        for compression in [Compression::Deflate, Compression::Zstd] {
            assert!(pack(compression, &noise, 4096).unwrap().is_none());
            let text = pack(compression, &b"all work and no play ".repeat(100), 4096).unwrap().unwrap();
            assert!(text.len() < 200, "{}", text.len());
        }
    }
}
