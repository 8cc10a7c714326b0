//! Numbers in an order that looks random, each exactly once, in no memory to speak of.

/// Rounds of mixing: three already make it look random, the fourth costs little.
const ROUNDS: u64 = 4;

/// A permutation of `0..len`, chosen by a seed.
///
/// A Feistel network over the next even number of bits; whatever it gives beyond `len` goes through
/// it again, which is at most three times on average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permutation {
    len: u64,
    half_bits: u32,
    seed: u64,
}

impl Permutation {
    /// A permutation of `0..len`; `len` is at least 1.
    pub(crate) fn new(len: u64, seed: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Self { len: len.max(1), half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// Where `index` goes; past the end it starts again.
    pub(crate) fn at(&self, index: u64) -> u64 {
        let mut value = self.mix(index % self.len);
        while value >= self.len {
            value = self.mix(value);
        }
        value
    }

    fn mix(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            (left, right) =
                (right, left ^ (scramble(right ^ self.seed.rotate_left(7) ^ (round << 56)) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finishing step of SplitMix64: every bit of the input changes half of the output's.
pub(crate) fn scramble(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_comes_exactly_once() {
        for len in [1, 2, 3, 64, 1000, 4096, 4097] {
            let permutation = Permutation::new(len, 3);
            let mut all: Vec<u64> = (0..len).map(|index| permutation.at(index)).collect();
            all.sort_unstable();
            assert!(all.iter().copied().eq(0..len), "{len}");
        }
    }

    #[test]
    fn neighbours_go_far_apart_and_differently_for_each_seed() {
        let [one, two] = [1, 2].map(|seed| Permutation::new(1 << 20, seed));
        let far = (0..1000u64).filter(|&index| one.at(index).abs_diff(one.at(index + 1)) > 1 << 14).count();
        assert!(far > 900, "{far} of 1000");
        assert!((0..100).any(|index| one.at(index) != two.at(index)));
    }
}
