//! A disk whose bitmaps an image keeps that has nothing else ([`Qcow2::note_change`]).
//!
//! The request that changes that disk tells the image first ([`Qcow2::note_change`]): then the bitmaps follow the rules of an image's own. What the image cannot
//! see is a change that was not reported to it. So something by which the disk's state is known is kept in a header extension
//! ([`Qcow2::set_extension`]); if it is otherwise when the image is opened, the bitmaps are given up ([`Qcow2::distrust_bitmaps`]).

use std::ops::Range;
use std::sync::Arc;

use block::{Blame, Block, BlockFuture, Error, ReadKind, Stored, Takes, ZeroOptions};
use storage::{ForeignBytes, Hints, IoVec, Storage};

use crate::bitmap::BitmapChange;
use crate::gate::Pass;
use crate::{Qcow2, ResizeOptions};

/// The type of the header extension that says how the disk was when it was closed: "cows". QEMU keeps extensions that it does not know.
const STAMP: u32 = 0x636f_7773;

/// A block whose bitmaps are kept in an image beside it. To everything else it is the block.
///
/// The bitmaps follow the rules of a qcow2 image's own: what changes is noted before it changes, and a crash leaves them true. Only a change by a program that does
/// not use the image is not seen. So the image says when the disk's file was changed last before it was closed: bitmaps of a file
/// that was changed since are inconsistent. A device does not tell that, and neither does a file after a crash.
#[derive(Debug)]
pub struct WithBitmaps {
    block: Arc<dyn Block>,
    /// The file that the block is made of.
    file: Arc<dyn Storage>,
    bitmaps: Qcow2,
}

impl WithBitmaps {
    /// `block`, which is made of `file`, and its bitmaps in `bitmaps`, which was just opened: for writing if the block is written. Then it is made to fit
    /// the block.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] when `bitmaps` holds a disk itself, or is read and of another size; whatever its storage says.
    ///
    /// # Crash
    /// While it is made to fit: its old size or the new one, and bitmaps that have what was added as changed, or none of it yet.
    pub fn new(
        block: Arc<dyn Block>,
        file: Arc<dyn Storage>,
        bitmaps: Qcow2,
    ) -> BlockFuture<'static, Result<Self, Error>> {
        Box::pin(async move {
            let blame = Blame::new(bitmaps.file().name());
            if bitmaps.has_content().await? {
                return Err(blame.invalid(
                "it is to keep the bitmaps of another disk, and holds a disk itself; name another file, or one that is not there",
            ));
            }
            let known = stamp(&*file)?;
            if !bitmaps.recovered_bitmaps() && bitmaps.extension(STAMP).await.as_deref() != Some(&known[..]) {
                distrust(&bitmaps, file.name()).await?;
            }
            let size = block.size();
            let with = Self { block, file, bitmaps };
            with.fit(size).await?;
            Ok(with)
        })
    }

    /// The block.
    pub fn block(&self) -> &Arc<dyn Block> {
        &self.block
    }

    /// What keeps its bitmaps.
    pub fn bitmaps(&self) -> &Qcow2 {
        &self.bitmaps
    }

    /// Makes the bitmaps those of a disk of `size` bytes: they have what was added as changed. Those that are inconsistent cannot be made to fit.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] when they are only read; whatever their storage says.
    ///
    /// # Crash
    /// Their old size or the new one. What is added may not be noted yet: the next [`WithBitmaps::new`] of a disk of another size notes it.
    pub fn fit(&self, size: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let old = self.bitmaps.size();
            if old == size {
                return Ok(());
            }
            let name = self.bitmaps.file().name();
            if self.bitmaps.capabilities().read_only {
                return Err(Blame::new(name).invalid(format!(
                "it keeps the bitmaps of a disk of {old} bytes, and this one has {size}; they are made to fit when the disk is opened for writing"
            )));
            }
            for bitmap in self.bitmaps.inconsistent_bitmaps() {
                let bitmap = &bitmap.name;
                tracing::warn!(
                    "{name}: bitmap {bitmap:?} is removed: it is inconsistent, and of a disk of another size"
                );
                self.bitmaps.change_bitmap(bitmap, BitmapChange::Remove).await?;
            }
            let options = ResizeOptions { shrink: true, bitmaps: true, ..ResizeOptions::default() };
            self.bitmaps.resize(size, options).await?;
            if size > old {
                drop(self.bitmaps.note_change(old..size).await?);
            }
            Ok(())
        })
    }

    /// Notes a change, if it lies inside the block; otherwise the block says what is wrong with it.
    async fn note(&self, (offset, len): (u64, u64)) -> Result<Option<NotedChange<'_>>, Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.block.size() && len > 0 => {
                self.bitmaps.note_change(offset..end).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The bitmaps are closed also after the block could not be: they have what was to be written to it.
    async fn close_both(&self) -> Result<(), Error> {
        let mut closed = self.block.close().await;
        if !self.bitmaps.capabilities().read_only {
            // Before the file is looked at: it ends where it ends from here on.
            let ended = self.file.end_writing().await;
            closed =
                closed.and(ended.map_err(Blame::new(self.file.name()).io("cutting off what was reserved")));
            let stamped = match stamp(&*self.file) {
                Ok(stamp) => self.bitmaps.set_extension(STAMP, stamp).await,
                Err(error) => Err(error),
            };
            closed = closed.and(stamped);
        }
        closed.and(self.bitmaps.close().await)
    }
}

/// Gives up bitmaps that miss changes of the disk in `file`.
async fn distrust(image: &Qcow2, file: &str) -> Result<(), Error> {
    let names = image.distrust_bitmaps().await?;
    if !names.is_empty() {
        tracing::warn!(
            "{file} was changed by a program that did not name {} (option bitmaps): these bitmaps are inconsistent, and the next backup must be a full \
             one: {}",
            image.file().name(),
            names.join(", ")
        );
    }
    Ok(())
}

/// By what the state of a disk in `file` is known: when it was changed last, where the system says so.
fn stamp(file: &dyn Storage) -> Result<Vec<u8>, Error> {
    let changed_at = file.changed_at().map_err(Blame::new(file.name()).io("asking when it was changed"))?;
    Ok(match changed_at {
        Some((seconds, nanos)) => format!("cowhand bitmaps 1\nchanged {seconds}.{nanos:09}\n").into_bytes(),
        None => b"cowhand bitmaps 1\n".to_vec(),
    })
}

impl Block for WithBitmaps {
    fn driver(&self) -> &'static str {
        self.block.driver()
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.block)
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        self.block.below()
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> Option<ReadKind> {
        self.block.try_read_into(offset, memory, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note((offset, data.len() as u64)).await?;
            self.block.write(offset, data, hints).await
        })
    }

    fn write_compressed(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note((offset, data.len() as u64)).await?;
            self.block.write_compressed(offset, data, hints).await
        })
    }

    fn read_into(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<ReadKind, Error>> {
        self.block.read_into(offset, memory, hints)
    }

    fn write_from(
        &self,
        offset: u64,
        memory: ForeignBytes,
        hints: Hints,
    ) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note((offset, memory.len() as u64)).await?;
            self.block.write_from(offset, memory, hints).await
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note((offset, len)).await?;
            self.block.zero(offset, len, options).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note((offset, len)).await?;
            self.block.discard(offset, len).await
        })
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        self.block.stored(offset, len, wanted)
    }

    fn takes(&self) -> Option<Takes> {
        self.block.takes()
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note((offset, stored.disk_bytes())).await?;
            self.block.take(offset, stored).await
        })
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.close_both())
    }
}

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
