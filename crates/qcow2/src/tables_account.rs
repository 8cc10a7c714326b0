//! The memory that the tables of all images of one disk take: L1 tables, the places of the tables that they name, and directories of bitmaps.
//!
//! They are needed whole as long as an image is open, so they leave no cache. An image of 200 KiB can have an L1 table of 32 MiB or a directory of
//! 64 MiB, and a disk 1,000 images: without a ceiling a file of nothing takes all memory.

use std::sync::Arc;

use block::Blame;
use sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// What the images of one disk hold of it, and may hold.
#[derive(Debug)]
pub struct TablesAccount {
    used: AtomicU64,
    bytes_max: u64,
}

/// Why there is no room for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TablesFull {
    /// The disk's images hold too much already.
    #[error(
        "the L1 tables and bitmap directories of the disk's images take more than {bytes_max} bytes of memory; a --map-memory beyond the default allows \
         half of it for them"
    )]
    Account {
        /// What they may hold.
        bytes_max: u64,
    },
    /// The system has none.
    #[error("no memory")]
    System,
}

impl TablesFull {
    /// As the error of opening or changing an image.
    pub(crate) fn blamed(self, blame: &Blame) -> Error {
        match self {
            Self::Account { .. } => blame.refused(self.to_string()),
            Self::System => blame.no_memory("the tables of the image"),
        }
    }
}

impl TablesAccount {
    /// One for `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), bytes_max })
    }

    /// One that never ends.
    pub fn unlimited() -> Arc<Self> {
        Self::new(u64::MAX)
    }

    /// Bytes that are held.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes` out of it, until they are given back.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), TablesFull> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.map(drop).map_err(|_| TablesFull::Account { bytes_max: self.bytes_max })
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes `bytes` out of it as long as what this returns lives.
    pub(crate) fn hold(self: &Arc<Self>, bytes: u64) -> Result<HeldBytes, TablesFull> {
        self.take(bytes)?;
        Ok(HeldBytes { account: Arc::clone(self), bytes })
    }
}

/// Bytes of an account, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    account: Arc<TablesAccount>,
    bytes: u64,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}
