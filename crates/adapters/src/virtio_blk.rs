//! A descriptor chain of a virtio-blk queue as a request: what a device model, or a back-end over vhost-user-backend, takes from its
//! ring and submits to a [`cowhand::Queue`].

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use cowhand::{Request, ZeroOptions};
use virtio_queue::DescriptorChain;
use vm_memory::bitmap::Bitmap;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::guest_memory::GuestRanges;

/// The unit of offsets in requests, whatever the disk's block size is.
const SECTOR_BYTES: u64 = 512;
/// Bytes of a request's header: its type, a reserved field, its first sector.
const HEADER_BYTES: u32 = 16;
/// Bytes of a segment of a discard or of zeroes: its first sector, its length in sectors, flags.
const SEGMENT_BYTES: usize = 16;
/// Bytes of the answer to a question for the disk's name.
const ID_BYTES: usize = 20;
/// Descriptors of a chain at most: what a virtio queue is long.
const DESCRIPTORS_MAX: usize = 32768;

/// Types of requests, in the words of the specification (virtio 1.2, 5.2.6).
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// How a request ended, as the guest reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// It succeeded.
    Ok = 0,
    /// It failed.
    IoError = 1,
    /// The device does not have it.
    Unsupported = 2,
}

/// Why a chain is no request: the guest's driver is broken, and gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainError(String);

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ChainError {}

fn wrong(text: impl Into<String>) -> ChainError {
    ChainError(text.into())
}

/// A request of a guest.
#[derive(Debug)]
pub struct BlockRequest<B: Bitmap + Send + Sync + 'static = ()> {
    /// What is to be done.
    pub work: Work<B>,
    memory: Arc<GuestMemoryMmap<B>>,
    status: GuestAddress,
}

/// What a request asks for.
#[derive(Debug)]
pub enum Work<B: Bitmap + Send + Sync + 'static = ()> {
    /// Fill the guest's memory from a byte of the disk on.
    Read(u64, GuestRanges<B>),
    /// Write the guest's memory at a byte of the disk.
    Write(u64, GuestRanges<B>),
    /// Make durable what has completed.
    Flush,
    /// Discard a range of bytes.
    Discard(u64, u64),
    /// Make a range of bytes read as zeroes; whether space may be given back.
    Zero(u64, u64, bool),
    /// Fill the guest's memory with the disk's name.
    Name(GuestRanges<B>),
    /// A type that is not known, or a discard or zeroes in several segments: answer with [`Status::Unsupported`].
    Unsupported,
}

/// The descriptors of a chain: what the guest has written, and what the device writes.
struct Parts {
    readable: Vec<(GuestAddress, usize)>,
    writable: Vec<(GuestAddress, usize)>,
}

impl Parts {
    fn of<M>(chain: DescriptorChain<M>) -> Result<Self, ChainError>
    where
        M: Deref,
        M::Target: vm_memory::GuestMemory,
    {
        let mut parts = Self { readable: Vec::new(), writable: Vec::new() };
        for descriptor in chain.take(DESCRIPTORS_MAX) {
            let range = (descriptor.addr(), descriptor.len() as usize);
            match descriptor.is_write_only() {
                true => parts.writable.push(range),
                false if parts.writable.is_empty() => parts.readable.push(range),
                false => return Err(wrong("a descriptor for reading follows one for writing")),
            }
        }
        Ok(parts)
    }

    /// Takes the header off the front: 16 bytes, in however many descriptors.
    fn header(&mut self) -> Result<Vec<(GuestAddress, usize)>, ChainError> {
        let (mut left, mut header, mut rest) = (HEADER_BYTES as usize, Vec::new(), Vec::new());
        for (address, len) in self.readable.drain(..) {
            let taken = len.min(left);
            left -= taken;
            header.push((address, taken));
            let Some(after) = address.0.checked_add(taken as u64) else {
                return Err(wrong("a descriptor wraps"));
            };
            rest.push((GuestAddress(after), len - taken));
        }
        rest.retain(|(_, len)| *len > 0);
        header.retain(|(_, len)| *len > 0);
        self.readable = rest;
        if left == 0 { Ok(header) } else { Err(wrong(format!("the header has {left} bytes too few"))) }
    }

    /// Takes the status off the end: the last byte that the device writes.
    fn status(&mut self) -> Result<GuestAddress, ChainError> {
        self.writable.retain(|(_, len)| *len > 0);
        let last = self.writable.last_mut().ok_or_else(|| wrong("there is no byte for the status"))?;
        last.1 -= 1;
        let status = last.0.0.checked_add(last.1 as u64).ok_or_else(|| wrong("a descriptor wraps"))?;
        self.writable.retain(|(_, len)| *len > 0);
        Ok(GuestAddress(status))
    }
}

impl<B: Bitmap + Send + Sync + 'static> BlockRequest<B> {
    /// Decodes a chain. Nothing of it is believed: ranges are checked against the guest's memory, offsets against overflow.
    ///
    /// # Errors
    /// When the chain is no request.
    pub fn parse<M>(memory: Arc<GuestMemoryMmap<B>>, chain: DescriptorChain<M>) -> Result<Self, ChainError>
    where
        M: Deref,
        M::Target: vm_memory::GuestMemory,
    {
        let mut parts = Parts::of(chain)?;
        let header = bytes_of(&memory, parts.header()?, HEADER_BYTES as usize)?;
        let status = parts.status()?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| header[at + index]));
        let offset = || {
            let bytes = word(8).checked_mul(SECTOR_BYTES);
            bytes.ok_or_else(|| wrong(format!("the sector is {}, beyond any disk", word(8))))
        };
        // The low half of the first word; the other is reserved.
        let work = match word(0) as u32 {
            kind::IN => Work::Read(offset()?, ranges(&memory, parts.writable)?),
            kind::OUT => Work::Write(offset()?, ranges(&memory, parts.readable)?),
            kind::FLUSH => Work::Flush,
            kind::GET_ID => Work::Name(ranges(&memory, parts.writable)?),
            of @ (kind::DISCARD | kind::WRITE_ZEROES) => segment(of, &memory, parts.readable)?,
            _ => Work::Unsupported,
        };
        Ok(Self { work, memory, status })
    }

    /// The request for a queue of cowhand's; `None` where no disk is needed. What it writes is durable after a flush.
    pub fn request(&self) -> Option<Request> {
        self.request_with(false)
    }

    /// As [`BlockRequest::request`], durable when it completes: for a driver that has not negotiated VIRTIO_BLK_F_FLUSH, and so
    /// never flushes.
    pub fn durable_request(&self) -> Option<Request> {
        self.request_with(true)
    }

    fn request_with(&self, fua: bool) -> Option<Request> {
        Some(match &self.work {
            Work::Read(offset, ranges) => Request::ReadInto { offset: *offset, memory: ranges.bytes() },
            Work::Write(offset, ranges) => {
                Request::WriteFrom { offset: *offset, memory: ranges.bytes(), fua }
            }
            Work::Flush => Request::Flush,
            Work::Discard(offset, len) => Request::Discard { offset: *offset, len: *len },
            Work::Zero(offset, len, unmap) => {
                let options = ZeroOptions { unmap: *unmap, fast_only: false };
                Request::WriteZeroes { offset: *offset, len: *len, options, fua }
            }
            Work::Name(_) | Work::Unsupported => return None,
        })
    }

    /// Answers a question for the disk's name, of at most 20 bytes.
    pub fn answer_name(&self, name: &str) {
        if let Work::Name(ranges) = &self.work {
            let mut bytes = [0; ID_BYTES];
            let len = name.len().min(ID_BYTES);
            bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
            ranges.bytes().copy_from(0, &bytes[..ranges.len().min(ID_BYTES)]);
        }
    }

    /// Writes the status, and gives how many bytes the device has written: what the used ring says.
    ///
    /// # Errors
    /// When the guest's memory does not have the byte.
    pub fn complete(&self, status: Status) -> Result<u32, ChainError> {
        let unreachable = |error: vm_memory::GuestMemoryError| wrong(format!("the status: {error}"));
        let written = match &self.work {
            Work::Read(_, ranges) | Work::Name(ranges) => {
                ranges.mark_dirty().map_err(unreachable)?;
                ranges.len()
            }
            _ => 0,
        };
        self.memory.write_obj(status as u8, self.status).map_err(unreachable)?;
        Ok(u32::try_from(written + 1).unwrap_or(u32::MAX))
    }
}

fn ranges<B: Bitmap + Send + Sync + 'static>(
    memory: &Arc<GuestMemoryMmap<B>>,
    list: Vec<(GuestAddress, usize)>,
) -> Result<GuestRanges<B>, ChainError> {
    GuestRanges::new(memory.clone(), list).map_err(|error| wrong(format!("a descriptor: {error}")))
}

/// The first `len` bytes of ranges of a guest's memory, copied once: the guest may change them.
fn bytes_of<B: Bitmap + Send + Sync + 'static>(
    memory: &Arc<GuestMemoryMmap<B>>,
    list: Vec<(GuestAddress, usize)>,
    len: usize,
) -> Result<Vec<u8>, ChainError> {
    let ranges = ranges(memory, list)?;
    if ranges.len() < len {
        return Err(wrong(format!("{} bytes are there, of {len}", ranges.len())));
    }
    let copy = ranges.bytes().slice(0, len).to_bytes();
    copy.map(|bytes| bytes.to_vec()).map_err(|error| wrong(error.to_string()))
}

/// The only segment of a discard or of zeroes.
fn segment<B: Bitmap + Send + Sync + 'static>(
    of: u32,
    memory: &Arc<GuestMemoryMmap<B>>,
    list: Vec<(GuestAddress, usize)>,
) -> Result<Work<B>, ChainError> {
    if list.iter().map(|(_, len)| *len).sum::<usize>() > SEGMENT_BYTES {
        return Ok(Work::Unsupported);
    }
    let bytes = bytes_of(memory, list, SEGMENT_BYTES)?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
    let sector = u64::from(word(4)) << 32 | u64::from(word(0));
    let offset = sector.checked_mul(SECTOR_BYTES).ok_or_else(|| wrong(format!("the sector is {sector}")))?;
    let len = u64::from(word(8)) * SECTOR_BYTES;
    Ok(match (of, word(12)) {
        (kind::DISCARD, 0) => Work::Discard(offset, len),
        (kind::WRITE_ZEROES, flags @ (0 | 1)) => Work::Zero(offset, len, flags == 1),
        _ => Work::Unsupported,
    })
}
