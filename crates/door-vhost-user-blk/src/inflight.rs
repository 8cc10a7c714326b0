//! Records of requests in flight, in memory that the front-end keeps while the back-end may die
//! (vhost-user specification, "Inflight I/O tracking"); each form of a ring has its own: [`split`], [`packed`].
//!
//! A request is recorded before it is begun, and its record ends after the driver can see that it is done. The next back-end carries
//! out again what has a record, in the order of the beginnings. The order of the steps is what a kill at any instant leaves.

pub mod packed;
pub mod split;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::allowance::Allowance;
use crate::limits::{INFLIGHT_BYTES_MAX, QUEUES_MAX, RING_ENTRIES_MAX};
use crate::mapping::{MapError, Mapping};
use crate::message::{Area, InflightInfo};

/// Each queue's part begins at a multiple of this.
const ALIGNMENT: usize = 64;

/// Behind the queues stands what we have to remember of the device: whether the driver turned the write cache off.
const TAIL_BYTES: usize = 64;
/// Tells that the tail was written: "CWC" and 1 for on, 2 for off.
const TAIL_MAGIC: [u8; 3] = *b"CWC";

/// Why there are no records.
#[derive(Debug, thiserror::Error)]
pub enum InflightError {
    /// The numbers of queues and entries.
    #[error(
        "records for {queues} queues of {entries} entries are asked for; 1 to {QUEUES_MAX} queues of 1 to {RING_ENTRIES_MAX} are allowed"
    )]
    Numbers {
        /// Queues.
        queues: u16,
        /// Entries of each.
        entries: u16,
    },
    /// The memory is too small.
    #[error("records have {found} bytes; {needed} are needed")]
    TooSmall {
        /// As it came.
        found: u64,
        /// What the queues need.
        needed: u64,
    },
    /// The memory cannot be mapped, or made.
    #[error("records of requests in flight cannot be kept: {0}")]
    Map(#[from] MapError),
}

/// The records of all queues of a device.
#[derive(Debug)]
pub struct Inflight {
    mapping: Mapping,
    len: usize,
    queues: u16,
    entries: u16,
}

/// Where in a queue's head the version and the number of entries are, in both forms.
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
/// The version of both layouts.
const VERSION: u16 = 1;

/// Which form the rings have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Split.
    Split,
    /// Packed.
    Packed,
}

impl Inflight {
    /// Makes memory for the records that `info` asks for, none of them in use, for rings of this form. Gives its descriptor and place.
    ///
    /// # Errors
    /// For numbers beyond the bounds, or when there is no memory.
    pub fn create(info: InflightInfo, form: Form) -> Result<(OwnedFd, InflightInfo), InflightError> {
        let len = needed(info, form)?;
        let failed = |error: rustix::io::Errno| InflightError::Map(MapError::System(error.into()));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("cowhand-inflight", flags).map_err(failed)?;
        ftruncate(&fd, len).map_err(failed)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed)?;
        Ok((fd, InflightInfo { area: Area { len, file_offset: 0 }, ..info }))
    }

    /// Maps records that a front-end kept, from us or from a back-end before us.
    ///
    /// # Errors
    /// When they are too small for what they are said to be, or cannot be mapped.
    pub fn open(fd: impl AsFd, info: InflightInfo) -> Result<Self, InflightError> {
        Self::open_within(&Allowance::default(), fd, info)
    }

    /// As [`Inflight::open`], as part of `allowance`.
    pub(crate) fn open_within(
        allowance: &Allowance,
        fd: impl AsFd,
        info: InflightInfo,
    ) -> Result<Self, InflightError> {
        // Packed rings may be agreed on later; they are looked at when one begins.
        let needed = needed(info, Form::Split)?;
        if info.area.len < needed || info.area.len > 2 * INFLIGHT_BYTES_MAX {
            return Err(InflightError::TooSmall { found: info.area.len, needed });
        }
        let mapping = Mapping::new(fd, info.area, allowance)?;
        let len = mapping.len();
        Ok(Self { mapping, len, queues: info.queues, entries: info.entries })
    }

    /// Where the records of queue number `queue` begin, if there are some for `entries` of a ring of this form.
    fn place(&self, queue: usize, entries: u16, form: Form) -> Option<usize> {
        let each = queue_bytes(self.entries, form);
        let room = usize::from(self.queues) * each + TAIL_BYTES <= self.len;
        (room && queue < usize::from(self.queues) && entries <= self.entries).then_some(queue * each)
    }

    /// The records of queue number `queue`, whose ring is split and has `entries`.
    pub fn split(self: &Arc<Self>, queue: usize, entries: u16) -> Option<split::Records> {
        let start = self.place(queue, entries, Form::Split)?;
        Some(split::Records::new(Arc::clone(self), start, entries))
    }

    /// The records of queue number `queue`, whose ring is packed and has `entries`.
    pub fn packed(self: &Arc<Self>, queue: usize, entries: u16) -> Option<packed::Records> {
        let start = self.place(queue, entries, Form::Packed)?;
        Some(packed::Records::new(Arc::clone(self), start, entries))
    }

    /// Whether some of the records was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    /// Whether the driver had the write cache on, if that was recorded.
    pub fn cache(&self) -> Option<bool> {
        let mut tail = [0; 4];
        self.mapping.read(self.tail(), &mut tail).ok()?;
        let [magic @ .., cache] = tail;
        match (magic, cache) {
            (TAIL_MAGIC, 1) => Some(true),
            (TAIL_MAGIC, 2) => Some(false),
            _ => None,
        }
    }

    /// Records whether the driver has the write cache on.
    pub fn set_cache(&self, on: bool) {
        let [a, b, c] = TAIL_MAGIC;
        // The place was there when the records were opened.
        let _ = self.mapping.write(self.tail(), &[a, b, c, if on { 1 } else { 2 }]);
    }

    fn tail(&self) -> usize {
        // `open` has looked at the length.
        self.len - TAIL_BYTES
    }
}

fn queue_bytes(entries: u16, form: Form) -> usize {
    let (head, record) = match form {
        Form::Split => (split::HEAD_BYTES, split::RECORD_BYTES),
        Form::Packed => (packed::HEAD_BYTES, packed::RECORD_BYTES),
    };
    (head + record * usize::from(entries)).next_multiple_of(ALIGNMENT)
}

fn needed(info: InflightInfo, form: Form) -> Result<u64, InflightError> {
    let InflightInfo { queues, entries, .. } = info;
    if !(1..=QUEUES_MAX).contains(&queues) || !(1..=RING_ENTRIES_MAX).contains(&entries) {
        return Err(InflightError::Numbers { queues, entries });
    }
    Ok((usize::from(queues) * queue_bytes(entries, form) + TAIL_BYTES) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: InflightInfo = InflightInfo { area: Area { len: 0, file_offset: 0 }, queues: 2, entries: 8 };

    fn records() -> (Arc<Inflight>, OwnedFd, InflightInfo) {
        let (fd, info) = Inflight::create(INFO, Form::Split).expect("memory");
        (Arc::new(Inflight::open(&fd, info).expect("records")), fd, info)
    }

    #[test]
    fn the_state_of_the_write_cache_outlives_the_process() {
        let (all, fd, info) = records();
        assert_eq!(all.cache(), None);
        all.set_cache(false);
        assert_eq!(Inflight::open(&fd, info).expect("records").cache(), Some(false));
        all.set_cache(true);
        assert_eq!(all.cache(), Some(true));
    }

    #[test]
    fn numbers_and_sizes_beyond_the_bounds_are_refused() {
        for (queues, entries) in [(0, 8), (65, 8), (1, 0), (1, u16::MAX)] {
            assert!(Inflight::create(InflightInfo { queues, entries, ..INFO }, Form::Split).is_err());
        }
        let (fd, info) = Inflight::create(INFO, Form::Split).expect("memory");
        let larger = InflightInfo { entries: 128, ..info };
        assert!(matches!(Inflight::open(&fd, larger), Err(InflightError::TooSmall { .. })));
        let far = InflightInfo { area: Area { file_offset: 4096, ..info.area }, ..info };
        assert!(matches!(Inflight::open(&fd, far), Err(InflightError::Map(MapError::BeyondEnd { .. }))));
        let (all, ..) = records();
        assert!(all.split(2, 8).is_none() && all.split(0, 16).is_none());
        assert!(all.packed(0, 8).is_none(), "records of packed rings need more room");
    }
}
