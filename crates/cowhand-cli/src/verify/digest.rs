//! The checksum of one disk: read ahead in order, zeroes by the map.

use std::fmt::Write;
use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};

use block::Block;
use clap::ValueEnum;
use futures_util::{TryStreamExt, stream};
use storage::{Hints, IoBuf, IoBytes};
use tool::failure::Failure;

/// Bytes that are read at a time at most.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces under way at a time: 8 MiB a disk.
const PIECES_IN_FLIGHT: usize = 8;
/// Zeroes that the map knows are read with the data around them where they are fewer.
const ZEROES_MIN: u64 = 64 << 10;
/// What zeroes are given to the checksum as.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Checksums that can be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Algorithm {
    /// SHA-256, as sha256sum
    #[default]
    Sha256,
    /// BLAKE3, as b3sum: several times as fast
    Blake3,
}

impl Algorithm {
    /// Its name, as it is given.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }
}

/// A disk that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// In hexadecimal digits.
    pub digest: String,
    /// Bytes of the disk.
    pub size: u64,
}

/// A checksum on its way.
enum Hash {
    Sha256(Box<ring::digest::Context>),
    Blake3(Box<blake3::Hasher>),
}

impl Hash {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Box::new(ring::digest::Context::new(&ring::digest::SHA256))),
            Algorithm::Blake3 => Self::Blake3(Box::default()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(context) => context.update(bytes),
            Self::Blake3(hasher) => drop(hasher.update(bytes)),
        }
    }

    fn finish(self) -> String {
        let hex = |bytes: &[u8]| {
            bytes.iter().fold(String::new(), |mut text, byte| {
                // Writing to a string cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            })
        };
        match self {
            Self::Sha256(context) => hex(context.finish().as_ref()),
            Self::Blake3(hasher) => hex(hasher.finalize().as_bytes()),
        }
    }
}

/// A part of a disk.
enum Part {
    Zeroes(u64),
    Data { offset: u64, len: u64 },
}

/// The checksum of all bytes of `disk`; `done_bytes` grows as it goes.
///
/// # Errors
/// When a map or data cannot be read.
pub async fn digest(disk: &dyn Block, algorithm: Algorithm, done_bytes: &AtomicU64) -> Result<Done, Failure> {
    let size = disk.size();
    let mut hash = Hash::new(algorithm);
    let parts = stream::try_unfold(0, |at| async move {
        Ok(part(disk, at, size).await?.map(|part| {
            let end = match part {
                Part::Zeroes(len) => at + len,
                Part::Data { offset, len } => offset + len,
            };
            (part, end)
        }))
    });
    let read = parts.map_ok(|part| async move {
        match part {
            Part::Zeroes(len) => Ok((len, None)),
            Part::Data { offset, len } => read(disk, offset, len).await.map(|bytes| (len, Some(bytes))),
        }
    });
    read.try_buffered(PIECES_IN_FLIGHT)
        .try_for_each(|(len, bytes)| {
            match bytes {
                Some(bytes) => hash.update(&bytes),
                None => update_zeroes(&mut hash, len),
            }
            done_bytes.fetch_add(len, Ordering::Relaxed);
            ready(Ok(()))
        })
        .await?;
    Ok(Done { digest: hash.finish(), size })
}

fn update_zeroes(hash: &mut Hash, len: u64) {
    let mut left = len;
    while left > 0 {
        let now = left.min(ZEROES.len() as u64);
        hash.update(ZEROES.get(..now as usize).unwrap_or_default());
        left -= now;
    }
}

/// What comes at `at`; `None` at the end.
async fn part(disk: &dyn Block, at: u64, size: u64) -> Result<Option<Part>, Failure> {
    let mut end = at;
    while end < size.min(at + PIECE_BYTES) {
        let status = disk.block_status(end, size - end).await.map_err(|error| {
            let what = format!("cannot read the map of {} at offset {end}", disk.name());
            Failure::because(what, &error)
        })?;
        let len = status.len.min(size - end);
        if status.zero && len >= ZEROES_MIN {
            if end == at {
                return Ok(Some(Part::Zeroes(len.min(PIECE_BYTES * 64))));
            }
            break;
        }
        end = (end + len).min(at + PIECE_BYTES);
    }
    Ok((end > at).then_some(Part::Data { offset: at, len: end - at }))
}

async fn read(disk: &dyn Block, offset: u64, len: u64) -> Result<IoBytes, Failure> {
    // At most a piece.
    let (result, bytes) = disk.read(offset, IoBuf::uninit(len as usize), Hints::MORE_WAITING).await;
    match result {
        Ok(_) => Ok(bytes.freeze()),
        Err(error) => {
            let what = format!("cannot read {} at offset {offset}", disk.name());
            Err(Failure::because(what, &error))
        }
    }
}
