//! A job's last states: it waits for its transaction and its users, concludes, and is forgotten.

use super::Life;
use crate::error::Error;
use crate::state::Status;
use crate::terms::End;

impl Life {
    /// The work is done: waits for its transaction, and until the last step is asked for.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when it is cancelled meanwhile.
    pub async fn settle(&self, transaction: impl Future<Output = bool>) -> Result<(), Error> {
        self.enter(Status::Waiting);
        if !transaction.await {
            return Err(Error::Cancelled);
        }
        self.enter(Status::Pending);
        loop {
            let changed = self.changed.listen();
            if self.end.get() == Some(End::Force) {
                return Err(Error::Cancelled);
            }
            if !self.terms.waits_for_finalize || self.finalized.get() {
                return Ok(());
            }
            changed.await;
        }
    }

    /// It has ended, and cleaned up.
    pub fn conclude(&self, error: Option<String>) {
        *self.error.borrow_mut() = error;
        self.enter(Status::Concluded);
    }

    /// Waits until it may be forgotten.
    pub async fn dismissed(&self) {
        loop {
            let changed = self.changed.listen();
            if !self.terms.waits_for_dismiss || self.dismissed.get() {
                return self.enter(Status::Null);
            }
            changed.await;
        }
    }
}
