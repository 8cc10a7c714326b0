//! Memory that is not ours: a guest's, or a caller's.

use std::any::Any;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::allocation::Allocation;
use crate::{IoBuf, IoBytes};

/// Ranges of memory that belongs to others, in the order in which a request fills or reads them. Cloning and slicing copy no bytes.
///
/// Others may change the bytes at any time, so there is never a reference to them: the kernel moves them, or they are
/// copied. What has to be looked at (is it zero, does it compress) is copied first ([`ForeignBytes::to_bytes`]) and then
/// cannot change any more.
///
/// The owner is held for as long as any clone or slice lives: an operation in flight has one, so a request that was dropped keeps the
/// memory mapped until the kernel has finished with it.
#[derive(Clone)]
pub struct ForeignBytes {
    parts: SmallVec<[ForeignPart; 4]>,
    len: usize,
    owner: Owner,
}

/// An owner whose memory others can take away: what is read there then is not what was written there.
pub trait MayLose: Send + Sync {
    /// Whether some of the memory was lost since it was mapped.
    fn is_lost(&self) -> bool;
}

/// What keeps the memory mapped.
#[derive(Clone)]
enum Owner {
    /// Its memory is never lost.
    Sure(#[expect(dead_code, reason = "it is only to be dropped")] Arc<dyn Any + Send + Sync>),
    /// See [`MayLose`].
    MayLose(Arc<dyn MayLose>),
    /// Those of memory that was joined.
    Both(Arc<(Owner, Owner)>),
}

impl Owner {
    fn is_lost(&self) -> bool {
        match self {
            Self::Sure(_) => false,
            Self::MayLose(owner) => owner.is_lost(),
            Self::Both(owners) => owners.0.is_lost() || owners.1.is_lost(),
        }
    }
}

/// Why there is no copy of memory of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// There is no memory for it.
    NoMemory,
    /// The memory was lost: a copy would have bytes that were never written.
    Lost,
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoMemory => "there is no memory for a copy",
            Self::Lost => "the memory was lost",
        })
    }
}

impl std::error::Error for CopyError {}

impl From<CopyError> for io::Error {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::NoMemory => Self::new(io::ErrorKind::OutOfMemory, error),
            // The kernel's own copies of such memory fail with EFAULT, which has no kind either.
            CopyError::Lost => Self::other(error),
        }
    }
}

/// One contiguous range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignPart {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a part is an address and a length; it is reached only through ForeignBytes, whose maker promised that the memory may be
// used from any thread.
unsafe impl Send for ForeignPart {}
// SAFETY: as above; a shared part gives out no reference to the bytes.
unsafe impl Sync for ForeignPart {}

impl ForeignPart {
    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes, at least one.
    #[expect(clippy::len_without_is_empty, reason = "a part is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The part from `from` on that has `len` bytes. Both lie inside.
    fn part(&self, from: usize, len: usize) -> Self {
        debug_assert!(from + len <= self.len && len > 0);
        // SAFETY: `from` is less than the length, so the address lies in the same mapping.
        Self { start: unsafe { self.start.add(from) }, len }
    }
}

impl ForeignBytes {
    /// The ranges `parts` (first byte, length), one behind the other; empty ones are left out.
    ///
    /// # Safety
    /// As long as `owner` lives, every range is mapped for reading and writing, and may be read and written by any thread of this process
    /// and by the kernel. Nothing in this process has a Rust reference to any of the bytes while a clone of this lives.
    pub unsafe fn new(
        parts: impl IntoIterator<Item = (NonNull<u8>, usize)>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self::of(parts, Owner::Sure(owner))
    }

    /// As [`ForeignBytes::new`], of memory that can be lost. What was lost stays mapped, with any content.
    ///
    /// # Safety
    /// As [`ForeignBytes::new`].
    pub unsafe fn new_that_may_be_lost(
        parts: impl IntoIterator<Item = (NonNull<u8>, usize)>,
        owner: Arc<dyn MayLose>,
    ) -> Self {
        Self::of(parts, Owner::MayLose(owner))
    }

    fn of(parts: impl IntoIterator<Item = (NonNull<u8>, usize)>, owner: Owner) -> Self {
        let parts = parts.into_iter().filter(|(_, len)| *len > 0);
        let parts: SmallVec<[_; 4]> = parts.map(|(start, len)| ForeignPart { start, len }).collect();
        Self { len: parts.iter().map(|part| part.len).sum(), parts, owner }
    }

    /// `len` zero bytes of memory of our own, aligned to [`crate::ALIGNMENT`], that only the result and its clones lead to. For tests and
    /// benchmarks.
    pub fn zeroed(len: usize) -> Self {
        let allocation = Arc::new(Allocation::zeroed(len));
        let part = (allocation.start(), len);
        // SAFETY: the allocation is at least `len` bytes long, lives as long as the owner, and gives out no reference.
        unsafe { Self::new([part], allocation) }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ranges in order, none empty.
    pub fn parts(&self) -> &[ForeignPart] {
        &self.parts
    }

    /// The bytes from `from` (included) to `to` (excluded). No copy.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn slice(&self, from: usize, to: usize) -> Self {
        let parts: SmallVec<_> = self.ranges(from, to).map(|(_, part)| part).collect();
        Self { parts, len: to - from, owner: self.owner.clone() }
    }

    /// Copies `bytes` to the range that begins at `from`.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn copy_from(&self, from: usize, bytes: &[u8]) {
        for (at, part) in self.ranges(from, from + bytes.len()) {
            let source = &bytes[at..at + part.len];
            // SAFETY: the maker promised that the range is mapped and writable, and that no Rust reference leads there; so it does not
            // overlap `source`, to which there is one.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), part.start.as_ptr(), part.len) };
        }
    }

    /// Sets the bytes from `from` (included) to `to` (excluded) to zero.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn fill_with_zeroes(&self, from: usize, to: usize) {
        for (_, part) in self.ranges(from, to) {
            // SAFETY: the maker promised that the range is mapped and writable, and that no Rust reference leads there.
            unsafe { std::ptr::write_bytes(part.start.as_ptr(), 0, part.len) };
        }
    }

    /// All of `other` behind what is there. The owners of both are held.
    pub fn join(self, other: ForeignBytes) -> Self {
        let mut parts = self.parts;
        parts.extend_from_slice(&other.parts);
        let owner = Owner::Both(Arc::new((self.owner, other.owner)));
        Self { parts, len: self.len + other.len, owner }
    }

    /// A copy of the bytes as they are now, which no code can change any more.
    ///
    /// # Errors
    /// If there is no memory for it, or the bytes were lost, at the latest while they were copied.
    pub fn to_bytes(&self) -> Result<IoBytes, CopyError> {
        let mut copy = IoBuf::try_uninit(self.len).ok_or(CopyError::NoMemory)?;
        for (at, part) in self.ranges(0, self.len) {
            let target = &mut copy[at..at + part.len];
            // SAFETY: the maker promised that the range is mapped and readable, and that no Rust reference leads there; so it does not
            // overlap `target`, to which there is one.
            unsafe { std::ptr::copy_nonoverlapping(part.start.as_ptr(), target.as_mut_ptr(), part.len) };
        }
        // After the copy: the memory may be lost by reading it.
        if self.owner.is_lost() { Err(CopyError::Lost) } else { Ok(copy.freeze()) }
    }

    /// The pieces of `from..to`, each with its distance from `from`.
    fn ranges(&self, from: usize, to: usize) -> impl Iterator<Item = (usize, ForeignPart)> {
        assert!(from <= to && to <= self.len, "range {from}..{to} of {} bytes", self.len);
        let starts = self.parts.iter().scan(0, |at, part| {
            let start = *at;
            *at += part.len;
            Some((start, part))
        });
        starts.filter_map(move |(start, part)| {
            let (first, last) = (from.max(start), to.min(start + part.len));
            (first < last).then(|| (first - from, part.part(first - start, last - first)))
        })
    }
}

impl fmt::Debug for ForeignBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignBytes({} bytes in {} parts)", self.len, self.parts.len())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::UnsafeCell;

    use super::*;

    struct Guest(UnsafeCell<[u8; 16]>);

    // SAFETY: the tests use one thread.
    unsafe impl Sync for Guest {}

    /// Bytes 4..8 and 10..13 of the guest's sixteen.
    fn two_parts() -> (Arc<Guest>, ForeignBytes) {
        let guest = Arc::new(Guest(UnsafeCell::new(*b"0123456789abcdef")));
        let start = NonNull::new(guest.0.get().cast::<u8>()).unwrap();
        let at = |offset: usize| NonNull::new(start.as_ptr().wrapping_add(offset)).unwrap();
        // SAFETY: the ranges lie inside the sixteen bytes, which the owner keeps, and nothing refers to them meanwhile.
        let bytes = unsafe { ForeignBytes::new([(at(4), 4), (at(0), 0), (at(10), 3)], guest.clone()) };
        (guest, bytes)
    }

    fn content(guest: &Guest) -> [u8; 16] {
        // SAFETY: one thread; the copy is made here and now.
        unsafe { *guest.0.get() }
    }

    #[test]
    fn slices_name_the_same_bytes_across_parts() {
        let (_guest, bytes) = two_parts();
        assert_eq!((bytes.len(), bytes.parts().len()), (7, 2));
        for from in 0..=7 {
            for to in from..=7 {
                let slice = bytes.slice(from, to);
                assert_eq!(&slice.to_bytes().unwrap()[..], &b"4567abc"[from..to]);
            }
        }
    }

    #[test]
    fn what_is_copied_or_zeroed_lands_in_its_parts_and_nowhere_else() {
        let (guest, bytes) = two_parts();
        bytes.copy_from(2, b"XYZ");
        assert_eq!(&content(&guest), b"012345XY89Zbcdef");
        bytes.fill_with_zeroes(3, 6);
        assert_eq!(&content(&guest), b"012345X\089\0\0cdef");
    }

    /// A guest's memory file was cut, or its memory failed: the copy had zeroes, which went to the disk as if the guest had written them.
    #[test]
    fn lost_memory_is_never_copied_as_if_it_had_been_written() {
        use std::sync::atomic::{AtomicBool, Ordering};

        struct Losing(Guest, AtomicBool);

        impl MayLose for Losing {
            fn is_lost(&self) -> bool {
                self.1.load(Ordering::Relaxed)
            }
        }

        let owner = Arc::new(Losing(Guest(UnsafeCell::new([7; 16])), AtomicBool::new(false)));
        let start = NonNull::new(owner.0.0.get().cast::<u8>()).unwrap();
        // SAFETY: the sixteen bytes are the owner's, and nothing refers to them meanwhile.
        let bytes = unsafe { ForeignBytes::new_that_may_be_lost([(start, 16)], owner.clone()) };
        assert_eq!(bytes.to_bytes().unwrap()[..], [7; 16]);
        let (part, joined) = (bytes.slice(2, 4), ForeignBytes::zeroed(4).join(bytes.slice(0, 1)));
        owner.1.store(true, Ordering::Relaxed);
        for lost in [bytes, part, joined] {
            assert_eq!(lost.to_bytes().unwrap_err(), CopyError::Lost);
        }
        assert!(ForeignBytes::zeroed(4).to_bytes().is_ok());
    }

    #[test]
    fn the_memory_stays_as_long_as_a_slice_of_it_is_in_use() {
        let (guest, bytes) = two_parts();
        let slice = bytes.slice(1, 3);
        drop(bytes);
        assert_eq!(Arc::strong_count(&guest), 2);
        drop(slice);
        assert_eq!(Arc::strong_count(&guest), 1);
    }
}
