//! Where a LUKS header is, and reading it.

use block::{Blame, Error};
use storage::{Hints, IoBuf, Storage};

use crate::layout::{HEADER_BYTES, Header, LuksError, MAGIC};

/// The part of a file that a LUKS header with its key material may use: a part of a qcow2 image, or a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Area {
    /// All of a file.
    pub fn whole(file: &dyn Storage) -> Self {
        Self { offset: 0, len: file.length() }
    }
}

/// Whether a file that starts with `start` is a LUKS one, of whichever version.
pub fn is_luks(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

/// Reads the header at the start of `area`.
///
/// # Errors
/// When there is none, or it is damaged or not supported.
pub async fn read_header(file: &dyn Storage, area: Area) -> Result<Header, Error> {
    let blame = Blame::new(file.name());
    let there = area.len.min(file.length().saturating_sub(area.offset));
    let len = (HEADER_BYTES as u64).min(there);
    let (result, bytes) = file.read(area.offset, IoBuf::uninit(len as usize), Hints::NONE).await;
    result.map_err(blame.io("reading the LUKS header"))?;
    Header::decode(&bytes, there).map_err(|error| refused(&blame, &error))
}

pub(crate) fn refused(blame: &Blame, error: &LuksError) -> Error {
    match error.is_unsupported() {
        true => blame.unsupported(error.to_string()),
        false => blame.corrupt(error.to_string()),
    }
}
