//! What kind of file it is, and how long.

use std::fmt;
use std::os::fd::AsFd;

use rustix::fs::{FileType, SeekFrom};
use rustix::io::Errno;

use super::open_error::{OpenError, failed};

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    BlockDevice,
    /// One of which a seek finds the end.
    CharacterDevice,
}

pub(super) fn kind_of(fd: impl AsFd, name: &str) -> Result<Kind, OpenError> {
    let stat = rustix::fs::fstat(&fd).map_err(|errno| failed(name, "open", errno))?;
    let found = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(Kind::Regular),
        FileType::BlockDevice => return Ok(Kind::BlockDevice),
        FileType::CharacterDevice if length_of(&fd, Kind::CharacterDevice).is_ok() => {
            return Ok(Kind::CharacterDevice);
        }
        FileType::Directory => "directory",
        FileType::CharacterDevice => "character device without an end",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::Symlink | FileType::Unknown => "special file",
    };
    Err(OpenError::NotStorage { path: name.to_owned(), found })
}

pub(super) fn length_of(fd: impl AsFd, kind: Kind) -> Result<u64, Errno> {
    match kind {
        Kind::Regular => {
            let stat = rustix::fs::fstat(fd)?;
            u64::try_from(stat.st_size).map_err(|_| Errno::OVERFLOW)
        }
        Kind::BlockDevice | Kind::CharacterDevice => rustix::fs::seek(fd, SeekFrom::End(0)),
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Regular => "regular file",
            Kind::BlockDevice => "block device",
            Kind::CharacterDevice => "character device",
        })
    }
}
