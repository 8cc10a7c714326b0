//! Durability, and the memory of its failure.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use super::Shared;

/// Whether a flush has ever failed: the kernel then may have dropped dirty pages, and says so only
/// once. A later success would be a lie.
#[derive(Debug, Default)]
pub(super) struct FlushState {
    /// The error of the first failed flush, or 0.
    errno: AtomicI32,
}

impl FlushState {
    fn check(&self) -> io::Result<()> {
        match self.errno.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => {
                let first = io::Error::from_raw_os_error(errno);
                let message = format!(
                    "an earlier flush failed ({first}); what was written since the last good one may be lost"
                );
                Err(io::Error::new(first.kind(), message))
            }
        }
    }

    fn note(&self, error: &io::Error) {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        let _ = self.errno.compare_exchange(0, errno, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl Shared {
    pub(super) async fn flush(&self) -> io::Result<()> {
        self.flush.check()?;
        if self.read_only || self.no_flush {
            return Ok(());
        }
        loop {
            match self.file.sync_data().await {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.flush.note(&error);
                    return Err(error);
                }
            }
        }
        // One that failed meanwhile may have taken the report of an error that concerns us too.
        self.flush.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_one_failure_every_flush_fails_and_names_the_first_reason() {
        let state = FlushState::default();
        assert!(state.check().is_ok());
        state.note(&io::Error::from_raw_os_error(libc::ENOSPC));
        state.note(&io::Error::from_raw_os_error(libc::EIO));
        for _ in 0..2 {
            assert_eq!(state.check().unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
    }
}
