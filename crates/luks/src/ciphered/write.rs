//! Writes: whole sectors are ciphered into a buffer of their own; parts of sectors are read, changed and written back.

use std::io;
use std::sync::Arc;

use storage::{Hints, IoBuf, IoVec, RangeMode};

use super::Shared;
use crate::parallel::{Direction, cipher};

impl Shared {
    pub(super) async fn write(self: &Arc<Self>, offset: u64, data: IoVec, hints: Hints) -> io::Result<()> {
        let len = data.len() as u64;
        let (first, end) = self.sectors(offset, len)?;
        if data.is_empty() {
            return Ok(());
        }
        if self.is_whole(offset, len) {
            let sectors = self.enciphered(offset, copied(&data)?, hints).await?;
            let _held = self.ranges.acquire(offset, end, RangeMode::Shared).await;
            return self.below.write(self.part.start + offset, sectors, hints).await;
        }
        // Once it has read its neighbours it must run to its end: dropped half-way, it would put old ones back after the lock is gone.
        let (done, result) = sync::oneshot::channel();
        let shared = Arc::clone(self);
        self.around.spawn(Box::pin(async move {
            // No task may be waiting any more; the bytes are written all the same.
            let _ = done.send(shared.rewrite(first, end, offset, data, hints).await);
        }));
        result.await.unwrap_or_else(|_| Err(io::Error::other("the program is stopping")))
    }

    /// Writes `data` together with what stands around it in its first and last sector.
    async fn rewrite(&self, first: u64, end: u64, offset: u64, data: IoVec, hints: Hints) -> io::Result<()> {
        let _held = self.ranges.acquire(first, end, RangeMode::Exclusive).await;
        let _rewriting = self.rewrites.begin();
        let mut whole = IoBuf::for_request((end - first) as usize)?;
        let sector_bytes = self.sector_bytes();
        let last = end - sector_bytes;
        for (sector, touched) in [(first, offset > first), (last, offset + (data.len() as u64) < end)] {
            if touched {
                let (result, bytes) =
                    self.read_at_once(sector, IoBuf::uninit(sector_bytes as usize), hints).await;
                result?;
                let at = (sector - first) as usize;
                whole[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        fill(&mut whole[(offset - first) as usize..], &data);
        let sectors = self.enciphered(first, whole, hints).await?;
        self.below.write(self.part.start + first, sectors, hints).await
    }

    async fn enciphered(&self, offset: u64, plain: IoBuf, hints: Hints) -> io::Result<IoVec> {
        let sector = self.number(offset);
        let sectors = cipher(&*self.around, &self.cipher, Direction::Encipher, sector, plain, hints).await?;
        Ok(sectors.freeze().into())
    }
}

fn copied(data: &IoVec) -> io::Result<IoBuf> {
    let mut copy = IoBuf::for_request(data.len())?;
    fill(&mut copy, data);
    Ok(copy)
}

fn fill(buf: &mut [u8], data: &IoVec) {
    let mut at = 0;
    for part in data.parts() {
        buf[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}
