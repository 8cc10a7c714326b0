//! Which disk of a trace is meant.

use std::io::Read;
use std::path::Path;

use super::{ReadError, Reader, Record, TraceDisk};

/// All disks of the trace that `source` gives.
///
/// # Errors
/// When the source fails, or is no trace.
pub fn disks(source: impl Read) -> Result<Vec<TraceDisk>, ReadError> {
    let mut reader = Reader::new(source);
    let mut disks = Vec::new();
    while let Some(record) = reader.read()? {
        if let Record::Disk(disk) = record {
            disks.push(disk);
        }
    }
    Ok(disks)
}

/// The number of the disk that is meant by `name`, a path: the one of this path, else of this file name, else the only one. Later ones go before
/// earlier ones.
pub fn disk_called(disks: &[TraceDisk], name: &Path) -> Option<usize> {
    let real = std::fs::canonicalize(name).unwrap_or_else(|_| name.to_owned());
    let by_path = disks.iter().rposition(|disk| Path::new(&disk.name) == real);
    let by_name = || disks.iter().rposition(|disk| Path::new(&disk.name).file_name() == real.file_name());
    let only = || (disks.len() == 1).then_some(0);
    by_path.or_else(by_name).or_else(only)
}
