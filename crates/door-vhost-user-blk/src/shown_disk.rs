//! A disk as guests see it: its options, and what a front-end that comes from another process finds of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use export::ExportEntry;
use parking_lot::Mutex;

use crate::aside::Aside;
use crate::config;
use crate::handed::{HandedFrontEnd, NotResumed};
use crate::limits::QUEUES_MAX;
use crate::mapping::FilePolicy;
use crate::message::{Message, RingState};
use crate::request::SECTOR_BYTES;

/// How a disk is shown to guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Queues that a front-end may use, 1 to [`QUEUES_MAX`].
    pub queues: u16,
    /// Bytes of a logical block: a power of two, 512 to 32768.
    pub logical_block_size: u32,
    /// What the guest receives as the disk's serial number; 20 bytes of it.
    pub serial: String,
    /// Contiguous requests that come together go to the disk as one.
    pub merge: bool,
}

/// Options that no device can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// How many queues.
    #[error("num-queues is {0}; 1 to {QUEUES_MAX} are allowed")]
    Queues(u16),
    /// Bytes of a block.
    #[error("logical-block-size is {0}; powers of two from 512 to 32768 are allowed")]
    Block(u32),
    /// The disk ends inside a block.
    #[error("the disk has {size} bytes, which is no multiple of logical-block-size {block}")]
    Size {
        /// Bytes of the disk.
        size: u64,
        /// Bytes of a block.
        block: u32,
    },
}

impl DeviceOptions {
    /// Whether a disk of `size` bytes can be shown so.
    ///
    /// # Errors
    /// For the first option that cannot be.
    pub fn check(&self, size: u64) -> Result<(), OptionsError> {
        let block = self.logical_block_size;
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            return Err(OptionsError::Queues(self.queues));
        }
        if !block.is_power_of_two() || !(512..=32768).contains(&block) {
            return Err(OptionsError::Block(block));
        }
        // Of a block of one sector the rest is reported as out of reach (docs/reference/serving.md).
        if u64::from(block) > SECTOR_BYTES && !size.is_multiple_of(u64::from(block)) {
            return Err(OptionsError::Size { size, block });
        }
        Ok(())
    }
}

/// A disk that front-ends can reach.
#[derive(Debug)]
pub struct VhostExport {
    pub(crate) entry: Arc<ExportEntry>,
    pub(crate) options: DeviceOptions,
    /// Whether the driver of the last front-end had the write cache on.
    pub(crate) cache: Mutex<Option<bool>>,
    /// Bytes that discards are aligned to. A guest asks once: it stays when an image of other clusters comes to the top.
    discard_bytes: AtomicU32,
    /// Where its front-ends' descriptors are waited for.
    pub(crate) aside: Arc<Aside>,
}

impl VhostExport {
    /// The export behind it.
    pub fn entry(&self) -> &Arc<ExportEntry> {
        &self.entry
    }

    pub(crate) fn new(entry: Arc<ExportEntry>, options: DeviceOptions) -> Self {
        let discard_bytes = AtomicU32::new(entry.disk().block_sizes().discard);
        Self { entry, options, cache: Mutex::default(), discard_bytes, aside: Arc::default() }
    }

    pub(crate) fn discard_bytes(&self) -> u32 {
        self.discard_bytes.load(Ordering::Relaxed)
    }

    /// The guest learned this elsewhere; what no disk would say is left.
    pub(crate) fn keep_discard_bytes(&self, bytes: u32) {
        if bytes.is_power_of_two() && u64::from(bytes) >= SECTOR_BYTES {
            self.discard_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Whether the guest of a front-end finds here what it knows, and its memory may be mapped here.
    pub(crate) fn check(&self, front: &HandedFrontEnd, memory: FilePolicy) -> Result<(), NotResumed> {
        let (disk, export) = (self.entry.disk(), front.export.clone());
        if disk.size() != front.size {
            return Err(NotResumed::Size { export, found: disk.size(), known: front.size });
        }
        let offered = config::features(disk.read_only(), disk.abilities());
        for said in &front.reported {
            if let (Ok(Message::AddRegion(_)), Some(fd)) =
                (Message::decode(said.request, &said.payload), &said.fd)
            {
                let wrong = |why| NotResumed::Memory { export: export.clone(), why };
                memory.check(fd).map_err(wrong)?;
            }
            match Message::decode(said.request, &said.payload) {
                Ok(Message::SetFeatures(used)) if used & !offered != 0 => {
                    return Err(NotResumed::Features { export, missing: used & !offered });
                }
                Ok(Message::SetRingBase(RingState { ring, .. }))
                    if ring >= u32::from(self.options.queues) =>
                {
                    return Err(NotResumed::Queues { export, queues: self.options.queues, ring });
                }
                _ => {}
            }
        }
        Ok(())
    }
}
