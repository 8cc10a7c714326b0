//! Compressing one cluster.

use std::cell::RefCell;
use std::io;

use flate2::{Compress, FlushCompress, Status};
use qcow2_layout::Compression;
use zstd::bulk::Compressor;

/// Readers unpack with a window of 4 KiB (specification, "Compressed clusters"): a stream must not reach further back.
const DEFLATE_WINDOW_BITS: u8 = 12;
/// As QEMU's: what zlib has as its default.
const DEFLATE_LEVEL: u32 = 6;
/// As QEMU's: what zstd has as its default.
const ZSTD_LEVEL: i32 = 3;

thread_local! {
    /// What the thread packs with: made anew for each cluster its memory would be taken from the kernel and cleared each time.
    static ZSTD: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
}

/// Compresses `cluster`, zeroes behind it up to `size`; `None` if that does not make it smaller than `size`.
pub(crate) fn pack(compression: Compression, cluster: &[u8], size: usize) -> io::Result<Option<Vec<u8>>> {
    let mut padded;
    let cluster = match cluster.len() < size {
        true => {
            padded = cluster.to_vec();
            padded.resize(size, 0);
            &padded
        }
        false => cluster,
    };
    match compression {
        Compression::Deflate => deflate(cluster),
        Compression::Zstd => pack_zstd(cluster),
    }
}

fn deflate(cluster: &[u8]) -> io::Result<Option<Vec<u8>>> {
    // Not kept for the next cluster: zlib-rs does not reset a stream whose output was full.
    let mut stream =
        Compress::new_with_window_bits(flate2::Compression::new(DEFLATE_LEVEL), false, DEFLATE_WINDOW_BITS);
    let mut packed = Vec::with_capacity(cluster.len() - 1);
    let status = stream.compress_vec(cluster, &mut packed, FlushCompress::Finish)?;
    Ok((status == Status::StreamEnd && packed.len() < cluster.len()).then_some(packed))
}

fn pack_zstd(cluster: &[u8]) -> io::Result<Option<Vec<u8>>> {
    ZSTD.with_borrow_mut(|kept| {
        let stream = match kept {
            Some(stream) => stream,
            None => kept.insert(Compressor::new(ZSTD_LEVEL)?),
        };
        let packed = stream.compress(cluster)?;
        Ok((packed.len() < cluster.len()).then_some(packed))
    })
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
            assert_eq!(pack(compression, &noise, 4096).unwrap(), None);
            let text = pack(compression, &b"all work and no play ".repeat(100), 4096).unwrap().unwrap();
            assert!(text.len() < 200, "{}", text.len());
        }
    }
}
