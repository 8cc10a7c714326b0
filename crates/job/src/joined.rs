//! Several blocks as one, the first bytes first. For reading.

use std::sync::Arc;

use block::{Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, Hints, ReadKind, Stored, Takes};
use memory::IoBuf;

/// Blocks one after the other.
#[derive(Debug)]
pub struct Joined {
    parts: Vec<Arc<dyn Block>>,
    name: String,
}

impl Joined {
    /// Joins `parts`, whose sizes must not change from now on.
    pub fn new(parts: Vec<Arc<dyn Block>>) -> Self {
        let names: Vec<_> = parts.iter().map(|part| part.name()).collect();
        Self { name: names.join(" + "), parts }
    }

    /// The part that `offset` lies in, and the offset there.
    fn part(&self, mut offset: u64) -> Option<(&dyn Block, u64)> {
        for part in &self.parts {
            match offset.checked_sub(part.size()) {
                None => return Some((&**part, offset)),
                Some(behind) => offset = behind,
            }
        }
        None
    }

    fn past_end(&self, offset: u64, len: u64) -> Error {
        Blame::new(&self.name).past_end(offset, len, self.size())
    }

    async fn read_parts(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        let (mut done, mut kind) = (0, ReadKind::Zeroes);
        while done < buf.len() {
            let at = offset + done as u64;
            let Some((part, inside)) = self.part(at) else {
                return (Err(self.past_end(offset, buf.len() as u64)), buf);
            };
            let len = (part.size() - inside).min((buf.len() - done) as u64) as usize;
            let mut piece = buf.split_off(done);
            let rest = piece.split_off(len);
            let (result, piece) = part.read(inside, piece, hints).await;
            buf.rejoin(piece);
            buf.rejoin(rest);
            match result {
                Ok(ReadKind::Data) => kind = ReadKind::Data,
                Ok(ReadKind::Zeroes) => {}
                Err(error) => return (Err(error), buf),
            }
            done += len;
        }
        (Ok(kind), buf)
    }
}

impl Block for Joined {
    fn driver(&self) -> &'static str {
        "joined"
    }

    fn refusal(&self) -> &'static str {
        "joined disks are for reading"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.size()).fold(0, u64::saturating_add)
    }

    fn capabilities(&self) -> Capabilities {
        let alignment = self.parts.iter().map(|part| part.capabilities().alignment).max();
        Capabilities {
            read_only: true,
            alignment: alignment.unwrap_or(1),
            cached: false,
            cluster_bytes: None,
        }
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(self.read_parts(offset, buf, hints))
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            let (part, inside) = self.part(offset).ok_or_else(|| self.past_end(offset, len))?;
            let status = part.block_status(inside, len.min(part.size() - inside)).await?;
            Ok(BlockStatus { offset: None, ..status })
        })
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        Box::pin(async move {
            let (part, inside) = self.part(offset).ok_or_else(|| self.past_end(offset, len))?;
            part.stored(inside, len.min(part.size() - inside), wanted).await
        })
    }
}
