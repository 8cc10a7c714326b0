//! Bytes in memory: for tests and benchmarks.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use memory::{ForeignBytes, IoBuf, IoVec};
use parking_lot::RwLock;

use crate::{Allocation, Capabilities, Extent, ExtentKind, Hints, IoFuture, Storage, Zeroing};

/// Unit in which space is taken and given back.
const CHUNK: u64 = 64 << 10;

type Chunk = Box<[u8]>;

#[derive(Default)]
struct State {
    /// Chunks that hold bytes, by index; others read as zeroes. Bytes beyond the length are zero.
    chunks: BTreeMap<u64, Chunk>,
    length: u64,
}

/// A sparse file in memory. Nothing survives the process, and every flush succeeds.
pub struct MemoryStorage {
    name: String,
    state: RwLock<State>,
}

impl MemoryStorage {
    /// `length` zero bytes, none of them allocated.
    pub fn new(length: u64) -> Self {
        Self { name: "memory".to_owned(), state: RwLock::new(State { chunks: BTreeMap::new(), length }) }
    }

    /// A copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let storage = Self::new(0);
        storage.state.write().store(0, bytes);
        storage
    }

    /// A copy of everything.
    ///
    /// # Panics
    /// If it does not fit into memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let state = self.state.read();
        let mut bytes = vec![0; usize::try_from(state.length).unwrap_or(usize::MAX)];
        state.load(0, &mut bytes);
        bytes
    }
}

impl State {
    fn load(&self, offset: u64, buf: &mut [u8]) {
        for_each_part(offset, buf.len() as u64, |index, from, to, at| {
            let target = &mut buf[at..at + (to - from)];
            match self.chunks.get(&index) {
                Some(chunk) => target.copy_from_slice(&chunk[from..to]),
                None => target.fill(0),
            }
        });
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) {
        for_each_part(offset, bytes.len() as u64, |index, from, to, at| {
            self.chunk(index)[from..to].copy_from_slice(&bytes[at..at + (to - from)]);
        });
        if !bytes.is_empty() {
            self.length = self.length.max(offset + bytes.len() as u64);
        }
    }

    fn chunk(&mut self, index: u64) -> &mut Chunk {
        self.chunks.entry(index).or_insert_with(|| vec![0; CHUNK as usize].into_boxed_slice())
    }

    /// Makes the range zero; whole chunks are given back. Costs what is there, not what is asked.
    fn clear(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let touched = self.chunks.range(offset / CHUNK..end.div_ceil(CHUNK));
        let touched: Vec<u64> = touched.map(|(&index, _)| index).collect();
        for index in touched {
            let start = index * CHUNK;
            let (from, to) = (offset.max(start) - start, end.min(start + CHUNK) - start);
            if to - from == CHUNK {
                self.chunks.remove(&index);
            } else {
                self.chunk(index)[from as usize..to as usize].fill(0);
            }
        }
    }

    fn reserve(&mut self, offset: u64, len: u64) {
        for_each_part(offset, len, |index, _, _, _| {
            self.chunk(index);
        });
    }

    fn extent(&self, offset: u64, len: u64) -> io::Result<Extent> {
        let end = self.length.min(offset.saturating_add(len));
        if offset >= end {
            return Err(beyond(offset, len, self.length));
        }
        let first = self.chunks.contains_key(&(offset / CHUNK));
        let index = if first {
            let run = (offset / CHUNK..).zip(self.chunks.range(offset / CHUNK..));
            run.take_while(|(expected, (index, _))| expected == *index).count() as u64 + offset / CHUNK
        } else {
            let next = self.chunks.range(offset / CHUNK..).next();
            next.map_or(u64::MAX / CHUNK, |(&index, _)| index)
        };
        let kind = if first { ExtentKind::Data } else { ExtentKind::Hole };
        Ok(Extent { len: end.min(index * CHUNK) - offset, kind })
    }
}

/// Calls `part(chunk index, from, to, place in the range)` for every chunk of the range.
fn for_each_part(offset: u64, len: u64, mut part: impl FnMut(u64, usize, usize, usize)) {
    let mut at = 0;
    while at < len {
        let (index, from) = ((offset + at) / CHUNK, (offset + at) % CHUNK);
        let step = (CHUNK - from).min(len - at);
        part(index, from as usize, (from + step) as usize, at as usize);
        at += step;
    }
}

/// The range must not wrap around.
fn check(offset: u64, len: u64) -> io::Result<u64> {
    let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
    end.ok_or_else(|| beyond(offset, len, i64::MAX as u64))
}

fn beyond(offset: u64, len: u64, length: u64) -> io::Error {
    let message = format!("{len} bytes at {offset} go beyond {length}");
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

impl Storage for MemoryStorage {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::REGULAR_FILE
    }

    fn length(&self) -> u64 {
        self.state.read().length
    }

    fn try_read(&self, offset: u64, buf: &mut [u8], _hints: Hints) -> bool {
        if check(offset, buf.len() as u64).is_err() {
            return false;
        }
        self.state.read().load(offset, buf);
        true
    }

    fn try_read_into(&self, offset: u64, memory: &ForeignBytes, hints: Hints) -> bool {
        let mut bytes = vec![0; memory.len()];
        let is_read = self.try_read(offset, &mut bytes, hints);
        if is_read {
            memory.copy_from(0, &bytes);
        }
        is_read
    }

    fn read(&self, offset: u64, mut buf: IoBuf, _hints: Hints) -> IoFuture<'_, (io::Result<()>, IoBuf)> {
        Box::pin(async move {
            let checked = check(offset, buf.len() as u64);
            if checked.is_ok() {
                self.state.read().load(offset, &mut buf);
            }
            (checked.map(drop), buf)
        })
    }

    fn write(&self, offset: u64, data: IoVec, _hints: Hints) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            check(offset, data.len() as u64)?;
            let mut state = self.state.write();
            let mut at = offset;
            for part in data.parts() {
                state.store(at, part);
                at += part.len() as u64;
            }
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn zero(&self, offset: u64, len: u64, how: Zeroing) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let end = check(offset, len)?;
            let mut state = self.state.write();
            state.clear(offset, len);
            if how == Zeroing::Keep {
                state.reserve(offset, len);
            }
            if len > 0 {
                state.length = state.length.max(end);
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            check(offset, len)?;
            let mut state = self.state.write();
            let len = len.min(state.length.saturating_sub(offset));
            state.clear(offset, len);
            Ok(())
        })
    }

    fn grow_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            check(length, 0)?;
            let mut state = self.state.write();
            state.length = state.length.max(length);
            Ok(())
        })
    }

    fn shorten_to(&self, length: u64) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let mut state = self.state.write();
            if length >= state.length {
                return Ok(());
            }
            let first_gone = length.div_ceil(CHUNK);
            state.chunks.split_off(&first_gone);
            if !length.is_multiple_of(CHUNK) {
                state.clear(length, first_gone * CHUNK - length);
            }
            state.length = length;
            Ok(())
        })
    }

    fn allocate(&self, offset: u64, len: u64, how: Allocation) -> IoFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let end = check(offset, len)?;
            let mut state = self.state.write();
            if how == Allocation::Write {
                state.clear(offset, len);
            }
            state.reserve(offset, len);
            if len > 0 {
                state.length = state.length.max(end);
            }
            Ok(())
        })
    }

    fn extent(&self, offset: u64, len: u64) -> IoFuture<'_, io::Result<Extent>> {
        Box::pin(async move { self.state.read().extent(offset, len) })
    }

    fn allocated_bytes(&self) -> Option<u64> {
        Some(self.state.read().chunks.len() as u64 * CHUNK)
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryStorage({} bytes)", self.length())
    }
}
