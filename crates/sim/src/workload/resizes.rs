//! Workloads around changes of size: what one of them leaves half done meets the next.

use storage::Zeroing;

use super::{Op, Shape, Step, Workload};
use crate::content::SECTOR_BYTES;
use crate::rng::Rng;
use crate::subject::{Durability, Management};

/// Requests between two changes of size at most.
const REQUESTS_MAX: u64 = 6;

impl Shape {
    /// The workload of a seed for a disk whose size changes: `rounds` times it is opened, often with its map being read
    /// ahead, looked at, made smaller (often again to the same size, as a client does that was informed that it failed), made
    /// larger, and used in the part that went and came back.
    pub fn generate_resizes(&self, seed: u64, rounds: usize) -> Workload {
        let mut maker = Maker { shape: self, rng: Rng::new(seed ^ 0x7265_7369_7a65), steps: Vec::new() };
        (0..rounds).for_each(|_| maker.round());
        Workload { steps: maker.steps }
    }
}

struct Maker<'a> {
    shape: &'a Shape,
    rng: Rng,
    steps: Vec<Step>,
}

impl Maker<'_> {
    fn round(&mut self) {
        let size = self.shape.abilities.size;
        if self.rng.chance(3, 4) {
            let variant = self.rng.below(u64::from(self.shape.abilities.variants.max(1))) as u32;
            self.steps.push(Step::of(Op::Reopen { variant }));
        }
        // Not always: the reading ahead should be under way when the size changes.
        if self.rng.chance(1, 2) {
            self.requests(0, size);
        }
        let low = self.size_between(0, size);
        self.resize(low);
        if self.rng.chance(1, 3) {
            self.resize(low);
        }
        let high = self.size_between(low, size + size / 4);
        self.resize(high);
        self.requests(low, high);
        self.steps.push(Step::of(Op::Read { at: low, len: (high - low).min(self.shape.len_max) }));
    }

    fn size_between(&mut self, low: u64, high: u64) -> u64 {
        let unit = if self.rng.chance(1, 2) { self.shape.abilities.unit } else { SECTOR_BYTES };
        ((low + self.rng.below(high - low)) / unit * unit).max(SECTOR_BYTES)
    }

    fn resize(&mut self, size: u64) {
        self.steps.push(Step::of(Op::Manage(Management::Resize(size))));
    }

    /// Requests between `from` and `to`, from several queues.
    fn requests(&mut self, from: u64, to: u64) {
        for _ in 0..1 + self.rng.below(REQUESTS_MAX) {
            let at = from + self.rng.below((to - from).max(1));
            let len = 1 + self.rng.below(self.shape.len_max);
            let durability = if self.rng.chance(1, 8) { Durability::AtReply } else { Durability::AtFlush };
            let op = match self.rng.below(8) {
                0..3 => Op::Read { at, len },
                3..6 => Op::Write { at, len, durability },
                6 => Op::Zero { at, len, how: Zeroing::Unmap, durability },
                _ => Op::Flush,
            };
            let queue = self.rng.below(u64::from(self.shape.queues_max)) as u8;
            self.steps.push(Step { queue, op, dropped_after: None });
        }
    }
}
