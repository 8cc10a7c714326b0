//! Tables of big-endian words, to and from storage in pieces of bounded size.

use std::collections::TryReserveError;
use std::io;

use block::Blame;
use storage::{Hints, IoBuf, IoBytes, Storage};

use crate::Error;

/// Most bytes of a table in memory at once.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;

/// Most bytes of a table in one write: as many as a commit puts into one.
const WRITTEN_BYTES_MAX: usize = 2 << 20;

/// Whether the file has the metadata at `offset`, `len` bytes inside clusters of `cluster_size`, of which the
/// last one may be cut short. What lies past the end reads as zeroes, and would pass for a table in which nothing is
/// allocated, or for bits of which none is set.
pub(crate) fn is_in_file(file: &dyn Storage, cluster_size: u64, offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= file.length().next_multiple_of(cluster_size))
}

/// Writes `bytes` at `offset`, in pieces: the copy that a write owns is of bounded size.
pub(crate) async fn write_bytes(file: &dyn Storage, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut at = offset;
    for piece in bytes.chunks(WRITTEN_BYTES_MAX) {
        file.write(at, IoBytes::copy_from(piece).into(), Hints::NONE).await?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// `words` as they lie in a file, and zeroes behind them up to `len` bytes. Fails if there is no memory.
pub(crate) fn encode_words(
    words: impl IntoIterator<Item = u64>,
    len: usize,
) -> Result<Vec<u8>, TryReserveError> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    for word in words.into_iter().take(len / 8) {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.resize(len, 0);
    Ok(bytes)
}

/// Writes `count` words at `offset`, word `i` being `word(i)`.
pub(crate) async fn write_words(
    file: &dyn Storage,
    offset: u64,
    count: u64,
    word: impl Fn(u64) -> u64,
) -> io::Result<()> {
    let mut done = 0;
    while done < count {
        let now = (PIECE_BYTES / 8).min(count - done);
        let mut buf = IoBuf::uninit((now * 8) as usize);
        for (index, bytes) in (done..).zip(buf.as_chunks_mut::<8>().0) {
            *bytes = word(index).to_be_bytes();
        }
        file.write(offset + done * 8, buf.freeze().into(), Hints::NONE).await?;
        done += now;
    }
    Ok(())
}

/// Reads `len` bytes at `offset`; bytes beyond the end are zeroes. That there is no memory for them is an error
/// like others.
pub(crate) async fn read_bytes(file: &dyn Storage, offset: u64, len: u64) -> io::Result<IoBuf> {
    let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let buf = IoBuf::try_uninit(len).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let (done, buf) = file.read(offset, buf, Hints::NONE).await;
    done.map(|()| buf)
}

/// A table of `bytes` bytes as words in host byte order. Nothing is allocated before the table is
/// known to lie inside the file.
pub(crate) async fn read_words(
    file: &dyn Storage,
    blame: &Blame,
    what: &'static str,
    offset: u64,
    bytes: u64,
) -> Result<Vec<u64>, Error> {
    check_place(file, blame, what, offset, bytes)?;
    let mut words = Vec::new();
    words.try_reserve_exact((bytes / 8) as usize).map_err(|_| blame.no_memory(what))?;
    let push = |word| {
        words.push(word);
        Ok(())
    };
    each_word(file, blame, offset, bytes, push).await?;
    Ok(words)
}

/// Whether a table lies inside the file.
pub(crate) fn check_place(
    file: &dyn Storage,
    blame: &Blame,
    what: &str,
    offset: u64,
    bytes: u64,
) -> Result<(), Error> {
    if bytes == 0 {
        return Ok(());
    }
    let end = offset.checked_add(bytes);
    let (Some(end), Ok(_)) = (end, usize::try_from(bytes)) else {
        return Err(blame.corrupt(format!("{what} at {offset:#x} has an impossible length ({bytes} bytes)")));
    };
    if end > file.length() {
        return Err(blame.corrupt(format!(
            "{what} ends at {end:#x}, past the end of the file ({:#x}); the file may be truncated",
            file.length()
        )));
    }
    Ok(())
}

/// Calls `take` with each word of a table that lies inside the file, in host byte order.
pub(crate) async fn each_word(
    file: &dyn Storage,
    blame: &Blame,
    offset: u64,
    bytes: u64,
    mut take: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut at, end) = (offset, offset + bytes);
    while at < end {
        let piece = (end - at).min(PIECE_BYTES);
        let (result, buf) = file.read(at, IoBuf::uninit(piece as usize), Hints::NONE).await;
        result.map_err(blame.io("reading a table"))?;
        buf.as_chunks::<8>().0.iter().try_for_each(|word| take(u64::from_be_bytes(*word)))?;
        at += piece;
    }
    Ok(())
}
