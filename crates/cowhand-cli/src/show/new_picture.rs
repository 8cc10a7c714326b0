//! The file that a picture is written to: whole or not at all, and never in the place of a disk.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use storage::{FileAccess, create_beside, part_of};
use tool::failure::Failure;

/// What every picture begins with, and no image does.
const FIRST_BYTE: u8 = b'<';

/// Writes `text` to `file`. An older picture is replaced; whatever else is there stays.
///
/// # Errors
/// When the file is something else, or cannot be written: nothing is left of the new one then.
pub fn write(file: &Path, text: &str) -> Result<(), Failure> {
    replace(file, text)
        .map_err(|error| Failure::because(format!("cannot write the picture {}", file.display()), &error))
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    if file.symlink_metadata().is_ok() && !is_picture(file)? {
        return Err(io::Error::other("there is a file of that name that is no picture; it stays as it is"));
    }
    let part = part_of(file)?;
    let replaced = FileAccess::of_path(file)?;
    let written = fill(&part, replaced.as_ref(), text).and_then(|()| fs::rename(&part, file));
    written.inspect_err(|_| drop(fs::remove_file(&part)))
}

fn fill(part: &Path, replaced: Option<&FileAccess>, text: &str) -> io::Result<()> {
    let mut new = create_beside(part, replaced)?;
    new.write_all(text.as_bytes())?;
    replaced.map_or(Ok(()), |replaced| replaced.give_to(&new))
}

fn is_picture(file: &Path) -> io::Result<bool> {
    // Opening a pipe or a device might wait, or do something.
    if !file.symlink_metadata()?.is_file() {
        return Ok(false);
    }
    let mut first = [0];
    Ok(File::open(file)?.read(&mut first)? == 1 && first == [FIRST_BYTE])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_replaces_a_picture_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let (picture, disk) = (directory.path().join("a.svg"), directory.path().join("disk.raw"));
        fs::write(&disk, [0; 512]).unwrap();
        write(&picture, "<svg>1").unwrap();
        write(&picture, "<svg>2").unwrap();
        assert!(write(&disk, "<svg>").is_err() && write(directory.path(), "<svg>").is_err());
        assert!(write(&directory.path().join("none/a.svg"), "<svg>").is_err());
        assert_eq!(fs::read_to_string(&picture).unwrap(), "<svg>2");
        assert_eq!(fs::read(&disk).unwrap(), [0; 512]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing else is left");
    }
}
