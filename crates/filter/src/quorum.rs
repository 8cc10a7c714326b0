//! `quorum`: several disks with the same content; each write goes to all, and reads are what enough of them agree on.
//!
//! Requests to one range come one after the other, so that all disks see writes in one order and no read sees a write on some of them only.

mod report;
mod vote;

use std::sync::Arc;

use block::{Blame, Block, BlockFuture, BlockStatus, Capabilities, Error, ReadKind, ZeroOptions};
use futures_util::future::join_all;
use memory::{IoBuf, IoBytes, IoVec};
use storage::{Hints, RangeLocks, RangeMode};

use self::report::Reports;
pub use self::report::{Operation, Report, What};
use self::vote::vote;

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
