//! Runs: words that are all the same, or count up by one step.
//!
//! Payload: the first word of each run; then, two to a word, 32 bits for each run: the index of its
//! first entry times two, plus one if it counts up.

use super::Field;

/// A packed column.
#[derive(Debug)]
pub(crate) struct Runs {
    words: Box<[u64]>,
    count: u32,
    shift: u8,
}

/// The run at the start of `words`: its length, and whether it counts up.
fn first(words: &[u64], unit: u64) -> (usize, bool) {
    let [base, next, rest @ ..] = words else { return (words.len(), false) };
    let step = next.wrapping_sub(*base);
    if step != 0 && step != unit {
        return (1, false);
    }
    let follows = |pair: &(&u64, &u64)| pair.1.wrapping_sub(*pair.0) == step;
    let more = words.iter().skip(1).zip(rest).take_while(follows).count();
    (2 + more, step != 0)
}

/// How many runs `words` are.
pub(super) fn count(mut words: &[u64], unit: u64) -> usize {
    let mut count = 0;
    while !words.is_empty() {
        words = words.get(first(words, unit).0..).unwrap_or_default();
        count += 1;
    }
    count
}

/// Words of payload of `count` runs.
pub(super) fn words(count: usize) -> usize {
    count + count.div_ceil(2)
}

impl Runs {
    /// Packs `words`, which are `count` runs.
    pub(super) fn new(words: &[u64], field: Field, count: usize) -> Self {
        let mut packed = Vec::with_capacity(self::words(count));
        let mut starts = vec![0; count.div_ceil(2)];
        let (mut rest, mut at) = (words, 0u64);
        while let [base, ..] = rest {
            let (len, counts) = first(rest, field.unit());
            let run = packed.len();
            if let Some(pair) = starts.get_mut(run / 2) {
                *pair |= (at * 2 + u64::from(counts)) << (32 * (run % 2));
            }
            packed.push(*base);
            at += len as u64;
            rest = rest.get(len..).unwrap_or_default();
        }
        packed.extend(starts);
        Self { words: packed.into(), count: count as u32, shift: field.low }
    }

    #[inline]
    fn start(&self, run: usize) -> (usize, bool) {
        let pair = self.words.get(self.count as usize + run / 2).copied().unwrap_or(0);
        let start = (pair >> (32 * (run % 2))) as u32;
        ((start / 2) as usize, start % 2 == 1)
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> u64 {
        // The last run that starts at or before the entry. The first one starts at 0.
        let (mut low, mut high) = (0, self.count as usize);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.start(middle).0 <= index { low = middle } else { high = middle }
        }
        let (start, counts) = self.start(low);
        let base = self.words.get(low).copied().unwrap_or(0);
        if counts { base.wrapping_add(((index - start) as u64) << self.shift) } else { base }
    }

    pub(super) fn payload_words(&self) -> usize {
        self.words.len()
    }
}
