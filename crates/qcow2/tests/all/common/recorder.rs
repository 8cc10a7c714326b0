//! Storage that remembers what was written between flushes, and what a crash may keep of it.

use std::io;
use std::sync::{Arc, Mutex};

use storage::{Allocation, Hints, IoBytes, IoFuture, IoVec, MemoryStorage, Storage, Zeroing};

/// A change: its place and its bytes.
pub type Change = (u64, Vec<u8>);

/// Memory that keeps a list of its changes, one epoch for each flush.
#[derive(Debug)]
pub struct Recorder {
    inner: MemoryStorage,
    epochs: Arc<Mutex<Vec<Vec<Change>>>>,
}

impl Recorder {
    pub fn new(bytes: &[u8]) -> Self {
        let inner = MemoryStorage::from_bytes(bytes);
        Self { inner, epochs: Arc::new(Mutex::new(vec![Vec::new()])) }
    }

    /// The changes, in 512-byte sectors: what the file writes whole.
    pub fn epochs(&self) -> Vec<Vec<Change>> {
        let sectors = |(offset, bytes): &Change| {
            let mut parts = Vec::new();
            let mut at = 0;
            while at < bytes.len() {
                let place = offset + at as u64;
                let step = (512 - usize::try_from(place % 512).unwrap()).min(bytes.len() - at);
                parts.push((place, bytes[at..at + step].to_vec()));
                at += step;
            }
            parts
        };
        self.epochs.lock().unwrap().iter().map(|epoch| epoch.iter().flat_map(sectors).collect()).collect()
    }
}

/// Every state that matters after a crash: complete epochs, then part of one. Tried are nothing, everything,
/// all but one, only one, the first half and the second, for at most `sectors_max` sectors of an epoch.
pub fn crash_states(start: &[u8], epochs: &[Vec<Change>], sectors_max: usize) -> Vec<MemoryStorage> {
    let mut states = Vec::new();
    let mut settled = start.to_vec();
    for epoch in epochs {
        let count = epoch.len();
        let step = count.div_ceil(sectors_max).max(1);
        let mut kept: Vec<Vec<bool>> = vec![vec![false; count]];
        for one in (0..count).step_by(step) {
            kept.push((0..count).map(|at| at == one).collect());
            kept.push((0..count).map(|at| at != one).collect());
        }
        kept.push((0..count).map(|at| at < count / 2).collect());
        kept.push((0..count).map(|at| at >= count / 2).collect());
        for keep in kept {
            let chosen = epoch.iter().zip(keep).filter(|(_, keep)| *keep).map(|(change, _)| change);
            states.push(MemoryStorage::from_bytes(&applied(&settled, chosen)));
        }
        settled = applied(&settled, epoch.iter());
    }
    states.push(MemoryStorage::from_bytes(&settled));
    states
}

fn applied<'a>(start: &[u8], changes: impl Iterator<Item = &'a Change>) -> Vec<u8> {
    let mut bytes = start.to_vec();
    for (offset, data) in changes {
        let at = usize::try_from(*offset).unwrap();
        bytes.resize(bytes.len().max(at + data.len()), 0);
        bytes[at..at + data.len()].copy_from_slice(data);
    }
    bytes
}

impl Storage for Recorder {
    fn over(&self) -> Option<&dyn Storage> {
        Some(&self.inner)
    }

    fn name(&self) -> &str {
        "recorder"
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> IoFuture<'_, io::Result<()>> {
        self.epochs.lock().unwrap().last_mut().unwrap().push((offset, data.to_bytes().to_vec()));
        self.inner.write(offset, data, hints)
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        self.epochs.lock().unwrap().push(Vec::new());
        self.inner.flush()
    }

    fn zero(&self, offset: u64, len: u64, _: Zeroing) -> IoFuture<'_, io::Result<()>> {
        self.write(offset, IoBytes::zeroed(usize::try_from(len).unwrap()).into(), Hints::NONE)
    }

    fn discard(&self, _: u64, _: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn grow_to(&self, _: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn shorten_to(&self, _: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn allocate(&self, _: u64, _: u64, _: Allocation) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}
