//! A block in memory whose map says what a test wants, and whose requests fail when a test wants.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use block::{
    Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, Hints, ReadKind, Stored, Takes, ZeroOptions,
};
use memory::{IoBuf, IoBytes, IoVec};

pub const SECTOR: usize = 512;

/// What the map says of one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sector {
    /// The block's own data.
    Data,
    /// The block's own zeroes.
    Zero,
    /// Data of the layer below.
    Below,
    /// Unknown: zeroes.
    Absent,
}

/// A block whose bytes and map are made up.
#[derive(Debug)]
pub struct MadeUp {
    name: &'static str,
    bytes: Mutex<Vec<u8>>,
    map: Vec<Sector>,
    requests: AtomicU64,
    fails_at: u64,
    unreadable: Vec<usize>,
    unmapped: Vec<usize>,
    flushed: AtomicU64,
    takes: Option<Takes>,
    refuses: bool,
}

impl MadeUp {
    /// Sector `n` holds bytes of value `n + seed`, where it is data.
    pub fn new(name: &'static str, map: &[Sector], seed: u8) -> Self {
        let byte = |index: usize| match map[index / SECTOR] {
            Sector::Data | Sector::Below => (index / SECTOR) as u8 ^ seed,
            Sector::Zero | Sector::Absent => 0,
        };
        let bytes = (0..map.len() * SECTOR).map(byte).collect();
        Self {
            name,
            bytes: Mutex::new(bytes),
            map: map.to_vec(),
            requests: AtomicU64::new(0),
            fails_at: u64::MAX,
            unreadable: Vec::new(),
            unmapped: Vec::new(),
            flushed: AtomicU64::new(0),
            takes: None,
            refuses: false,
        }
    }

    /// Full of old bytes that its map calls data.
    pub fn used(name: &'static str, sectors: usize) -> Self {
        Self::new(name, &vec![Sector::Data; sectors], 0xa5)
    }

    /// Zeroes.
    pub fn blank(name: &'static str, sectors: usize) -> Self {
        Self::new(name, &vec![Sector::Absent; sectors], 0)
    }

    /// Request number `at` fails, the first being 0.
    pub fn failing(self, at: u64) -> Self {
        Self { fails_at: at, ..self }
    }

    /// These sectors cannot be read.
    pub fn unreadable(self, sectors: &[usize]) -> Self {
        Self { unreadable: sectors.to_vec(), ..self }
    }

    /// The map of these sectors cannot be read.
    pub fn unmapped(self, sectors: &[usize]) -> Self {
        Self { unmapped: sectors.to_vec(), ..self }
    }

    /// It takes over packed units of so many bytes, or says that it does and refuses them.
    pub fn taking(self, unit_bytes: u64, refuses: bool) -> Self {
        Self { takes: Some(Takes::Packed { packing: "made-up", unit_bytes }), refuses, ..self }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    pub fn flushes(&self) -> u64 {
        self.flushed.load(Ordering::Relaxed)
    }

    fn check(&self, failing: &[usize], range: &std::ops::Range<usize>) -> Result<(), Error> {
        let touched = range.start / SECTOR..range.end.div_ceil(SECTOR);
        match failing.iter().any(|sector| touched.contains(sector)) {
            false => Ok(()),
            true => {
                let source = Arc::new(io::Error::other("unreadable"));
                Err(Error::Io { image: self.name.into(), action: "reading", source })
            }
        }
    }

    fn request(&self, offset: u64, len: u64) -> Result<std::ops::Range<usize>, Error> {
        if self.requests.fetch_add(1, Ordering::Relaxed) == self.fails_at {
            let source = Arc::new(io::Error::other("made up"));
            return Err(Error::Io { image: self.name.into(), action: "a request", source });
        }
        let size = self.size();
        match offset + len <= size {
            true => Ok(offset as usize..(offset + len) as usize),
            false => Err(Blame::new(self.name).past_end(offset, len, size)),
        }
    }
}

impl Block for MadeUp {
    fn driver(&self) -> &'static str {
        "made-up"
    }

    fn name(&self) -> &str {
        self.name
    }

    fn size(&self) -> u64 {
        (self.map.len() * SECTOR) as u64
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: false, alignment: 1, cached: false, cluster_bytes: None }
    }

    fn read(
        &self,
        offset: u64,
        mut buf: IoBuf,
        _hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            let range = match self.request(offset, buf.len() as u64) {
                Ok(range) => range,
                Err(error) => return (Err(error), buf),
            };
            if let Err(error) = self.check(&self.unreadable, &range) {
                return (Err(error), buf);
            }
            buf.copy_from_slice(&self.bytes.lock().unwrap()[range]);
            (Ok(ReadKind::Data), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let range = self.request(offset, data.len() as u64)?;
            self.bytes.lock().unwrap()[range].copy_from_slice(&data.to_bytes());
            Ok(())
        })
    }

    fn zero(&self, offset: u64, len: u64, _: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let range = self.request(offset, len)?;
            self.bytes.lock().unwrap()[range].fill(0);
            Ok(())
        })
    }

    fn discard(&self, _: u64, _: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.request(0, 0)?;
            self.flushed.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            let range = self.request(offset, len)?;
            self.check(&self.unmapped, &range)?;
            let first = self.map[range.start / SECTOR];
            let mut end = (range.start / SECTOR + 1) * SECTOR;
            while end < range.end && self.map[end / SECTOR] == first {
                end += SECTOR;
            }
            let status = BlockStatus::data((end.min(range.end) - range.start) as u64, 0, None);
            Ok(match first {
                Sector::Data => status,
                Sector::Zero => BlockStatus { zero: true, data: false, ..status },
                Sector::Below => BlockStatus { depth: 1, ..status },
                Sector::Absent => {
                    BlockStatus { depth: 1, present: false, zero: true, hole: true, data: false, ..status }
                }
            })
        })
    }

    fn stored(&self, offset: u64, len: u64, wanted: Takes) -> BlockFuture<'_, Result<Option<Stored>, Error>> {
        Box::pin(async move {
            let Takes::Packed { unit_bytes, .. } = wanted else { return Ok(None) };
            if len < unit_bytes {
                return Ok(None);
            }
            let range = self.request(offset, unit_bytes)?;
            let sectors = &self.map[range.start / SECTOR..range.end / SECTOR];
            let is_whole = offset.is_multiple_of(unit_bytes) && sectors.iter().all(|at| *at == Sector::Data);
            let unit = IoBytes::copy_from(&self.bytes.lock().unwrap()[range]);
            Ok(is_whole.then(|| Stored::Packed { units: vec![unit], unit_bytes }))
        })
    }

    fn takes(&self) -> Option<Takes> {
        self.takes
    }

    fn take(&self, offset: u64, stored: Stored) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let range = self.request(offset, stored.disk_bytes())?;
            match stored {
                Stored::Packed { units, .. } if !self.refuses => {
                    let bytes: Vec<u8> = units.iter().flat_map(|unit| unit.to_vec()).collect();
                    self.bytes.lock().unwrap()[range].copy_from_slice(&bytes);
                    Ok(())
                }
                _ => Err(Blame::new(self.name).unsupported("made up")),
            }
        })
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        self.flush()
    }
}
