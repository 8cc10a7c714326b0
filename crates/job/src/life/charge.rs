//! Waits of a job for its limit.

use std::pin::pin;

use futures_util::future::{Either, select};

use super::Life;
use crate::error::Error;

impl Life {
    /// Waits until `bytes` may be copied, under the limit of the moment.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when the job is given up.
    pub async fn charge(&self, bytes: u64) -> Result<(), Error> {
        loop {
            let changed = self.changed.listen();
            if self.is_given_up() {
                return Err(Error::Cancelled);
            }
            match select(pin!(self.rate.take(bytes)), changed).await {
                Either::Left(_) => return Ok(()),
                // Another limit, perhaps.
                Either::Right(_) => {}
            }
        }
    }

    /// As [`Life::charge`]; `false` if the job is to rest first.
    ///
    /// # Errors
    /// As [`Life::charge`].
    pub async fn charge_unless_paused(&self, bytes: u64) -> Result<bool, Error> {
        let mut charge = pin!(self.charge(bytes));
        loop {
            if self.is_paused() {
                return Ok(false);
            }
            match select(&mut charge, self.changed.listen()).await {
                Either::Left((charged, _)) => return charged.map(|()| true),
                Either::Right(_) => {}
            }
        }
    }

    /// Charges `bytes` that were copied, and waits until the next may be.
    ///
    /// # Errors
    /// As [`Life::charge`].
    pub async fn charge_copied(&self, bytes: u64) -> Result<(), Error> {
        self.charge(bytes).await?;
        // Nothing more passes before what was charged has.
        self.charge(0).await
    }
}
