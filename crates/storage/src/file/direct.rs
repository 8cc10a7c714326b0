//! Reads and writes beside the page cache. The kernel takes only aligned requests; others go
//! through a bounce buffer, writes as a read-modify-write.
//!
//! Every change of the file holds its range: shared, so that changes of whole blocks run side by
//! side, or exclusive for a read-modify-write, which writes back bytes that are not its own.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use memory::{IoBuf, IoVec};
use reactor::Task;

use super::Shared;
use super::alignment::DirectAlignment;
use super::calls::{is_transient, no_progress};
use super::kind::Kind;
use crate::range_lock::{RangeGuard, RangeMode};

impl Shared {
    /// Fills `buf`; zeroes beyond the end. The range was checked.
    pub(super) async fn read_direct(
        &self,
        alignment: DirectAlignment,
        offset: u64,
        mut buf: IoBuf,
    ) -> (io::Result<()>, IoBuf) {
        if alignment.floor(offset) == offset && alignment.admits(&buf) {
            return self.read_blocks(alignment, offset, buf).await;
        }
        if buf.is_empty() {
            return (Ok(()), buf);
        }
        let start = alignment.floor(offset);
        let end = alignment.ceil(offset + buf.len() as u64);
        let bounce = match IoBuf::for_request((end - start) as usize) {
            Ok(bounce) => bounce,
            Err(error) => return (Err(error), buf),
        };
        let (result, bounce) = self.read_blocks(alignment, start, bounce).await;
        let from = (offset - start) as usize;
        let len = buf.len();
        buf.copy_from_slice(&bounce[from..from + len]);
        (result, buf)
    }

    /// Fills the aligned `buf` from the aligned `offset`.
    async fn read_blocks(
        &self,
        alignment: DirectAlignment,
        offset: u64,
        mut buf: IoBuf,
    ) -> (io::Result<()>, IoBuf) {
        let mut done = 0;
        while done < buf.len() {
            let rest = buf.split_off(done);
            let (result, rest) = self.file.read_at(offset + done as u64, rest).await;
            buf.rejoin(rest);
            match result {
                // The end of the file: at once, or within a block.
                Ok(count) if count == 0 || !count.is_multiple_of(alignment.offset as usize) => {
                    buf[done + count..].fill(0);
                    break;
                }
                Ok(count) => done += count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Writes all of `data`. The range was checked.
    pub(super) async fn write_direct(
        self: &Arc<Self>,
        alignment: DirectAlignment,
        offset: u64,
        data: IoVec,
    ) -> io::Result<()> {
        let end = offset + data.len() as u64;
        if alignment.floor(offset) == offset && alignment.floor(end) == end {
            let data = aligned(alignment, data)?;
            let _held = self.ranges.acquire(offset, end, RangeMode::Shared).await;
            self.write_blocks(alignment, offset, data).await?;
            self.grown_to(end);
            return Ok(());
        }
        // Once its first block is read it must run to its end: dropped half-way, a write in flight
        // would put old neighbours back after the lock is gone. So it is a task of its own.
        let shared = Arc::clone(self);
        let task = async move { shared.modify_blocks(alignment, offset, data).await };
        ToItsEnd(Some(reactor::spawn(task))).await
    }

    /// Writes aligned `data` at the aligned `offset`.
    async fn write_blocks(&self, alignment: DirectAlignment, offset: u64, data: IoVec) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            let rest = if done == 0 { data.clone() } else { data.slice(done, data.len()) };
            match self.file.write_at(offset + done as u64, rest).await {
                Ok(count) => {
                    // The part of a block that a short write ended in is written again.
                    let whole = count - count % alignment.offset as usize;
                    if whole == 0 {
                        return Err(no_progress(offset + done as u64));
                    }
                    done += whole;
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes `data` together with what stands around it in its first and last block.
    async fn modify_blocks(&self, alignment: DirectAlignment, offset: u64, data: IoVec) -> io::Result<()> {
        let end = offset + data.len() as u64;
        let (start, stop) = (alignment.floor(offset), alignment.ceil(end));
        let (_held, grows) = self.hold_blocks(start, stop).await;
        let block = u64::from(alignment.offset);
        let mut whole = IoBuf::for_request((stop - start) as usize)?;
        if start < offset {
            self.read_block(alignment, start, 0, &mut whole).await?;
        }
        if end < stop && (start == offset || stop - block > start) {
            self.read_block(alignment, stop - block, (stop - block - start) as usize, &mut whole).await?;
        }
        let mut at = (offset - start) as usize;
        for part in data.parts() {
            whole[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let before = if grows { self.real_length()? } else { stop };
        self.write_blocks(alignment, start, whole.freeze().into()).await?;
        self.grown_to(end);
        if before < stop && stop > self.length() {
            self.cut_block(before.max(self.length()), stop).await?;
        }
        Ok(())
    }

    /// Keeps other requests off the blocks, and says whether writing them makes the file longer.
    ///
    /// A write that ends in a block beyond the end of the file makes it too long for a moment.
    /// Cutting it again must not meet a growing neighbour, so everything behind is held too.
    async fn hold_blocks(&self, start: u64, stop: u64) -> (RangeGuard<'_>, bool) {
        let grows = || self.kind == Kind::Regular && stop > self.length();
        if !grows() {
            let held = self.ranges.acquire(start, stop, RangeMode::Exclusive).await;
            // Unless the file was cut while we waited.
            if !grows() {
                return (held, false);
            }
        }
        (self.ranges.acquire(start, u64::MAX, RangeMode::Exclusive).await, grows())
    }

    /// Reads the block at `offset` of the file into `whole[at..]`.
    async fn read_block(
        &self,
        alignment: DirectAlignment,
        offset: u64,
        at: usize,
        whole: &mut [u8],
    ) -> io::Result<()> {
        let block = alignment.offset as usize;
        let (result, bytes) = self.read_blocks(alignment, offset, IoBuf::uninit(block)).await;
        result?;
        whole[at..at + block].copy_from_slice(&bytes);
        Ok(())
    }
}

/// `data` with every part aligned: itself, or a copy in one part.
fn aligned(alignment: DirectAlignment, data: IoVec) -> io::Result<IoVec> {
    if data.parts().iter().all(|part| alignment.admits(part)) {
        return Ok(data);
    }
    let mut copy = IoBuf::for_request(data.len())?;
    let mut at = 0;
    for part in data.parts() {
        copy[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    Ok(copy.freeze().into())
}

/// Awaits a task; dropped before, it lets the task go on.
struct ToItsEnd<T>(Option<Task<T>>);

impl<T> Future for ToItsEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        #[expect(clippy::expect_used, reason = "polling a finished future is a bug of the caller")]
        let task = self.0.as_mut().expect("polled after its end");
        let output = std::task::ready!(Pin::new(task).poll(cx));
        self.0 = None;
        Poll::Ready(output)
    }
}

impl<T> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}
