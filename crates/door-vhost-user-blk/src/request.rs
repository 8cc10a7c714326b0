//! What a chain of descriptors asks for (virtio 1.2, 5.2.6): a header, data, a byte for the status.

use smallvec::SmallVec;

use crate::limits::{RANGE_SECTORS_MAX, RANGES_MAX, REQUEST_BYTES_MAX};
use crate::memory::Memory;
use crate::ring::{Chain, RingFault, Segment, Segments};

/// Bytes of a sector, in which offsets and lengths are counted.
pub const SECTOR_BYTES: u64 = 512;

/// Bytes of the header.
const HEADER_BYTES: usize = 16;

/// Bytes of a range of a discard.
const RANGE_BYTES: usize = 16;

/// Bytes of the disk's name.
pub const ID_BYTES: usize = 20;

/// What the driver receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// Failed.
    IoError,
    /// The device does no such thing.
    Unsupported,
}

impl Status {
    /// The byte in memory.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::IoError => 1,
            Self::Unsupported => 2,
        }
    }
}

/// What is asked of the disk. Ranges lie inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Bytes of the disk.
    Read {
        /// First byte of the disk.
        offset: u64,
        /// Where they go.
        data: Segments,
        /// How many.
        len: u64,
    },
    /// Bytes for the disk.
    Write {
        /// First byte of the disk.
        offset: u64,
        /// Where they are.
        data: Segments,
        /// How many.
        len: u64,
    },
    /// Everything written is to be durable.
    Flush,
    /// Ranges are of no use any more.
    Discard(Ranges),
    /// Ranges are to read as zeroes.
    Zero(Ranges),
    /// The disk's name.
    Id {
        /// Where it goes.
        data: Segments,
    },
    /// Nothing: the answer is known.
    Answered(Status),
}

/// Ranges of a discard or of zeroes.
pub type Ranges = SmallVec<[Range; 1]>;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte of the disk.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The space may be given back.
    pub unmap: bool,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What names it when it is done.
    pub head: u16,
    /// Where its status goes.
    pub status_at: u64,
    /// What it asks for.
    pub ask: Ask,
}

/// What a disk takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takes {
    /// Bytes of it, a multiple of a sector.
    pub size: u64,
    /// It is not written.
    pub read_only: bool,
    /// It discards.
    pub discard: bool,
    /// It zeroes.
    pub zero: bool,
}

impl Request {
    /// What `chain` asks for.
    ///
    /// # Errors
    /// When there is no place for a status, so that the driver cannot be answered.
    pub fn of(chain: Chain, memory: &Memory, takes: &Takes) -> Result<Self, RingFault> {
        let Chain { head, readable, mut writable } = chain;
        let status_at = take_status(&mut writable).ok_or(RingFault::NoStatus)?;
        // It must be there before anything is done.
        memory.read(status_at, &mut [0])?;
        let ask = ask(readable, writable, memory, takes).unwrap_or_else(Ask::Answered);
        Ok(Self { head, status_at, ask })
    }

    /// Bytes that it moves between disk and memory.
    pub fn bytes(&self) -> u64 {
        match &self.ask {
            Ask::Read { len, .. } | Ask::Write { len, .. } => *len,
            Ask::Flush | Ask::Discard(_) | Ask::Zero(_) | Ask::Id { .. } | Ask::Answered(_) => 0,
        }
    }
}

fn ask(mut readable: Segments, writable: Segments, memory: &Memory, takes: &Takes) -> Result<Ask, Status> {
    let header: [u8; HEADER_BYTES] = take_header(&mut readable, memory)?;
    let [k0, k1, k2, k3, _, _, _, _, sector @ ..] = header;
    let sector = u64::from_le_bytes(sector);
    match u32::from_le_bytes([k0, k1, k2, k3]) {
        0 => {
            let (offset, len) = place(sector, &writable, takes)?;
            Ok(Ask::Read { offset, data: writable, len })
        }
        1 | 11 | 13 if takes.read_only => Err(Status::IoError),
        1 => {
            let (offset, len) = place(sector, &readable, takes)?;
            Ok(Ask::Write { offset, data: readable, len })
        }
        4 => Ok(Ask::Flush),
        8 => Ok(Ask::Id { data: writable }),
        11 if takes.discard => ranges(&readable, memory, takes, 0).map(Ask::Discard),
        13 if takes.zero => ranges(&readable, memory, takes, 1).map(Ask::Zero),
        _ => Err(Status::Unsupported),
    }
}

/// Where data goes to or comes from, if that is on the disk.
fn place(sector: u64, data: &Segments, takes: &Takes) -> Result<(u64, u64), Status> {
    let len: u64 = data.iter().map(|segment| u64::from(segment.len)).sum();
    let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Status::IoError)?;
    let inside = offset.checked_add(len).is_some_and(|end| end <= takes.size);
    let fits = len.is_multiple_of(SECTOR_BYTES) && len <= REQUEST_BYTES_MAX;
    if inside && fits { Ok((offset, len)) } else { Err(Status::IoError) }
}

/// The ranges that the data describes; of their flags those in `flags` are known.
fn ranges(data: &Segments, memory: &Memory, takes: &Takes, flags: u32) -> Result<Ranges, Status> {
    let len: u64 = data.iter().map(|segment| u64::from(segment.len)).sum();
    let len = usize::try_from(len).map_err(|_| Status::IoError)?;
    if len == 0 || !len.is_multiple_of(RANGE_BYTES) || len > RANGES_MAX as usize * RANGE_BYTES {
        return Err(Status::IoError);
    }
    // Copied first: what was checked is what is done.
    let mut bytes: SmallVec<[u8; RANGE_BYTES]> = smallvec::smallvec![0; len];
    gather(data, memory, &mut bytes)?;
    bytes.chunks_exact(RANGE_BYTES).map(|range| decode_range(range, takes, flags)).collect()
}

fn decode_range(bytes: &[u8], takes: &Takes, known: u32) -> Result<Range, Status> {
    let (Some(sector), Some(count), Some(flags)) = (bytes.first_chunk(), bytes.get(8..12), bytes.get(12..16))
    else {
        return Err(Status::IoError);
    };
    let number = |part: &[u8]| part.first_chunk().map_or(0, |part| u32::from_le_bytes(*part));
    let (sector, count, flags) = (u64::from_le_bytes(*sector), number(count), number(flags));
    if flags & !known != 0 {
        return Err(Status::Unsupported);
    }
    let offset = sector.checked_mul(SECTOR_BYTES).ok_or(Status::IoError)?;
    let len = u64::from(count) * SECTOR_BYTES;
    let inside = offset.checked_add(len).is_some_and(|end| end <= takes.size);
    match inside && count <= RANGE_SECTORS_MAX {
        true => Ok(Range { offset, len, unmap: flags & 1 != 0 }),
        false => Err(Status::IoError),
    }
}

/// Takes the first bytes of what the device reads.
fn take_header(readable: &mut Segments, memory: &Memory) -> Result<[u8; HEADER_BYTES], Status> {
    let mut header = [0; HEADER_BYTES];
    let mut done = 0;
    while done < HEADER_BYTES {
        let first = readable.first_mut().ok_or(Status::IoError)?;
        let part = (HEADER_BYTES - done).min(first.len as usize);
        let target = header.get_mut(done..done + part).ok_or(Status::IoError)?;
        memory.read(first.address, target).map_err(|_| Status::IoError)?;
        done += part;
        // At most 16.
        *first = Segment { address: first.address + part as u64, len: first.len - part as u32 };
        if first.len == 0 {
            readable.remove(0);
        }
    }
    Ok(header)
}

/// Takes the last byte of what the device writes.
fn take_status(writable: &mut Segments) -> Option<u64> {
    let last = writable.last_mut()?;
    last.len -= 1;
    let at = last.address.checked_add(u64::from(last.len))?;
    if last.len == 0 {
        writable.pop();
    }
    Some(at)
}

fn gather(data: &Segments, memory: &Memory, out: &mut [u8]) -> Result<(), Status> {
    let mut rest = out;
    for segment in data {
        let (part, after) = rest.split_at_mut_checked(segment.len as usize).ok_or(Status::IoError)?;
        memory.read(segment.address, part).map_err(|_| Status::IoError)?;
        rest = after;
    }
    Ok(())
}
