//! `bitmaps`: the bitmaps of a disk that is no qcow2 image, kept in a file of their own.
//!
//! The file is a qcow2 image of the disk's size that holds nothing but bitmaps. They follow the rules of a qcow2 disk's own: what changes is noted before it
//! changes, and a crash leaves them true. Only a change by a program that does not name the file is seen by nobody. So the file says when
//! the disk was changed last before it was closed; bitmaps of a disk that was changed since are inconsistent. A device does not tell that.

use std::io;
use std::path::Path;
use std::sync::Arc;

use block::{
    Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, Raw, ReadKind, Stored, Takes, ZeroOptions,
};
use qcow2::bitmap::BitmapChange;
use qcow2::{CreateOptions, Files, NotedChange, Options, Qcow2, ResizeOptions};
use storage::{ForeignBytes, Hints, IoBuf, IoVec, Storage};

use crate::background::BackgroundTasks;
use crate::error::{BitmapsFileError, OpenError};
use crate::fd_sets::FdSets;
use crate::file::{OpenFile, Source};
use crate::new_file::make_file;
use crate::options::LayerOptions;

/// The type of the header extension that says how the disk was when it was closed: "cows". QEMU keeps extensions that it does not know.
const STAMP: u32 = 0x636f_7773;

/// A block whose bitmaps are kept in a file beside it. To everything else it is the block.
#[derive(Debug)]
pub(crate) struct WithBitmaps {
    block: Arc<dyn Block>,
    /// The file that the block is made of.
    file: Arc<dyn Storage>,
    bitmaps: Qcow2,
    writable: bool,
}

/// The image whose bitmaps a disk over `top` has.
pub fn bitmaps_of(top: &dyn Block) -> Option<Qcow2> {
    match top.downcast_ref::<WithBitmaps>() {
        Some(with) => Some(with.bitmaps.clone()),
        None => top.downcast_ref::<Qcow2>().cloned(),
    }
}

/// What `block` is made of, if it is raw bytes, also if its bitmaps are kept beside it.
pub fn raw_of(block: &dyn Block) -> Option<&Raw> {
    match block.downcast_ref::<WithBitmaps>() {
        Some(with) => with.block.downcast_ref(),
        None => block.downcast_ref(),
    }
}

/// Opens the file that `options` name for the bitmaps of `block`, if they name one. Where there is none it is made for a block that is written, and
/// left away for one that is read.
pub(crate) async fn open_file(
    options: &LayerOptions,
    block: &dyn Block,
    writable: bool,
    fd_sets: &FdSets,
) -> Result<Option<OpenFile>, OpenError> {
    let find = || Source::by_options(&options.bitmaps, fd_sets, writable);
    let source = match find() {
        Err(OpenError::Find { path, source }) if source.kind() == io::ErrorKind::NotFound => {
            if !writable {
                return Ok(None);
            }
            make(&path, block.size()).await?;
            find()?
        }
        found => found?,
    };
    let Some(source) = source else { return Ok(None) };
    let path = options.bitmaps.shown().unwrap_or_else(|| source.path());
    if block.downcast_ref::<Qcow2>().is_some() {
        return Err(OpenError::Bitmaps { path, source: BitmapsFileError::OwnBitmaps });
    }
    let name = path.display().to_string();
    source.open(&name, &options.bitmaps, options, writable).await.map(Some)
}

async fn make(path: &Path, size: u64) -> Result<(), OpenError> {
    let options = CreateOptions { size, ..CreateOptions::default() };
    let made = make_file(path, 0o644, async |file| {
        qcow2::create(file, None, &options).await.map_err(io::Error::other)
    });
    // Somebody else may have been faster.
    made.await.map(drop).map_err(|source| OpenError::Find { path: path.to_owned(), source })
}

/// `block`, which is made of `file`, with its bitmaps kept in `bitmaps`, if that was opened.
///
/// # Errors
/// When `bitmaps` is no such file, or cannot be made to fit the block.
pub(crate) async fn with_bitmaps(
    block: Arc<dyn Block>,
    file: &Arc<dyn Storage>,
    (bitmaps, writable): (Option<&OpenFile>, bool),
    tasks: &BackgroundTasks,
) -> Result<Arc<dyn Block>, OpenError> {
    let Some(bitmaps) = bitmaps.map(|bitmaps| Arc::clone(&bitmaps.storage)) else { return Ok(block) };
    let path = bitmaps.name().to_owned();
    let refused = |source| OpenError::Bitmaps { path: path.clone().into(), source };
    let files = Files { file: bitmaps, data: None, backing: None };
    // No request of a guest allocates anything in it.
    let options = Options { writable, allocation_reserve: Some(0), ..Options::default() };
    let image = Box::pin(Qcow2::open(files, options, Arc::new(tasks.clone()))).await?;
    if image.has_content().await? {
        return Err(refused(BitmapsFileError::HoldsADisk));
    }
    let known = stamp(&**file).map_err(|source| OpenError::Find { path: file.name().into(), source })?;
    if !image.recovered_bitmaps() && image.extension(STAMP).await.as_deref() != Some(&known[..]) {
        distrust(&image, file.name()).await?;
    }
    let (found, size) = (image.size(), block.size());
    if found != size && !writable {
        return Err(refused(BitmapsFileError::OtherSize { found, size }));
    }
    let with = WithBitmaps { block, file: Arc::clone(file), bitmaps: image, writable };
    if found != size {
        with.fit(found, size).await?;
    }
    Ok(Arc::new(with))
}

/// Gives up bitmaps that miss changes of the disk in `file`.
async fn distrust(image: &Qcow2, file: &str) -> Result<(), OpenError> {
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
fn stamp(file: &dyn Storage) -> io::Result<Vec<u8>> {
    let mut stamp = "cowhand bitmaps 1\n".to_owned();
    if let Some((seconds, nanos)) = file.changed_at()? {
        stamp.push_str(&format!("changed {seconds}.{nanos:09}\n"));
    }
    Ok(stamp.into_bytes())
}

impl WithBitmaps {
    /// The disk has `size` bytes and had `old`: bitmaps have what was added as changed. Those that are inconsistent cannot be made to fit.
    async fn fit(&self, old: u64, size: u64) -> Result<(), OpenError> {
        for bitmap in self.bitmaps.inconsistent_bitmaps() {
            tracing::warn!(
                "{}: bitmap {:?} is removed: it is inconsistent, and of a disk of another size",
                self.bitmaps.file().name(),
                bitmap.name
            );
            self.bitmaps.change_bitmap(&bitmap.name, BitmapChange::Remove).await?;
        }
        let options = ResizeOptions { shrink: true, bitmaps: true, ..ResizeOptions::default() };
        self.bitmaps.resize(size, options).await?;
        if size > old {
            drop(self.bitmaps.note_change(old, size - old).await?);
        }
        Ok(())
    }

    /// Notes a change, if it lies inside the block; otherwise the block says what is wrong with it.
    async fn note(&self, offset: u64, len: u64) -> Result<Option<NotedChange<'_>>, Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.block.size() && len > 0 => {
                self.bitmaps.note_change(offset, len).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn close_both(&self) -> Result<(), Error> {
        let failing = |doing| move |error| Blame::new(self.file.name()).io(doing)(error);
        let mut closed = self.block.close().await;
        if self.writable {
            // Before the file is looked at: it ends where it ends from here on.
            closed =
                closed.and(self.file.end_writing().await.map_err(failing("cutting off what was reserved")));
            match stamp(&*self.file).map_err(failing("looking at when it was changed")) {
                Ok(stamp) => closed = closed.and(self.bitmaps.set_extension(STAMP, stamp).await),
                Err(error) => closed = closed.and(Err(error)),
            }
        }
        closed.and(self.bitmaps.close().await)
    }
}

impl Block for WithBitmaps {
    fn driver(&self) -> &'static str {
        self.block.driver()
    }

    fn name(&self) -> &str {
        self.block.name()
    }

    fn size(&self) -> u64 {
        self.block.size()
    }

    fn capabilities(&self) -> Capabilities {
        self.block.capabilities()
    }

    fn awaits_backing(&self) -> bool {
        self.block.awaits_backing()
    }

    fn below(&self) -> Option<Arc<dyn Block>> {
        self.block.below()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], hints: Hints) -> Option<ReadKind> {
        self.block.try_read(offset, buf, hints)
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        self.block.read(offset, buf, hints)
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note(offset, data.len() as u64).await?;
            self.block.write(offset, data, hints).await
        })
    }

    fn write_compressed(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note(offset, data.len() as u64).await?;
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
            let _noted = self.note(offset, memory.len() as u64).await?;
            self.block.write_from(offset, memory, hints).await
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note(offset, len).await?;
            self.block.zero(offset, len, options).await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note(offset, len).await?;
            self.block.discard(offset, len).await
        })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        self.block.flush()
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        self.block.block_status(offset, len)
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        self.block.stored(offset, len, wanted)
    }

    fn takes(&self) -> Option<Takes> {
        self.block.takes()
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _noted = self.note(offset, stored.disk_bytes()).await?;
            self.block.take(offset, stored).await
        })
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(self.close_both())
    }
}
