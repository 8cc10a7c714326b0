//! Operations in time, and which of them a reader may still see.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::content::SECTOR_BYTES;
use crate::request::Tick;

const SECTOR: usize = SECTOR_BYTES as usize;

/// Sectors by number, as they were read; those that are zero are left out.
pub(super) type Image = BTreeMap<u64, Box<[u8; SECTOR]>>;

/// What an operation leaves.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Zero,
    /// The stamp of this version.
    Version(u64),
    /// What was read from a disk.
    Image(Arc<Image>),
    /// What was legal when a snapshot was taken.
    Frozen(Arc<Frozen>),
    /// Not bytes: the size of the disk.
    Size(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpState {
    Running,
    Done,
    /// Failed or dropped: it may have happened, in any part.
    Uncertain,
}

#[derive(Clone, Debug)]
pub(super) struct Op {
    pub value: Value,
    pub issued: Tick,
    pub ended: Option<Tick>,
    pub state: OpState,
    pub durable: Option<Tick>,
    /// Once done, what was there before is gone.
    pub firm: bool,
}

impl Op {
    /// Done and durable before everything.
    pub fn settled(value: Value) -> Self {
        Self { value, issued: 0, ended: Some(0), state: OpState::Done, durable: Some(0), firm: true }
    }

    pub fn started(value: Value, now: Tick) -> Self {
        Self { value, issued: now, ended: None, state: OpState::Running, durable: None, firm: true }
    }
}

/// An operation reaches these bytes of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Touch {
    pub op: usize,
    pub from: u16,
    pub to: u16,
}

impl Touch {
    pub fn covers(&self, from: u16, to: u16) -> bool {
        self.from <= from && to <= self.to
    }
}

pub(super) type Sectors = BTreeMap<u64, SmallVec<[Touch; 2]>>;

/// What reached `sector`.
pub(super) fn touches(sectors: &Sectors, sector: u64) -> &[Touch] {
    sectors.get(&sector).map_or(&[], |touches| touches.as_slice())
}

/// The state of all sectors when a snapshot was taken.
#[derive(Clone, Debug)]
pub(super) struct Frozen {
    pub sectors: Sectors,
    pub at: Tick,
    pub size: u64,
}

/// Who reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reader {
    /// Someone on the living disk.
    Live { started: Tick, now: Tick },
    /// Someone after a crash.
    Crashed { at: Tick },
}

impl Reader {
    fn knows(&self, op: &Op) -> bool {
        match *self {
            Reader::Live { now, .. } => op.issued <= now,
            Reader::Crashed { at } => op.issued <= at,
        }
    }

    /// Whether this reader can rely on the operation.
    fn relies_on(&self, op: &Op) -> bool {
        let settled = match *self {
            Reader::Live { started, .. } => {
                op.state == OpState::Done && op.ended.is_some_and(|ended| ended < started)
            }
            Reader::Crashed { at } => op.durable.is_some_and(|durable| durable <= at),
        };
        settled && op.firm
    }
}

/// The number of the operation that made everything zero before anything happened.
pub(super) const FIRST: Touch = Touch { op: 0, from: 0, to: SECTOR as u16 };

#[derive(Clone, Debug, Default)]
pub(super) struct History {
    ops: Vec<Op>,
    sectors: Sectors,
    not_durable: Vec<usize>,
    pub abandoned: Vec<usize>,
}

impl History {
    pub fn add(&mut self, op: Op) -> usize {
        self.ops.push(op);
        self.ops.len() - 1
    }

    pub fn op(&self, op: usize) -> &Op {
        &self.ops[op]
    }

    pub fn size_of(&self, op: usize) -> u64 {
        match self.ops[op].value {
            Value::Size(size) => size,
            Value::Zero | Value::Version(_) | Value::Image(_) | Value::Frozen(_) => 0,
        }
    }

    pub fn touch(&mut self, op: usize, offset: u64, len: u64) {
        let end = offset + len;
        for sector in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let start = sector * SECTOR_BYTES;
            let from = offset.saturating_sub(start) as u16;
            let to = (end - start).min(SECTOR_BYTES) as u16;
            self.sectors.entry(sector).or_default().push(Touch { op, from, to });
        }
    }

    pub fn sectors(&self) -> &Sectors {
        &self.sectors
    }

    pub fn known_sectors(&self) -> Vec<u64> {
        self.sectors.keys().copied().collect()
    }

    pub fn end(&mut self, op: usize, now: Tick, state: OpState, durable: bool) {
        let ended = &mut self.ops[op];
        ended.ended = Some(now);
        ended.state = state;
        if durable {
            ended.durable = Some(now);
        } else if state == OpState::Done {
            self.not_durable.push(op);
        }
    }

    pub fn make_durable(&mut self, started: Tick, now: Tick) {
        let ops = &mut self.ops;
        self.not_durable.retain(|&op| {
            let covered = ops[op].ended.is_some_and(|ended| ended < started);
            if covered {
                ops[op].durable = Some(now);
            }
            !covered
        });
    }

    /// What no flush covered may be lost, whole or in part.
    pub fn forfeit(&mut self) {
        for op in std::mem::take(&mut self.not_durable) {
            self.ops[op].state = OpState::Uncertain;
        }
    }

    pub fn freeze(&self, at: Tick, size: u64) -> Frozen {
        Frozen { sectors: self.sectors.clone(), at, size }
    }

    /// Which of `ops`, all of the same place, a crash at `crash` may leave.
    pub fn legal_after_crash(&self, ops: &[usize], crash: Tick) -> Vec<usize> {
        self.legal(ops.iter().copied(), &Reader::Crashed { at: crash })
    }

    /// Which of the operations on one place `reader` may see.
    pub fn legal(&self, ops: impl Iterator<Item = usize>, reader: &Reader) -> Vec<usize> {
        let known: SmallVec<[usize; 8]> = ops.filter(|&op| reader.knows(&self.ops[op])).collect();
        // What ended before the latest-started operation that can be relied on started is gone.
        let latest =
            known.iter().filter(|&&op| reader.relies_on(&self.ops[op])).map(|&op| self.ops[op].issued).max();
        let gone = |op: &Op| latest.is_some_and(|latest| op.ended.is_some_and(|ended| ended < latest));
        known.into_iter().filter(|&op| !gone(&self.ops[op])).collect()
    }

    /// Forgets the operations that no reader from `now` on can see.
    pub fn prune(&mut self, now: Tick) {
        let reader = Reader::Crashed { at: now };
        let mut sectors = std::mem::take(&mut self.sectors);
        for touches in sectors.values_mut() {
            let firm: SmallVec<[Touch; 8]> =
                touches.iter().copied().filter(|touch| reader.relies_on(&self.ops[touch.op])).collect();
            touches.retain(|touch| {
                let ended = self.ops[touch.op].ended;
                !firm.iter().any(|over| {
                    over.covers(touch.from, touch.to)
                        && ended.is_some_and(|ended| ended < self.ops[over.op].issued)
                })
            });
        }
        self.sectors = sectors;
    }
}
