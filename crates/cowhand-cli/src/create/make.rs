//! Makes the file of a new image and everything in it.

use std::io;
use std::path::{Path, PathBuf};

use block::SECTOR_BYTES;
use graph::probe::Format;
use qcow2::Preallocation;
use reactor::Reactor;
use storage::{Allocation, FileLock, FileOptions, FileStorage, Role, Storage, UnlockedFile};

use super::options::NewImage;
use crate::failure::Failure;

/// What happens to a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced, unless somebody uses it.
    Replace,
    /// It is an error.
    Refuse,
}

/// Makes the image at `path`. A file that did not exist before is removed again if that fails.
///
/// # Errors
/// When options contradict each other, the file is in use, or the file system refuses.
pub fn make(path: &Path, image: &NewImage, size: u64, existing: Existing) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot create {}", path.display()), error);
    let file = Target::open(path, existing).map_err(|error| failed(&error))?;
    let data = match &image.options.data_file {
        Some(name) if image.format == Format::Qcow2 => {
            Some(Target::open(&beside(path, name), Existing::Replace).map_err(|error| failed(&error))?)
        }
        _ => None,
    };
    let made = reactor::Reactor::new(reactor::available())
        .map_err(|error| failed(&error))
        .and_then(|reactor| fill(&reactor, &file, data.as_ref(), image, size, path));
    let made = made.and_then(|()| keep_name(path).map_err(|error| failed(&error)));
    if made.is_err() {
        [Some(file), data].into_iter().flatten().for_each(Target::give_up);
    }
    made
}

fn fill(
    reactor: &Reactor,
    file: &Target,
    data: Option<&Target>,
    image: &NewImage,
    size: u64,
    path: &Path,
) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot create {}", path.display()), error);
    match image.format {
        Format::Raw => reactor
            .run(fill_raw(&file.storage, size, image.options.preallocation))
            .map_err(|error| failed(&error)),
        Format::Qcow2 => {
            let options = qcow2::CreateOptions { size, ..image.options.clone() };
            let data = data.map(|data| &data.storage as &dyn Storage);
            reactor.run(qcow2::create(&file.storage, data, &options)).map_err(|error| failed(&error))
        }
    }
}

async fn fill_raw(file: &FileStorage, size: u64, preallocation: Preallocation) -> io::Result<()> {
    let size = size
        .checked_next_multiple_of(SECTOR_BYTES)
        .ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "the size is beyond 64 bits"))?;
    file.shorten_to(0).await?;
    file.grow_to(size).await?;
    match preallocation {
        _ if size == 0 => {}
        Preallocation::Off | Preallocation::Metadata => {}
        Preallocation::Falloc => file.allocate(0, size, Allocation::Reserve).await?,
        Preallocation::Full => file.allocate(0, size, Allocation::Write).await?,
    }
    file.flush().await
}

/// Makes the file's entry in its directory durable: what is written to the disk from now on would
/// otherwise be in a file without a name after a crash.
fn keep_name(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// A data file's name, as the image will read it: from its own directory.
fn beside(image: &Path, name: &str) -> PathBuf {
    image.parent().unwrap_or(Path::new("")).join(name)
}

/// A file to be filled, locked so that nobody uses it meanwhile.
#[derive(Debug)]
struct Target {
    storage: FileStorage,
    _lock: FileLock,
    /// Its path, if it was not there before.
    new: Option<PathBuf>,
}

impl Target {
    fn open(path: &Path, existing: Existing) -> io::Result<Self> {
        let options = FileOptions::default();
        let (file, new) = match UnlockedFile::create_new(path, &options) {
            Ok(file) => (file, Some(path.to_owned())),
            Err(error) => {
                let is_there = error.io().is_some_and(|io| io.kind() == io::ErrorKind::AlreadyExists);
                match existing {
                    Existing::Replace if is_there => {
                        (UnlockedFile::open(path, &options).map_err(io::Error::other)?, None)
                    }
                    _ => return Err(io::Error::other(error)),
                }
            }
        };
        let lock = FileLock::acquire_role(file.fd(), Role::Writer).map_err(io::Error::other)?;
        let storage = file.measured(Some(&lock)).map_err(io::Error::other)?;
        Ok(Self { storage, _lock: lock, new })
    }

    /// Removes what was not there before.
    fn give_up(self) {
        if let Some(path) = self.new {
            // The reason why it was given up is what the user has to know.
            let _ = std::fs::remove_file(path);
        }
    }
}
