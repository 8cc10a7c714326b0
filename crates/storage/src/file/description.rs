//! Whether two descriptors are one open file.

use std::os::fd::OwnedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Whether `a` and `b` share an open file description, as copies of a descriptor do: then they share file locks, which
/// cannot tell one user from the other. Also `true` where the system does not say. Moves the position in the file, which
/// nothing here goes by.
pub fn is_same_description(a: &OwnedFd, b: &OwnedFd) -> bool {
    let same_file = || -> Result<bool, Errno> {
        let (a, b) = (rustix::fs::fstat(a)?, rustix::fs::fstat(b)?);
        Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    };
    // The position belongs to the description. Two of them: one may be where it is by chance.
    let moves_along = |position: u64| -> Result<bool, Errno> {
        rustix::fs::seek(a, SeekFrom::Start(position))?;
        Ok(rustix::fs::seek(b, SeekFrom::Current(0))? == position)
    };
    same_file().unwrap_or(true) && moves_along(1).unwrap_or(true) && moves_along(2).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_copy_of_a_descriptor_is_the_same_open_file_and_a_second_open_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, [0; 512]).unwrap();
        let [first, second]: [OwnedFd; 2] =
            [File::open(&path).unwrap().into(), File::open(&path).unwrap().into()];
        let copy = first.try_clone().unwrap();
        let other: OwnedFd = tempfile::tempfile().unwrap().into();
        assert!(is_same_description(&first, &copy) && is_same_description(&copy, &first));
        assert!(!is_same_description(&first, &second) && !is_same_description(&second, &copy));
        assert!(!is_same_description(&first, &other));
    }
}
