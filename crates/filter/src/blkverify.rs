//! `blkverify`: two disks get the same writes, and each read is compared. For tests of a format against a raw disk.
//!
//! Requests to one range come one after the other, so that both disks see writes in one order.

use std::sync::{Arc, OnceLock};

use block::{Blame, Block, BlockFuture, Error, ReadKind, ZeroOptions};
use futures_util::future::join;
use memory::{IoBuf, IoVec};
use storage::{Hints, RangeLocks, RangeMode};

/// What is done first about a read that differs.
static ON_MISMATCH: OnceLock<fn(Mismatch)> = OnceLock::new();

/// A read that differs.
#[derive(Clone, Copy, Debug)]
pub struct Mismatch {
    /// Where the read began.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
    /// The first byte of the disk that differs.
    pub at: u64,
}

/// Calls `act` for each read that differs, before the read fails of it. A second call changes nothing.
pub fn on_mismatch(act: fn(Mismatch)) {
    let _ = ON_MISMATCH.set(act);
}

/// The filter.
#[derive(Debug)]
pub struct Blkverify {
    /// The disk under test, which it stands for.
    test: Arc<dyn Block>,
    /// What it is compared with.
    raw: Arc<dyn Block>,
    locks: RangeLocks,
}

impl Blkverify {
    /// Over `test`, which must read as `raw` does.
    ///
    /// # Errors
    /// When the two are not of one size.
    pub fn new(test: Arc<dyn Block>, raw: Arc<dyn Block>) -> Result<Self, Error> {
        let (found, needed) = (raw.size(), test.size());
        if found != needed {
            let what =
                format!("it has {found} bytes and the disk under test {needed}; both must be as large");
            return Err(Blame::new(raw.name()).invalid(what));
        }
        Ok(Self { test, raw, locks: RangeLocks::default() })
    }

    /// Reads both; the bytes are those of the disk under test. Takes memory for the other ones.
    async fn compare(&self, offset: u64, buf: IoBuf, hints: Hints) -> (Result<ReadKind, Error>, IoBuf) {
        let Some(other) = IoBuf::try_uninit(buf.len()) else {
            return (Err(block::no_memory(self.raw.name())), buf);
        };
        let _shared =
            self.locks.acquire(offset, offset.saturating_add(buf.len() as u64), RangeMode::Shared).await;
        let ((tested, buf), (raw, other)) =
            join(self.test.read(offset, buf, hints), self.raw.read(offset, other, hints)).await;
        let result = tested.and_then(|kind| raw.map(|_| kind));
        let differs = || buf.iter().zip(other.iter()).position(|(tested, raw)| tested != raw);
        match result {
            Ok(kind) => match differs() {
                None => (Ok(kind), buf),
                Some(at) => {
                    let at = offset + at as u64;
                    if let Some(act) = ON_MISMATCH.get() {
                        act(Mismatch { offset, len: buf.len() as u64, at });
                    }
                    let what = format!("byte {at} reads otherwise than in {} (blkverify)", self.raw.name());
                    (Err(Blame::new(self.test.name()).refused(what)), buf)
                }
            },
            Err(error) => (Err(error), buf),
        }
    }

    async fn alone<T>(&self, offset: u64, len: u64, change: impl Future<Output = T>) -> T {
        let _alone = self.locks.acquire(offset, offset.saturating_add(len), RangeMode::Exclusive).await;
        change.await
    }
}

impl Block for Blkverify {
    fn driver(&self) -> &'static str {
        "blkverify"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.test)
    }

    /// Nothing is read without being compared.
    fn try_read(&self, _offset: u64, _buf: &mut [u8], _hints: Hints) -> Option<ReadKind> {
        None
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(self.compare(offset, buf, hints))
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        let len = data.len() as u64;
        Box::pin(self.alone(offset, len, async move {
            let (tested, raw) =
                join(self.test.write(offset, data.clone(), hints), self.raw.write(offset, data, hints)).await;
            tested.and(raw)
        }))
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        // One that refuses alone would make them differ.
        let options = ZeroOptions { fast_only: false, ..options };
        Box::pin(self.alone(offset, len, async move {
            let (tested, raw) =
                join(self.test.zero(offset, len, options), self.raw.zero(offset, len, options)).await;
            tested.and(raw)
        }))
    }

    /// Nothing happens: what discarded bytes read as is each disk's own.
    fn discard(&self, _offset: u64, _len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let (tested, raw) = join(self.test.flush(), self.raw.flush()).await;
            tested.and(raw)
        })
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let closed = self.test.close().await;
            closed.and(self.raw.close().await)
        })
    }
}
