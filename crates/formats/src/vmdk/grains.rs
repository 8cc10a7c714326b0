//! Where the grains of a sparse extent are, and what compressed ones hold.

use std::collections::VecDeque;
use std::sync::Arc;

use block::{Blame, Error, SECTOR_BYTES};
use memory::IoBuf;
use parking_lot::Mutex;
use storage::{Hints, Storage};
use zlib_rs::{Inflate, InflateFlush, Status};

use super::header::Sparse;
use crate::pages::{Numbered, Pages};

/// Bytes of an entry of a directory or a table.
const ENTRY_BYTES: u64 = 4;
/// What an entry says of a grain of zeroes, where the header allows it.
const ZERO_GRAIN: u32 = 1;
/// The marker before a compressed grain: its first sector on the disk, and its length.
const MARKER_BYTES: usize = 12;
/// Streams may reach 32 KiB back.
const WINDOW_BITS_MAX: u8 = 15;
/// Unpacked grains in memory: reads in sequence are often smaller than a grain.
const UNPACKED_BYTES_MAX: usize = 4 << 20;

/// Neighbouring grains in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub grains: u64,
    pub state: State,
}

/// The state of a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Unallocated,
    Zeroes,
    /// Stored, from this sector on.
    At(u32),
}

impl Sparse {
    fn state(&self, entry: u32) -> State {
        match entry {
            0 => State::Unallocated,
            ZERO_GRAIN if self.has_zero_grains => State::Zeroes,
            sector => State::At(sector),
        }
    }

    /// Whether a grain in `next` follows one in `state`, `grains` before, such that both are read at once.
    fn continues(&self, state: State, grains: u64, next: State) -> bool {
        match (state, next) {
            (State::At(first), State::At(next)) => {
                let sectors = grains * (self.grain_bytes / SECTOR_BYTES);
                !self.is_packed && u64::from(first) + sectors == u64::from(next)
            }
            (state, next) => state == next,
        }
    }

    /// The state of `grain` and of those behind it that are in the same, as far as a page of a table tells.
    pub async fn run(&self, file: Numbered<'_>, pages: &Pages, grain: u64) -> Result<Run, Error> {
        let (table, inside) = (grain / self.table_entries, grain % self.table_entries);
        if table >= self.directory_entries {
            return Err(Blame::new(file.file.name()).corrupt(format!(
                "grain {grain} is beyond the grain directory ({} entries)",
                self.directory_entries
            )));
        }
        let directory = pages.rest(file, self.directory + table * ENTRY_BYTES, ENTRY_BYTES).await?;
        let first = directory.le32().next().unwrap_or(0);
        if first == 0 {
            let left = (self.directory_entries - table) as usize;
            let tables = directory.le32().take(left).take_while(|entry| *entry == 0).count() as u64;
            return Ok(Run { grains: tables * self.table_entries - inside, state: State::Unallocated });
        }
        let at = u64::from(first) * SECTOR_BYTES + inside * ENTRY_BYTES;
        let entries = pages.rest(file, at, ENTRY_BYTES).await?;
        let left = (self.table_entries - inside) as usize;
        let mut states = entries.le32().take(left).map(|entry| self.state(entry));
        let state = states.next().unwrap_or(State::Unallocated);
        let same = (1..).zip(states).take_while(|(grains, next)| self.continues(state, *grains, *next));
        Ok(Run { grains: 1 + same.count() as u64, state })
    }
}

/// A compressed grain, and the part of it that is wanted.
#[derive(Debug)]
pub struct PackedGrain {
    pub file: Arc<dyn Storage>,
    pub number: usize,
    pub at: u64,
    pub grain_bytes: u64,
    pub has_marker: bool,
    /// First byte that is wanted.
    pub inside: u64,
}

/// Grains that were unpacked last, the oldest first.
#[derive(Debug, Default)]
pub struct Unpacked(Mutex<VecDeque<Grain>>);

/// What a grain holds, by the number of its file and its place there.
#[derive(Debug)]
struct Grain {
    key: (usize, u64),
    bytes: Arc<[u8]>,
}

impl Unpacked {
    /// Fills `buf` with a part of the grain.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the grain is no zlib stream, or ends before the part does.
    pub async fn fill(&self, grain: PackedGrain, buf: &mut [u8]) -> Result<(), Error> {
        let key = (grain.number, grain.at);
        let cached =
            self.0.lock().iter().find(|grain| grain.key == key).map(|grain| Arc::clone(&grain.bytes));
        let bytes = match cached {
            Some(bytes) => bytes,
            None => {
                let bytes: Arc<[u8]> = unpack(&grain).await?.into();
                let mut grains = self.0.lock();
                while grains.iter().map(|grain| grain.bytes.len()).sum::<usize>() + bytes.len()
                    > UNPACKED_BYTES_MAX
                {
                    if grains.pop_front().is_none() {
                        break;
                    }
                }
                grains.push_back(Grain { key, bytes: Arc::clone(&bytes) });
                bytes
            }
        };
        let start = grain.inside as usize;
        match bytes.get(start..start + buf.len()) {
            Some(part) => {
                buf.copy_from_slice(part);
                Ok(())
            }
            None => Err(grain.corrupt(format!(
                "it unpacks to {} bytes; {} are needed",
                bytes.len(),
                start + buf.len()
            ))),
        }
    }
}

impl PackedGrain {
    fn corrupt(&self, what: String) -> Error {
        Blame::new(self.file.name())
            .corrupt(format!("the compressed grain at {} is damaged: {what}", self.at))
    }

    async fn read(&self, offset: u64, len: u64) -> Result<IoBuf, Error> {
        let blame = Blame::new(self.file.name());
        let buf = IoBuf::try_uninit(len as usize).ok_or_else(|| blame.no_memory("a compressed grain"))?;
        let (result, buf) = self.file.read(offset, buf, Hints::NONE).await;
        result.map_err(blame.io("reading a compressed grain"))?;
        Ok(buf)
    }
}

/// The whole grain. What is stored has at most twice its length, as in QEMU.
async fn unpack(grain: &PackedGrain) -> Result<Vec<u8>, Error> {
    let packed_max = 2 * grain.grain_bytes;
    let there = grain.file.length().saturating_sub(grain.at);
    let (start, len) = match grain.has_marker {
        true => {
            let marker = grain.read(grain.at, MARKER_BYTES as u64).await?;
            let len =
                marker.get(8..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u32::from_le_bytes);
            (grain.at + MARKER_BYTES as u64, u64::from(len))
        }
        false => (grain.at, packed_max.min(there)),
    };
    if !(1..=packed_max).contains(&len) {
        return Err(grain.corrupt(format!("its length is {len}; allowed: 1 to {packed_max}")));
    }
    let packed = grain.read(start, len).await?;
    let mut bytes = vec![0; grain.grain_bytes as usize];
    let mut stream = Inflate::new(true, WINDOW_BITS_MAX);
    let status = stream.decompress(&packed, &mut bytes, InflateFlush::Finish);
    if !status.is_ok_and(|status| status == Status::StreamEnd) {
        let why = stream.error_message().unwrap_or("it does not end there");
        return Err(grain.corrupt(format!("it is no zlib stream of at most a grain ({why})")));
    }
    bytes.truncate(stream.total_out() as usize);
    Ok(bytes)
}
