//! Where the next request goes.

use crate::bench::load::permutation::{Permutation, scramble};

/// The order of offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// One step after the other, back to the start at the end of the disk.
    #[default]
    Sequential,
    /// Anywhere, each place as likely as any other.
    Random,
    /// Anywhere, a few places far more often than the rest (exponent 1.1 over 4096 regions,
    /// scattered over the disk).
    Zipf,
    /// Each step of the disk once, in random order, at a random place inside the step. With steps of
    /// a cluster, every write allocates.
    Allocating,
}

/// Regions of a zipf workload: fine enough that hot ones fit a cache, coarse enough to be drawn fast.
const ZIPF_REGIONS: usize = 4096;

/// Which part of the disk requests go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// First byte that may be touched.
    pub first: u64,
    /// First byte behind `first` that may not.
    pub end: u64,
    /// Offset of the first sequential request.
    pub start: u64,
    /// Distance of neighbouring requests in bytes, at least 1.
    pub step: u64,
    /// Bytes of a request.
    pub size: u64,
}

/// An endless, repeatable sequence of offsets.
#[derive(Clone, Debug)]
pub struct Offsets {
    places: Places,
    order: Order,
    /// Steps that fit.
    steps: u64,
    random: Random,
}

#[derive(Clone, Debug)]
enum Order {
    Sequential {
        next: u64,
    },
    Random,
    /// Cumulative weights of the regions.
    Zipf(Vec<f64>),
    Allocating {
        next: u64,
        order: Permutation,
    },
}

impl Offsets {
    /// The sequence; `None` if not one request fits.
    pub fn new(access: Access, places: Places, seed: u64) -> Option<Self> {
        let Places { first, end, start, size, .. } = places;
        let step = places.step.max(1);
        let room = end.checked_sub(first)?.checked_sub(size)?;
        let starts_inside = first <= start && start.checked_add(size)? <= end;
        let steps = match access {
            // A request may lie anywhere inside its step.
            Access::Allocating => ((end - first) / step).max(1),
            Access::Sequential | Access::Random | Access::Zipf => room / step + 1,
        };
        let order = match access {
            Access::Sequential if !starts_inside => return None,
            Access::Sequential => Order::Sequential { next: start },
            Access::Random => Order::Random,
            Access::Zipf => Order::Zipf(cumulative_weights()),
            Access::Allocating => Order::Allocating { next: 0, order: Permutation::new(steps, seed) },
        };
        Some(Self { places: Places { step, ..places }, order, steps, random: Random::new(seed) })
    }

    /// The next offset.
    pub fn next_offset(&mut self) -> u64 {
        let Self { places, order, steps, random } = self;
        let Places { first, step, size, .. } = *places;
        match order {
            Order::Sequential { next } => {
                let offset = *next;
                *next = places.behind(offset);
                offset
            }
            Order::Random => first + random.below(*steps) * step,
            Order::Zipf(weights) => first + zipf_step(weights, random, *steps) * step,
            Order::Allocating { next, order } => {
                let start = first + order.at(*next) * step;
                *next += 1;
                let choices = (step / size.max(1)).max(1);
                (start + random.below(choices) * size).min(places.end - size)
            }
        }
    }
}

impl Places {
    /// The sequential offset behind `offset`, as `qemu-img bench` counts: modulo the disk. A request
    /// that would reach over the end starts again instead.
    fn behind(&self, offset: u64) -> u64 {
        let len = self.end - self.first;
        let inside = ((u128::from(offset - self.first) + u128::from(self.step)) % u128::from(len)) as u64;
        let next = self.first + inside;
        if next + self.size > self.end { self.first } else { next }
    }
}

/// xorshift64: fast, repeatable, random enough for offsets.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Any seed will do but 0, which xorshift never leaves.
        Self(scramble(seed) | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(end)) >> 64) as u64
    }
}

fn zipf_step(weights: &[f64], random: &mut Random, steps: u64) -> u64 {
    let uniform = random.below(1 << 53) as f64 / (1u64 << 53) as f64;
    let total = weights.last().copied().unwrap_or(1.0);
    let rank = weights.partition_point(|&weight| weight < uniform * total);
    // Neighbouring ranks go to places far apart: a multiplication by an odd number permutes.
    let region = (rank as u64).wrapping_mul(2_654_435_761) % ZIPF_REGIONS as u64;
    let per_region = steps.div_ceil(ZIPF_REGIONS as u64);
    (region * per_region + random.below(per_region)) % steps
}

fn cumulative_weights() -> Vec<f64> {
    let weights = (1..=ZIPF_REGIONS).map(|rank| (rank as f64).powf(-1.1));
    weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places { first: 4096, end: 100_000, start: 4096, step: 512, size: 8192 };

    fn offsets(access: Access, places: Places, seed: u64) -> Offsets {
        Offsets::new(access, places, seed).unwrap()
    }

    #[test]
    fn every_offset_leaves_room_for_its_request() {
        for access in [Access::Sequential, Access::Random, Access::Zipf, Access::Allocating] {
            let mut offsets = offsets(access, PLACES, 7);
            for _ in 0..10_000 {
                let offset = offsets.next_offset();
                assert!((4096..=100_000 - 8192).contains(&offset), "{access:?}: {offset}");
            }
        }
        let too_small = Places { first: 0, start: 0, end: 8191, ..PLACES };
        assert!(Offsets::new(Access::Random, too_small, 7).is_none());
        assert!(Offsets::new(Access::Sequential, Places { start: 99_999, ..PLACES }, 7).is_none());
    }

    #[test]
    fn the_same_seed_gives_the_same_offsets() {
        let places = Places { first: 0, end: 1 << 30, start: 0, step: 4096, size: 4096 };
        let sequence = |seed| {
            let mut offsets = offsets(Access::Random, places, seed);
            std::array::from_fn::<u64, 8, _>(|_| offsets.next_offset())
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
    }

    #[test]
    fn sequential_requests_go_round_the_disk_as_qemu_img_counts_them() {
        let places = Places { first: 0, end: 20_480, start: 0, step: 12_288, size: 4096 };
        let mut sequence = offsets(Access::Sequential, places, 0);
        let first: [u64; 4] = std::array::from_fn(|_| sequence.next_offset());
        assert_eq!(first, [0, 12_288, 4096, 16_384]);
        let mut from = offsets(Access::Sequential, Places { start: 16_384, step: 4096, ..places }, 0);
        assert_eq!([from.next_offset(), from.next_offset()], [16_384, 0]);
    }

    #[test]
    fn allocating_requests_visit_each_cluster_once_and_at_any_place_in_it() {
        let places = Places { first: 0, end: 64 << 16, start: 0, step: 1 << 16, size: 4096 };
        let mut sequence = offsets(Access::Allocating, places, 5);
        let all: Vec<u64> = (0..64).map(|_| sequence.next_offset()).collect();
        let mut clusters: Vec<u64> = all.iter().map(|offset| offset >> 16).collect();
        assert!(!clusters.is_sorted());
        clusters.sort_unstable();
        assert!(clusters.into_iter().eq(0..64));
        assert!(all.iter().any(|offset| offset % (1 << 16) != 0));
    }

    #[test]
    fn zipf_prefers_few_places_and_leaves_none_out_of_reach() {
        let places = Places { first: 0, end: 1 << 34, start: 0, step: 4096, size: 4096 };
        let mut sequence = offsets(Access::Zipf, places, 5);
        let mut regions = vec![0u32; ZIPF_REGIONS];
        (0..100_000).for_each(|_| regions[(sequence.next_offset() >> 22) as usize] += 1);
        regions.sort_unstable_by(|one, other| other.cmp(one));
        let hot: u32 = regions[..ZIPF_REGIONS / 10].iter().sum();
        assert!(hot > 70_000, "{hot} of 100000 in a tenth of the regions");
        assert!(regions[ZIPF_REGIONS / 2] > 0);
    }
}
