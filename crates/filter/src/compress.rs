//! `compress`: whole clusters that are written become compressed ones, where the backing image can.
//!
//! What is written beside whole clusters, zeroes and discards go to the image as they are.
//!
//! A part of a cluster is not completed to a whole one here: a job below writes the same cluster past this filter, and what it
//! writes between the reading of the rest and the writing of the whole would be lost. `unlike::streams` and its neighbours find that at once.

use std::sync::Arc;

use block::{Block, BlockFuture, Error};
use memory::IoVec;
use storage::Hints;

/// The filter.
#[derive(Debug)]
pub struct Compress {
    over: Arc<dyn Block>,
}

impl Compress {
    /// Over `over`.
    pub fn new(over: Arc<dyn Block>) -> Self {
        Self { over }
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
                1 => self.over.write_compressed(at, part, hints).await?,
                _ => self.over.write(at, part, hints).await?,
            }
        }
        Ok(())
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
}
