//! `quorum`: several disks with the same content; each write goes to all, and reads are what enough of them agree on.
//!
//! Requests to one range come one after the other, so that all disks see writes in one order and no read sees a write on some of them only.

use std::ops::Range;
use std::sync::Arc;

use block::{
    Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind, SECTOR_BYTES, ZeroOptions,
};
use futures_util::future::join_all;
use memory::{IoBuf, IoBytes, IoVec};
use parking_lot::Mutex;
use storage::{Hints, RangeLocks, RangeMode};

/// How a quorum works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How many disks must agree on what is read, and must have taken what is written: at least 1, at most as many as there are.
    pub threshold: usize,
    /// How it is read.
    pub reading: Reading,
}

/// How a quorum is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// From all disks, which vote sector by sector.
    Vote {
        /// A disk that is outvoted gets what the others read.
        rewrite: bool,
    },
    /// From the first disk that can be read.
    Fifo,
}

/// The filter.
#[derive(Debug)]
pub struct Quorum {
    first: Arc<dyn Block>,
    /// All disks, the first one too.
    disks: Vec<Arc<dyn Block>>,
    rules: Rules,
    locks: RangeLocks,
    reports: Reports,
}

impl Quorum {
    /// Over `disks`, which have the same content.
    ///
    /// # Errors
    /// When there are fewer than the threshold, or not all of one size.
    pub fn new(disks: Vec<Arc<dyn Block>>, rules: Rules) -> Result<Self, Error> {
        let Some(first) = disks.first().cloned() else {
            return Err(Blame::new("quorum").invalid("it has no disks; needed: 1 or more"));
        };
        let blame = Blame::new(first.name());
        let (count, threshold) = (disks.len(), rules.threshold);
        if !(1..=count).contains(&threshold) {
            let what =
                format!("option vote-threshold is {threshold}; allowed: 1 to the number of disks, {count}");
            return Err(blame.invalid(what));
        }
        if let Some(other) = disks.iter().find(|disk| disk.size() != first.size()) {
            let (found, needed) = (other.size(), first.size());
            let what = format!("it has {found} bytes and {} {needed}; all must be as large", first.name());
            return Err(Blame::new(other.name()).invalid(what));
        }
        Ok(Self { first, disks, rules, locks: RangeLocks::default(), reports: Reports::default() })
    }

    /// What disks failed or read otherwise than the others since the last call, the first ones of many.
    pub fn take_reports(&self) -> Vec<Report> {
        self.reports.take()
    }

    fn blame(&self) -> Blame {
        Blame::new(self.first.name())
    }

    /// Reads all disks and votes. Takes memory for each disk but the first.
    async fn read_by_vote(&self, offset: u64, buf: IoBuf, hints: Hints) -> (Result<ReadKind, Error>, IoBuf) {
        let len = buf.len();
        let others = (1..self.disks.len()).map(|_| IoBuf::try_uninit(len)).collect::<Option<Vec<_>>>();
        let Some(others) = others else { return (Err(block::no_memory(self.first.name())), buf) };
        let reads = self.disks.iter().zip(std::iter::once(buf).chain(others));
        let found = join_all(reads.map(|(disk, buf)| disk.read(offset, buf, hints))).await;
        let (mut results, mut bufs): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        let range = (offset, len as u64);
        let readable = self.succeeded(Operation::Read, range, &mut results);
        let outcome = match readable {
            Ok(readable) => self.settle(&readable, &mut bufs, (offset, hints)).await,
            Err(error) => Err(error),
        };
        // All are of one length.
        (outcome.map(|()| ReadKind::Data), bufs.swap_remove(0))
    }

    /// Has the disks that were read vote, puts what holds into the first buffer, and tells of those that were outvoted.
    async fn settle(
        &self,
        readable: &[usize],
        bufs: &mut [IoBuf],
        (offset, hints): (u64, Hints),
    ) -> Result<(), Error> {
        let readings: Vec<&[u8]> =
            readable.iter().filter_map(|disk| bufs.get(*disk).map(|buf| &**buf)).collect();
        let len = readings.first().map_or(0, |reading| reading.len());
        let outvoted = match vote(&readings, offset, self.rules.threshold) {
            Ok(outvoted) => outvoted,
            Err(at) => {
                self.reports.add(Report { what: What::Failure, offset, len: len as u64 });
                let (at, threshold) = (offset + at as u64, self.rules.threshold);
                let what =
                    format!("fewer than {threshold} disks of the quorum agree on the sector of byte {at}");
                return Err(self.blame().io("reading data")(std::io::Error::other(what)));
            }
        };
        let mut repairs = Vec::with_capacity(outvoted.len());
        for outvoted in &outvoted {
            let [voter, winner] = [outvoted.voter, outvoted.winner].map(|place| readable.get(place).copied());
            let (Some(disk), Some(winner)) = (voter, winner) else { continue };
            let (at, len) = (offset + outvoted.range.start as u64, outvoted.range.len() as u64);
            let what = What::Bad { disk, operation: Operation::Read, error: None };
            self.reports.add(Report { what, offset: at, len });
            let bytes = bufs.get(winner).and_then(|buf| buf.get(outvoted.range.clone()));
            if let Some(bytes) = bytes {
                repairs.push((disk, outvoted.range.clone(), IoBytes::copy_from(bytes)));
            }
        }
        self.put_first(readable, bufs, &repairs);
        if matches!(self.rules.reading, Reading::Vote { rewrite: true }) {
            let writes = repairs.into_iter().filter_map(|(disk, range, bytes)| {
                let disk = self.disks.get(disk)?;
                Some(disk.write(offset + range.start as u64, bytes.into(), hints))
            });
            // A disk that cannot be repaired is outvoted again by the next read.
            join_all(writes).await;
        }
        Ok(())
    }

    /// What holds, in the first buffer: the bytes of the first disk that was read, but for what it was outvoted on.
    fn put_first(
        &self,
        readable: &[usize],
        bufs: &mut [IoBuf],
        repairs: &[(usize, std::ops::Range<usize>, IoBytes)],
    ) {
        let Some(from) = readable.first().copied() else { return };
        if from > 0 {
            bufs.swap(0, from);
        }
        let Some(first) = bufs.first_mut() else { return };
        for (_, range, bytes) in repairs.iter().filter(|(disk, ..)| *disk == from) {
            if let Some(part) = first.get_mut(range.clone()) {
                part.copy_from_slice(bytes);
            }
        }
    }

    /// Reads one disk after the other until one gives bytes.
    async fn read_first(
        &self,
        offset: u64,
        mut buf: IoBuf,
        hints: Hints,
    ) -> (Result<ReadKind, Error>, IoBuf) {
        let len = buf.len() as u64;
        let mut failed = None;
        for (number, disk) in self.disks.iter().enumerate() {
            let (result, back) = disk.read(offset, buf, hints).await;
            buf = back;
            match result {
                Ok(kind) => return (Ok(kind), buf),
                Err(error) => {
                    let what = What::bad(number, Operation::Read, &error);
                    self.reports.add(Report { what, offset, len });
                    failed = Some(error);
                }
            }
        }
        (Err(failed.unwrap_or_else(|| block::no_memory(self.first.name()))), buf)
    }

    /// Which disks did a request to `len` bytes at `offset`; each other one is reported.
    ///
    /// # Errors
    /// The first disk's failure, if fewer than the threshold did it.
    fn succeeded<T>(
        &self,
        operation: Operation,
        (offset, len): (u64, u64),
        results: &mut Vec<Result<T, Error>>,
    ) -> Result<Vec<usize>, Error> {
        let (mut done, mut failed) = (Vec::with_capacity(results.len()), None);
        for (disk, result) in results.drain(..).enumerate() {
            match result {
                Ok(_) => done.push(disk),
                Err(error) => {
                    self.reports.add(Report { what: What::bad(disk, operation, &error), offset, len });
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            Some(error) if done.len() < self.rules.threshold => {
                // A flush is of no range.
                if operation != Operation::Flush {
                    self.reports.add(Report { what: What::Failure, offset, len });
                }
                Err(error)
            }
            _ => Ok(done),
        }
    }

    /// A change of all disks, in one order with other requests to the range.
    async fn change<'a>(
        &'a self,
        (offset, len): (u64, u64),
        request: impl Fn(&'a Arc<dyn Block>) -> BlockFuture<'a, Result<(), Error>>,
    ) -> Result<(), Error> {
        let _alone = self.locks.acquire(offset, offset.saturating_add(len), RangeMode::Exclusive).await;
        let mut results = join_all(self.disks.iter().map(request)).await;
        self.succeeded(Operation::Write, (offset, len), &mut results).map(drop)
    }
}

impl Block for Quorum {
    fn driver(&self) -> &'static str {
        "quorum"
    }

    fn over(&self) -> Option<&Arc<dyn Block>> {
        Some(&self.first)
    }

    fn capabilities(&self) -> Capabilities {
        let all = || self.disks.iter().map(|disk| disk.capabilities());
        Capabilities {
            read_only: all().any(|disk| disk.read_only),
            alignment: all().map(|disk| disk.alignment).max().unwrap_or(1),
            cached: false,
            cluster_bytes: None,
        }
    }

    /// Nothing is read without the others.
    fn try_read(&self, _offset: u64, _buf: &mut [u8], _hints: Hints) -> Option<ReadKind> {
        None
    }

    fn read(
        &self,
        offset: u64,
        buf: IoBuf,
        hints: Hints,
    ) -> BlockFuture<'_, (Result<ReadKind, Error>, IoBuf)> {
        Box::pin(async move {
            let end = offset.saturating_add(buf.len() as u64);
            let _shared = self.locks.acquire(offset, end, RangeMode::Shared).await;
            match self.rules.reading {
                Reading::Fifo => self.read_first(offset, buf, hints).await,
                Reading::Vote { .. } => self.read_by_vote(offset, buf, hints).await,
            }
        })
    }

    fn write(&self, offset: u64, data: IoVec, hints: Hints) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let len = data.len() as u64;
            self.change((offset, len), |disk| disk.write(offset, data.clone(), hints)).await
        })
    }

    fn zero(&self, offset: u64, len: u64, options: ZeroOptions) -> BlockFuture<'_, Result<(), Error>> {
        // One that refuses alone would make them differ.
        let options = ZeroOptions { fast_only: false, ..options };
        Box::pin(self.change((offset, len), move |disk| disk.zero(offset, len, options)))
    }

    /// Nothing happens: what discarded bytes read as is each disk's own.
    fn discard(&self, _offset: u64, _len: u64) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn flush(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let mut results = join_all(self.disks.iter().map(|disk| disk.flush())).await;
            self.succeeded(Operation::Flush, (0, 0), &mut results).map(drop)
        })
    }

    /// Zeroes where all disks say so; otherwise data, which has to be read.
    fn block_status(&self, offset: u64, len: u64) -> BlockFuture<'_, Result<BlockStatus, Error>> {
        Box::pin(async move {
            let asked = self.disks.iter().map(|disk| disk.block_status(offset, len));
            let found: Option<Vec<_>> = join_all(asked).await.into_iter().map(Result::ok).collect();
            let Some(found) = found else { return Ok(BlockStatus::data(len, 0, None)) };
            // As far as none of them changes.
            let len = found.iter().map(|status| status.len).min().unwrap_or(len);
            let zero = found.iter().all(|status| status.zero);
            Ok(BlockStatus { zero, data: !zero, ..BlockStatus::data(len, 0, None) })
        })
    }

    fn close(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async {
            let mut result = Ok(());
            for disk in &self.disks {
                result = result.and(disk.close().await);
            }
            result
        })
    }
}

/// Reports that are kept: they are sent once a second, and more than these say nothing new.
const REPORTS_MAX: usize = 256;

/// A disk of a quorum was bad, or too many were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What happened.
    pub what: What,
    /// First byte of the request, or of the part of it that this is about.
    pub offset: u64,
    /// Its bytes; 0 of a flush.
    pub len: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A disk failed, or reads otherwise than the most.
    Bad {
        /// Its number among the disks, from 0.
        disk: usize,
        /// What was asked of it.
        operation: Operation,
        /// Its error; `None` where it reads otherwise.
        error: Option<String>,
    },
    /// Too few disks did it, or agree.
    Failure,
}

/// What is asked of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Bytes are read.
    Read,
    /// Bytes are written, or zeroed.
    Write,
    /// What was written is made durable.
    Flush,
}

impl What {
    /// Disk `disk` failed.
    fn bad(disk: usize, operation: Operation, error: &Error) -> Self {
        Self::Bad { disk, operation, error: Some(error.to_string()) }
    }
}

/// Reports that were not taken yet.
#[derive(Debug, Default)]
struct Reports(Mutex<Vec<Report>>);

impl Reports {
    /// One more, unless there are many already.
    fn add(&self, report: Report) {
        let mut reports = self.0.lock();
        if reports.len() < REPORTS_MAX {
            reports.push(report);
        }
    }

    /// All of them.
    fn take(&self) -> Vec<Report> {
        std::mem::take(&mut self.0.lock())
    }
}

/// A voter whose bytes are not those of the most.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outvoted {
    /// The voter's place among the readings.
    voter: usize,
    /// Whose bytes hold there.
    winner: usize,
    /// Bytes of the readings.
    range: Range<usize>,
}

/// Votes over readings of one length that begin at `offset` of the disk; sectors are those of the disk. Among versions with as many votes
/// that of the first voter holds. Gives the parts where voters were outvoted. Costs one comparison of each reading with the first one where all agree.
///
/// # Errors
/// The first byte of the first sector that fewer than `threshold` voters agree on.
fn vote(readings: &[&[u8]], offset: u64, threshold: usize) -> Result<Vec<Outvoted>, usize> {
    let mut outvoted: Vec<Outvoted> = Vec::new();
    let Some((first, others)) = readings.split_first() else { return Err(0) };
    if readings.len() >= threshold && others.iter().all(|other| other == first) {
        return Ok(outvoted);
    }
    let mut start = 0;
    while start < first.len() {
        let into_sector = ((offset + start as u64) % SECTOR_BYTES) as usize;
        let end = first.len().min(start + SECTOR_BYTES as usize - into_sector);
        let part = |voter: usize| readings.get(voter).and_then(|reading| reading.get(start..end));
        let votes = |voter: usize| (0..readings.len()).filter(|other| part(*other) == part(voter)).count();
        let most = (0..readings.len()).rev().max_by_key(|voter| votes(*voter)).unwrap_or(0);
        if votes(most) < threshold {
            return Err(start);
        }
        for voter in (0..readings.len()).filter(|voter| part(*voter) != part(most)) {
            let last = outvoted.iter_mut().rfind(|known| known.voter == voter);
            match last {
                Some(known) if known.range.end == start && known.winner == most => known.range.end = end,
                _ => outvoted.push(Outvoted { voter, winner: most, range: start..end }),
            }
        }
        start = end;
    }
    Ok(outvoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(sectors: &[u8]) -> Vec<u8> {
        sectors.iter().flat_map(|value| [*value; 512]).collect()
    }

    fn outvoted(voter: usize, winner: usize, range: Range<usize>) -> Outvoted {
        Outvoted { voter, winner, range }
    }

    fn voted(readings: &[Vec<u8>], offset: u64, threshold: usize) -> Result<Vec<Outvoted>, usize> {
        let readings: Vec<&[u8]> = readings.iter().map(Vec::as_slice).collect();
        vote(&readings, offset, threshold)
    }

    #[test]
    fn each_sector_is_voted_on_by_itself() {
        let good = reading(&[1, 2, 3, 4]);
        assert_eq!(voted(&[good.clone(), good.clone(), good.clone()], 0, 2), Ok(vec![]));
        // As a whole no two of them agree.
        let (first, last) = (reading(&[9, 9, 3, 4]), reading(&[1, 2, 3, 9]));
        let found = voted(&[first, good.clone(), last], 0, 2);
        assert_eq!(found, Ok(vec![outvoted(0, 1, 0..1024), outvoted(2, 0, 1536..2048)]));
    }

    #[test]
    fn sectors_are_those_of_the_disk() {
        let good = vec![1; 1000];
        let mut bad = good.clone();
        bad[150] = 2;
        let found = voted(&[good.clone(), bad, good], 400, 2);
        assert_eq!(found, Ok(vec![outvoted(1, 0, 112..624)]));
    }

    #[test]
    fn too_few_that_agree_are_reported_with_their_place() {
        let (good, bad) = (reading(&[1, 2]), reading(&[1, 3]));
        assert_eq!(voted(&[good.clone(), bad.clone()], 0, 2), Err(512));
        assert_eq!(voted(&[good.clone(), bad.clone(), reading(&[1, 4])], 0, 2), Err(512));
        assert_eq!(voted(std::slice::from_ref(&good), 0, 2), Err(0));
        assert_eq!(voted(&[good, bad], 0, 1), Ok(vec![outvoted(1, 0, 512..1024)]));
    }
}
