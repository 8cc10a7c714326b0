//! The start of a raw disk whose format was guessed.
//!
//! Who writes a disk's content could make the next opener guess another format, with files of the writer's choice. So the first bytes may become
//! anything but those of an image.

use std::io;

use memory::{IoBuf, IoVec};
use storage::{Hints, RangeGuard, RangeLocks, RangeMode, Storage};

/// Bytes from the start by which a format is guessed, as in QEMU.
pub const START_BYTES: u64 = 512;

/// The system's number of "Operation not permitted", which QEMU's raw driver gives.
const EPERM: i32 = 1;

/// Refuses writes after which the first bytes of a disk are those of an image.
#[derive(Debug)]
pub struct StartGuard {
    is_image: fn(&[u8]) -> bool,
    /// Writes to parts of the start come one after the other: each sees what the others made of it.
    locks: RangeLocks,
}

impl StartGuard {
    /// `is_image` looks at the first bytes, [`START_BYTES`] at most.
    pub fn new(is_image: fn(&[u8]) -> bool) -> Self {
        Self { is_image, locks: RangeLocks::default() }
    }

    /// Looks at the start as it will be when `data`, which touches it, is at `offset` of the disk that begins at `from` of `storage`. What this
    /// returns is held until the write has ended.
    ///
    /// # Errors
    /// EPERM when it would be an image's; when the start cannot be read.
    pub(crate) async fn check(
        &self,
        storage: &dyn Storage,
        from: u64,
        (offset, data): (u64, &IoVec),
    ) -> io::Result<RangeGuard<'_>> {
        let alone = self.locks.acquire(0, START_BYTES, RangeMode::Exclusive).await;
        let there = storage.length().saturating_sub(from).min(START_BYTES);
        let covers = offset == 0 && data.len() as u64 >= there.max(1);
        let mut start = match covers {
            true => Vec::new(),
            false => {
                // It fits: START_BYTES at most.
                let (result, buf) = storage.read(from, IoBuf::uninit(there as usize), Hints::NONE).await;
                result?;
                buf.to_vec()
            }
        };
        let (at, bytes) = (offset as usize, data.slice(0, data.len().min(START_BYTES as usize)).to_bytes());
        let end = (at + bytes.len()).min(START_BYTES as usize);
        start.resize(start.len().max(end), 0);
        if let (Some(place), Some(new)) = (start.get_mut(at..end), bytes.get(..end.saturating_sub(at))) {
            place.copy_from_slice(new);
        }
        if (self.is_image)(&start) { Err(io::Error::from_raw_os_error(EPERM)) } else { Ok(alone) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_executor::block_on;
    use memory::IoBytes;
    use storage::MemoryStorage;

    use super::*;
    use crate::{Block, Raw};

    #[test]
    fn no_write_makes_the_start_that_of_an_image_also_not_part_by_part() {
        let mut raw = Raw::new(Arc::new(MemoryStorage::from_bytes(&[0; 2048])));
        raw.start = Some(Arc::new(StartGuard::new(|start| start.starts_with(b"MAGIC"))));
        let write = |offset, bytes: &[u8]| {
            let written = block_on(raw.write(offset, IoVec::from(IoBytes::copy_from(bytes)), Hints::NONE));
            written.map_err(|error| error.raw_os_error())
        };
        let refused = Err(Some(EPERM));
        assert_eq!(write(0, b"MAGIC"), refused);
        assert_eq!(write(0, &[b"MAGIC".as_slice(), &[7; 1000]].concat()), refused);
        assert_eq!(write(0, b"MAG"), Ok(()));
        assert_eq!(write(2, b"GIC"), refused);
        assert_eq!(write(3, b"IC"), refused);
        assert_eq!(write(3, b"IX"), Ok(()));
        assert_eq!(write(4, b"C"), refused);
        assert_eq!(write(START_BYTES, b"MAGIC"), Ok(()));
        assert_eq!(write(1, b"MAGIC"), Ok(()));
        let (result, start) = block_on(raw.read(0, IoBuf::uninit(8), Hints::NONE));
        assert!(result.is_ok() && start[..8] == *b"MMAGIC\0\0");
        assert_eq!(raw.takes(), None, "nothing is copied past the guard");
    }
}
