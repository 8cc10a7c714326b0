//! The file of a new image, which gets its name when it is whole.
//!
//! It is made under another name in the same directory, and renamed when everything in it is durable. Until
//! then its own name leads to what was there before.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cowhand::Existing;
use graph::cache_mode::CacheMode;
use graph::drive::place_of;
use graph::names::directory_of;
use graph::options::DiskOptions;
use graph::probe::Format;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use storage::{FileLock, FileOptions, OpenError, Role, UnlockedFile, is_sealed_layer};
use tool::create::options::NewImage;
use tool::failure::Failure;

use super::made::to_be_filled;
use crate::create::make;
use storage::{FileAccess, create_beside, part_of};

/// A file on its way.
#[derive(Debug)]
pub struct NewFile {
    /// What the user calls it.
    name: PathBuf,
    /// Where it will be.
    place: PathBuf,
    /// Where it is now.
    path: PathBuf,
    format: Format,
    /// The id of its password, where it is encrypted.
    key_secret: Option<String>,
    /// Files that were made and go if it does not become whole.
    made: Vec<PathBuf>,
    /// The file that is replaced. Its lock keeps other users out.
    replaced: Option<Replaced>,
    /// For the last flush: an error of writing back is seen by a descriptor that was open then.
    file: Arc<File>,
    /// It gets its name when everything in it is durable.
    durable: bool,
}

#[derive(Debug)]
struct Replaced {
    _lock: FileLock,
    access: FileAccess,
}

impl NewFile {
    /// Makes an image of `size` bytes that will be called `name`. What is there now stays until [`NewFile::keep`].
    ///
    /// # Errors
    /// When `name` is in use or no regular file, or the image cannot be made.
    pub fn make(name: &Path, image: &NewImage, size: u64) -> Result<Self, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::because(format!("cannot create {}", name.display()), error)
        };
        let place = place_of(name).map_err(|error| failed(&error))?;
        let found = place.canonicalize();
        if found.is_ok_and(|found| is_sealed_layer(&found)) {
            return Err(failed(&OpenError::SealedLayer { path: name.display().to_string() }));
        }
        let replaced = match place.exists() {
            true => Some(Replaced::lock(&place).map_err(|error| failed(&error))?),
            false => None,
        };
        let path = part_of(&place).map_err(|error| failed(&error))?;
        let access = replaced.as_ref().map(|replaced| &replaced.access);
        // It has the mode of what it replaces before anything is in it, and so has its data file.
        create_beside(&path, access).map_err(|error| failed(&error))?;
        let mut made = vec![path.clone()];
        let removing = |made: &[PathBuf]| made.iter().for_each(|path| drop(std::fs::remove_file(path)));
        if let Some(data) = &image.options.data_file {
            let data = place.parent().unwrap_or(Path::new("")).join(data);
            if !data.exists() {
                let created = create_beside(&data, access).map_err(|error| failed(&error));
                created.inspect_err(|_| removing(&made))?;
                made.push(data);
            }
        }
        let filled = make(&path, image, size, Existing::Replace);
        let file = filled.and_then(|()| File::open(&path).map_err(|error| failed(&error)));
        let file = file.inspect_err(|_| removing(&made)).map_err(|failure| failure.renamed(&path, name))?;
        let key_secret = image.encryption.as_ref().and_then(|encryption| encryption.key_secret.clone());
        let (name, format) = (name.to_owned(), image.format);
        Ok(Self {
            name,
            place,
            path,
            format,
            key_secret,
            made,
            replaced,
            file: Arc::new(file),
            durable: true,
        })
    }

    /// Says of a failure what the user calls the file: the name that it has now is gone when the failure is read.
    pub fn explain(&self, failure: Failure) -> Failure {
        failure.renamed(&self.path, &self.name)
    }

    /// Flushes nothing: the kernel writes it back when it does, and a power cut before may leave anything under its name.
    pub fn leave_to_kernel(&mut self) {
        self.durable = false;
    }

    /// Whether it is durable when it gets its name.
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// How it is opened to be filled.
    pub fn options(&self) -> DiskOptions {
        let mut options = to_be_filled(&self.path, self.format, self.key_secret.as_ref());
        // The file has no other user before it is complete, and then it is flushed.
        options.set_cache(CacheMode { no_flush: true, ..options.layer.cache() });
        options
    }

    /// A descriptor of it.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// It is whole: makes it durable, unless it is left to the kernel, and gives it its name.
    ///
    /// # Errors
    /// When either is not possible. It is then removed.
    pub fn keep(mut self) -> Result<(), Failure> {
        let placed = self.place_it();
        placed.map_err(|error| Failure::because(format!("cannot finish {}", self.name.display()), &error))
    }

    fn place_it(&mut self) -> io::Result<()> {
        for made in &self.made {
            let file = File::open(made)?;
            if let Some(Replaced { access, .. }) = &self.replaced {
                access.give_to(&file)?;
            }
            if self.durable {
                file.sync_all()?;
            }
        }
        if self.durable {
            // Errors of writing back are seen by this descriptor.
            self.file.sync_all()?;
        }
        match self.replaced {
            Some(_) => std::fs::rename(&self.path, &self.place)?,
            None => rename_new(&self.path, &self.place)?,
        }
        self.made.clear();
        if self.durable {
            File::open(directory_of(&self.place))?.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for NewFile {
    /// Removes what did not become whole. The reason for that is what the user has to know.
    fn drop(&mut self) {
        self.made.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Replaced {
    fn lock(place: &Path) -> io::Result<Self> {
        let found = place.metadata()?;
        if !found.is_file() {
            let what = "it is no regular file and no block device";
            return Err(io::Error::other(what));
        }
        let file = UnlockedFile::open(place, &FileOptions::default()).map_err(io::Error::other)?;
        let lock = FileLock::acquire_role(file.fd(), Role::Writer).map_err(io::Error::other)?;
        Ok(Self { _lock: lock, access: FileAccess::of(&found) })
    }
}

/// Renames a file, unless another process has taken the new name meanwhile.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => std::fs::rename(from, to),
        renamed => renamed.map_err(Into::into),
    }
}
