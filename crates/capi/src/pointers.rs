//! What C callers point to, checked: texts, places for results, buffers.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;
use std::sync::Arc;

use cowhand::ForeignBytes;

use crate::failure::{Failure, c_text};

/// Ranges of one request at most: what the kernel takes in one call.
const IOV_MAX: c_int = 1024;

fn null(what: &str) -> Failure {
    Failure::new(libc::EFAULT, format!("the pointer {what} is null"))
}

/// The bytes of a text of the caller's.
///
/// # Safety
/// `pointer` is null or leads to bytes that end with a zero and that do not change during the call.
pub(crate) unsafe fn bytes<'a>(pointer: *const c_char, what: &str) -> Result<&'a OsStr, Failure> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: it is not null, and the caller keeps the rest.
    let text = unsafe { CStr::from_ptr(pointer) };
    Ok(OsStr::from_bytes(text.to_bytes()))
}

/// A text of the caller's, which must be UTF-8.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller keeps it.
    let text = unsafe { bytes(pointer, what) }?;
    text.to_str().ok_or_else(|| Failure::invalid(format!("{what} is not UTF-8: {text:?}")))
}

/// A text of the caller's, where null means none.
///
/// # Safety
/// As [`bytes`].
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller keeps it.
    unsafe { text(pointer, what) }.map(Some)
}

/// A place for results of a call.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// `pointer` is null or leads to aligned memory for `T`, which is the call's alone until it returns.
    pub(crate) unsafe fn new(pointer: *mut T, what: &str) -> Result<Self, Failure> {
        NonNull::new(pointer).map(Self).ok_or_else(|| null(what))
    }

    pub(crate) fn set(self, value: T) {
        // SAFETY: who made it promised a place that is the call's alone.
        unsafe { self.0.write(value) };
    }
}

impl Out<*mut c_char> {
    /// Gives a text that the caller releases with `cowhand_free`.
    pub(crate) fn set_text(self, text: impl Into<Vec<u8>>) {
        self.set(c_text(text).into_raw());
    }

    /// The same, for a caller who may have no use for it.
    ///
    /// # Safety
    /// `pointer` is null or as for [`Out::new`].
    pub(crate) unsafe fn give_text(pointer: *mut *mut c_char, text: impl Into<Vec<u8>>) {
        if let Some(place) = NonNull::new(pointer) {
            Self(place).set_text(text);
        }
    }
}

/// An array for results of a call.
pub(crate) struct OutArray<T> {
    start: *mut T,
    len: usize,
}

impl<T> OutArray<T> {
    /// # Safety
    /// `start` is null or leads to aligned memory for `len` times `T`, which is the call's alone until it returns.
    pub(crate) unsafe fn new(start: *mut T, len: usize, what: &str) -> Result<Self, Failure> {
        if start.is_null() && len > 0 {
            return Err(null(what));
        }
        Ok(Self { start, len })
    }

    /// Writes as many as there is place for; gives their count.
    pub(crate) fn fill(self, values: impl Iterator<Item = T>) -> c_int {
        let mut count = 0;
        for (index, value) in values.take(self.len).enumerate() {
            // SAFETY: the index is below the length that the maker promised.
            let place = unsafe { self.start.add(index) };
            // SAFETY: who made it promised places that are the call's alone.
            unsafe { place.write(value) };
            count += 1;
        }
        count
    }
}

/// Elements of an array of the caller's.
///
/// # Safety
/// `start` is null or leads to `count` elements, which do not change during the call.
pub(crate) unsafe fn elements<'a, T>(start: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    match count {
        0 => Ok(&[]),
        _ if start.is_null() => Err(null(what)),
        _ if count > isize::MAX as usize / size_of::<T>().max(1) => {
            Err(Failure::invalid(format!("{what} has {count} elements, more than memory holds")))
        }
        // SAFETY: it is not null and not larger than memory, and the caller keeps the rest.
        _ => Ok(unsafe { std::slice::from_raw_parts(start, count) }),
    }
}

/// One range of memory: its first byte and its length, checked.
fn range(start: *mut u8, len: usize) -> Result<(NonNull<u8>, usize), Failure> {
    if len > isize::MAX as usize || start.addr().checked_add(len).is_none() {
        let text = format!("a buffer of {len} bytes at {start:?} is larger than memory");
        return Err(Failure::invalid(text));
    }
    match NonNull::new(start) {
        Some(start) => Ok((start, len)),
        None if len == 0 => Ok((NonNull::dangling(), 0)),
        None => Err(null("to the buffer")),
    }
}

/// The buffer of a request.
///
/// # Safety
/// The `len` bytes at `start` are mapped, and may be read and written by any thread and by the kernel, until the request has ended.
pub(crate) unsafe fn buffer(start: *mut u8, len: usize, owner: &Arc<()>) -> Result<ForeignBytes, Failure> {
    let range = range(start, len)?;
    // SAFETY: the caller keeps the range mapped until the request, which alone has the bytes, has ended.
    Ok(unsafe { ForeignBytes::new([range], owner.clone()) })
}

/// The buffers of a request.
///
/// # Safety
/// `iov` is null or leads to `count` ranges; for each of them as [`buffer`].
pub(crate) unsafe fn buffers(
    iov: *const libc::iovec,
    count: c_int,
    owner: &Arc<()>,
) -> Result<ForeignBytes, Failure> {
    if !(0..=IOV_MAX).contains(&count) {
        return Err(Failure::invalid(format!("a request has {count} buffers; allowed: 0 to {IOV_MAX}")));
    }
    // SAFETY: the caller keeps it.
    let list = unsafe { elements(iov, count as usize, "iov") }?;
    let ranges = list.iter().map(|iovec| range(iovec.iov_base.cast(), iovec.iov_len));
    let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
    let total = ranges.iter().try_fold(0usize, |total, (_, len)| total.checked_add(*len));
    if total.is_none_or(|total| total > isize::MAX as usize) {
        return Err(Failure::invalid("the buffers of a request are together larger than memory"));
    }
    // SAFETY: the caller keeps the ranges mapped until the request, which alone has the bytes, has ended.
    Ok(unsafe { ForeignBytes::new(ranges, owner.clone()) })
}

/// Releases a text that a function has returned through a char **. A null pointer is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cowhand_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller gives back what `set_text` gave out, once.
        drop(unsafe { CString::from_raw(text) });
    }
}
