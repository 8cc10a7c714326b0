//! Why a call failed: an error number and words, which the calling thread keeps.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    text: String,
}

impl Failure {
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    /// The number as calls and completions return it.
    pub(crate) fn negative_errno(&self) -> c_int {
        -self.errno
    }

    pub(crate) fn into_text(self) -> CString {
        c_text(self.text)
    }
}

impl From<cowhand::Error> for Failure {
    fn from(error: cowhand::Error) -> Self {
        let errno = error.errno();
        Self::new(if errno > 0 { errno } else { libc::EIO }, error.to_string())
    }
}

/// `text` for C, which ends at the first zero byte: zero bytes become question marks.
pub(crate) fn c_text(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'?');
    CString::new(bytes).unwrap_or_default()
}

thread_local! {
    /// The words of the last failure of this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Does the work of a call. Its failure is the thread's last one from then on; a panic is one, too.
pub(crate) fn call(work: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(number)) => return number,
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(libc::EIO, format!("a fault of the library: {}", words_of(&*panic))),
    };
    let errno = failure.negative_errno();
    // A thread that is ending has no place for it any more.
    let _ = LAST.try_with(|last| last.replace(failure.into_text()));
    errno
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without words")
}

/// The version of the library, "0.1.0". It never changes while the program runs.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The words for the last call that failed on this thread; empty if none has. They are valid until the next call
/// on this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn cowhand_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
