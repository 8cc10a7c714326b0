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

/// Writes numbers, one behind the other, after the words that are there.
pub(super) struct Writer {
    words: Vec<u64>,
    last: u64,
    /// Bits of `last` that are in use: less than a word.
    used: u32,
}

impl Writer {
    pub(super) fn after(words: Vec<u64>) -> Self {
        Self { words, last: 0, used: 0 }
    }

    /// Writes `number`, which has `width` bits at most.
    #[inline]
    pub(super) fn put(&mut self, width: u32, number: u64) {
        self.last |= number << self.used;
        let left = 64 - self.used;
        if width < left {
            self.used += width;
        } else {
            self.words.push(self.last);
            self.last = number.checked_shr(left).unwrap_or(0);
            self.used = width - left;
        }
    }

    pub(super) fn end(mut self) -> Vec<u64> {
        if self.used > 0 {
            self.words.push(self.last);
        }
        self.words
    }
}
