//! Tables of big-endian words, to and from storage in pieces of bounded size.

use std::io;

use storage::{IoBuf, IoBytes, Storage};

/// Most bytes of a table in memory at once.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;

/// Writes `bytes` at `offset`.
pub(crate) async fn write_bytes(file: &dyn Storage, offset: u64, bytes: &[u8]) -> io::Result<()> {
    file.write(offset, IoBytes::copy_from(bytes).into()).await
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
        file.write(offset + done * 8, buf.freeze().into()).await?;
        done += now;
    }
    Ok(())
}

/// Reads `len` bytes at `offset`; bytes beyond the end are zeroes.
pub(crate) async fn read_bytes(file: &dyn Storage, offset: u64, len: u64) -> io::Result<IoBuf> {
    let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let (done, buf) = file.read(offset, IoBuf::uninit(len)).await;
    done.map(|()| buf)
}
