//! The contract, kept by a cache in front of a remote file.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use memory::{ForeignBytes, IoBuf, IoBytes};
use qcow2::{Host, ReadKind};
use storage::{Capabilities, Extent, Hints, IoFuture, Storage};

use crate::cache::ahead::{For, Precedes};
use crate::cache::figures::Figures;
use crate::cache::identity::Identity;
use crate::cache::image::CacheError;
use crate::cache::shared::{CacheFile, Piece, Pinned, Shared};

/// Of a long read, so much is fetched or read at a time.
const WINDOW_BYTES: u64 = 4 << 20;

/// A remote file, only read, of which what was read is kept in an image of this machine. Reads that need nothing of the server do not ask
/// it. A failure of the image fails no read: what it should have held is fetched.
///
/// There is nothing to close: what is fetched is flushed to the image when nothing more waits for it ([`CachedStorage::settle`]). A crash
/// before that loses of the cache what was fetched last.
#[derive(Clone, Debug)]
pub struct CachedStorage {
    shared: Arc<Shared>,
    reader: For,
}

impl CachedStorage {
    /// Puts the image `file` in front of `remote`, which is the version of a file that `identity` says. Reads the image's map. `host` runs
    /// fetches and what is written to the image.
    ///
    /// # Errors
    /// When the image cannot be opened, or space cannot be given back that is above the ceiling.
    pub async fn open(
        remote: Arc<dyn storage::Storage>,
        identity: Identity,
        file: CacheFile,
        host: Arc<dyn Host>,
    ) -> Result<Self, CacheError> {
        let shared = Arc::new(Shared::open(remote, identity, file, host).await?);
        shared.make_room(0).await?;
        Ok(Self { shared, reader: For::Guest })
    }

    /// The same, read by tasks for which no reader waits: what they ask of the server they ask only while no other reader waits for it and no task waits in
    /// [`CachedStorage::settle`]. Their reads are no hits and misses.
    #[must_use]
    pub fn ahead(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), reader: For::Later }
    }

    /// The file that it is the cache of.
    pub fn remote(&self) -> &Arc<dyn storage::Storage> {
        &self.shared.remote
    }

    /// Bytes of clusters that it may hold; `None` is any number.
    pub fn bytes_max(&self) -> Option<u64> {
        Some(self.shared.file.bytes_max).filter(|bytes_max| *bytes_max > 0)
    }

    /// Which version of which file it is of.
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// What it has done, and what it holds.
    pub fn figures(&self) -> Figures {
        self.shared.figures()
    }

    /// Waits until what was fetched up to now is in the image, and on disk. The loops on which reads were made must go on running.
    pub async fn settle(&self) {
        self.shared.settle().await;
    }

    /// Writes what of the image's metadata is in memory alone: what was given up before is free on disk then. A failure ends the
    /// filling, as any other does.
    pub async fn flush_image(&self) {
        self.shared.flush().await;
    }

    /// What of `len` bytes from `offset` on is inside the file.
    fn inside(&self, offset: u64, len: usize) -> usize {
        let inside = self.length().saturating_sub(offset).min(len as u64);
        usize::try_from(inside).unwrap_or(len)
    }

    /// Gives the bytes of `range`, part by part, with the place of each in it.
    async fn gather(&self, range: Range<u64>, mut give: impl FnMut(usize, &[u8])) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let window = at..range.end.min(at + WINDOW_BYTES);
            at = window.end;
            if self.reader == For::Later {
                self.shared.precedence.none().await;
            }
            for piece in self.shared.plan(window, self.reader) {
                let (part, bytes) = match piece {
                    Piece::Cached(part, _pinned) => {
                        let bytes = self.read_image(&part).await?;
                        (part, bytes)
                    }
                    Piece::Fetched(part, flight) => {
                        let (from, to) = (part.start - flight.start(), part.end - flight.start());
                        let bytes = flight.wait().await?.slice(place(from), place(to));
                        (part, bytes)
                    }
                };
                give(place(part.start - range.start), &bytes);
            }
        }
        Ok(())
    }

    /// Bytes that the image has, or the server if the image fails.
    async fn read_image(&self, part: &Range<u64>) -> io::Result<IoBytes> {
        let buf = IoBuf::try_uninit(place(part.end - part.start)).ok_or(io::ErrorKind::OutOfMemory)?;
        let (read, buf) = self.shared.image.read(part.start, buf, Hints::NONE).await;
        let Err(error) = read else { return Ok(buf.freeze()) };
        self.shared.failed("reading", &error);
        let (fetched, buf) = self.shared.remote.read(part.start, buf, Hints::NONE).await;
        fetched.map(|()| buf.freeze())
    }

    fn pin(&self, range: &Range<u64>) -> Option<Pinned> {
        self.shared.pin(range, self.reader)
    }

    /// Notes a read that needed nothing of the server.
    fn note_hit(&self) {
        if self.reader == For::Guest {
            self.shared.counts.hits.add(1);
        }
    }

    /// Notes a read that needs the server, and goes before what is read ahead as long as the result lives.
    fn note_miss(&self) -> Option<Precedes> {
        let is_waited_for = self.reader == For::Guest;
        is_waited_for.then(|| {
            self.shared.counts.misses.add(1);
            self.shared.precedence.take()
        })
    }

    fn note_served(&self, len: usize) {
        if self.reader == For::Guest {
            self.shared.counts.served_bytes.add(len as u64);
        }
    }
}

/// An offset in a request, which is as long as memory allows at most.
fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

impl Storage for CachedStorage {
    fn name(&self) -> &str {
        self.shared.remote.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { cached: true, ..self.shared.remote.capabilities() }
    }

    fn length(&self) -> u64 {
        self.shared.identity.length
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> bool {
        if buf.is_empty() || self.inside(offset, buf.len()) < buf.len() {
            return false;
        }
        let Some(_pinned) = self.pin(&(offset..offset + buf.len() as u64)) else { return false };
        let read = self.shared.image.try_read(offset, buf, hints);
        if read == Some(ReadKind::Zeroes) {
            buf.fill(0);
        }
        if read.is_some() {
            self.note_hit();
            self.note_served(buf.len());
        }
        read.is_some()
    }

    fn read(&self, offset: u64, mut buf: IoBuf, hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            let inside = self.inside(offset, buf.len());
            let mut beyond = buf.split_off(inside);
            beyond.fill(0);
            self.note_served(inside);
            let range = offset..offset + inside as u64;
            let mut result = Ok(());
            let hit = if inside == 0 { None } else { self.pin(&range) };
            match hit {
                Some(_pinned) => {
                    let (read, back) = self.shared.image.read(offset, buf, hints).await;
                    buf = back;
                    match read {
                        Ok(_) => self.note_hit(),
                        Err(error) => {
                            self.shared.failed("reading", &error);
                            (result, buf) = self.shared.remote.read(offset, buf, hints).await;
                        }
                    }
                }
                None if inside > 0 => {
                    let _precedes = self.note_miss();
                    let give = |at: usize, bytes: &[u8]| {
                        if let Some(there) = buf.get_mut(at..at + bytes.len()) {
                            there.copy_from_slice(bytes);
                        }
                    };
                    result = self.gather(range, give).await;
                }
                None => {}
            }
            buf.rejoin(beyond);
            (result, buf)
        })
    }

    fn read_into(&self, offset: u64, memory: ForeignBytes, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let inside = self.inside(offset, memory.len());
            memory.fill_with_zeroes(inside, memory.len());
            if inside == 0 {
                return Ok(());
            }
            self.note_served(inside);
            let range = offset..offset + inside as u64;
            let Some(_pinned) = self.pin(&range) else {
                let _precedes = self.note_miss();
                return self.gather(range, |at, bytes| memory.copy_from(at, bytes)).await;
            };
            let part = memory.slice(0, inside);
            match self.shared.image.read_into(offset, part.clone(), hints).await {
                Ok(kind) => {
                    self.note_hit();
                    if kind == ReadKind::Zeroes {
                        part.fill_with_zeroes(0, inside);
                    }
                    Ok(())
                }
                Err(error) => {
                    self.shared.failed("reading", &error);
                    self.shared.remote.read_into(offset, part, hints).await
                }
            }
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        self.shared.remote.extent(offset, len)
    }
}
