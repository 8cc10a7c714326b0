//! Copying from another file without bringing the bytes to this program.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Shared;
use super::calls::{check_range, is_transient};
use super::copy_queue::Copy;
use super::kind::Kind;
use crate::Answer;

/// Bytes of one call: a copy that no task awaits any more ends soon.
const CALL_BYTES_MAX: u64 = 4 << 20;

impl Shared {
    /// Whether the kernel may copy into this file, as far as it was tried.
    pub(super) fn copies(&self) -> bool {
        let refused = self.tried.copies_between.get() == Some(Answer::No);
        self.kind == Kind::Regular && self.direct.is_none() && !self.read_only && !refused
    }

    pub(super) async fn copy_from(
        self: &Arc<Self>,
        offset: u64,
        source: Arc<OwnedFd>,
        from: u64,
        len: u64,
    ) -> io::Result<()> {
        let end = self.check_write(offset, len)?;
        check_range(from, len)?;
        if !self.copies() {
            return Err(self.does_not_copy());
        }
        let mut done = 0;
        while done < len {
            // At most CALL_BYTES_MAX, which fits any pointer width.
            let step = (len - done).min(CALL_BYTES_MAX) as usize;
            let copy = Copy { source: Arc::clone(&source), from: from + done, to: offset + done, len: step };
            match self.copy_queued(copy).await {
                // The other file ends here: zeroes are not the kernel's to copy.
                Ok(0) => return Err(self.does_not_copy()),
                Ok(count) => done += count as u64,
                Err(error) if is_transient(&error) => {}
                Err(error) if is_refusal(&error) => {
                    self.tried.copies_between.note(false);
                    return Err(self.does_not_copy());
                }
                Err(error) => return Err(error),
            }
        }
        self.grown_to(end);
        Ok(())
    }

    fn does_not_copy(&self) -> io::Error {
        io::Error::new(io::ErrorKind::Unsupported, format!("the kernel does not copy into {}", self.name))
    }
}

/// Not between these two files, or not on this kernel.
fn is_refusal(error: &io::Error) -> bool {
    use libc::{EBADF, EINVAL, ENOSYS, EOPNOTSUPP, EPERM, ETXTBSY, EXDEV};
    matches!(error.raw_os_error(), Some(EBADF | EINVAL | ENOSYS | EOPNOTSUPP | EPERM | ETXTBSY | EXDEV))
}
