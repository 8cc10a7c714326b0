//! Answers, as the kernel reads them.

use rustix::io::Errno;

use super::{Moment, init_flag};
use crate::limits::{BACKGROUND_MAX, CONGESTED_FROM, REQUEST_BYTES_MAX, REQUEST_PAGES_MAX};

/// Bytes of an answer's header.
const OUT_HEADER_BYTES: usize = 16;

/// The protocol's major version.
const MAJOR: u32 = 7;

/// The oldest minor version whose INIT is spoken here (Linux 3.15).
const MINOR_MIN: u32 = 23;

/// The newest that is known here (Linux 6.1: 7.37; later ones only add).
const MINOR_MAX: u32 = 38;

/// The number of the only file.
const ROOT: u64 = 1;

/// What is asked for, where the kernel has it.
const WANTED: u64 = init_flag::ASYNC_READ
    | init_flag::ATOMIC_O_TRUNC
    | init_flag::BIG_WRITES
    | init_flag::ASYNC_DIO
    | init_flag::MAX_PAGES
    | init_flag::INIT_EXT
    | init_flag::DIRECT_IO_ALLOW_MMAP;

/// Reads and writes of the file come here as they are, without the page cache between.
const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// Direct writes go on side by side.
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// An answer's header: of a failure, or before `body_bytes` of an answer.
pub fn out_header(unique: u64, result: Result<usize, Errno>) -> [u8; OUT_HEADER_BYTES] {
    let (body, error) = match result {
        Ok(body) => (body, 0),
        Err(errno) => (0, -errno.raw_os_error()),
    };
    let len = u32::try_from(OUT_HEADER_BYTES + body).unwrap_or(u32::MAX);
    let mut header = [0; OUT_HEADER_BYTES];
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Bytes of an answer as they are put together.
#[derive(Debug, Default)]
pub struct Body(Vec<u8>);

impl Body {
    fn u16(mut self, number: u16) -> Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    fn u32(mut self, number: u32) -> Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    fn zeroes(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The answer to INIT.
///
/// # Errors
/// With EPROTO, where the kernel speaks a protocol that is too old.
pub fn init_answer(major: u32, minor: u32, flags: u64) -> Result<Body, Errno> {
    let body = Body::default().u32(MAJOR);
    if major > MAJOR {
        // The kernel asks again, in our version.
        return Ok(body.u32(MINOR_MAX).zeroes(56));
    }
    if major < MAJOR || minor < MINOR_MIN {
        return Err(Errno::PROTO);
    }
    let flags = flags & WANTED;
    let (low, high) = (flags & u64::from(u32::MAX), flags >> 32);
    let low_bits = u32::try_from(low).unwrap_or_default();
    let high_bits = u32::try_from(high).unwrap_or_default();
    // In order: read-ahead, flags, requests in the background, bytes of a write, granularity of times, pages, alignment of maps, flags.
    let body = body.u32(minor.min(MINOR_MAX)).u32(REQUEST_BYTES_MAX as u32).u32(low_bits);
    let body = body.u16(BACKGROUND_MAX).u16(CONGESTED_FROM).u32(REQUEST_BYTES_MAX as u32).u32(1);
    Ok(body.u16(REQUEST_PAGES_MAX).u16(0).u32(high_bits).zeroes(28))
}

/// What the file is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Bytes.
    pub size: u64,
    /// Bytes of it that are stored.
    pub allocated: u64,
    /// Permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// When it was read last.
    pub accessed: Moment,
    /// When it was written last.
    pub modified: Moment,
}

/// The answer to GETATTR and SETATTR. The kernel is to ask again each time: the disk's size may change elsewhere.
pub fn attributes(attributes: &Attributes) -> Body {
    const REGULAR_FILE: u32 = 0o100_000;
    const BLOCK_BYTES: u32 = 4096;
    let Attributes { size, allocated, mode, uid, gid, accessed, modified } = *attributes;
    let body = Body::default().zeroes(16).u64(ROOT).u64(size).u64(allocated.div_ceil(512));
    let body = body.u64(accessed.seconds).u64(modified.seconds).u64(modified.seconds);
    let body = body.u32(accessed.nanos).u32(modified.nanos).u32(modified.nanos);
    // One name, no device number.
    body.u32(REGULAR_FILE | mode).u32(1).u32(uid).u32(gid).u32(0).u32(BLOCK_BYTES).u32(0)
}

/// The answer to OPEN.
pub fn opened(handle: u64) -> Body {
    Body::default().u64(handle).u32(FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES).u32(0)
}

/// The answer to WRITE.
pub fn written(bytes: u32) -> Body {
    Body::default().u32(bytes).u32(0)
}

/// The answer to LSEEK.
pub fn found(offset: u64) -> Body {
    Body::default().u64(offset)
}

/// The answer to STATFS: one file of `size` bytes, no room for another.
pub fn file_system(size: u64) -> Body {
    const BLOCK_BYTES: u32 = 4096;
    const NAME_BYTES: u32 = 255;
    let blocks = size.div_ceil(u64::from(BLOCK_BYTES));
    let body = Body::default().u64(blocks).u64(0).u64(0).u64(1).u64(0);
    body.u32(BLOCK_BYTES).u32(NAME_BYTES).u32(BLOCK_BYTES).zeroes(28)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_the_sizes_of_the_kernels_structures() {
        let attributes_of_nothing = Attributes {
            size: 0,
            allocated: 0,
            mode: 0,
            uid: 0,
            gid: 0,
            accessed: Moment::default(),
            modified: Moment::default(),
        };
        assert_eq!(attributes(&attributes_of_nothing).bytes().len(), 104);
        assert_eq!(init_answer(7, 38, u64::MAX).unwrap().bytes().len(), 64);
        assert_eq!(init_answer(8, 0, 0).unwrap().bytes().len(), 64);
        assert_eq!(file_system(1).bytes().len(), 80);
        assert_eq!(opened(1).bytes().len(), 16);
        assert_eq!((written(1).bytes().len(), found(1).bytes().len()), (8, 8));
    }

    #[test]
    fn only_what_the_kernel_offers_is_taken() {
        let flags = |answer: &Body| {
            let low = u32::from_ne_bytes(answer.bytes()[12..16].try_into().unwrap());
            let high = u32::from_ne_bytes(answer.bytes()[32..36].try_into().unwrap());
            u64::from(low) | u64::from(high) << 32
        };
        assert_eq!(flags(&init_answer(7, 31, init_flag::ASYNC_DIO | 1 << 16).unwrap()), init_flag::ASYNC_DIO);
        assert_eq!(flags(&init_answer(7, 41, u64::MAX).unwrap()), WANTED);
        assert_eq!(init_answer(7, 22, 0).map(drop), Err(Errno::PROTO));
        assert_eq!(init_answer(6, 40, 0).map(drop), Err(Errno::PROTO));
    }
}
