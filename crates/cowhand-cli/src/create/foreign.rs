//! Empty images of formats that are made whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use block::SECTOR_BYTES;
use cowhand::Existing;
use formats::sink::{NewImage, Piece, Sink, Stamp};
use graph::drive::place_of;
use graph::names::directory_of;
use ring::rand::{SecureRandom, SystemRandom};
use storage::{FileLock, FileOptions, Role, UnlockedFile};
use tool::failure::Failure;

use crate::drive::is_device;

/// Starts an image whose file will be called `name`.
///
/// # Errors
/// When the system has no random bytes.
pub fn sink(image: &NewImage, name: &Path) -> Result<Box<dyn Sink>, Failure> {
    let mut id = [0; 16];
    SystemRandom::new().fill(&mut id).map_err(|_| Failure::new("cannot get random bytes"))?;
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let file_name = name.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok(image.sink(Stamp { unix_seconds, id, file_name }))
}

/// Makes an empty image for a disk of `size` bytes, which is durable afterwards. A file that did not exist before is removed again if that
/// fails.
///
/// # Errors
/// When the format has no disks of that size, the file is in use, or the file system refuses.
pub fn make(path: &Path, image: &NewImage, size: u64, existing: Existing) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::error::Error| Failure::because(format!("cannot create {}", path.display()), error);
    let mut sink = sink(image, path)?;
    let size = size.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
    let mut whole = || {
        let mut pieces = sink.begin(size)?;
        pieces.extend(sink.finish()?);
        Ok::<_, formats::sink::SinkError>(pieces)
    };
    let pieces = whole().map_err(|error| failed(&error))?;
    check_place(path)?;
    let path = &match existing {
        Existing::Replace => place_of(path).map_err(|error| failed(&error))?,
        Existing::Refuse => path.to_owned(),
    };
    let is_new = path.symlink_metadata().is_err();
    let options = FileOptions::default();
    let file = match is_new || existing == Existing::Refuse {
        true => UnlockedFile::create_new(path, &options),
        false => UnlockedFile::open(path, &options),
    };
    let file = file.map_err(|error| failed(&error))?;
    let written = FileLock::acquire_role(file.fd(), Role::Writer).map_err(io::Error::other);
    let written = written.and_then(|_lock| write(path, &pieces));
    written.map_err(|error| {
        if is_new {
            // The reason why is what the user has to know.
            let _ = std::fs::remove_file(path);
        }
        failed(&error)
    })
}

/// Refuses a block device: the image's end is found at the end of its file.
///
/// # Errors
/// Of one.
pub fn check_place(path: &Path) -> Result<(), Failure> {
    let what = "it is a block device, and an image of this format is a file";
    match is_device(path) {
        true => Err(Failure::explained(format!("cannot create {}", path.display()), what)),
        false => Ok(()),
    }
}

fn write(path: &Path, pieces: &[Piece]) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.set_len(0)?;
    pieces.iter().try_for_each(|piece| file.write_all_at(&piece.bytes, piece.at))?;
    file.sync_all()?;
    File::open(directory_of(path))?.sync_all()
}
