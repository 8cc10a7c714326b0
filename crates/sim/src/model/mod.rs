//! The oracle: a flat array that remembers, per sector, which values a reader may see.
//!
//! Every operation of a client is reported to the model when it starts and when it ends. A value is legal
//! unless something later *certainly* replaced it: for a live reader, an operation that ended before
//! the read began; after a crash, one that was acknowledged as durable. Concurrent operations are
//! have no order, so each of their values is legal. A failed or dropped operation replaces
//! nothing for certain, and its value stays possible.

mod history;
mod mismatch;
mod restart;
mod snapshots;

use std::collections::BTreeMap;

use crate::content::SECTOR_BYTES;
use crate::request::Tick;
use crate::stamp::{Stamp, fill};
use history::{History, Op, OpState, Sectors, Value};

pub use mismatch::Mismatch;
use snapshots::Snapshot;

/// What a reader may see where a client discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardedReads {
    /// Zeroes or what was there.
    ZeroesOrOld,
    /// Zeroes in every whole aligned unit of so many bytes; at the edges zeroes or what was there.
    ZeroesInUnits(u64),
}

/// An operation that was started; give it back when it ends.
#[derive(Debug)]
#[must_use = "an operation that never ends stays concurrent with everything"]
pub struct Started {
    ops: Vec<usize>,
}

/// What the oracle knows of one disk.
#[derive(Clone, Debug)]
pub struct Model {
    disk: u32,
    discarded: DiscardedReads,
    history: History,
    sizes: Vec<usize>,
    version: u64,
    acknowledgements: Vec<Tick>,
    snapshots: BTreeMap<u32, Snapshot>,
}

impl Model {
    /// A disk of `size` bytes, all zero and durable. `disk` is the number in the stamps of its data.
    pub fn new(disk: u32, size: u64, discarded: DiscardedReads) -> Self {
        let mut history = History::default();
        history.add(Op::settled(Value::Zero));
        let size = history.add(Op::settled(Value::Size(size)));
        Self {
            disk,
            discarded,
            history,
            sizes: vec![size],
            version: 0,
            acknowledgements: Vec::new(),
            snapshots: BTreeMap::new(),
        }
    }

    /// The bytes of the write `version` at `offset`.
    pub fn bytes(&self, version: u64, offset: u64, len: usize) -> Vec<u8> {
        fill(self.disk, version, offset, len)
    }

    /// Says that the range was written and durable before everything, as in a backing file: gives
    /// the version whose bytes it must hold.
    pub fn preload(&mut self, offset: u64, len: u64) -> u64 {
        let version = self.next_version();
        let op = self.history.add(Op::settled(Value::Version(version)));
        self.history.touch(op, offset, len);
        version
    }

    /// A write starts: gives the version whose bytes it must carry.
    pub fn start_write(&mut self, offset: u64, len: u64, now: Tick) -> (Started, u64) {
        let version = self.next_version();
        let op = self.history.add(Op::started(Value::Version(version), now));
        self.history.touch(op, offset, len);
        (Started { ops: vec![op] }, version)
    }

    /// Writing zeroes starts.
    pub fn start_zero(&mut self, offset: u64, len: u64, now: Tick) -> Started {
        let op = self.history.add(Op::started(Value::Zero, now));
        self.history.touch(op, offset, len);
        Started { ops: vec![op] }
    }

    /// A discard starts.
    pub fn start_discard(&mut self, offset: u64, len: u64, now: Tick) -> Started {
        let end = offset + len;
        let maybe = Op { firm: false, ..Op::started(Value::Zero, now) };
        let (inner, inner_end) = match self.discarded {
            DiscardedReads::ZeroesOrOld => (end, end),
            DiscardedReads::ZeroesInUnits(unit) => {
                // The last unit of the disk counts as whole when the discard reaches the end.
                let whole = if end >= self.size() { end } else { end / unit * unit };
                (offset.next_multiple_of(unit).min(end), whole.max(offset.next_multiple_of(unit).min(end)))
            }
        };
        let mut ops = Vec::new();
        for (from, to, firm) in [(offset, inner, false), (inner, inner_end, true), (inner_end, end, false)] {
            if from < to {
                let op = self.history.add(Op { firm, ..maybe.clone() });
                self.history.touch(op, from, to - from);
                ops.push(op);
            }
        }
        Started { ops }
    }

    /// A flush starts.
    pub fn start_flush(&self, now: Tick) -> Tick {
        now
    }

    /// An operation ended well. `durable` says that the reply promises durability (FUA, write-through).
    pub fn done(&mut self, started: Started, now: Tick, durable: bool) {
        for op in started.ops {
            self.history.end(op, now, OpState::Done, durable);
        }
        if durable {
            self.acknowledgements.push(now);
        }
    }

    /// An operation ended with an error: it may have happened, in any part.
    pub fn failed(&mut self, started: Started, now: Tick) {
        for op in started.ops {
            self.history.end(op, now, OpState::Uncertain, false);
        }
    }

    /// The future of an operation was dropped: it may happen, in any part, until [`Model::settle`].
    pub fn abandoned(&mut self, started: Started) {
        self.history.abandoned.extend(started.ops);
    }

    /// Nothing is in flight any more below: what was abandoned happened by now, or never will.
    pub fn settle(&mut self, now: Tick) {
        for op in std::mem::take(&mut self.history.abandoned) {
            self.history.end(op, now, OpState::Uncertain, false);
        }
    }

    /// A flush that started at `started` ended well: what had ended before it started is durable.
    pub fn flushed(&mut self, started: Tick, now: Tick) {
        self.history.make_durable(started, now);
        self.acknowledgements.push(now);
    }

    /// Closing the disk failed, and the client was notified: what no flush covered may be lost, as after a
    /// crash. Nothing may be in flight.
    pub fn close_failed(&mut self) {
        self.history.forfeit();
    }

    /// When a client was informed that something is durable.
    pub fn acknowledgements(&self) -> &[Tick] {
        &self.acknowledgements
    }

    /// Size in bytes as the last resize that was started has it, or as the disk said after one that failed.
    pub fn size(&self) -> u64 {
        self.sizes.last().map_or(0, |&op| self.history.size_of(op))
    }

    /// A change of size starts. Nothing else may be in flight.
    pub fn start_resize(&mut self, size: u64, now: Tick) -> Started {
        let old = self.size();
        let resize = self.history.add(Op::started(Value::Size(size), now));
        self.sizes.push(resize);
        let mut ops = vec![resize];
        if size < old {
            // What is cut off comes back as zeroes, if it ever comes back.
            let cut = self.history.add(Op::started(Value::Zero, now));
            let first = size / SECTOR_BYTES;
            for sector in self.history.known_sectors().into_iter().filter(|&sector| sector >= first) {
                self.history.touch(cut, sector * SECTOR_BYTES, SECTOR_BYTES);
            }
            ops.push(cut);
        }
        Started { ops }
    }

    /// A change of size has failed, and the disk says that it has `size` bytes now. Says whether it may have so many; if so
    /// that is [`Model::size`] from now on, which is what a snapshot keeps.
    pub fn size_found(&mut self, size: u64, now: Tick) -> bool {
        let legal = self.size_is_legal(size, now);
        let found = self.sizes.iter().rposition(|&op| self.history.size_of(op) == size);
        if let Some(at) = found.filter(|_| legal) {
            let op = self.sizes.remove(at);
            self.sizes.push(op);
        }
        legal
    }

    /// Whether a disk found `size` bytes long after a crash at `crash` may be so.
    pub fn size_is_legal(&self, size: u64, crash: Tick) -> bool {
        self.history.legal_after_crash(&self.sizes, crash).iter().any(|&op| self.history.size_of(op) == size)
    }

    /// Checks what a read that ran from `started` to `now` gave.
    pub fn check_read(&self, offset: u64, bytes: &[u8], started: Tick, now: Tick) -> Result<(), Mismatch> {
        self.check(offset, bytes, &history::Reader::Live { started, now })
    }

    /// Checks what is read after a crash at `crash`.
    pub fn check_crash(&self, offset: u64, bytes: &[u8], crash: Tick) -> Result<(), Mismatch> {
        self.check(offset, bytes, &history::Reader::Crashed { at: crash })
    }

    /// Ranges that anything was ever reported about, with the sector before and after each; inside `size`.
    pub fn ranges(&self, size: u64) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for sector in self.history.known_sectors() {
            let from = sector.saturating_sub(1) * SECTOR_BYTES;
            let to = ((sector + 2) * SECTOR_BYTES).min(size);
            match ranges.last_mut() {
                Some((_, end)) if from <= *end => *end = to.max(*end),
                _ if from < to => ranges.push((from, to)),
                _ => {}
            }
        }
        ranges.into_iter().map(|(from, to)| (from, to - from)).collect()
    }

    /// Forgets what no later reader can see. Call it now and then in long runs that build no crash
    /// states; nothing may be in flight.
    pub fn forget_history(&mut self, now: Tick) {
        self.history.prune(now);
        self.acknowledgements.clear();
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn stamp(&self, version: u64, sector: u64) -> Stamp {
        Stamp { disk: self.disk, version, sector }
    }

    fn sectors(&self) -> &Sectors {
        self.history.sectors()
    }
}

#[cfg(test)]
mod tests;
