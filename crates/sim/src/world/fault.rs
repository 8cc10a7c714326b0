//! Which lower I/O fails, and how.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::request::{IoKind, Part, Request};
use crate::rng::Rng;

/// Numbers of Linux, as a driver would report them.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// What a failing I/O reports, and what it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// EIO; any part of the range may have changed.
    Io,
    /// ENOSPC; a prefix may have been written.
    NoSpace,
    /// The transfer ended early: a proper prefix was transferred.
    Short,
}

/// Whether the device recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Only that one I/O fails.
    Once,
    /// It and the matching ones after it fail, so many in all.
    Times(u64),
    /// It and all matching ones after it fail.
    FromThenOn,
}

/// One planned fault: the `nth` matching I/O fails, counted from 1 from when the fault was planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which I/O, counted among the matching ones from 1.
    pub nth: u64,
    /// Only I/O of this kind is counted, or all.
    pub kind: Option<IoKind>,
    /// Only I/O of this disk is counted, or of all.
    pub disk: Option<usize>,
    /// How it fails.
    pub how: FaultKind,
    /// Whether the device recovers.
    pub persistence: Persistence,
}

impl Fault {
    /// The `nth` I/O of any kind on any disk fails, once.
    pub fn nth(nth: u64, how: FaultKind) -> Self {
        Self { nth, kind: None, disk: None, how, persistence: Persistence::Once }
    }
}

/// How one I/O will fail.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    pub how: FaultKind,
    pub part: Part,
}

impl Effect {
    pub fn error(&self, kind: IoKind) -> io::Error {
        match (self.how, kind) {
            (FaultKind::Io, _) => io::Error::from_raw_os_error(EIO),
            (FaultKind::NoSpace, _) => io::Error::from_raw_os_error(ENOSPC),
            (FaultKind::Short, IoKind::Read) => io::ErrorKind::UnexpectedEof.into(),
            (FaultKind::Short, _) => io::ErrorKind::WriteZero.into(),
        }
    }
}

/// ENOSPC as the system reports it.
pub(crate) fn no_space() -> io::Error {
    io::Error::from_raw_os_error(ENOSPC)
}

/// The plan, and what came of it.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    planned: Vec<(Fault, u64)>,
    pub fired: BTreeMap<IoKind, u64>,
}

impl Faults {
    /// Whether nothing is to fail.
    pub fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    pub fn plan(&mut self, faults: Vec<Fault>) {
        self.planned = faults.into_iter().map(|fault| (fault, 0)).collect();
    }

    /// Counts the request and says whether it fails.
    pub fn meet(&mut self, disk: usize, request: &Request, rng: &mut Rng) -> Option<Effect> {
        let mut effect = None;
        for (fault, seen) in &mut self.planned {
            let matches = fault.kind.is_none_or(|kind| kind == request.kind())
                && fault.disk.is_none_or(|only| only == disk);
            if !matches {
                continue;
            }
            *seen += 1;
            let now = match fault.persistence {
                Persistence::Once => *seen == fault.nth,
                Persistence::Times(times) => (fault.nth..fault.nth.saturating_add(times)).contains(seen),
                Persistence::FromThenOn => *seen >= fault.nth,
            };
            if now && effect.is_none() {
                effect = Some(Effect { how: fault.how, part: part(fault.how, request, rng) });
            }
        }
        if effect.is_some() {
            *self.fired.entry(request.kind()).or_default() += 1;
        }
        effect
    }
}

/// What a failing request changes before it fails.
fn part(how: FaultKind, request: &Request, rng: &mut Rng) -> Part {
    let sectors = request.sectors();
    match (request.kind(), how) {
        (IoKind::Flush | IoKind::Read | IoKind::Extent, _) => Part::None,
        (IoKind::Lengthen | IoKind::Shorten | IoKind::Allocate | IoKind::Discard, _) => {
            if rng.chance(1, 2) {
                Part::None
            } else {
                Part::All
            }
        }
        (IoKind::Write | IoKind::Zero, FaultKind::Io) => match rng.below(4) {
            0 | 1 => Part::None,
            2 => Part::All,
            _ => random_part(sectors, rng),
        },
        (IoKind::Write | IoKind::Zero, FaultKind::NoSpace | FaultKind::Short) => {
            Part::prefix(rng.below(sectors.max(1)), sectors)
        }
    }
}

/// Any subset of `sectors`.
pub(crate) fn random_part(sectors: u64, rng: &mut Rng) -> Part {
    Part::Sectors((0..sectors).map(|_| rng.chance(1, 2)).collect::<Arc<[bool]>>())
}
