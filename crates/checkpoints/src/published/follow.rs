//! Who follows an upload.

use std::ops::ControlFlow;

use job::Life;

/// Slows an upload down, sees how far it is, and ends it.
#[expect(async_fn_in_trait, reason = "uploads run on one loop: their futures need not be Send")]
pub trait Follow {
    /// Waits until so many bytes more of the disk may be read. `Break` ends the upload.
    async fn take(&self, bytes: u64) -> ControlFlow<()>;

    /// How many bytes of the disk are done with; asked ten times a second. `Break` ends the upload.
    fn look(&self, done_bytes: u64, total_bytes: u64) -> ControlFlow<()>;

    /// Completes when the upload is to end at once: a store that does not answer is not waited for.
    async fn forced(&self);

    /// What the user should know of an upload that continues.
    fn warn(&self, what: &str) {
        tracing::warn!("{what}");
    }
}

/// Cancelled it ends before the next read; it rests while it is paused.
impl Follow for Life {
    async fn take(&self, bytes: u64) -> ControlFlow<()> {
        loop {
            if self.pause_point().await.is_err() {
                return ControlFlow::Break(());
            }
            match self.charge_unless_paused(bytes).await {
                Ok(true) => return ControlFlow::Continue(()),
                Ok(false) => {}
                Err(_) => return ControlFlow::Break(()),
            }
        }
    }

    fn look(&self, done_bytes: u64, total_bytes: u64) -> ControlFlow<()> {
        self.set_progress(done_bytes, total_bytes);
        ControlFlow::Continue(())
    }

    async fn forced(&self) {
        Self::forced(self).await;
    }
}
