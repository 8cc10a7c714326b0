//! Where the next request goes.

/// The order of offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// One after the other, back to the start at the end of the disk.
    #[default]
    Sequential,
    /// Anywhere, each place as likely as any other.
    Random,
    /// Anywhere, a few places far more often than the rest (exponent 1.1 over 4096 regions,
    /// scattered over the disk).
    Zipf,
}

/// Regions of a zipf workload: fine enough that hot ones fit a cache, coarse enough to be drawn fast.
const ZIPF_REGIONS: usize = 4096;

/// An endless, repeatable sequence of offsets.
#[derive(Clone, Debug)]
pub struct Offsets {
    access: Access,
    next: u64,
    step: u64,
    /// Offsets lie in `first..first + places * step`.
    first: u64,
    places: u64,
    state: u64,
    /// Cumulative weights of the regions.
    zipf: Vec<f64>,
}

impl Offsets {
    /// Requests of `size` bytes at distances of `step` bytes, from `first` up to `disk` bytes.
    /// `None` if not one fits.
    pub fn new(access: Access, first: u64, step: u64, size: u64, disk: u64, seed: u64) -> Option<Self> {
        let room = disk.checked_sub(first)?.checked_sub(size)?;
        let step = step.max(1);
        let zipf = match access {
            Access::Zipf => cumulative_weights(),
            Access::Sequential | Access::Random => Vec::new(),
        };
        // Any seed will do but 0, which xorshift never leaves.
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Some(Self { access, next: 0, step, first, places: room / step + 1, state, zipf })
    }

    /// The next offset.
    pub fn next_offset(&mut self) -> u64 {
        let place = match self.access {
            Access::Sequential => {
                let place = self.next;
                self.next = (self.next + 1) % self.places;
                place
            }
            Access::Random => self.random() % self.places,
            Access::Zipf => self.zipf_place(),
        };
        self.first + place * self.step
    }

    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn zipf_place(&mut self) -> u64 {
        let uniform = (self.random() >> 11) as f64 / (1u64 << 53) as f64;
        let total = self.zipf.last().copied().unwrap_or(1.0);
        let rank = self.zipf.partition_point(|&weight| weight < uniform * total);
        // Neighbouring ranks go to places far apart: a multiplication by an odd number permutes.
        let region = (rank as u64).wrapping_mul(2_654_435_761) % ZIPF_REGIONS as u64;
        let per_region = self.places.div_ceil(ZIPF_REGIONS as u64);
        let inside = self.random() % per_region;
        (region * per_region + inside) % self.places
    }
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

    #[test]
    fn every_offset_leaves_room_for_its_request() {
        for access in [Access::Sequential, Access::Random, Access::Zipf] {
            let mut offsets = Offsets::new(access, 4096, 512, 8192, 100_000, 7).unwrap();
            for _ in 0..10_000 {
                let offset = offsets.next_offset();
                assert!((4096..=100_000 - 8192).contains(&offset) && (offset - 4096).is_multiple_of(512));
            }
        }
        assert!(Offsets::new(Access::Random, 0, 1, 8192, 8191, 7).is_none());
    }

    #[test]
    fn the_same_seed_gives_the_same_offsets() {
        let sequence = |seed| {
            let mut offsets = Offsets::new(Access::Random, 0, 4096, 4096, 1 << 30, seed).unwrap();
            std::array::from_fn::<u64, 8, _>(|_| offsets.next_offset())
        };
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
    }
}
