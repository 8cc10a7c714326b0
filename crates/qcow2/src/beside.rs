//! An image that keeps the bitmaps of a disk whose bytes lie elsewhere, and has none of its own.
//!
//! The request that changes that disk tells the image first ([`Qcow2::note_change`]): then the bitmaps follow the rules of an image's own. What the image cannot
//! see is a change that was not reported to it. So something by which the disk's state is known is kept in a header extension
//! ([`Qcow2::set_extension`]); if it is otherwise when the image is opened, the bitmaps are given up ([`Qcow2::distrust_bitmaps`]).

use std::ops::Range;

use crate::gate::Pass;
use crate::{Error, Qcow2};
use block::BlockFuture;

/// A change of the disk that its bitmaps know of. It may be carried out as long as this is there: until then bitmaps are not stored, cleared
/// or taken away.
#[derive(Debug)]
#[must_use = "the change is to be carried out while this is there"]
pub struct NotedChange<'a> {
    _pass: Pass<'a>,
}

impl Qcow2 {
    /// Notes in all bitmaps that record changes that the bytes in `range` change now. Costs nothing but bits in memory where the file
    /// knows of that part of the disk already, and a write and a flush of the image's file where it does not.
    ///
    /// # Errors
    /// When the range is not inside the disk, or the file cannot be written: then nothing may be changed.
    ///
    /// # Crash
    /// The bitmaps have the range as dirty from here on, whether it was changed or not. docs/internals/write-order.md, `bitmap_record_of_another_region`.
    pub fn note_change(&self, range: Range<u64>) -> BlockFuture<'_, Result<NotedChange<'_>, Error>> {
        Box::pin(async move {
            self.inner.check_writable()?;
            let range = self.inner.check_range(range.start, range.end.saturating_sub(range.start))?;
            let _pass = self.inner.enter_to_change(range).await?;
            Ok(NotedChange { _pass })
        })
    }

    /// Whether the image has anything of a disk: clusters in use, a backing file, snapshots.
    ///
    /// # Errors
    /// When there is no memory to look.
    pub fn has_content(&self) -> BlockFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let header = self.inner.header.lock().await.clone();
            let words = self.inner.map.l1.words();
            let words = words.map_err(|_| self.inner.medium.blame.no_memory("the L1 table"))?;
            let is_used = words.iter().any(|word| *word != 0);
            Ok(is_used
                || header.backing.is_some()
                || header.snapshots > 0
                || header.extensions.data_file.is_some())
        })
    }

    /// Whether bitmaps were in use when the program before this one ended, and were made true again from the record of changes.
    pub fn recovered_bitmaps(&self) -> bool {
        self.inner.tracking.now().recovered
    }

    /// Makes the persistent bitmaps that record changes inconsistent, because the disk was changed and they were not notified; gives their names. For an
    /// image that was just opened. Opened for writing the file says so, durable when this returns.
    ///
    /// # Errors
    /// When the file cannot be written.
    ///
    /// # Crash
    /// The bitmaps as before, or inconsistent.
    pub fn distrust_bitmaps(&self) -> BlockFuture<'_, Result<Vec<String>, Error>> {
        Box::pin(async move { self.inner.distrust_bitmaps().await })
    }

    /// The data of the header extension of the type `kind`, which no part of the format has.
    pub fn extension(&self, kind: u32) -> BlockFuture<'_, Option<Vec<u8>>> {
        Box::pin(async move {
            let header = self.inner.header.lock().await;
            header.extensions.unknown.iter().find(|(found, _)| *found == kind).map(|(_, data)| data.clone())
        })
    }

    /// Puts `data` into the header extension of the type `kind`, which no part of the format has. Other programs keep it. Durable when it returns;
    /// writes nothing if it is there already.
    ///
    /// # Errors
    /// When the header has no room for it, or cannot be written.
    ///
    /// # Crash
    /// What was there, or `data`.
    pub fn set_extension(&self, kind: u32, data: Vec<u8>) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            if self.extension(kind).await.as_ref() == Some(&data) {
                return Ok(());
            }
            self.inner
                .managed(async move |image| {
                    let put = |header: &mut qcow2_layout::Header| {
                        header.extensions.unknown.retain(|(found, _)| *found != kind);
                        header.extensions.unknown.push((kind, data));
                    };
                    image.header.rewrite(&image.medium, put).await
                })
                .await
        })
    }
}
