//! Guest memory of vm-memory as the memory of requests: filled and read in place.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use cowhand::ForeignBytes;
use vm_memory::bitmap::Bitmap;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap};

/// Ranges of a guest's memory, checked, in the order in which a request fills or reads them.
///
/// The memory stays mapped as long as a clone of [`GuestRanges::bytes`] lives, which a request in flight has: a guest that goes away
/// meanwhile does no harm.
pub struct GuestRanges<B: Bitmap + 'static = ()> {
    memory: Arc<GuestMemoryMmap<B>>,
    ranges: Vec<(GuestAddress, usize)>,
    bytes: ForeignBytes,
}

impl<B: Bitmap + Send + Sync + 'static> GuestRanges<B> {
    /// The ranges (first byte, length) of `memory`; one may lie in several regions that follow each other.
    ///
    /// # Errors
    /// When a range is not in the guest's memory.
    pub fn new(
        memory: Arc<GuestMemoryMmap<B>>,
        ranges: impl IntoIterator<Item = (GuestAddress, usize)>,
    ) -> Result<Self, GuestMemoryError> {
        let ranges: Vec<_> = ranges.into_iter().collect();
        let mut parts = Vec::new();
        for (address, len) in &ranges {
            for slice in GuestMemoryBackend::get_slices(&*memory, *address, *len) {
                let slice = slice?;
                let start = NonNull::new(slice.ptr_guard_mut().as_ptr());
                // A mapped range is not at 0.
                let start = start.ok_or(GuestMemoryError::InvalidGuestAddress(*address))?;
                parts.push((start, slice.len()));
            }
        }
        let owner = memory.clone();
        // SAFETY: the slices were in the mapping of `memory`, which the owner keeps; vm-memory gives out no Rust references to a
        // guest's memory.
        let bytes = unsafe { ForeignBytes::new(parts, owner) };
        Ok(Self { memory, ranges, bytes })
    }

    /// The memory, for [`cowhand::Request::ReadInto`] and [`cowhand::Request::WriteFrom`].
    pub fn bytes(&self) -> ForeignBytes {
        self.bytes.clone()
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Marks the ranges in the bitmap of changed memory: to be called when a read has completed, before the guest is notified. A
    /// migration misses the bytes otherwise.
    ///
    /// # Errors
    /// When a range is not in the guest's memory.
    pub fn mark_dirty(&self) -> Result<(), GuestMemoryError> {
        for (address, len) in &self.ranges {
            for slice in GuestMemoryBackend::get_slices(&*self.memory, *address, *len) {
                let slice = slice?;
                slice.bitmap().mark_dirty(0, slice.len());
            }
        }
        Ok(())
    }
}

impl<B: Bitmap + 'static> fmt::Debug for GuestRanges<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuestRanges({} bytes in {} ranges)", self.bytes.len(), self.ranges.len())
    }
}
