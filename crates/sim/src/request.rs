//! What reaches the storage contract, as a value, and what it does to bytes.

use std::fmt;
use std::sync::Arc;

use storage::IoVec;

use crate::content::{Content, SECTOR_BYTES};

/// Events of a world are numbered; this is such a number. Two events never share one.
pub type Tick = u64;

/// The byte a discard may leave where nothing is promised.
const POISON: u8 = 0xdb;

/// Kinds of lower I/O, for faults and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IoKind {
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making durable.
    Flush,
    /// Making zero.
    Zero,
    /// Giving space back.
    Discard,
    /// Setting a length that is no less than the one before.
    Lengthen,
    /// Setting a smaller length.
    Shorten,
    /// Reserving space.
    Allocate,
    /// Asking what is there.
    Extent,
}

/// What a range reads as after it was discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Zeroes.
    Zeroes,
    /// What was there.
    Old,
    /// Bytes that no client wrote.
    Poison,
}

/// One request as it reached the storage.
#[derive(Clone, Debug)]
pub enum Request {
    /// Bytes to be read.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Bytes to be written.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: IoVec,
    },
    /// A range to be made zero.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A range to be given back.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What it reads as afterwards.
        leaves: Leaves,
    },
    /// A new length: at least that long if it is larger than `from`, otherwise at most.
    SetLength {
        /// In bytes.
        length: u64,
        /// The length as the requester knows it.
        from: u64,
    },
    /// A range to be reserved.
    Allocate {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A question about the kind of a range.
    Extent {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Everything completed so far to be made durable.
    Flush,
}

/// Which sectors of a request took effect. Sectors are counted from the one that holds the first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole request.
    All,
    /// Nothing of it.
    None,
    /// The sectors marked true.
    Sectors(Arc<[bool]>),
}

impl Part {
    /// The first `count` of `sectors`.
    pub fn prefix(count: u64, sectors: u64) -> Part {
        Part::Sectors((0..sectors).map(|index| index < count).collect())
    }

    /// All of `sectors` but the first `count`.
    pub fn suffix(count: u64, sectors: u64) -> Part {
        Part::Sectors((0..sectors).map(|index| index >= count).collect())
    }

    fn has(&self, sector: u64) -> bool {
        match self {
            Part::All => true,
            Part::None => false,
            Part::Sectors(sectors) => sectors.get(sector as usize).copied().unwrap_or(false),
        }
    }
}

impl Request {
    /// The kind of this request.
    pub fn kind(&self) -> IoKind {
        match self {
            Request::Read { .. } => IoKind::Read,
            Request::Write { .. } => IoKind::Write,
            Request::Zero { .. } => IoKind::Zero,
            Request::Discard { .. } => IoKind::Discard,
            Request::SetLength { length, from } if length < from => IoKind::Shorten,
            Request::SetLength { .. } => IoKind::Lengthen,
            Request::Allocate { .. } => IoKind::Allocate,
            Request::Extent { .. } => IoKind::Extent,
            Request::Flush => IoKind::Flush,
        }
    }

    /// Whether the request changes bytes or length.
    pub fn changes(&self) -> bool {
        !matches!(self.kind(), IoKind::Read | IoKind::Extent | IoKind::Flush)
    }

    /// First byte and number of bytes; a flush and a change of length have none.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Request::Write { offset, data } => (*offset, data.len() as u64),
            Request::Read { offset, len }
            | Request::Zero { offset, len }
            | Request::Discard { offset, len, .. }
            | Request::Allocate { offset, len }
            | Request::Extent { offset, len } => (*offset, *len),
            Request::SetLength { .. } | Request::Flush => (0, 0),
        }
    }

    /// Sectors that the request touches.
    pub fn sectors(&self) -> u64 {
        let (offset, len) = self.range();
        if len == 0 { 0 } else { (offset + len - 1) / SECTOR_BYTES - offset / SECTOR_BYTES + 1 }
    }

    /// The length that the request grows the file to, if it is of a kind that does.
    pub fn grows_to(&self) -> Option<u64> {
        let (offset, len) = self.range();
        matches!(self.kind(), IoKind::Write | IoKind::Zero | IoKind::Allocate)
            .then(|| offset.saturating_add(len))
    }

    /// Bytes and length as the request leaves them.
    pub(crate) fn apply(&self, content: &mut Content, part: &Part) {
        if *part == Part::None {
            return;
        }
        let old = content.length();
        if let (Some(end), (offset, _)) = (self.grows_to(), self.range()) {
            let last = (0..self.sectors()).rev().find(|&sector| part.has(sector));
            let seen = last.map_or(0, |last| (offset / SECTOR_BYTES + last + 1) * SECTOR_BYTES);
            // Growing first: what an earlier life of the file left beyond its end never shows.
            content.set_length(old.max(seen.min(end)));
        }
        self.apply_length(content);
        self.apply_bytes(content, part);
    }

    /// The bytes only; a write beyond the length stays unseen.
    pub(crate) fn apply_bytes(&self, content: &mut Content, part: &Part) {
        match (self, part) {
            (_, Part::None) => {}
            (Request::Write { offset, data }, Part::All) => {
                let mut at = *offset;
                for bytes in data.parts() {
                    content.write(at, bytes);
                    at += bytes.len() as u64;
                }
            }
            (Request::Write { offset, data }, Part::Sectors(_)) => {
                let bytes = data.to_bytes();
                self.each_run(part, |from, to| {
                    content.write(from, &bytes[(from - offset) as usize..(to - offset) as usize]);
                });
            }
            (Request::Zero { .. }, _) => self.each_run(part, |from, to| content.fill(from, to - from, 0)),
            (Request::Discard { leaves, .. }, _) => {
                let byte = match leaves {
                    Leaves::Zeroes => 0,
                    Leaves::Poison => POISON,
                    Leaves::Old => return,
                };
                let length = content.length();
                self.each_run(part, |from, to| {
                    let to = to.min(length);
                    content.fill(from, to.saturating_sub(from), byte);
                });
            }
            (Request::Allocate { offset, len }, Part::All) => content.reserve(*offset, *len),
            (
                Request::Read { .. }
                | Request::SetLength { .. }
                | Request::Allocate { .. }
                | Request::Extent { .. }
                | Request::Flush,
                _,
            ) => {}
        }
    }

    /// The change of length that is asked for as such: growing never shortens, cutting never lengthens.
    pub(crate) fn apply_length(&self, content: &mut Content) {
        match (self, self.kind()) {
            (Request::SetLength { length, .. }, IoKind::Shorten) => {
                content.set_length(content.length().min(*length));
            }
            (Request::SetLength { length, .. }, _) => content.set_length(content.length().max(*length)),
            _ => {}
        }
    }

    /// Calls `act` with first and last (excluded) byte of each run of neighbouring sectors in `part`.
    fn each_run(&self, part: &Part, mut act: impl FnMut(u64, u64)) {
        let (offset, len) = self.range();
        if len == 0 {
            return;
        }
        let end = offset + len;
        if *part == Part::All {
            return act(offset, end);
        }
        let first = offset / SECTOR_BYTES;
        let mut run: Option<(u64, u64)> = None;
        for sector in (0..self.sectors()).filter(|&sector| part.has(sector)) {
            let from = ((first + sector) * SECTOR_BYTES).max(offset);
            let to = ((first + sector + 1) * SECTOR_BYTES).min(end);
            run = match run {
                Some((start, stop)) if stop == from => Some((start, to)),
                Some((start, stop)) => {
                    act(start, stop);
                    Some((from, to))
                }
                None => Some((from, to)),
            };
        }
        if let Some((start, stop)) = run {
            act(start, stop);
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (offset, len) = self.range();
        match self {
            Request::SetLength { length, .. } => write!(f, "set length {length:#x}"),
            Request::Flush => write!(f, "flush"),
            Request::Discard { leaves, .. } => write!(f, "discard {offset:#x}+{len:#x} leaving {leaves:?}"),
            Request::Read { .. }
            | Request::Write { .. }
            | Request::Zero { .. }
            | Request::Allocate { .. }
            | Request::Extent { .. } => write!(f, "{:?} {offset:#x}+{len:#x}", self.kind()),
        }
    }
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Not yet: it may or may not take effect, in any part.
    Pending,
    /// It took effect.
    Done,
    /// It failed or was given up, and this part of it took effect.
    Failed(Part),
}

/// A request with its place in time.
#[derive(Clone, Debug)]
pub struct Record {
    /// Number of the lower I/O, from 1, in order of issue over all disks of the world.
    pub number: u64,
    /// Which disk of the world.
    pub disk: usize,
    /// What was asked.
    pub request: Request,
    /// When it was issued.
    pub issued: Tick,
    /// When it ended.
    pub completed: Option<Tick>,
    /// How it ended.
    pub outcome: Outcome,
    /// Length of the disk when the request was issued.
    pub length_before: u64,
}

impl Record {
    /// The part that certainly took effect.
    pub(crate) fn part(&self) -> &Part {
        match &self.outcome {
            Outcome::Pending => &Part::None,
            Outcome::Done => &Part::All,
            Outcome::Failed(part) => part,
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} disk {} {} (issued {}, ", self.number, self.disk, self.request, self.issued)?;
        match (self.completed, &self.outcome) {
            (Some(at), Outcome::Failed(part)) => write!(f, "failed {at}, applied {part:?})"),
            (Some(at), _) => write!(f, "done {at})"),
            (None, _) => write!(f, "pending)"),
        }
    }
}
