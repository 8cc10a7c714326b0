//! `bitmaps`: the bitmaps of a disk that is no qcow2 image, kept in a file of their own ([`WithBitmaps`]).

use std::io;
use std::path::Path;
use std::sync::Arc;

use block::{Block, Raw};
use qcow2::{CreateOptions, Files, Options, Qcow2, WithBitmaps};
use rustix::fs::{MemfdFlags, memfd_create};
use storage::Storage;

use crate::background::BackgroundTasks;
use crate::error::OpenError;
use crate::fd_sets::FdSets;
use crate::file::{OpenFile, Source};
use crate::new_file::make_file;
use crate::options::{FileOptions, LayerOptions, OptionError};
use crate::window::Window;

/// The image whose bitmaps a disk over `top` has.
pub fn bitmaps_of(top: &dyn Block) -> Option<Qcow2> {
    match top.downcast_ref::<WithBitmaps>() {
        Some(with) => Some(with.bitmaps().clone()),
        None => top.downcast_ref::<Qcow2>().cloned(),
    }
}

/// What `block` is made of, if it is raw bytes, also those of a node, and if its bitmaps are kept beside it.
pub fn raw_of(block: &dyn Block) -> Option<&Raw> {
    let block = block.downcast_ref::<WithBitmaps>().map_or(block, |with| &**with.block());
    block.downcast_ref().or_else(|| block.downcast_ref::<Window>()?.raw())
}

/// Opens the file that `options` name for the bitmaps of `block`, if they name one. A missing file is made
/// for a block that is written, and ignored for one that is only read.
pub(crate) async fn open_file(
    options: &LayerOptions,
    block: &dyn Block,
    writable: bool,
    fd_sets: &FdSets,
) -> Result<Option<OpenFile>, OpenError> {
    let Some(path) = options.bitmaps.shown() else { return Ok(None) };
    if block.downcast_ref::<Qcow2>().is_some() {
        return Err(OpenError::Options { path, source: OptionError::OwnBitmaps });
    }
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
    let name = path.display().to_string();
    source.open(&name, &options.bitmaps, options, writable).await.map(Some)
}

/// Makes and opens a file in memory for the bitmaps of a disk of `size` bytes.
pub(crate) async fn open_in_memory(layer: &LayerOptions, size: u64) -> Result<OpenFile, OpenError> {
    let path = Path::new("bitmaps in memory");
    let failed = |source: io::Error| OpenError::Find { path: path.to_owned(), source };
    let fd = memfd_create("cowhand-bitmaps", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let sets = FdSets::default();
    let (set, _) = sets.add(None, fd, None).map_err(|error| failed(io::Error::other(error)))?;
    let mut options = FileOptions::clone(&layer.bitmaps);
    options.filename = Some(FdSets::name(set).into());
    let source = Source::by_options(&options, &sets, true)?;
    let source = source.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let file = source.open(&path.display().to_string(), &options, layer, true).await?;
    let new = CreateOptions { size, ..CreateOptions::default() };
    qcow2::create(&*file.storage, None, &new).await.map_err(|error| failed(io::Error::other(error)))?;
    Ok(file)
}

async fn make(path: &Path, size: u64) -> Result<(), OpenError> {
    let options = CreateOptions { size, ..CreateOptions::default() };
    let made = make_file(path, 0o644, async |file| {
        qcow2::create(file, None, &options).await.map_err(io::Error::other)
    });
    // Another process may have made it meanwhile: then that file is used.
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
    let files = Files { file: bitmaps, data: None, backing: None };
    // No request of a guest allocates anything in it.
    let options = Options { writable, allocation_reserve: Some(0), ..Options::default() };
    let image = Box::pin(Qcow2::open(files, options, Arc::new(tasks.clone()))).await?;
    let with = Box::pin(WithBitmaps::new(block, Arc::clone(file), image));
    Ok(Arc::new(with.await?))
}
