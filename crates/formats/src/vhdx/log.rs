//! The log: which of its entries are to be replayed, and what they change.
//!
//! MS-VHDX 2.3, "Log". A log is a ring of entries; a writer that died left those behind whose changes may not have reached their places. Nothing of
//! it is ever written: [`super::replay`] shows the file as it is after the replay.

use block::{Blame, Error};
use memory::IoBuf;
use storage::{Hints, Storage};

use super::crc::Crc;
use super::header::Header;

/// What entries, their descriptors and their data are in multiples of.
pub const SECTOR_BYTES: usize = 4096;
/// Bytes of a log that is replayed: it is in memory while the image is open. Hyper-V and QEMU write 1 MiB.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// The log is looked through so many times at most: entries of several writers may overlap, and what claims more is made to take time.
const PASSES_MAX: usize = 8;
/// Changes of a log at most: a log of sectors has up to 4,096.
const CHANGES_MAX: usize = 1 << 16;
const ENTRY_HEADER_BYTES: usize = 64;
const DESCRIPTOR_BYTES: usize = 32;
/// What of a sector's bytes the data sector has: the first 8 and the last 4 are in the descriptor.
pub const DATA_BYTES: usize = SECTOR_BYTES - 8 - 4;

/// A change of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// So many bytes become zeroes.
    Zeroes(u64),
    /// A sector gets these bytes.
    Sector { leading: [u8; 8], trailing: [u8; 4], data_at: usize },
}

/// What a log says is to be done.
#[derive(Debug)]
pub struct Replay {
    pub log: IoBuf,
    /// Place and change, in the order of the log.
    pub changes: Vec<(u64, Change)>,
    /// The file's length afterwards, at least.
    pub length: u64,
}

/// An entry that is intact.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: usize,
    len: usize,
    tail: usize,
    sequence: u64,
    descriptors: usize,
}

/// Entries that follow one another.
#[derive(Debug, Default)]
struct Sequence(Vec<Entry>);

/// Reads the log. `None` if there is nothing to replay: also where no entry is intact, since a writer that died while it wrote the first one
/// has changed nothing else.
pub async fn read(file: &dyn Storage, header: &Header) -> Result<Option<Replay>, Error> {
    let blame = Blame::new(file.name());
    let (offset, len) = (header.log.offset, header.log.len);
    if header.log_guid == [0; 16] || len == 0 {
        return Ok(None);
    }
    if len > LOG_BYTES_MAX {
        return Err(blame.unsupported(format!(
            "the image was not closed, and its log has {len} bytes; up to {LOG_BYTES_MAX} are replayed (qemu-img check -r all replays it in the file)"
        )));
    }
    if offset + len > file.length() {
        return Err(blame.corrupt(format!("the log ({len} bytes at {offset}) is beyond the end of the file")));
    }
    let (result, bytes) = file.read(offset, IoBuf::uninit(len as usize), Hints::NONE).await;
    result.map_err(blame.io("reading the log"))?;
    let mut ring = Ring { bytes: &bytes, guid: header.log_guid, left: bytes.len() * PASSES_MAX };
    let Some(active) = ring.active(&blame)? else { return Ok(None) };
    let mut changes = Vec::new();
    for entry in &active {
        ring.changes(entry, &blame, &mut changes)?;
    }
    let Some(head) = active.last() else { return Ok(None) };
    let (flushed, length) = (ring.u64(head.at + 48), ring.u64(head.at + 56));
    if flushed > file.length() {
        return Err(blame.corrupt(format!(
            "the file has {} bytes and had {flushed} when its log was written: it was cut short",
            file.length()
        )));
    }
    Ok(Some(Replay { changes, length, log: bytes }))
}

/// The bytes of the log, which begin anew behind their end.
struct Ring<'a> {
    bytes: &'a [u8],
    guid: [u8; 16],
    /// Bytes that checksums may still be made of.
    left: usize,
}

impl Ring<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        // Sectors do not wrap, and no field is in two of them.
        let at = at % self.bytes.len().max(1);
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    /// The entries to be replayed: the intact sequence with the highest number, from the tail that its last entry names.
    fn active(&mut self, blame: &Blame) -> Result<Option<Vec<Entry>>, Error> {
        let (mut best, mut at) = (None::<Vec<Entry>>, 0);
        while at < self.bytes.len() {
            let sequence = self.sequence(at, blame)?;
            let highest = |entries: &[Entry]| entries.last().map_or(0, |head| head.sequence);
            at += sequence.bytes().max(SECTOR_BYTES);
            if let Some(entries) = sequence.cut_at_tail()
                && best.as_ref().is_none_or(|best| highest(best) < highest(&entries))
            {
                best = Some(entries);
            }
        }
        Ok(best)
    }

    /// The entries that follow one another from `at` on.
    fn sequence(&mut self, at: usize, blame: &Blame) -> Result<Sequence, Error> {
        let mut found = Sequence::default();
        loop {
            let next = at + found.bytes();
            if next >= at + self.bytes.len() {
                return Ok(found);
            }
            let Some(entry) = self.entry(next % self.bytes.len(), blame)? else { return Ok(found) };
            let follows =
                found.0.last().is_none_or(|last| last.sequence.checked_add(1) == Some(entry.sequence));
            if !follows || found.bytes() + entry.len > self.bytes.len() {
                return Ok(found);
            }
            found.0.push(entry);
        }
    }

    /// The entry at `at`, if one is there and intact.
    fn entry(&mut self, at: usize, blame: &Blame) -> Result<Option<Entry>, Error> {
        let entry = Entry {
            at,
            len: self.u32(at + 8) as usize,
            tail: self.u32(at + 12) as usize,
            sequence: self.u64(at + 16),
            descriptors: self.u32(at + 24) as usize,
        };
        let is_whole = |bytes: usize| bytes.is_multiple_of(SECTOR_BYTES) && bytes <= self.bytes.len();
        let is_entry = self.array::<4>(at) == *b"loge"
            && self.array::<16>(at + 32) == self.guid
            && is_whole(entry.len)
            && is_whole(entry.tail)
            && entry.sequence > 0
            && entry.descriptor_bytes() <= entry.len;
        if !is_entry {
            return Ok(None);
        }
        let Some(left) = self.left.checked_sub(entry.len) else {
            return Err(blame.corrupt("the entries of the log overlap more often than any writer's do"));
        };
        self.left = left;
        let is_intact = self.has_data(&entry) && self.sum(&entry) == self.u32(at + 4);
        Ok(is_intact.then_some(entry))
    }

    /// Whether the descriptors are the entry's, and behind them there is a sector for each that needs one.
    fn has_data(&self, entry: &Entry) -> bool {
        let mut sectors = 0;
        for index in 0..entry.descriptors {
            let at = entry.descriptor_at(index);
            match &self.array::<4>(at) {
                b"zero" => {}
                b"desc" => sectors += 1,
                _ => return false,
            }
            if self.u64(at + 24) != entry.sequence {
                return false;
            }
        }
        let first = entry.at + entry.descriptor_bytes();
        let is_data = |at: usize| {
            let (high, low) = (u64::from(self.u32(at + 4)), u64::from(self.u32(at + SECTOR_BYTES - 4)));
            self.array::<4>(at) == *b"data" && high << 32 | low == entry.sequence
        };
        entry.descriptor_bytes() + sectors * SECTOR_BYTES == entry.len
            && (0..sectors).all(|index| is_data(first + index * SECTOR_BYTES))
    }

    /// The checksum of the entry, in which that itself counts as zeroes.
    fn sum(&self, entry: &Entry) -> u32 {
        let start = self.bytes.get(entry.at..).unwrap_or_default();
        let before_end = start.get(..entry.len).unwrap_or(start);
        let wrapped = self.bytes.get(..entry.len - before_end.len()).unwrap_or_default();
        let sum = Crc::new().add(before_end.get(..4).unwrap_or_default()).add(&[0; 4]);
        sum.add(before_end.get(8..).unwrap_or_default()).add(wrapped).sum()
    }

    /// Adds what the entry changes.
    fn changes(&self, entry: &Entry, blame: &Blame, changes: &mut Vec<(u64, Change)>) -> Result<(), Error> {
        let mut data_at = entry.at + entry.descriptor_bytes();
        for index in 0..entry.descriptors {
            let at = entry.descriptor_at(index);
            let place = self.u64(at + 16);
            let (change, len) = match &self.array::<4>(at) {
                b"zero" => (Change::Zeroes(self.u64(at + 8)), self.u64(at + 8)),
                _ => {
                    let (leading, trailing) = (self.array(at + 8), self.array(at + 4));
                    let sector =
                        Change::Sector { leading, trailing, data_at: (data_at + 8) % self.bytes.len() };
                    data_at += SECTOR_BYTES;
                    (sector, SECTOR_BYTES as u64)
                }
            };
            let is_whole = |bytes: u64| bytes.is_multiple_of(SECTOR_BYTES as u64);
            let end = place.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
            if !is_whole(place) || !is_whole(len) || end.is_none() {
                return Err(blame.corrupt(format!(
                    "the log changes {len} bytes at {place}; must be whole sectors of {SECTOR_BYTES}, below 2^63"
                )));
            }
            if changes.len() == CHANGES_MAX {
                return Err(
                    blame.unsupported(format!("the log has more than {CHANGES_MAX} changes to replay"))
                );
            }
            if len > 0 {
                changes.push((place, change));
            }
        }
        Ok(())
    }
}

impl Entry {
    /// Bytes of the entry's header and descriptors, which are in sectors of their own.
    fn descriptor_bytes(&self) -> usize {
        let bytes = ENTRY_HEADER_BYTES.saturating_add(self.descriptors.saturating_mul(DESCRIPTOR_BYTES));
        bytes.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(usize::MAX)
    }

    fn descriptor_at(&self, index: usize) -> usize {
        self.at + ENTRY_HEADER_BYTES + index * DESCRIPTOR_BYTES
    }
}

impl Sequence {
    fn bytes(&self) -> usize {
        self.0.iter().map(|entry| entry.len).sum()
    }

    /// The entries from the one that the last one names as the tail; `None` if that is none of them.
    fn cut_at_tail(self) -> Option<Vec<Entry>> {
        let tail = self.0.last()?.tail;
        let first = self.0.iter().position(|entry| entry.at == tail)?;
        Some(self.0.into_iter().skip(first).collect())
    }
}

/// The bytes of the file that a change of a sector leaves.
pub fn sector(log: &[u8], leading: [u8; 8], trailing: [u8; 4], data_at: usize) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    let data =
        log.get(data_at..).and_then(|rest| rest.first_chunk::<DATA_BYTES>()).unwrap_or(&[0; DATA_BYTES]);
    bytes[..8].copy_from_slice(&leading);
    bytes[8..8 + DATA_BYTES].copy_from_slice(data);
    bytes[8 + DATA_BYTES..].copy_from_slice(&trailing);
    bytes
}
