//! A layer that was opened for reading is opened once more, for writing, in its own place.
//!
//! Its lock is raised without a gap ([`FileLock::take_over`]): nobody else can begin to write between the two, so the content that
//! images above rely on is the same. The first opening stays as it is until the second has taken its place in the disk.

use std::path::PathBuf;
use std::sync::Arc;

use block::Block;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use storage::{FileLock, FileOptions, Role, UnlockedFile};

use crate::drivers::{self, Opening};
use crate::error::OpenError;
use crate::layers::{Layer, Origin};
use crate::names::Located;
use crate::options::Aio;
use crate::probe::Format;
use crate::secrets::Secrets;

/// Opens the file of `layer` for writing, over the same backing layer. The lock of `layer` is the new one's afterwards.
///
/// # Errors
/// When it is no image file by itself, when somebody else uses it, or it cannot be opened. Then `layer` has its lock as before.
pub(crate) async fn open_writable(layer: &Layer, secrets: &Secrets) -> Result<Arc<Layer>, OpenError> {
    let name = layer.block.name();
    let origin = layer.origin.as_ref().filter(|origin| origin.is_one_file);
    let Some(origin) = origin else {
        let what = "it is not one file that a path of this machine leads to, so it cannot be opened again for writing";
        return Err(find(name, std::io::Error::other(what)));
    };
    let file = open_file(layer, origin)?;
    let mut old = layer.locks.lock().pop();
    let lock = match &mut old {
        None => None,
        Some(old) => {
            let taken = FileLock::take_over(old, file.fd(), Role::Writer);
            let taken = taken.map_err(|source| OpenError::Lock { path: name.into(), source });
            Some(taken)
        }
    };
    let lock = match lock.transpose() {
        Ok(lock) => lock,
        Err(error) => {
            layer.locks.lock().extend(old);
            return Err(error);
        }
    };
    match open_image(layer, origin, &file, lock.as_ref(), secrets).await {
        Ok((block, origin)) => Ok(Arc::new(Layer {
            block,
            identity: layer.identity.clone(),
            house: layer.house.clone(),
            closes_below: false,
            own: Mutex::new(layer.own.lock().clone()),
            origin: Some(origin),
            locks: Mutex::new(lock.into_iter().collect()),
        })),
        Err(error) => {
            if let (Some(lock), Some(mut old)) = (lock, old) {
                let role = if origin.options.force_share { Role::ForceShare } else { Role::Reader };
                let back = lock.hand_back(&mut old, role);
                layer.locks.lock().push(old);
                back.map_err(|source| OpenError::Lock { path: name.into(), source })?;
            }
            Err(error)
        }
    }
}

fn open_file(layer: &Layer, origin: &Origin) -> Result<UnlockedFile, OpenError> {
    let name = layer.block.name();
    let located = Located::by_user(&origin.path).map_err(|error| find(name, error))?;
    if layer.identity.as_ref() != Some(&located.identity()) {
        let what = "another file has taken its place since it was opened";
        return Err(find(name, std::io::Error::other(what)));
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = rustix::fs::open(located.open_path(), flags, Mode::empty());
    let fd = fd.map_err(|error| find(name, error.into()))?;
    let options = &origin.options.file;
    let aio = match options.aio {
        Some(Aio::Threads) => reactor::Backend::Threads,
        Some(Aio::IoUring) | None => reactor::Backend::Ring,
    };
    let options = FileOptions { direct: options.direct, read_only: false, no_flush: options.no_flush, aio };
    Ok(UnlockedFile::from_fd(fd, name, &options)?)
}

async fn open_image(
    layer: &Layer,
    origin: &Origin,
    file: &UnlockedFile,
    lock: Option<&FileLock>,
    secrets: &Secrets,
) -> Result<(Arc<dyn Block>, Origin), OpenError> {
    let storage = Arc::new(file.measured(lock)?);
    let mut options = origin.options.clone();
    options.read_only = false;
    let header = match origin.format {
        Format::Raw | Format::Luks => None,
        Format::Qcow2 => Some(qcow2::read_header(&*storage).await?),
    };
    let opening = Opening {
        file: storage,
        data: None,
        backing: layer.block.below(),
        options: &options,
        header: header.as_ref(),
        active: true,
        secrets,
        house: &layer.house,
    };
    let block = (drivers::format(origin.format).open)(opening).await?;
    Ok((block, Origin { options, ..origin.clone() }))
}

fn find(name: &str, source: std::io::Error) -> OpenError {
    OpenError::Find { path: PathBuf::from(name), source }
}
