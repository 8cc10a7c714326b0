//! Which parts of a disk are to be copied: a bit for each unit, in memory.

use std::ops::Range;

use sync::Mutex;

/// Units of a disk at most: 32 MiB of bits. A larger disk needs larger units.
const UNITS_MAX: u64 = 1 << 28;

/// Which units of a disk are to be copied. Shared by guests' requests and a job, on any thread.
#[derive(Debug)]
pub struct Dirty {
    size: u64,
    unit_bytes: u64,
    bits: Mutex<Bits>,
}

#[derive(Debug)]
struct Bits {
    words: Vec<u64>,
    /// Bits that are set.
    count: u64,
}

impl Dirty {
    /// Nothing is to be copied of a disk of `size` bytes; `unit_bytes` is a power of two, made larger until the bits take 32 MiB at most.
    pub fn new(size: u64, mut unit_bytes: u64) -> Self {
        debug_assert!(unit_bytes.is_power_of_two());
        while size.div_ceil(unit_bytes) > UNITS_MAX {
            unit_bytes *= 2;
        }
        // At most UNITS_MAX / 64.
        let words = size.div_ceil(unit_bytes).div_ceil(64) as usize;
        Self { size, unit_bytes, bits: Mutex::new(Bits { words: vec![0; words], count: 0 }) }
    }

    /// Bytes of a unit.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Bytes to be copied, in whole units.
    pub fn bytes(&self) -> u64 {
        self.bits.lock().count * self.unit_bytes
    }

    /// Whether nothing is to be copied.
    pub fn is_empty(&self) -> bool {
        self.bits.lock().count == 0
    }

    /// Each unit that `range` touches is to be copied.
    pub fn mark(&self, range: Range<u64>) {
        self.set(range, true);
    }

    /// No unit that `range` touches is to be copied any more.
    pub fn clear(&self, range: Range<u64>) {
        self.set(range, false);
    }

    /// Whether a unit that `range` touches is to be copied.
    pub fn touches(&self, range: Range<u64>) -> bool {
        let bits = self.bits.lock();
        self.units(&range).any(|unit| bits.get(unit))
    }

    /// `range` from its start up to where the answer changes: whether that is to be copied, and where it ends.
    pub fn run(&self, range: Range<u64>) -> (bool, u64) {
        let bits = self.bits.lock();
        let mut units = self.units(&range);
        let is_dirty = units.next().is_some_and(|unit| bits.get(unit));
        let end = units.find(|unit| bits.get(*unit) != is_dirty).map(|unit| unit * self.unit_bytes);
        (is_dirty, end.unwrap_or(range.end).min(range.end))
    }

    /// The first bytes from `from` on (the start of a unit, or the end of the disk) that are to be copied: at most `max` of them, in whole units, cut at the end of the disk.
    pub fn next(&self, from: u64, max: u64) -> Option<Range<u64>> {
        let bits = self.bits.lock();
        let last = self.size.div_ceil(self.unit_bytes);
        let first = bits.first_from(from.div_ceil(self.unit_bytes)).filter(|unit| *unit < last)?;
        let units_max = (max / self.unit_bytes).max(1);
        let mut end = first + 1;
        while end < last && end - first < units_max && bits.get(end) {
            end += 1;
        }
        Some(first * self.unit_bytes..(end * self.unit_bytes).min(self.size))
    }

    /// All that is to be copied, in whole units, as it is found while others mark and clear.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let range = self.next(at, u64::MAX)?;
            at = range.end;
            Some(range)
        })
    }

    /// `range` made larger to whole units.
    pub fn whole(&self, range: &Range<u64>) -> Range<u64> {
        let units = self.units(range);
        units.start * self.unit_bytes..(units.end * self.unit_bytes).min(self.size.max(range.end))
    }

    fn units(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.min(self.size);
        if range.start >= end {
            return 0..0;
        }
        range.start / self.unit_bytes..end.div_ceil(self.unit_bytes)
    }

    fn set(&self, range: Range<u64>, on: bool) {
        let mut bits = self.bits.lock();
        self.units(&range).for_each(|unit| bits.set(unit, on));
    }
}

impl Bits {
    fn get(&self, unit: u64) -> bool {
        // Units are below UNITS_MAX.
        self.words.get(unit as usize / 64).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    fn set(&mut self, unit: u64, on: bool) {
        if self.get(unit) == on {
            return;
        }
        if let Some(word) = self.words.get_mut(unit as usize / 64) {
            *word ^= 1 << (unit % 64);
            self.count = if on { self.count + 1 } else { self.count - 1 };
        }
    }

    fn first_from(&self, unit: u64) -> Option<u64> {
        let place = unit as usize / 64;
        let masked = self.words.get(place).map(|word| word & (u64::MAX << (unit % 64)));
        let rest = self.words.iter().enumerate().skip(place + 1).map(|(place, word)| (place, *word));
        let mut words = masked.map(|word| (place, word)).into_iter().chain(rest);
        let (place, word) = words.find(|(_, word)| *word != 0)?;
        Some(place as u64 * 64 + u64::from(word.trailing_zeros()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bits_are_what_a_list_of_switches_would_be(
            size in 1_u64..100_000,
            steps in prop::collection::vec((any::<bool>(), 0_u64..100_000, 1_u64..9_000), 1..40),
        ) {
            let dirty = Dirty::new(size, 512);
            let mut model = vec![false; size.div_ceil(512) as usize];
            for (on, start, len) in steps {
                let range = start.min(size)..(start + len).min(size);
                let units = range.start / 512..range.end.div_ceil(512);
                if range.start < range.end {
                    units.for_each(|unit| model[unit as usize] = on);
                }
                if on { dirty.mark(range) } else { dirty.clear(range) }
            }
            prop_assert_eq!(dirty.bytes(), model.iter().filter(|on| **on).count() as u64 * 512);
            let (mut at, mut found) = (0, vec![false; model.len()]);
            while let Some(run) = dirty.next(at, 2048) {
                prop_assert!(run.start >= at && run.end <= size && run.end - run.start <= 2048);
                (run.start / 512..run.end.div_ceil(512)).for_each(|unit| found[unit as usize] = true);
                at = run.end;
            }
            prop_assert_eq!(found, model);
        }
    }

    #[test]
    fn runs_end_where_the_answer_changes() {
        let dirty = Dirty::new(10_000, 1024);
        dirty.mark(2048..3000);
        assert_eq!(dirty.run(100..10_000), (false, 2048));
        assert_eq!(dirty.run(2500..10_000), (true, 3072));
        assert_eq!(dirty.run(3072..10_000), (false, 10_000));
        assert_eq!(dirty.whole(&(2500..9990)), 2048..10_000);
    }
}
