//! What calls of the kernel take, and how they end.

use std::io;

use rustix::io::Errno;

/// The end of a range that the kernel's signed offsets can express.
pub(super) fn check_range(offset: u64, len: u64) -> io::Result<u64> {
    let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
    end.ok_or_else(|| {
        let message = format!("{len} bytes at {offset} go beyond {}, the most a file can have", i64::MAX);
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

/// Errors after which the same call is simply made again.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

/// The system took no byte and gave no reason.
pub(super) fn no_progress(offset: u64) -> io::Error {
    io::Error::new(io::ErrorKind::WriteZero, format!("no byte could be written at {offset}"))
}

/// Makes the call again as long as a signal ends it.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
