//! Durability.

use super::Shared;
use super::kind::Kind;
use crate::IoFuture;

impl Shared {
    /// One at a time: the kernel reports a failed writeback to one `fdatasync` of an open file only.
    pub(super) fn flush(&self) -> IoFuture<'_, std::io::Result<()>> {
        Box::pin(async move {
            if self.read_only || self.no_flush {
                return self.flushes.check();
            }
            let is_character_device = self.kind == Kind::CharacterDevice;
            let sync = |end: crate::SyncEnd| {
                self.file.start_sync_data(move |result| match result {
                    // One that keeps nothing (/dev/null) has nothing to synchronize: fdatasync(2).
                    Err(error) if is_character_device && error.raw_os_error() == Some(libc::EINVAL) => {
                        end.tell(Ok(()));
                    }
                    result => end.tell(result),
                })
            };
            self.flushes.flush(sync).await
        })
    }
}
