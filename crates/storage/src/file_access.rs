//! Who may use a file, kept for the file that takes its place.
//!
//! A new file beside an old one is never more open than the old one: it is made for its maker alone, and gets the owner and the mode of the
//! old one before anything is in it.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

/// Mode of a file that only its maker reads and writes.
const PRIVATE: u32 = 0o600;
/// Mode of a file that replaces none, less the process's mask: as storage makes files.
const NEW: u32 = 0o644;
/// Where the group's bits are in a mode.
const GROUP_BITS: u32 = 0o070;

/// Who may use a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileAccess {
    /// The bits of its mode.
    pub mode: u32,
    /// Its owner.
    pub owner: u32,
    /// Its group.
    pub group: u32,
}

impl FileAccess {
    /// That of the file that `found` describes.
    pub fn of(found: &Metadata) -> Self {
        Self { mode: found.mode() & 0o7777, owner: found.uid(), group: found.gid() }
    }

    /// That of the file at `path`; `None` where there is none.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn of_path(path: &Path) -> io::Result<Option<Self>> {
        match path.metadata() {
            Ok(found) => Ok(Some(Self::of(&found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets it on `file`, which is private so far. Only root can change owners: otherwise the file keeps
    /// the maker as its owner. If the group cannot be set, the maker's group gets the rights of other users.
    ///
    /// # Errors
    /// When the mode cannot be set.
    pub fn give_to(&self, file: &File) -> io::Result<()> {
        self.give(file, 0)
    }

    fn give(&self, file: &File, more: u32) -> io::Result<()> {
        let made = file.metadata()?;
        if made.uid() != self.owner {
            // The reason is that we are not root: the copy is right all the same.
            let _ = fchown(file, Some(self.owner), None);
        }
        let has_group = made.gid() == self.group || fchown(file, None, Some(self.group)).is_ok();
        let mode = if has_group { self.mode } else { self.without_group() };
        file.set_permissions(Permissions::from_mode(mode | more))
    }

    fn without_group(&self) -> u32 {
        let as_others = (self.mode & 0o007) << 3;
        (self.mode & !GROUP_BITS & 0o1777) | (self.mode & as_others)
    }
}

/// Makes an empty file at `path` that only its maker reads and writes.
///
/// # Errors
/// When something is there, or the file cannot be made.
pub fn create_private(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(PRIVATE).open(path)
}

/// Makes an empty file at `path`, where nothing may be. It has the mode and the owner of the one that it replaces, and its owner may write it
/// until [`FileAccess::give_to`].
///
/// # Errors
/// When something is there, or the file cannot be made.
pub fn create_beside(path: &Path, replaced: Option<&FileAccess>) -> io::Result<File> {
    let Some(replaced) = replaced else {
        return File::options().write(true).create_new(true).mode(NEW).open(path);
    };
    let file = create_private(path)?;
    replaced.give(&file, PRIVATE).inspect_err(|_| drop(std::fs::remove_file(path)))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `convert` onto a file of mode 0600 filled a file of mode 0644 beside it: every local user could read the disk meanwhile.
    #[test]
    fn a_file_beside_another_one_has_its_mode_from_the_first_byte_on() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        for mode in [0o600, 0o640, 0o400, 0o664] {
            File::create(&old).unwrap().set_permissions(Permissions::from_mode(mode)).unwrap();
            let access = FileAccess::of_path(&old).unwrap();
            let file = create_beside(&new, access.as_ref()).unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, mode | PRIVATE);
            access.unwrap().give_to(&file).unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, mode);
            assert!(create_beside(&new, access.as_ref()).is_err(), "it took a file that is there");
            for path in [&old, &new] {
                std::fs::remove_file(path).unwrap();
            }
        }
        assert!(FileAccess::of_path(&old).unwrap().is_none());
    }

    #[test]
    fn a_group_that_cannot_be_kept_opens_the_file_to_no_other_group() {
        for (mode, kept) in
            [(0o660, 0o600), (0o664, 0o644), (0o640, 0o600), (0o755, 0o755), (0o646, 0o646), (0o2660, 0o600)]
        {
            let access = FileAccess { mode, owner: 0, group: 0 };
            assert_eq!(access.without_group(), kept, "{mode:o}");
        }
    }
}
