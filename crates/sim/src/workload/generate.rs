//! Workloads from a seed.

use storage::Zeroing;

use super::{Op, Step, Workload};
use crate::content::SECTOR_BYTES;
use crate::rng::Rng;
use crate::subject::{Abilities, Durability, Management};

/// In how many ways a subject may be asked to tidy up.
const TIDYINGS: u64 = 8;

/// How often a disk is closed and opened again that has two writers: they take turns.
const REOPEN_OF_TWO: u64 = 3;

/// How often each operation is chosen, relative to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Reads.
    pub read: u64,
    /// Writes.
    pub write: u64,
    /// Of the writes and zeroings, so many in 16 are FUA.
    pub fua_of_16: u64,
    /// Zeroings.
    pub zero: u64,
    /// Discards.
    pub discard: u64,
    /// Flushes.
    pub flush: u64,
    /// Closing and opening.
    pub reopen: u64,
    /// Changes of size.
    pub resize: u64,
    /// Operations on snapshots.
    pub snapshot: u64,
    /// Changes of what is only in memory.
    pub tidy: u64,
    /// Changes of how the disk is open.
    pub change: u64,
    /// Of the requests, so many in 16 are dropped if they take long.
    pub dropped_of_16: u64,
}

impl Mix {
    /// A different mix for every seed: some operations often, some never. Workloads that do
    /// everything all the time hide what only shows in the absence of something.
    pub fn swarm(rng: &mut Rng) -> Self {
        let mut weight = || rng.pick(&[0, 1, 4, 4, 16]);
        Self {
            read: 1 + weight(),
            write: 8 + weight(),
            fua_of_16: weight() / 2,
            zero: weight(),
            discard: weight(),
            flush: weight(),
            reopen: weight() / 8,
            resize: weight() / 8,
            snapshot: weight() / 4,
            change: 2,
            dropped_of_16: weight() / 4,
            tidy: weight() / 8,
        }
    }
}

/// What workloads look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What the target can do.
    pub abilities: Abilities,
    /// Steps in a workload.
    pub steps: usize,
    /// Most queues.
    pub queues_max: u8,
    /// Longest request in bytes.
    pub len_max: u64,
    /// The mix; chosen anew for each seed if `None`.
    pub mix: Option<Mix>,
    /// Futures may be dropped.
    pub drops: bool,
}

impl Shape {
    /// `steps` steps on at most `queues_max` queues, requests of up to six units of the target.
    pub fn new(abilities: Abilities, steps: usize, queues_max: u8) -> Self {
        let len_max = (abilities.unit * 6).clamp(4096, 2 << 20).min(abilities.size);
        Self { abilities, steps, queues_max: queues_max.max(1), len_max, mix: None, drops: false }
    }

    /// Bytes of the disk when it is largest.
    fn reach(&self) -> u64 {
        let Abilities { size, resize, .. } = self.abilities;
        if resize { (size + size / 2).next_multiple_of(SECTOR_BYTES) } else { size }
    }

    /// The workload of a seed.
    pub fn generate(&self, seed: u64) -> Workload {
        let mut rng = Rng::new(seed);
        let mut mix = self.mix.unwrap_or_else(|| Mix::swarm(&mut rng));
        if self.abilities.second_writer {
            mix.reopen = mix.reopen.max(REOPEN_OF_TWO);
        }
        let spots = (0..1 + rng.below(4)).map(|_| rng.below(self.reach())).collect();
        let queues = 1 + rng.below(u64::from(self.queues_max)) as u8;
        let mut maker =
            Maker { shape: self, mix, rng, spots, queues, snapshots: Vec::new(), snapshots_made: 0 };
        Workload { steps: (0..self.steps).map(|_| maker.step()).collect() }
    }
}

struct Maker<'a> {
    shape: &'a Shape,
    mix: Mix,
    rng: Rng,
    /// Places that are visited again and again.
    spots: Vec<u64>,
    queues: u8,
    snapshots: Vec<u32>,
    snapshots_made: u32,
}

impl Maker<'_> {
    fn step(&mut self) -> Step {
        let op = self.op();
        let dropped = self.shape.drops && !op.is_barrier() && self.rng.chance(self.mix.dropped_of_16, 16);
        Step {
            queue: self.rng.below(u64::from(self.queues)) as u8,
            op,
            dropped_after: dropped.then(|| self.rng.below(16) as u32),
        }
    }

    fn op(&mut self) -> Op {
        let Abilities { variants, resize, snapshots, change, .. } = self.shape.abilities;
        let Mix { read, write, zero, discard, flush, .. } = self.mix;
        let resize = if resize { self.mix.resize } else { 0 };
        let snapshot = if snapshots { self.mix.snapshot } else { 0 };
        let change = if change { self.mix.change } else { 0 };
        let Mix { reopen, tidy, .. } = self.mix;
        let weights = [read, write, zero, discard, flush, reopen, resize, snapshot, change, tidy];
        let mut left = self.rng.below(weights.iter().sum());
        let chosen = weights.iter().position(|&weight| match left.checked_sub(weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        let (at, len) = self.range();
        match chosen {
            Some(0) | None => Op::Read { at, len },
            Some(1) => Op::Write { at, len, durability: self.durability() },
            Some(2) => {
                let how = self.rng.pick(&[Zeroing::Keep, Zeroing::Unmap]);
                Op::Zero { at, len, how, durability: self.durability() }
            }
            Some(3) => Op::Discard { at, len },
            Some(4) => Op::Flush,
            Some(5) => Op::Reopen { variant: self.variant(variants) },
            Some(6) => Op::Manage(Management::Resize(self.new_size())),
            Some(7) => Op::Manage(self.snapshot()),
            Some(8) => Op::Manage(Management::Change(self.variant(variants))),
            Some(_) => Op::Tidy { how: self.rng.below(TIDYINGS) as u32 },
        }
    }

    fn variant(&mut self, variants: u32) -> u32 {
        self.rng.below(u64::from(variants.max(1))) as u32
    }

    fn durability(&mut self) -> Durability {
        if self.rng.chance(self.mix.fua_of_16, 16) { Durability::AtReply } else { Durability::AtFlush }
    }

    fn range(&mut self) -> (u64, u64) {
        let Abilities { unit, alignment, .. } = self.shape.abilities;
        let size = self.shape.reach();
        let place = if self.rng.chance(3, 4) {
            let spot = self.spots[self.rng.index(self.spots.len())];
            spot.saturating_add(self.rng.below(4 * unit)).saturating_sub(2 * unit)
        } else {
            self.rng.below(size)
        };
        let (at, len) = match self.rng.below(8) {
            0 | 1 => (place / unit * unit, unit),
            2 => (place / unit * unit, unit * (1 + self.rng.below(4))),
            3 => (place / SECTOR_BYTES * SECTOR_BYTES, SECTOR_BYTES),
            4 => (place / 4096 * 4096, 4096),
            5 => (
                place / SECTOR_BYTES * SECTOR_BYTES,
                SECTOR_BYTES * (1 + self.rng.below(unit / SECTOR_BYTES + 8)),
            ),
            6 => (place, 1 + self.rng.below(3 * SECTOR_BYTES)),
            _ => (place, 1 + self.rng.below(self.shape.len_max)),
        };
        let at = at.min(size - alignment) / alignment * alignment;
        let len = len.min(self.shape.len_max).min(size - at).next_multiple_of(alignment);
        (at, len.min(size - at))
    }

    fn new_size(&mut self) -> u64 {
        let Abilities { size, unit, .. } = self.shape.abilities;
        let around = size / 2 + self.rng.below(size);
        let step = if self.rng.chance(1, 2) { unit } else { SECTOR_BYTES };
        (around / step * step).max(SECTOR_BYTES)
    }

    fn snapshot(&mut self) -> Management {
        let create = self.snapshots.is_empty() || self.rng.chance(1, 3);
        if create {
            self.snapshots_made += 1;
            self.snapshots.push(self.snapshots_made);
            return Management::SnapshotCreate(self.snapshots_made);
        }
        let index = self.rng.index(self.snapshots.len());
        if self.rng.chance(1, 2) {
            Management::SnapshotApply(self.snapshots[index])
        } else {
            Management::SnapshotDelete(self.snapshots.swap_remove(index))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DiscardedReads;

    #[test]
    fn one_seed_is_one_workload_and_every_request_lies_inside_the_disk() {
        let abilities = Abilities {
            size: 1 << 20,
            unit: 4096,
            alignment: 1,
            discarded: DiscardedReads::ZeroesOrOld,
            variants: 2,
            resize: true,
            snapshots: true,
            change: true,
            second_writer: false,
        };
        let shape = Shape::new(abilities, 500, 4);
        assert_eq!(shape.generate(9), shape.generate(9));
        for seed in 0..50 {
            for step in shape.generate(seed).steps {
                if let Op::Read { at, len } | Op::Write { at, len, .. } | Op::Discard { at, len } = step.op {
                    assert!(len > 0 && at + len <= 3 << 19, "{step:?}");
                }
            }
        }
    }
}
