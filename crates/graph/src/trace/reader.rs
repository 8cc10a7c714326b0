//! A trace, read piece by piece from wherever it is.

use std::io::{self, Read};

use thiserror::Error;

use super::varint::{self, Failure};
use super::{
    Before, DISKS_MAX, MAGIC, NAME_BYTES_MAX, Record, SECTOR, TraceDisk, TraceRequest, VERSION, tag,
};
use crate::front::Kind;

/// Bytes read at a time: several times the longest record, which has less than 5 KiB.
const PIECE_BYTES: usize = 64 << 10;

/// Why a trace cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file cannot.
    #[error("cannot read it")]
    Io(#[from] io::Error),
    /// It is none.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// Reads records in order, in little memory.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    decoder: Decoder,
    buffer: Box<[u8]>,
    /// What of the buffer was read and not decoded yet.
    from: usize,
    to: usize,
    complete: bool,
}

impl<R: Read> Reader<R> {
    /// Of the trace that `source` gives from here on.
    pub fn new(source: R) -> Self {
        let buffer = vec![0; PIECE_BYTES].into_boxed_slice();
        Self { source, decoder: Decoder::default(), buffer, from: 0, to: 0, complete: false }
    }

    /// The next record; `None` at the end, whether the trace ends in order ([`Reader::is_complete`]) or in the
    /// middle of a record.
    ///
    /// # Errors
    /// When the source fails, or is no trace.
    pub fn read(&mut self) -> Result<Option<Record>, ReadError> {
        if self.complete {
            return Ok(None);
        }
        loop {
            let mut rest = self.buffer.get(self.from..self.to).unwrap_or_default();
            if let Some(record) = self.decoder.next(&mut rest)? {
                self.from = self.to - rest.len();
                self.complete = matches!(record, Record::End { .. });
                return Ok(Some(record));
            }
            self.from = self.to - rest.len();
            if self.fill()? == 0 {
                return Ok(None);
            }
        }
    }

    /// Whether the record was met that a server writes when it ends in order.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        loop {
            match self.source.read(&mut self.buffer[self.to..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    let read = read?;
                    self.to += read;
                    return Ok(read);
                }
            }
        }
    }
}

/// Bytes that are no trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TraceError {
    /// They begin differently.
    #[error("not a trace of cowhand serve --trace: it does not begin with \"cowtrace\"")]
    Magic,
    /// Another version wrote them.
    #[error("the trace has version {found}; {VERSION} is what can be read")]
    Version {
        /// Its version.
        found: u8,
    },
    /// A record says what none can say.
    #[error("the trace is damaged at byte {at}: {detail}")]
    Corrupt {
        /// Where the record begins.
        at: u64,
        /// What is wrong with it.
        detail: &'static str,
    },
}

/// Reads the records of one trace, in order.
#[derive(Debug, Default)]
pub struct Decoder {
    disks: Vec<Before>,
    disk: u16,
    now_us: u64,
    /// Bytes read so far; 0 before the beginning was.
    position: u64,
}

/// Why there is no record.
enum Stop {
    Short,
    Wrong(&'static str),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Short => Self::Short,
            Failure::Long => Self::Wrong("a number has more than 64 bits"),
        }
    }
}

impl Decoder {
    /// Takes a record off the front of `bytes`. `None`, and nothing is taken, where they end before it does:
    /// come again with more.
    ///
    /// # Errors
    /// When the bytes are no trace; what follows makes no sense then.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Record>, TraceError> {
        if self.position == 0 && !self.begin(bytes)? {
            return Ok(None);
        }
        let mut rest = *bytes;
        match self.record(&mut rest) {
            Ok(record) => {
                self.position += (bytes.len() - rest.len()) as u64;
                *bytes = rest;
                Ok(Some(record))
            }
            Err(Stop::Short) => Ok(None),
            Err(Stop::Wrong(detail)) => Err(TraceError::Corrupt { at: self.position, detail }),
        }
    }

    fn begin(&mut self, bytes: &mut &[u8]) -> Result<bool, TraceError> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(TraceError::Magic);
        }
        match bytes.get(MAGIC.len()) {
            None => return Ok(false),
            Some(&VERSION) => {}
            Some(&found) => return Err(TraceError::Version { found }),
        }
        *bytes = &bytes[MAGIC.len() + 1..];
        self.position = MAGIC.len() as u64 + 1;
        Ok(true)
    }

    fn record(&mut self, bytes: &mut &[u8]) -> Result<Record, Stop> {
        let Some((&first, rest)) = bytes.split_first() else { return Err(Stop::Short) };
        *bytes = rest;
        match (first, Kind::ALL.get(usize::from(first & tag::WHAT))) {
            (tag::DISK, _) => self.take_disk(bytes),
            (tag::LOST, _) => Ok(Record::Lost(varint::take(bytes)?)),
            (tag::END, _) => Ok(Record::End { requests: varint::take(bytes)?, lost: varint::take(bytes)? }),
            (_, Some(&kind)) if first & tag::RESERVED == 0 => self.take_request(first, kind, bytes),
            _ => Err(Stop::Wrong("there is no such record")),
        }
    }

    fn take_disk(&mut self, bytes: &mut &[u8]) -> Result<Record, Stop> {
        if self.disks.len() == DISKS_MAX {
            return Err(Stop::Wrong("more than 4096 disks"));
        }
        let (disk_bytes, cluster_bytes) = (varint::take(bytes)?, varint::take(bytes)?);
        let len = usize::try_from(varint::take(bytes)?).unwrap_or(usize::MAX);
        if len > NAME_BYTES_MAX {
            return Err(Stop::Wrong("a disk's name has more than 4096 bytes"));
        }
        let (name, rest) = bytes.split_at_checked(len).ok_or(Stop::Short)?;
        let name = str::from_utf8(name).map_err(|_| Stop::Wrong("a disk's name is not UTF-8"))?;
        *bytes = rest;
        self.disks.push(Before::default());
        Ok(Record::Disk(TraceDisk { name: name.to_owned(), bytes: disk_bytes, cluster_bytes }))
    }

    fn take_request(&mut self, first: u8, kind: Kind, bytes: &mut &[u8]) -> Result<Record, Stop> {
        let same_disk = first & tag::SAME_DISK != 0;
        let disk = if same_disk { u64::from(self.disk) } else { varint::take(bytes)? };
        let index = usize::try_from(disk).unwrap_or(usize::MAX);
        let before = self.disks.get_mut(index).ok_or(Stop::Wrong("a request of a disk without a name"))?;
        let passed_us = varint::take(bytes)?;
        let (offset, len) = if kind == Kind::Flush { (0, 0) } else { take_range(first, before, bytes)? };
        if kind != Kind::Flush {
            *before = Before { end: offset + len, len };
        }
        // A disk's number is below DISKS_MAX.
        self.disk = index as u16;
        self.now_us = self.now_us.saturating_add(passed_us);
        Ok(Record::Request(TraceRequest { at_us: self.now_us, offset, len, disk: self.disk, kind }))
    }
}

/// Offset and length of a request; their sum fits 64 bits.
fn take_range(flags: u8, before: &Before, bytes: &mut &[u8]) -> Result<(u64, u64), Stop> {
    let far = || Stop::Wrong("a range ends beyond 64 bits");
    let has = |flag: u8| flags & flag != 0;
    let unit = if has(tag::SECTORS) { SECTOR } else { 1 };
    let distance = if has(tag::FOLLOWS) { 0 } else { varint::unfold(varint::take(bytes)?) };
    let distance = distance.checked_mul(unit as i64).ok_or_else(far)?;
    let len = match has(tag::SAME_LEN) {
        true => before.len,
        false => varint::take(bytes)?.checked_mul(unit).ok_or_else(far)?,
    };
    // Distances wrap at 64 bits: every offset can be encoded relative to any other.
    let offset = before.end.wrapping_add(distance.cast_unsigned());
    offset.checked_add(len).ok_or_else(far)?;
    Ok((offset, len))
}
