//! What every block promises.

use std::any::Any;
use std::fmt;
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use memory::{CopyError, ForeignBytes, IoBuf, IoVec};

use crate::{Blame, BlockStatus, Error, Hints, Step, Stored, Takes};

/// A running request. It may be bound to the thread that started it; it owns its bytes, so dropping it is safe at any
/// time: the request then still happens, or does not, and no caller is notified.
pub type BlockFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What requests on a block cost least, and what is known of it. Constant while it is open and nothing else is put below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Nothing can be written.
    pub read_only: bool,
    /// Offsets and lengths that are multiples of this go to the device as they are (1, 512 or 4096).
    pub alignment: u32,
    /// Some of the bytes may be in memory, here or in a block below: [`Block::try_read`] is worth a try.
    pub cached: bool,
    /// Bytes that are allocated and given back together; `None` where a map has no part in that.
    pub cluster_bytes: Option<u64>,
}

/// What a read has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// Bytes.
    Data,
    /// Nothing but zeroes, as a map says: no medium was asked.
    Zeroes,
}

/// How a range is made to read as zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroOptions {
    /// Space may be given back; otherwise what is reserved stays reserved.
    pub unmap: bool,
    /// Fail with [`crate::ErrorKind::Unsupported`] rather than write zeroes one by one.
    pub fast_only: bool,
}

/// A guest's view of bytes.
///
/// Offsets and lengths are in bytes, of any alignment, and must lie inside [`Block::size`]; a request beyond fails with
/// [`crate::ErrorKind::PastEnd`] and changes nothing. Methods may be called from any thread, many at a time; futures are
/// bound to the thread that made them. Two requests that overlap in time have no order.
///
/// # Durability
/// A write that completed is seen by every read that begins afterwards, and survives a crash once a [`Block::flush`] that was
/// *issued after its completion* has succeeded. A request that is dropped before its end, or fails, may have changed any part
/// of its range and nothing else.
///
/// # Filters
/// A filter is a block [`Block::over`] another one: it implements what it does differently, and everything else goes on to that
/// block. A filter that looks at requests or holds them back must do so in [`Block::try_read`] too: give `None` where the request has to
/// take the way of [`Block::read`]. Requests in other forms (into memory of others, compressed) become plain ones, so that no request
/// passes by; how bytes lie below is not asked for. A block over none says its name, size and capabilities, and what it does not implement is refused.
pub trait Block: Any + fmt::Debug + Send + Sync {
    /// The driver's name, as in options (`qcow2`, `raw`).
    fn driver(&self) -> &'static str;

    /// The block that takes what this one does not implement, where it is a filter.
    fn over(&self) -> Option<&Arc<dyn Block>> {
        None
    }

    /// Why a request that it does not implement is refused, where it is over none.
    fn refusal(&self) -> &'static str {
        "it is only read"
    }

    /// What messages call it: the path of its file, as the user gave it.
    fn name(&self) -> &str {
        self.over().map_or("", |over| over.name())
    }

    /// Size in bytes. May change while the block is open.
    fn size(&self) -> u64 {
        self.over().map_or(0, |over| over.size())
    }

    /// What requests should look like.
    fn capabilities(&self) -> Capabilities {
        let nothing = Capabilities { read_only: true, alignment: 1, cached: false, cluster_bytes: None };
        self.over().map_or(nothing, |over| over.capabilities())
    }

    /// Bytes that a write can allocate without copying more from below: those of a cluster, or of a subcluster where there are some.
    /// `None` where a map has no part in that.
    fn subcluster_bytes(&self) -> Option<u64> {
        let cluster_bytes = self.capabilities().cluster_bytes?;
        self.over().map_or(Some(cluster_bytes), |over| over.subcluster_bytes())
    }

    /// Whether what the block has nothing of its own for may read as something else later: an overlay that was opened without what its
    /// header says is below. Zeroes of its map prove nothing then.
    fn awaits_backing(&self) -> bool {
        self.over().is_some_and(|over| over.awaits_backing())
    }

    /// Whether its bytes change though no task writes through it: a disk that clients go on writing, below an image that is given what they overwrite
    /// before they do. Who read it looks afterwards whether the image above has the bytes by now.
    fn changes(&self) -> bool {
        self.over().is_some_and(|over| over.changes())
    }

    /// The block that answers for what this one does not know: a backing image, or what a filter is put over. Another one may
    /// be put there while the block is open, so this is the one of now; it stays whole as long as it is held.
    fn below(&self) -> Option<Arc<dyn Block>> {
        self.over().cloned()
    }

    /// Reads into `buf` from `offset` if that needs no waiting, no lock and no I/O. Zeroes leave `buf` as it was; after `None`
    /// part of it may have changed.
    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.over()?.try_read(offset, buf, hints)
    }

    /// As [`Block::try_read`], into memory of others. A block that cannot fill it in place does not.
    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        let _ = (offset, memory, hints);
        None
    }

    /// Fills `buf` from `offset`, zeroes included, and gives it back.
    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        match self.over() {
            Some(over) => over.read(offset, buf, hints),
            None => Box::pin(ready((Err(refused(self)), buf))),
        }
    }

    /// Writes all of `data` at `offset`.
    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        match self.over() {
            Some(over) => over.write(offset, data, hints),
            None => Box::pin(ready(Err(refused(self)))),
        }
    }

    /// As [`Block::write`]; whole clusters are stored compressed where the block can do that and they get smaller.
    fn write_compressed(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        self.write(offset, data, hints)
    }

    /// As [`Block::read`], into memory of others, which holds anything after a failure. A block that cannot fill it in place reads
    /// into memory of its own, as much again, and copies.
    fn read_into(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<ReadKind, Error>> {
        Box::pin(async move {
            let buf = IoBuf::try_uninit(memory.len()).ok_or_else(|| no_memory(self.name()))?;
            let (result, buf) = self.read(offset, buf, hints).await;
            let kind = result?;
            memory.copy_from(0, &buf);
            Ok(kind)
        })
    }

    /// As [`Block::write`], of memory of others. What is written is what was there at some time during the call, byte by byte. A block
    /// that cannot write it in place copies it first.
    fn write_from(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let copy = memory.to_bytes().map_err(|why| not_copied(self.name(), why))?;
            self.write(offset, copy.into(), hints).await
        })
    }

    /// Makes the range read as zeroes.
    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        match self.over() {
            Some(over) => over.zero(offset, len, options),
            None => Box::pin(ready(Err(refused(self)))),
        }
    }

    /// The content of the range is of no use any more. Space is given back where that is possible; what the range reads as
    /// afterwards is the block's choice: the old bytes or zeroes.
    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        match self.over() {
            Some(over) => over.discard(offset, len),
            None if self.capabilities().read_only => Box::pin(ready(Err(refused(self)))),
            None => Box::pin(ready(Ok(()))),
        }
    }

    /// Makes everything durable that completed before this call.
    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        // A block that is not written has nothing to flush.
        self.over().map_or_else(|| Box::pin(ready(Ok(()))) as BlockFuture<'_, _>, |over| over.flush())
    }

    /// The state of the block at `offset`, for at most `len` bytes (at least one). Asks maps and file systems, reads no data.
    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        match self.over() {
            Some(over) => over.block_status(offset, len),
            // It has to be read.
            None => Box::pin(ready(Ok(BlockStatus::data(len, 0, None)))),
        }
    }

    /// How the bytes at `offset` lie where they are, for at most `len` of them, if that is a way that `wanted` tells; `None` where
    /// they have to be read. It is so until a task writes to this block or one below.
    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        let _ = (offset, len, wanted);
        Box::pin(async { Ok(None) })
    }

    /// What [`Block::take`] is worth a try for. May become `None` by trying.
    fn takes(&self) -> Option<Takes> {
        None
    }

    /// Writes at `offset` what another block has [`Block::stored`].
    ///
    /// # Errors
    /// With [`crate::ErrorKind::Unsupported`] where it cannot be taken over so: then part of the range may have changed, and it is to
    /// be written.
    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        let _ = (offset, stored);
        Box::pin(async { Err(Blame::new(self.name()).unsupported("data is only taken as bytes")) })
    }

    /// Says what a block above is about to do with this one, for storage that is made to fail at a certain step.
    fn about_to(&self, step: Step) {
        if let Some(over) = self.over() {
            over.about_to(step);
        }
    }

    /// Brings all that memory has into the file, so that another program finds all of it there; durable when it returns. Blocks below are not asked.
    ///
    /// # Errors
    /// As [`Block::flush`].
    fn rest(&self) -> BlockFuture<'_, Result<(), Error>> {
        self.flush()
    }

    /// Drops what of its own map is in memory and was not used since the last call. Says how many pieces went.
    fn clean_cache(&self) -> usize {
        0
    }

    /// Waits for the requests inside, writes what is in memory and makes it durable. Blocks below stay open. Requests that
    /// come afterwards may fail.
    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        self.over().map_or_else(|| Box::pin(ready(Ok(()))) as BlockFuture<'_, _>, |over| over.close())
    }
}

/// The failure of a request that a block over none does not implement.
fn refused<B: Block + ?Sized>(block: &B) -> Error {
    Blame::new(block.name()).refused(block.refusal())
}

/// The failure of a request on `block` that needs a copy of its bytes, and there is no memory for it.
pub fn no_memory(block: &str) -> Error {
    Blame::new(block).io("copying the bytes of a request")(io::ErrorKind::OutOfMemory.into())
}

/// The failure of a request on `block` whose bytes in memory of others could not be copied.
pub fn not_copied(block: &str, why: CopyError) -> Error {
    Blame::new(block).io("copying the bytes of a request")(why.into())
}

/// `top` and all blocks below it, from the upper to the lower.
pub fn layers(top: Arc<dyn Block>) -> impl Iterator<Item = Arc<dyn Block>> {
    std::iter::successors(Some(top), |layer| layer.below())
}

impl dyn Block {
    /// The block as what it is, if it is a `B`.
    pub fn downcast_ref<B: Block>(&self) -> Option<&B> {
        (self as &dyn Any).downcast_ref()
    }
}
