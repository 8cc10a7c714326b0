//! The length of a file: one owner, one way to make it longer, one to cut it.
//!
//! [`Shared::length`] is taken when the file is measured, under its lock; then only this file changes it, as our own
//! requests do; that of a device is asked for again when it is to be longer. A lock keeps it true: no other process may change the length meanwhile.
//!
//! What remains against a process that ignores locks: growing cannot take anything from it where the file system
//! knows `fallocate`; where it does not, the length is compared and then set, and what that process adds between the
//! two calls is cut off. [`Shared::shorten_to`] cuts off whatever it has put behind.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use super::calls::check_range;
use super::kind::{Kind, length_of};
use crate::range_lock::RangeMode;

impl Shared {
    pub(super) fn length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    /// A request of ours has ended that reaches up to `end`.
    pub(super) fn grown_to(&self, end: u64) {
        self.length.fetch_max(end, Ordering::AcqRel);
    }

    /// The length that the file itself has.
    pub(super) fn real_length(&self) -> io::Result<u64> {
        Ok(length_of(self.file.fd(), self.kind)?)
    }

    pub(super) async fn grow_to(&self, length: u64) -> io::Result<()> {
        self.check_new_length(length)?;
        if length <= self.length() {
            return Ok(());
        }
        if self.kind != Kind::Regular {
            return self.measure_device(length);
        }
        // A read-modify-write of the last block makes the file longer for a moment and cuts it again.
        let _held = self.hold(length - 1, u64::MAX).await;
        if !self.extend(length).await? {
            self.extend_by_comparing(length).await?;
        }
        self.grown_to(length);
        Ok(())
    }

    /// A device becomes longer by others' doing: a logical volume that was extended.
    fn measure_device(&self, wanted: u64) -> io::Result<()> {
        // One that has become shorter answers with errors where it ended, and not with zeroes.
        self.grown_to(self.real_length()?);
        if wanted <= self.length() { Ok(()) } else { Err(self.fixed_length(wanted)) }
    }

    pub(super) async fn shorten_to(&self, length: u64) -> io::Result<()> {
        self.check_new_length(length)?;
        if length >= self.length() {
            return Ok(());
        }
        if self.kind != Kind::Regular {
            return Err(self.fixed_length(length));
        }
        let _held = match self.direct {
            Some(_) => Some(self.ranges.acquire(0, u64::MAX, RangeMode::Exclusive).await),
            None => None,
        };
        self.truncate(length).await?;
        self.length.store(length, Ordering::Release);
        Ok(())
    }

    /// Takes back what a write of whole blocks put behind `length`, up to `stop`: unless the file has become longer
    /// meanwhile, by another process's doing.
    pub(super) async fn cut_block(&self, length: u64, stop: u64) -> io::Result<()> {
        match self.real_length()? == stop {
            true => self.truncate(length).await,
            false => Ok(()),
        }
    }

    /// Reserves the last byte, which makes the file that long and never shorter. False if the file system does not
    /// know that, or has no block for it: a hole needs none.
    async fn extend(&self, length: u64) -> io::Result<bool> {
        match self.fallocate(0, length - 1, 1).await {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
            {
                Ok(false)
            }
            result => result,
        }
    }

    async fn extend_by_comparing(&self, length: u64) -> io::Result<()> {
        match self.real_length()? < length {
            true => self.truncate(length).await,
            false => Ok(()),
        }
    }

    /// Sets the length of the file itself, whatever it is.
    async fn truncate(&self, length: u64) -> io::Result<()> {
        let fd = Arc::clone(self.file.fd());
        reactor::blocking(move || {
            loop {
                match rustix::fs::ftruncate(&fd, length) {
                    Err(rustix::io::Errno::INTR) => {}
                    result => return Ok(result?),
                }
            }
        })
        .await
    }

    fn check_new_length(&self, length: u64) -> io::Result<()> {
        self.check_writable()?;
        check_range(length, 0).map(drop)
    }

    fn fixed_length(&self, length: u64) -> io::Error {
        let message = format!(
            "{} is a {} of {} bytes, which cannot become {length}",
            self.name,
            self.kind,
            self.length()
        );
        io::Error::new(io::ErrorKind::Unsupported, message)
    }
}
