//! New images: the file, and everything in it.

use std::io;
use std::path::{Path, PathBuf};

use block::SECTOR_BYTES;
use graph::OnLoop;
use graph::OpenError;
use graph::drive::place_of;
use graph::names::directory_of;
use graph::probe::Format;
use luks::{Cipher, Hash, ITER_TIME_DEFAULT, NewVolume, Secret};
use qcow2::{CreateOptions, Preallocation};
use reactor::Backend;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use storage::{
    Allocation, FileLock, FileOptions, FileStorage, Role, Storage, UnlockedFile, Zeroing, part_of,
};

use crate::error::Error;
use crate::in_flight::HOME;
use crate::loops::Loops;
use crate::pending::Pending;
use crate::request::Job;

/// An image that is to be made.
#[derive(Clone, Debug)]
pub struct NewImage {
    /// Its format.
    pub format: Format,
    /// What is to be in it. A raw image and a LUKS file have no more than `size` and `preallocation`.
    pub options: CreateOptions,
    /// What happens to a file that is there already.
    pub existing: Existing,
    /// How a qcow2 image is encrypted, and its first password; `None`: it is not. A LUKS file needs it. [`NewImage::encrypted`] sets it.
    pub encryption: Option<NewVolume>,
}

/// What happens to a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced, unless it is in use. A link is followed, also to where nothing is yet.
    Replace,
    /// It is an error.
    Refuse,
}

impl NewImage {
    /// An empty qcow2 image for a disk of `size_bytes`, with the defaults of QEMU; nothing is replaced.
    pub fn qcow2(size_bytes: u64) -> Self {
        Self::of(Format::Qcow2, size_bytes)
    }

    /// A raw image of `size_bytes`, all hole; nothing is replaced.
    pub fn raw(size_bytes: u64) -> Self {
        Self::of(Format::Raw, size_bytes)
    }

    /// A qcow2 image that holds what differs from the image called `backing`, as it is to be named in the new one: a relative name
    /// starts at the new image's directory. Whether there is such a file is not looked at.
    pub fn overlay(size_bytes: u64, backing: impl Into<String>, format: Format) -> Self {
        let mut image = Self::qcow2(size_bytes);
        image.options.backing_file = Some(backing.into());
        image.options.backing_format = Some(format.name().to_owned());
        image
    }

    /// Encrypted as `qemu-img create` does it by default: AES-256 in XTS mode, and a password that takes 2 seconds to be tried, which its making takes, too. Needs
    /// the feature `luks`.
    #[must_use]
    pub fn encrypted(self, password: impl Into<Vec<u8>>) -> Self {
        let encryption = NewVolume {
            cipher: Cipher::DEFAULT,
            hash: Hash::Sha256,
            iter_time: ITER_TIME_DEFAULT,
            password: Secret::new(password.into()),
            is_detached: false,
        };
        Self { encryption: Some(encryption), ..self }
    }

    fn of(format: Format, size_bytes: u64) -> Self {
        let options = CreateOptions { size: size_bytes, ..CreateOptions::default() };
        Self { format, options, existing: Existing::Refuse, encryption: None }
    }
}

/// Makes an image at `path`; durable, its name too, when it completes. A file that was not there before is removed again when
/// that fails. Starts a thread for as long as it takes.
pub fn create(path: impl Into<PathBuf>, image: NewImage) -> Pending<()> {
    let path = path.into();
    apart(async move || make(&path, &image).await)
}

/// As [`create`], where nothing is: the file is made under another name beside, and gets its own when it is whole. A process that is killed leaves nothing at
/// `path`; what it left beside goes with the next of this path.
pub fn create_whole(path: impl Into<PathBuf>, image: NewImage) -> Pending<()> {
    let path = path.into();
    apart(async move || make_whole(&path, &image).await)
}

/// Does `work` on a thread that ends with it.
pub(crate) fn apart<T: Send + 'static>(
    work: impl AsyncFnOnce() -> Result<T, Error> + Send + 'static,
) -> Pending<T> {
    // A few writes and a flush: a ring costs more to set up than it saves, and a sandbox may refuse it.
    let loops = match Loops::over(1, Backend::Threads) {
        Ok(loops) => loops,
        Err(error) => return Pending::ended(Err(error)),
    };
    let (reply, pending) = Pending::new();
    let on = loops.clone();
    let start = move || {
        let task = async move {
            reply.send(work().await);
            drop(on);
        };
        reactor::spawn(task).detach();
    };
    loops.send(HOME, Job::Work(Box::new(start)));
    pending
}

/// As [`make`], where nothing is: under another name, until it is whole.
pub(crate) async fn make_whole(path: &Path, image: &NewImage) -> Result<(), Error> {
    let failed = |error: io::Error| Error::of_system(path.display().to_string(), error);
    if path.symlink_metadata().is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    let part = part_of(path).map_err(failed)?;
    make(&part, &NewImage { existing: Existing::Replace, ..image.clone() }).await?;
    let named = match renameat_with(CWD, &part, CWD, path, RenameFlags::NOREPLACE) {
        // Not every file system can.
        Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(&part, path),
        named => named.map_err(Into::into),
    };
    let named = named.map_err(failed).and_then(|()| keep_name(path));
    named.inspect_err(|_| drop(std::fs::remove_file(&part)))
}

/// Makes an image at `path`.
pub(crate) async fn make(path: &Path, image: &NewImage) -> Result<(), Error> {
    let place = match image.existing {
        Existing::Replace => {
            place_of(path).map_err(|error| Error::of_system(path.display().to_string(), error))?
        }
        Existing::Refuse => path.to_owned(),
    };
    let file = Target::open(&place, image.existing)?;
    let data = match &image.options.data_file {
        Some(name) if image.format == Format::Qcow2 => {
            let name_of_data = beside(path, name);
            if image.options.keeps_data_file && !name_of_data.exists() {
                let what = io::Error::new(io::ErrorKind::NotFound, "the data file to be kept is not there");
                return Err(Error::of_system(name_of_data.display().to_string(), what));
            }
            Some(Target::open(&beside(path, name), Existing::Replace)?)
        }
        _ => None,
    };
    let made = match fill(&file, data.as_ref(), image).await {
        Ok(()) => keep_name(&place),
        Err(error) => Err(error),
    };
    if made.is_err() {
        [Some(file), data].into_iter().flatten().for_each(Target::give_up);
    }
    made
}

async fn fill(file: &Target, data: Option<&Target>, image: &NewImage) -> Result<(), Error> {
    match image.format {
        Format::Luks => fill_luks(&file.storage, image).await,
        Format::Raw => fill_raw(&file.storage, image.options.size, image.options.preallocation)
            .await
            .map_err(|error| Error::of_system(file.storage.name(), error)),
        Format::Qcow2 => {
            let data = data.map(|data| &data.storage as &dyn Storage);
            let (file, options) = (&file.storage, &image.options);
            let made = match &image.encryption {
                Some(volume) => qcow2::create_encrypted(file, data, options, volume, &OnLoop).await,
                None => qcow2::create(file, data, options).await,
            };
            Ok(made?)
        }
        other => {
            let what = format!("files of format {other} are opened, not made");
            let error = io::Error::new(io::ErrorKind::Unsupported, what);
            Err(Error::of_system(file.storage.name(), error))
        }
    }
}

async fn fill_luks(file: &FileStorage, image: &NewImage) -> Result<(), Error> {
    let refused = |what: &str| {
        Error::of_system(file.name(), io::Error::new(io::ErrorKind::InvalidInput, what.to_owned()))
    };
    let Some(volume) = &image.encryption else {
        return Err(refused("a LUKS file needs its cipher and its first password (NewImage::encryption)"));
    };
    let size = image.options.size.checked_next_multiple_of(SECTOR_BYTES);
    let size = size.ok_or_else(|| refused("the size is beyond 64 bits"))?;
    let allocation = match image.options.preallocation {
        Preallocation::Off => None,
        Preallocation::Falloc => Some(Allocation::Reserve),
        Preallocation::Full => Some(Allocation::Write),
        Preallocation::Metadata => {
            return Err(refused("a LUKS file has no metadata that could be preallocated"));
        }
    };
    volume.write_file(file, size, allocation, &OnLoop).await?;
    Ok(())
}

async fn fill_raw(file: &FileStorage, size: u64, preallocation: Preallocation) -> io::Result<()> {
    let size = size
        .checked_next_multiple_of(SECTOR_BYTES)
        .ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, "the size is beyond 64 bits"))?;
    if file.is_device() {
        return start_raw_device(file, size, preallocation).await;
    }
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

/// A raw disk on a device has the device's bytes. Its first sector becomes zeroes: what the device held is not to be taken for an image.
async fn start_raw_device(file: &FileStorage, size: u64, preallocation: Preallocation) -> io::Result<()> {
    let found = file.length();
    if found < size {
        let what = format!("it is a block device of {found} bytes; the disk needs {size}");
        return Err(io::Error::new(io::ErrorKind::StorageFull, what));
    }
    if preallocation != Preallocation::Off {
        let what =
            format!("a block device has its space already; leave preallocation={} out", preallocation.name());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    file.zero(0, found.min(SECTOR_BYTES), Zeroing::Keep).await?;
    file.flush().await
}

/// Makes the file's entry in its directory durable: what is written to the disk from now on would
/// otherwise be in a file without a name after a crash.
fn keep_name(path: &Path) -> Result<(), Error> {
    let synced = std::fs::File::open(directory_of(path)).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Error::of_system(format!("{}: keeping its name", path.display()), error))
}

/// A data file's name, as the image will read it: from its own directory.
fn beside(image: &Path, name: &str) -> PathBuf {
    image.parent().unwrap_or(Path::new("")).join(name)
}

/// A file to be filled, locked so that no process uses it meanwhile.
#[derive(Debug)]
struct Target {
    storage: FileStorage,
    _lock: FileLock,
    /// Its path, if it was not there before.
    new: Option<PathBuf>,
}

impl Target {
    fn open(path: &Path, existing: Existing) -> Result<Self, Error> {
        let options = FileOptions::default();
        let is_there = |error: &storage::OpenError| {
            error.io().is_some_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
        };
        let (file, new) = match UnlockedFile::create_new(path, &options) {
            Ok(file) => (file, Some(path.to_owned())),
            Err(error) if existing == Existing::Replace && is_there(&error) => {
                (UnlockedFile::open(path, &options).map_err(OpenError::from)?, None)
            }
            Err(error) => return Err(OpenError::from(error).into()),
        };
        let locked = FileLock::acquire_role(file.fd(), Role::Writer);
        let lock = locked.map_err(|source| OpenError::Lock { path: path.to_owned(), source })?;
        let storage = file.measured(Some(&lock)).map_err(OpenError::from)?;
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
