//! Memory of others, filled and written in place wherever the kernel takes it: always through the page cache, beside it where every part is
//! aligned. Otherwise the bytes go through memory of our own.

use std::io;
use std::sync::Arc;

use memory::{ForeignBytes, IoBuf};
use reactor::fs::{File, may_call_inline};

use super::Shared;
use super::alignment::DirectAlignment;
use super::calls::{check_range, is_transient, no_progress};
use super::write_queue::Data;
use crate::range_lock::RangeMode;
use crate::{Answer, Hints};

impl Shared {
    /// Fills `memory`; zeroes beyond the end.
    pub(super) async fn read_into(&self, offset: u64, memory: ForeignBytes) -> io::Result<()> {
        check_range(offset, memory.len() as u64)?;
        match self.direct {
            None => {
                let done = self.read_cached_into(offset, &memory);
                self.read_rest_into(offset, memory, done, 1).await
            }
            Some(alignment) if admits(alignment, offset, &memory) => {
                self.read_rest_into(offset, memory, 0, alignment.offset as usize).await
            }
            Some(alignment) => {
                let buf = IoBuf::try_uninit(memory.len()).ok_or(io::ErrorKind::OutOfMemory)?;
                let (result, buf) = self.read_direct(alignment, offset, buf).await;
                result?;
                memory.copy_from(0, &buf);
                Ok(())
            }
        }
    }

    /// Fills `memory` if nothing has to be waited for; zeroes beyond the end.
    pub(super) fn try_read_into(&self, offset: u64, memory: &ForeignBytes) -> bool {
        let Some(flags) = self.no_waiting() else { return false };
        if check_range(offset, memory.len() as u64).is_err() {
            return false;
        }
        let read = if flags.is_empty() { File::read_into_now } else { File::try_read_into };
        match read(&self.file, offset, memory) {
            Ok(count) if count == memory.len() => true,
            // As in `try_read`.
            Ok(count) if self.alone && offset + count as u64 >= self.length() => {
                memory.fill_with_zeroes(count, memory.len());
                true
            }
            Ok(_) | Err(_) => false,
        }
    }

    /// Reads on this thread what the page cache has, and gives the count of bytes.
    fn read_cached_into(&self, offset: u64, memory: &ForeignBytes) -> usize {
        if self.asked.reads_without_waiting == Answer::No || !may_call_inline() {
            return 0;
        }
        self.file.try_read_into(offset, memory).unwrap_or(0)
    }

    /// Fills `memory` behind the first `done` bytes, going on after short reads. A read that ends inside a `block` has met the end
    /// of the file.
    async fn read_rest_into(
        &self,
        offset: u64,
        memory: ForeignBytes,
        mut done: usize,
        block: usize,
    ) -> io::Result<()> {
        while done < memory.len() {
            let rest = memory.slice(done, memory.len());
            match self.file.read_into(offset + done as u64, rest).await {
                Ok(count) if count == 0 || !count.is_multiple_of(block) => {
                    memory.fill_with_zeroes(done + count, memory.len());
                    break;
                }
                Ok(count) => done += count,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `memory`, and notes the new length. The range was checked.
    pub(super) async fn write_from(
        self: &Arc<Self>,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> io::Result<()> {
        match self.direct {
            None => self.write_buffered(offset, Data::Foreign(memory), hints).await,
            Some(alignment) if admits(alignment, offset, &memory) => {
                let end = offset + memory.len() as u64;
                let _held = self.ranges.acquire(offset, end, RangeMode::Shared).await;
                self.write_all_from(offset, memory, alignment.offset as usize).await?;
                self.grown_to(end);
                Ok(())
            }
            Some(_) => {
                let copy = memory.to_bytes()?;
                self.write(offset, copy.into(), hints).await
            }
        }
    }

    /// Writes all of `memory`, going on after short writes. The part of a `block` that one ended in is written again.
    pub(super) async fn write_all_from(
        &self,
        offset: u64,
        memory: ForeignBytes,
        block: usize,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < memory.len() {
            let at = offset + done as u64;
            match self.file.write_from(at, memory.slice(done, memory.len())).await {
                Ok(count) if count < block => return Err(no_progress(at)),
                Ok(count) => done += count - count % block,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether the kernel takes the request beside the page cache as it is.
fn admits(alignment: DirectAlignment, offset: u64, memory: &ForeignBytes) -> bool {
    let memory_mask = alignment.memory as usize - 1;
    let fits = |part: &memory::ForeignPart| {
        part.start().addr().get() & memory_mask == 0 && part.len().is_multiple_of(alignment.offset as usize)
    };
    alignment.floor(offset) == offset && memory.parts().iter().all(fits)
}
