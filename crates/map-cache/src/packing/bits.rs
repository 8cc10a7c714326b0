//! Numbers of any width in an array of words, lowest bit first.

/// The lowest `bits` bits.
#[inline]
pub(super) const fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// Bits that hold every number up to `max`.
pub(super) const fn width(max: u64) -> u32 {
    64 - max.leading_zeros()
}

/// The number of `width` bits from bit `bit` on.
#[inline]
pub(super) fn get(words: &[u64], bit: usize, width: u32) -> u64 {
    if width == 0 {
        return 0;
    }
    let (at, skip) = (bit / 64, (bit % 64) as u32);
    let low = words.get(at).map_or(0, |word| word >> skip);
    // A number may lie across the border of two words.
    let high = match skip + width > 64 {
        true => words.get(at + 1).map_or(0, |word| word << (64 - skip)),
        false => 0,
    };
    (low | high) & mask(width)
}

/// Puts `number`, of `width` bits, where there are zeroes.
#[inline]
pub(super) fn put(words: &mut [u64], bit: usize, width: u32, number: u64) {
    if width == 0 {
        return;
    }
    let (at, skip) = (bit / 64, (bit % 64) as u32);
    if let Some(word) = words.get_mut(at) {
        *word |= number << skip;
    }
    if skip + width > 64
        && let Some(word) = words.get_mut(at + 1)
    {
        *word |= number >> (64 - skip);
    }
}
