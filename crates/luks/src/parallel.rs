//! Sectors of one request ciphered: small ones here and now, large ones in pieces on other threads.

use std::sync::Arc;

use futures_util::future::join_all;
use storage::{Hints, IoBuf};

use crate::around::{Around, calculated};
use crate::layout::{SECTOR_BYTES, SectorCipher};

/// A request up to this long is ciphered where it is if no other waits: that takes some ten microseconds, which another thread costs too.
const HERE_ALONE_BYTES_MAX: usize = 64 << 10;
/// One below this length is ciphered where it is also if others wait: handing it over would cost this thread as much.
const ELSEWHERE_BYTES_MIN: usize = 32 << 10;
/// What a thread takes of one request at least.
const PIECE_BYTES_MIN: usize = 64 << 10;
/// Threads that work for one request at most.
const PIECES_MAX: usize = 4;

/// What is done to sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Encipher,
    Decipher,
}

impl Direction {
    pub(crate) fn apply(self, cipher: &SectorCipher, first: u64, bytes: &mut [u8]) {
        match self {
            Self::Encipher => cipher.encipher(first, bytes),
            Self::Decipher => cipher.decipher(first, bytes),
        }
    }
}

/// Whether `bytes` of one request are ciphered on the thread that asks.
pub(crate) fn is_done_here(bytes: usize, hints: Hints) -> bool {
    bytes < ELSEWHERE_BYTES_MIN || bytes <= HERE_ALONE_BYTES_MAX && !hints.more_waiting
}

/// Ciphers `buf` in place, whole sectors of which the first has the number `first` (in 512 bytes). `Err`: the program is stopping.
pub(crate) async fn cipher(
    around: &dyn Around,
    cipher: &Arc<SectorCipher>,
    direction: Direction,
    first: u64,
    mut buf: IoBuf,
    hints: Hints,
) -> std::io::Result<IoBuf> {
    if is_done_here(buf.len(), hints) {
        direction.apply(cipher, first, &mut buf);
        return Ok(buf);
    }
    let piece =
        (buf.len() / PIECES_MAX).max(PIECE_BYTES_MIN).next_multiple_of(cipher.sector_bytes() as usize);
    let mut works = Vec::with_capacity(PIECES_MAX);
    let mut sector = first;
    while !buf.is_empty() {
        let mut part = buf.split_to(piece.min(buf.len()));
        let (cipher, from) = (Arc::clone(cipher), sector);
        sector += part.len() as u64 / SECTOR_BYTES;
        works.push(calculated(around, move || {
            direction.apply(&cipher, from, &mut part);
            part
        }));
    }
    let mut whole: Option<IoBuf> = None;
    for part in join_all(works).await {
        match &mut whole {
            None => whole = Some(part?),
            Some(whole) => whole.unsplit(part?),
        }
    }
    Ok(whole.unwrap_or(buf))
}
