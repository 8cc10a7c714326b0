//! Bytes to be filled: one owner at a time, splittable without copying.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::IoBytes;
use crate::allocation::Allocation;

/// Exclusive owner of a range of an aligned allocation.
///
/// Invariant: no other view of the allocation overlaps `[start, start + len)`. New allocations have
/// one view; [`IoBuf::split_off`] makes two disjoint ones; [`IoBuf::freeze`] ends the exclusive one, and
/// [`IoBytes::thaw`] makes one again of the last view.
pub struct IoBuf {
    allocation: Arc<Allocation>,
    start: usize,
    len: usize,
}

impl IoBuf {
    /// `len` bytes, aligned to [`crate::ALIGNMENT`], holding anything that this process had in
    /// earlier buffers: fill them before showing them to a client.
    pub fn uninit(len: usize) -> Self {
        Self { allocation: Arc::new(Allocation::take(len)), start: 0, len }
    }

    /// As [`IoBuf::uninit`]; `None` if there is no memory. For lengths that foreign bytes decide.
    pub fn try_uninit(len: usize) -> Option<Self> {
        Some(Self { allocation: Arc::new(Allocation::try_take(len)?), start: 0, len })
    }

    /// As [`IoBuf::try_uninit`], for a caller that gives an I/O error back.
    ///
    /// # Errors
    /// [`std::io::ErrorKind::OutOfMemory`].
    pub fn for_request(len: usize) -> std::io::Result<Self> {
        Self::try_uninit(len).ok_or_else(|| std::io::ErrorKind::OutOfMemory.into())
    }

    /// `len` zero bytes, aligned to [`crate::ALIGNMENT`].
    pub fn zeroed(len: usize) -> Self {
        if len <= 64 << 10 {
            let mut buf = Self::uninit(len);
            buf.fill(0);
            return buf;
        }
        Self { allocation: Arc::new(Allocation::zeroed(len)), start: 0, len }
    }

    /// A copy of `bytes`.
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buf = Self::uninit(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// The bytes of the last view there is of `allocation`.
    pub(crate) fn of_last_view(allocation: Arc<Allocation>, start: usize, len: usize) -> Self {
        debug_assert_eq!((Arc::strong_count(&allocation), Arc::weak_count(&allocation)), (1, 0));
        Self { allocation, start, len }
    }

    /// Splits at `at`: `self` keeps `[0, at)`, the result has the rest. No copy.
    ///
    /// # Panics
    /// If `at` is beyond the length.
    pub fn split_off(&mut self, at: usize) -> IoBuf {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        let rest =
            IoBuf { allocation: Arc::clone(&self.allocation), start: self.start + at, len: self.len - at };
        self.len = at;
        rest
    }

    /// Splits at `at`: `self` keeps the rest, the result has `[0, at)`. No copy.
    ///
    /// # Panics
    /// If `at` is beyond the length.
    pub fn split_to(&mut self, at: usize) -> IoBuf {
        let rest = self.split_off(at);
        std::mem::replace(self, rest)
    }

    /// Joins `next` to the end of `self`, undoing a split.
    ///
    /// # Panics
    /// If `next` does not directly follow `self` in the same allocation.
    pub fn unsplit(&mut self, next: IoBuf) {
        assert!(self.is_followed_by(&next), "joining views that are not neighbours");
        self.len += next.len;
    }

    /// Joins `next`, which comes back from an operation, to the end of `self`. Where it does not directly follow `self`
    /// both are copied: when the kernel keeps the bytes of an operation for itself, the event loop gives others back.
    pub fn rejoin(&mut self, next: IoBuf) {
        if self.is_followed_by(&next) {
            return self.unsplit(next);
        }
        let mut joined = Self::uninit(self.len + next.len);
        joined.truncate(self.len + next.len);
        joined[..self.len].copy_from_slice(self);
        joined[self.len..].copy_from_slice(&next);
        *self = joined;
    }

    fn is_followed_by(&self, next: &IoBuf) -> bool {
        Arc::ptr_eq(&self.allocation, &next.allocation) && self.start + self.len == next.start
    }

    /// Drops all bytes after the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Ends the writing: the same bytes, shared and immutable. No copy.
    pub fn freeze(self) -> IoBytes {
        IoBytes::new(self.allocation, self.start, self.len)
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        debug_assert!(self.start + self.len <= self.allocation.len());
        let first = self.allocation.start().as_ptr().wrapping_add(self.start);
        // SAFETY: the range lies inside the allocation, whose bytes are initialised, and by the
        // invariant of the type no other code has a view of it.
        unsafe { std::slice::from_raw_parts(first, self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.start + self.len <= self.allocation.len());
        let first = self.allocation.start().as_ptr().wrapping_add(self.start);
        // SAFETY: as in `deref`; `&mut self` makes the one view exclusive.
        unsafe { std::slice::from_raw_parts_mut(first, self.len) }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_and_unsplit_keep_every_byte_in_place() {
        let mut head = IoBuf::copy_from(b"headtail");
        let mut tail = head.split_off(4);
        assert_eq!((&head[..], &tail[..]), (&b"head"[..], &b"tail"[..]));
        tail[0] = b'T';
        head.unsplit(tail);
        assert_eq!(&head[..], b"headTail");
    }

    #[test]
    #[should_panic(expected = "not neighbours")]
    fn views_of_different_allocations_do_not_join() {
        IoBuf::zeroed(4).unsplit(IoBuf::zeroed(4));
    }

    #[test]
    fn what_comes_back_from_an_operation_joins_though_it_may_be_elsewhere() {
        let mut buf = IoBuf::copy_from(b"abcdef");
        let mut middle = buf.split_off(2);
        let rest = middle.split_off(2);
        drop(middle);
        buf.rejoin(IoBuf::copy_from(b"XY"));
        buf.rejoin(rest);
        assert_eq!(&buf[..], b"abXYef");
        let rest = buf.split_off(3);
        let start = buf.as_ptr();
        buf.rejoin(rest);
        assert_eq!((&buf[..], buf.as_ptr()), (&b"abXYef"[..], start));
    }

    #[test]
    fn frozen_bytes_outlive_the_buffer_they_came_from() {
        let mut buf = IoBuf::copy_from(b"abcdef");
        let rest = buf.split_off(3);
        let bytes = buf.freeze();
        drop(rest);
        assert_eq!(&bytes[..], b"abc");
    }

    #[test]
    fn frozen_bytes_are_filled_again_only_when_nobody_else_sees_them() {
        let bytes = IoBuf::copy_from(b"abcdef").freeze();
        let (start, part) = (bytes.as_ptr(), bytes.slice(1, 2));
        let bytes = bytes.thaw().unwrap_err();
        drop(part);
        let mut buf = bytes.thaw().unwrap();
        buf[0] = b'A';
        assert_eq!((&buf[..], buf.as_ptr()), (&b"Abcdef"[..], start));
    }
}
