//! `compress`: clusters that are written become compressed ones, where the backing image can.
//!
//! A cluster of which a part is written is completed by what the disk has there, if the uppermost image does not have the cluster. Parts
//! of clusters that it has, zeroes and discards go to the image as they are.

use std::ops::Range;
use std::sync::Arc;

use block::{Block, BlockFuture, Error, ReadKind, ZeroOptions};
use buffer::{IoBuf, IoVec};
use storage::{Hints, RangeLocks, RangeMode};

/// The filter.
#[derive(Debug)]
pub struct Compress {
    over: Arc<dyn Block>,
    /// A cluster is completed alone; every other change of its bytes shares it.
    locks: RangeLocks,
}

impl Compress {
    /// Over `over`.
    pub fn new(over: Arc<dyn Block>) -> Self {
        Self { over, locks: RangeLocks::default() }
    }

    /// The part before the first whole cluster, the whole clusters, and the part behind them: each may be empty.
    fn parts(&self, offset: u64, len: u64) -> [(u64, u64); 3] {
        let Some(unit) = self.over.capabilities().cluster_bytes else {
            return [(offset, len), (0, 0), (0, 0)];
        };
        let end = offset + len;
        // The last cluster of a disk may be short.
        let whole_end = if end == self.over.size() { end } else { end / unit * unit };
        let first = offset.next_multiple_of(unit).min(end);
        match first < whole_end {
            true => [(offset, first - offset), (first, whole_end - first), (whole_end, end - whole_end)],
            false => [(offset, len), (0, 0), (0, 0)],
        }
    }

    async fn write_in_parts(&self, offset: u64, data: IoVec, hints: Hints) -> Result<(), Error> {
        let parts = self.parts(offset, data.len() as u64);
        for (place, (at, len)) in parts.into_iter().enumerate().filter(|(_, (_, len))| *len > 0) {
            // Both lie inside the data's length in memory.
            let part = data.slice((at - offset) as usize, (at - offset + len) as usize);
            match place {
                1 => {
                    let _shared = self.locks.acquire(at, at + len, RangeMode::Shared).await;
                    self.over.write_compressed(at, part, hints).await?;
                }
                _ => self.write_beside_clusters(at, part, hints).await?,
            }
        }
        Ok(())
    }

    /// A part without a whole cluster: of one cluster or two.
    async fn write_beside_clusters(&self, offset: u64, data: IoVec, hints: Hints) -> Result<(), Error> {
        let len = data.len() as u64;
        let Some(unit) = self.over.capabilities().cluster_bytes else {
            return self.over.write(offset, data, hints).await;
        };
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let start = at / unit * unit;
            let piece = (start + unit - at).min(len - done);
            let data = data.slice(done as usize, (done + piece) as usize);
            let end = (start + unit).min(self.over.size());
            let _alone = self.locks.acquire(start, end, RangeMode::Exclusive).await;
            match self.is_in_top(start, end).await? {
                true => self.over.write(at, data, hints).await?,
                false => self.complete(start..end, at, &data, hints).await?,
            }
            done += piece;
        }
        Ok(())
    }

    /// Whether the uppermost image has something of the range.
    async fn is_in_top(&self, start: u64, end: u64) -> Result<bool, Error> {
        let mut at = start;
        while at < end {
            let status = self.over.block_status(at, end - at).await?;
            if status.present && status.depth == 0 {
                return Ok(true);
            }
            at += status.len.max(1);
        }
        Ok(false)
    }

    /// Writes a whole cluster, `data` at `at` in it. Memory: one cluster.
    async fn complete(&self, cluster: Range<u64>, at: u64, data: &IoVec, hints: Hints) -> Result<(), Error> {
        // At most 2 MiB.
        let buf = IoBuf::try_uninit((cluster.end - cluster.start) as usize);
        let buf = buf.ok_or_else(|| block::no_memory(self.over.name()))?;
        let (read, mut buf) = self.over.read(cluster.start, buf, Hints::NONE).await;
        if read? == ReadKind::Zeroes {
            buf.fill(0);
        }
        let mut from = (at - cluster.start) as usize;
        for part in data.parts() {
            if let Some(place) = buf.get_mut(from..from + part.len()) {
                place.copy_from_slice(part);
            }
            from += part.len();
        }
        self.over.write_compressed(cluster.start, buf.freeze().into(), hints).await
    }

    async fn change(
        &self,
        offset: u64,
        len: u64,
        change: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let _shared = self.locks.acquire(offset, offset.saturating_add(len), RangeMode::Shared).await;
        change.await
    }
}

impl Block for Compress {
    fn driver(&self) -> &'static str {
        "compress"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let (len, size) = (data.len() as u64, self.over.size());
            match offset.checked_add(len) {
                Some(end) if end <= size => self.write_in_parts(offset, data, hints).await,
                _ => Err(block::Blame::new(self.over.name()).past_end(offset, len, size)),
            }
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.change(offset, len, async move { self.over.zero(offset, len, options).await }))
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.change(offset, len, async move { self.over.discard(offset, len).await }))
    }
}
