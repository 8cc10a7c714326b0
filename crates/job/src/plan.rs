//! What of the source has to be copied, and in which pieces. Asks the map and reads no data.

use std::ops::Range;

use block::Block;

use crate::counters::{Counters, Report};
use crate::error::{Action, Error, Side};
use crate::layers::{Says, Scope};
use crate::read::SALVAGED_BYTES_MIN;

/// Zeroes of one step at most: a copy can be cancelled, and counts, between steps.
const ZERO_STEP_BYTES: u64 = 64 << 20;

/// One step of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Offset in the source.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Zeroes by the map: nothing has to be read.
    pub(crate) zero: bool,
}

/// How a range is cut into steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) scope: Scope,
    /// Data of one step at most.
    pub(crate) piece_bytes: u64,
    /// Steps of data begin and end at multiples of this in the target, or at the ends of the range.
    pub(crate) align_bytes: u64,
    /// Zeroes are data like any other.
    pub(crate) zeroes_are_data: bool,
    /// Where the map cannot be read, there is data.
    pub(crate) salvage: bool,
}

/// The way through the source.
#[derive(Debug)]
pub(crate) struct Planner<'a> {
    source: &'a dyn Block,
    shape: Shape,
    counters: &'a Counters,
    at: u64,
    end: u64,
    /// Bytes out of scope that were passed: for the caller to take.
    pub(crate) passed: u64,
    /// The map is asked for so many bytes at most: where it cannot be read, for fewer and fewer.
    asked_max: u64,
    /// What is added to an offset in the source for the target's.
    to_target: i128,
    /// The latest answer of the map.
    known: Option<(Range<u64>, Says)>,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        source: &'a dyn Block,
        range: Range<u64>,
        to: u64,
        shape: Shape,
        counters: &'a Counters,
    ) -> Self {
        let to_target = i128::from(to) - i128::from(range.start);
        let (at, end) = (range.start, range.end);
        Self { source, shape, counters, at, end, passed: 0, asked_max: u64::MAX, to_target, known: None }
    }

    /// The next step; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Step>, Error> {
        while self.at < self.end {
            let at = self.at;
            let (work, end) = self.run(at).await?;
            match work {
                Says::Nothing => {
                    self.passed += end - at;
                    self.at = end;
                }
                Says::Zero => {
                    self.at = end.min(at + ZERO_STEP_BYTES);
                    return Ok(Some(Step { at, len: self.at - at, zero: true }));
                }
                Says::Data => {
                    self.at = self.data_end(at, end).await?;
                    return Ok(Some(Step { at, len: self.at - at, zero: false }));
                }
            }
        }
        Ok(None)
    }

    /// Where the piece of data that begins at `at` ends: neighbouring parts make one piece, so that a source in fragments is
    /// read in large requests all the same.
    async fn data_end(&mut self, at: u64, mut end: u64) -> Result<u64, Error> {
        let last = self.boundary(at, self.shape.piece_bytes);
        while end < last {
            match self.run(end).await? {
                (Says::Data, next) => end = next,
                (Says::Nothing | Says::Zero, _) => return Ok(end),
            }
        }
        Ok(last)
    }

    /// What is to be done from `at` on, and up to where, in whole units of alignment. A unit of different parts is data.
    async fn run(&mut self, at: u64) -> Result<(Says, u64), Error> {
        let (work, mut end) = self.look(at).await?;
        let unit_end = self.boundary(at, self.shape.align_bytes);
        if end >= unit_end {
            let whole = self.unit_start(end).max(unit_end).min(end);
            return Ok((work, whole));
        }
        let mut same = true;
        while end < unit_end {
            let (other, other_end) = self.look(end).await?;
            same &= other == work;
            end = other_end;
        }
        Ok((if same { work } else { Says::Data }, unit_end))
    }

    async fn look(&mut self, at: u64) -> Result<(Says, u64), Error> {
        if let Some((range, work)) = &self.known
            && range.contains(&at)
        {
            return Ok((*work, range.end));
        }
        let known = self.ask(at).await?;
        let known = match known {
            (Says::Zero, end) if self.shape.zeroes_are_data => (Says::Data, end),
            known => known,
        };
        self.known = Some((at..known.1, known.0));
        Ok(known)
    }

    /// What the map says of what begins at `at`, and up to where.
    async fn ask(&mut self, at: u64) -> Result<(Says, u64), Error> {
        let smallest = SALVAGED_BYTES_MIN as u64;
        loop {
            let len = self.asked_max.min(self.end - at);
            match self.source.block_status(at, len).await {
                Ok(status) => {
                    self.asked_max = self.asked_max.saturating_mul(4);
                    return Ok((self.shape.scope.says(&status), at + status.len.min(len)));
                }
                Err(error) if !self.shape.salvage => {
                    return Err(Error::request(Side::Source, self.source, Action::Status, at)(error));
                }
                Err(_) if len > smallest => self.asked_max = (len / 4).next_multiple_of(smallest),
                Err(error) => {
                    self.counters.report(Report::NoStatus(at, &error));
                    return Ok((Says::Data, at + len));
                }
            }
        }
    }

    /// The first multiple of `unit` in the target behind `at`, as an offset in the source; the end of the range if that comes
    /// first.
    fn boundary(&self, at: u64, unit: u64) -> u64 {
        let target = i128::from(at) + self.to_target;
        let next = (target / i128::from(unit) + 1) * i128::from(unit) - self.to_target;
        u64::try_from(next).map_or(self.end, |next| next.min(self.end))
    }

    /// The last multiple of the alignment up to `end`; the end of the range is one too.
    fn unit_start(&self, end: u64) -> u64 {
        if end == self.end {
            return end;
        }
        let target = i128::from(end) + self.to_target;
        let past = target % i128::from(self.shape.align_bytes);
        u64::try_from(i128::from(end) - past).unwrap_or(0)
    }
}
