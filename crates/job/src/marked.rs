//! Parts of a disk: what is not among them is as if the disk said nothing there.

use std::sync::Arc;

use block::{Block, BlockFuture, BlockStatus, Error};

use crate::dirty::Dirty;

/// A disk of which only what is marked counts ([`crate::copies::incremental`]): there it is one layer that says all of it.
#[derive(Debug)]
pub struct Marked {
    /// The disk.
    pub over: Arc<dyn Block>,
    /// What counts.
    pub marks: Dirty,
}

impl Block for Marked {
    fn driver(&self) -> &'static str {
        "marked"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.over)
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            let (is_marked, end) = self.marks.run(offset..offset + len);
            let len = end - offset;
            let found = self.over.block_status(offset, len).await?;
            Ok(match is_marked {
                true => BlockStatus { present: true, depth: 0, ..found },
                false => BlockStatus { present: false, zero: false, depth: 0, len, ..found },
            })
        })
    }
}
