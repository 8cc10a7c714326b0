//! Durability.

use super::Shared;
use crate::IoFuture;

impl Shared {
    /// One at a time: the kernel reports a failed writeback to one `fdatasync` of an open file only.
    pub(super) fn flush(&self) -> IoFuture<'_, std::io::Result<()>> {
        Box::pin(async move {
            if self.read_only || self.no_flush {
                return self.flushes.check();
            }
            let sync = |end: crate::SyncEnd| self.file.start_sync_data(move |result| end.tell(result));
            self.flushes.flush(sync).await
        })
    }
}
