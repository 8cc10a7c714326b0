//! A bitmap in memory, in which changes set bits.

use std::collections::TryReserveError;

use super::bits::Bits;
use crate::guest_range::GuestRange;

/// What a bitmap is, besides its bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveSpec {
    pub(crate) name: String,
    pub(crate) granularity_bits: u8,
    /// It is in the image file, too.
    pub(crate) persistent: bool,
    /// Changes of the disk set bits.
    pub(crate) recording: bool,
    /// Bytes of the disk.
    pub(crate) size: u64,
}

/// A bitmap in memory. Bits are only ever set: one with other bits is another one of these.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) spec: LiveSpec,
    pub(crate) bits: Bits,
    /// Those of them that the image file has; all of them after the bitmap was stored. Without use for one that is not persistent.
    pub(crate) stored: Bits,
}

impl Live {
    /// A bitmap in which nothing is dirty.
    pub(crate) fn new(spec: LiveSpec) -> Result<Self, TryReserveError> {
        let len = spec.size.div_ceil(1 << spec.granularity_bits);
        let stored = Bits::new(if spec.persistent { len } else { 0 })?;
        Ok(Self { bits: Bits::new(len)?, stored, spec })
    }

    /// The same for a disk of `size` bytes, and recording or not: what is added is clean.
    pub(crate) fn remade(&self, size: u64, recording: bool) -> Result<Self, TryReserveError> {
        let made = Self::new(LiveSpec { size, recording, ..self.spec.clone() })?;
        for index in 0..self.bits.len().min(made.bits.len()).div_ceil(64) {
            made.bits.set_bytes(index * 8, &self.bits.word(index).to_le_bytes());
        }
        Ok(made)
    }

    /// A range changes, which is not empty.
    #[inline]
    pub(crate) fn mark(&self, range: GuestRange) {
        let bits = self.spec.granularity_bits;
        self.bits.set(range.start >> bits, (range.end - 1) >> bits);
    }

    /// Whether the image file has all of a range as dirty, which is not empty.
    #[inline]
    pub(crate) fn has_stored(&self, range: GuestRange) -> bool {
        let bits = self.spec.granularity_bits;
        self.stored.all_set(range.start >> bits, (range.end - 1) >> bits)
    }
}
