//! Changing the size of the disk.
//!
//! The size, and where the L1 table is, change in one write of one sector of the header. Before it, what is
//! to come into sight is made to read as zeroes; after it, what went out of sight is freed.

mod cut;
mod grow;
mod preallocate;

use std::sync::Arc;

use block::{BlockFuture, SECTOR_BYTES};
use qcow2_layout::{L1_BYTES_MAX, Version};

use crate::image::{Inner, Qcow2};
use crate::{Error, Preallocation};

/// How the size of a disk is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResizeOptions {
    /// A smaller size is meant: what lies beyond is lost.
    pub shrink: bool,
    /// What of the new part is allocated at once.
    pub preallocation: Preallocation,
    /// Persistent bitmaps are made to fit: no request that was given one reads it any more. An image with bitmaps is refused otherwise.
    pub bitmaps: bool,
}

impl ResizeOptions {
    /// Refuses, in words, a change from `old` to `size` bytes that they do not allow: of disks of any format.
    ///
    /// # Errors
    /// When the disk would become smaller, and that is not meant or something is to be preallocated.
    pub fn check_change(&self, old: u64, size: u64) -> Result<(), String> {
        if size < old && !self.shrink {
            return Err(format!(
                "the new size ({size}) is below the old one ({old}): what lies beyond would be lost, so shrinking must be asked for"
            ));
        }
        if size < old && self.preallocation != Preallocation::Off {
            return Err(format!(
                "preallocation={} while shrinking; nothing is added that could be preallocated",
                self.preallocation.name()
            ));
        }
        Ok(())
    }
}

impl Qcow2 {
    /// Changes the size of the disk to `size` bytes, a multiple of 512, while it is in use. What is added
    /// reads as zeroes; what is cut off is gone. Durable when it returns.
    ///
    /// Requests are held back only while an L1 table is moved, and while the end is cut off. Costs a
    /// write of the header, and work in proportion to what is preallocated, cut off, or must be hidden of
    /// a backing file that is longer than the disk was.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] for a size that is none or does not fit the options,
    /// [`crate::ErrorKind::Unsupported`] for version 2 with snapshots, and for persistent bitmaps
    /// unless they may be made to fit and are consistent. A failure of the storage leaves the old size, or after cutting off the new one with space still in use: shrinking to
    /// the same size again gives that back.
    ///
    /// # Crash
    /// The old size or the new one; leaks. docs/internals/write-order.md, `grow` and `shrink`.
    pub fn resize(&self, size: u64, options: ResizeOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.resize(size, options).await;
            self.inner.reporting(result).await
        })
    }
}

impl Inner {
    /// See [`crate::Qcow2::resize`].
    pub(crate) async fn resize(self: &Arc<Self>, size: u64, options: ResizeOptions) -> Result<(), Error> {
        self.check_writable()?;
        let bitmaps = options.bitmaps && self.has_bitmaps();
        let options = ResizeOptions { bitmaps, ..options };
        // With bitmaps that stay true what the disk has must not change: it does not, up to the smaller of its sizes.
        if !bitmaps {
            self.prepare_header_for_first_change().await?;
        }
        self.managed(async move |image| {
            let old = image.size();
            image.check_new_size(old, size, options).await?;
            if bitmaps {
                image.header.prepare_for_metadata(&image.medium).await?;
            }
            match size.cmp(&old) {
                std::cmp::Ordering::Greater => image.grow(old, size, options).await,
                std::cmp::Ordering::Less => image.shrink(old, size, options).await,
                // An earlier attempt may have got no further than the new size.
                std::cmp::Ordering::Equal if options.shrink => image.give_back_behind_end(size).await,
                std::cmp::Ordering::Equal => Ok(()),
            }
        })
        .await
    }

    async fn check_new_size(&self, old: u64, size: u64, options: ResizeOptions) -> Result<(), Error> {
        if !size.is_multiple_of(SECTOR_BYTES) {
            return Err(self
                .medium
                .blame
                .invalid(format!("the new size is {size}; must be a multiple of {SECTOR_BYTES}")));
        }
        self.check_covered(size)?;
        options.check_change(old, size).map_err(|why| self.medium.blame.invalid(why))?;
        match options.bitmaps {
            true => {
                self.check_snapshots_know_their_size().await?;
                self.check_bitmaps_can_fit(size)
            }
            false => self.check_size_may_change().await,
        }
    }

    async fn check_snapshots_know_their_size(&self) -> Result<(), Error> {
        let header = self.header.lock().await;
        if header.version == Version::V2 && header.snapshots > 0 {
            return Err(self.medium.blame.unsupported(
                "the size of a version 2 image (compat=0.10) with snapshots cannot change: its snapshots may not say how large the disk was",
            ));
        }
        Ok(())
    }

    /// What no size can be changed with: snapshots that do not remember theirs, and bitmaps that others may read.
    pub(crate) async fn check_size_may_change(&self) -> Result<(), Error> {
        self.check_snapshots_know_their_size().await?;
        if self.has_bitmaps() {
            return Err(self
                .medium
                .blame
                .unsupported("the disk has bitmaps, which would no longer fit it; remove them first"));
        }
        Ok(())
    }

    /// Whether an L1 table may be large enough for a disk of `size` bytes.
    pub(crate) fn check_covered(&self, size: u64) -> Result<(), Error> {
        let entries = self.medium.geometry.l1_entries_for(size);
        let max = L1_BYTES_MAX / 8;
        if entries > max || i64::try_from(size).is_err() {
            return Err(self.medium.blame.invalid(format!(
                "a disk of {size} bytes needs an L1 table of {entries} entries; at most {max} are allowed"
            )));
        }
        Ok(())
    }

    /// The header says that the disk has `size` bytes, and then so do we.
    async fn set_size(&self, size: u64) -> Result<(), Error> {
        self.header.switch_header(&self.medium, |header| header.size = size).await?;
        self.size.store(size, sync::atomic::Ordering::Relaxed);
        Ok(())
    }
}
