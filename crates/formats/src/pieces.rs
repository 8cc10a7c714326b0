//! A read-only disk whose layout says piece by piece where its bytes are: reads, states and refusals.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use block::{Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind};
use memory::{Filling, IoBuf};
use storage::{ExtentKind, Hints, Storage};

use crate::Kind;

/// What a format knows of its disk.
pub trait Layout: fmt::Debug + Send + Sync + 'static {
    /// Bytes that are stored in a form of their own; [`std::convert::Infallible`] where there are none.
    type Packed;

    fn kind(&self) -> Kind;

    /// The image's name.
    fn name(&self) -> &str;

    /// Size of the disk in bytes.
    fn size(&self) -> u64;

    /// Bytes that are allocated together, if all of the disk has that in common.
    fn cluster_bytes(&self) -> Option<u64>;

    /// What requests to the files are best aligned to.
    fn alignment(&self) -> u32;

    /// What answers for ranges that were never written.
    fn backing(&self) -> Option<&Arc<dyn Block>> {
        None
    }

    /// Where the bytes at `offset` are, for at most `len` of them: at least one, inside the disk.
    fn locate(&self, offset: u64, len: u64) -> impl Future<Output = Result<Piece<Self::Packed>, Error>>;

    /// Fills `buf` with what is stored in `packed`.
    fn unpack(&self, packed: Self::Packed, buf: &mut [u8]) -> impl Future<Output = Result<(), Error>>;
}

/// A range of the disk in one state.
#[derive(Debug)]
pub struct Piece<P> {
    pub len: u64,
    pub place: Place<P>,
}

/// Where the bytes of a range are.
#[derive(Debug)]
pub enum Place<P> {
    /// Never written: the backing file's, or zeroes.
    Unallocated,
    /// Zeroes, as the map says.
    Zeroes,
    /// In a file as they are, from this byte on.
    File {
        file: Arc<dyn Storage>,
        at: u64,
        /// Space was reserved for all of it: holes of the file say which parts have no data.
        reserved: bool,
    },
    /// In a file, in another form.
    Packed(P),
}

/// An open image, read-only.
#[derive(Debug)]
pub struct Disk<L> {
    pub(crate) layout: L,
}

impl<L: Layout> Disk<L> {
    fn blame(&self) -> Blame {
        Blame::new(self.layout.name())
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), Error> {
        let size = self.layout.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(self.blame().past_end(offset, len, size)),
        }
    }

    async fn locate(&self, offset: u64, len: u64) -> Result<Piece<L::Packed>, Error> {
        let piece = self.layout.locate(offset, len).await?;
        debug_assert!((1..=len).contains(&piece.len), "{} of {len} bytes", piece.len);
        Ok(piece)
    }

    async fn read_all(&self, offset: u64, buf: IoBuf) -> (Result<ReadKind, Error>, IoBuf) {
        if let Err(error) = self.check(offset, buf.len() as u64) {
            return (Err(error), buf);
        }
        let (mut at, mut filling) = (offset, Filling::new(buf));
        let (mut kind, mut failure) = (ReadKind::Zeroes, None);
        while failure.is_none() && !filling.is_full() {
            let piece = match self.locate(at, filling.left() as u64).await {
                Ok(piece) => piece,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            };
            let part = filling.take(piece.len as usize);
            let (result, part) = self.fill(at, piece.place, part).await;
            match result {
                Ok(ReadKind::Data) => kind = ReadKind::Data,
                Ok(ReadKind::Zeroes) => {}
                Err(error) => failure = Some(error),
            }
            filling.give(part);
            at += piece.len;
        }
        (failure.map_or(Ok(kind), Err), filling.end())
    }

    /// Fills `buf`, which is of one piece, `offset` bytes into the disk.
    async fn fill(
        &self,
        offset: u64,
        place: Place<L::Packed>,
        mut buf: IoBuf,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        match place {
            Place::Unallocated => match self.layout.backing() {
                Some(backing) => read_below(&**backing, offset, buf).await,
                None => {
                    buf.fill(0);
                    (Ok(ReadKind::Zeroes), buf)
                }
            },
            Place::Zeroes => {
                buf.fill(0);
                (Ok(ReadKind::Zeroes), buf)
            }
            Place::File { file, at, .. } => {
                // What a file that was cut short lacks reads as zeroes, as in QEMU.
                let (result, buf) = file.read(at, buf, Hints::NONE).await;
                (result.map(|()| ReadKind::Data).map_err(self.blame().io("reading data")), buf)
            }
            Place::Packed(packed) => {
                let result = self.layout.unpack(packed, &mut buf).await;
                (result.map(|()| ReadKind::Data), buf)
            }
        }
    }

    async fn status(&self, offset: u64, len: u64) -> Result<BlockStatus, Error> {
        self.check(offset, len)?;
        let piece = self.locate(offset, len).await?;
        let data = BlockStatus::data(piece.len, 0, None);
        let zeroes = BlockStatus { zero: true, hole: true, data: false, ..data.clone() };
        match piece.place {
            Place::Unallocated => match self.layout.backing() {
                Some(backing) => status_below(&**backing, offset, piece.len).await,
                None => Ok(BlockStatus { present: false, ..zeroes }),
            },
            Place::Zeroes => Ok(zeroes),
            Place::File { at, reserved: false, .. } => Ok(BlockStatus { offset: Some(at), ..data }),
            Place::File { file, at, reserved: true } => {
                self.status_in_file(&*file, at, BlockStatus { offset: Some(at), ..data }).await
            }
            Place::Packed(_) => Ok(BlockStatus { compressed: true, ..data }),
        }
    }

    /// As QEMU reports it: a hole of the file reads as zeroes and is data.
    async fn status_in_file(
        &self,
        file: &dyn Storage,
        at: u64,
        data: BlockStatus,
    ) -> Result<BlockStatus, Error> {
        let there = file.length().saturating_sub(at).min(data.len);
        if there == 0 {
            return Ok(BlockStatus { zero: true, hole: true, ..data });
        }
        let extent = file.extent(at, there).await.map_err(self.blame().io("asking for holes"))?;
        let hole = extent.kind == ExtentKind::Hole;
        Ok(BlockStatus { len: extent.len.clamp(1, there), zero: hole, hole, ..data })
    }
}

/// Reads what a backing file has at `offset`; zeroes beyond its end.
async fn read_below(backing: &dyn Block, offset: u64, mut buf: IoBuf) -> (Result<ReadKind, Error>, IoBuf) {
    let there = backing.size().saturating_sub(offset).min(buf.len() as u64);
    let mut rest = buf.split_off(there as usize);
    rest.fill(0);
    if there == 0 {
        buf.rejoin(rest);
        return (Ok(ReadKind::Zeroes), buf);
    }
    let (result, mut buf) = backing.read(offset, buf, Hints::NONE).await;
    buf.rejoin(rest);
    (result, buf)
}

async fn status_below(backing: &dyn Block, offset: u64, len: u64) -> Result<BlockStatus, Error> {
    let there = backing.size().saturating_sub(offset).min(len);
    if there == 0 {
        let data = BlockStatus::data(len, 1, None);
        return Ok(BlockStatus { present: false, zero: true, hole: true, data: false, ..data });
    }
    let status = backing.block_status(offset, there).await?;
    // The space is the backing file's: in this image there is a hole.
    Ok(BlockStatus { depth: status.depth + 1, hole: true, ..status })
}

impl<L: Layout> Block for Disk<L> {
    fn driver(&self) -> &'static str {
        self.layout.kind().name()
    }

    fn refusal(&self) -> &'static str {
        "images of this format are only read: cowhand convert -O qcow2 makes one that is written"
    }

    fn name(&self) -> &str {
        self.layout.name()
    }

    fn size(&self) -> u64 {
        self.layout.size()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            read_only: true,
            alignment: self.layout.alignment(),
            cached: false,
            cluster_bytes: self.layout.cluster_bytes(),
        }
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        self.layout.backing().cloned()
    }

    fn read(&self, offset: u64, buf: IoBuf, _: Hints) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(self.read_all(offset, buf))
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(self.status(offset, len))
    }
}
