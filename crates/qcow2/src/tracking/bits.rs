//! Bits that are set by many threads at once, and never cleared.

use std::collections::TryReserveError;

use sync::OnceLock;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Words of a slot: 4 KiB.
const SLOT_WORDS: usize = 512;
const SLOT_BITS: u64 = SLOT_WORDS as u64 * 64;

/// A fixed number of bits. A slot in which no bit is set, or all are, takes no memory but its own.
#[derive(Debug)]
pub(crate) struct Bits {
    len: u64,
    slots: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    /// All bits are set, whatever `words` has.
    full: AtomicBool,
    words: OnceLock<Box<[AtomicU64]>>,
}

impl Bits {
    /// `len` bits, none of them set. Costs 32 bytes for 32,768 bits, and 4 KiB where some are set.
    pub(crate) fn new(len: u64) -> Result<Self, TryReserveError> {
        // A bitmap has at most 2^32 bits, a record fewer.
        let count = len.div_ceil(SLOT_BITS) as usize;
        let mut slots = Vec::new();
        slots.try_reserve_exact(count)?;
        slots.resize_with(count, Slot::default);
        Ok(Self { len, slots })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Sets the bits from `first` to `last`, both among them; those behind the end are left out.
    #[inline]
    pub(crate) fn set(&self, first: u64, last: u64) {
        let last = last.min(self.len.saturating_sub(1));
        let mut at = first;
        while at <= last {
            let end = last.min(at | (SLOT_BITS - 1));
            if let Some(slot) = self.slots.get((at / SLOT_BITS) as usize) {
                slot.set((at % SLOT_BITS) as u32, (end % SLOT_BITS) as u32);
            }
            at = end + 1;
        }
    }

    /// Whether all bits from `first` to `last` are set.
    #[inline]
    pub(crate) fn all_set(&self, first: u64, last: u64) -> bool {
        self.run(first, last) == (true, last - first + 1)
    }

    /// Whether the bit `first` is set, and how many up to `last` are as it is.
    pub(crate) fn run(&self, first: u64, last: u64) -> (bool, u64) {
        let set = self.word(first / 64) >> (first % 64) & 1 == 1;
        let mut at = first;
        while at <= last {
            let word = self.word(at / 64);
            let differs = (if set { !word } else { word }) >> (at % 64);
            if differs != 0 {
                return (set, (at + u64::from(differs.trailing_zeros())).min(last + 1) - first);
            }
            at = (at | 63) + 1;
        }
        (set, last + 1 - first)
    }

    /// How many are set.
    pub(crate) fn count(&self) -> u64 {
        (0..self.len.div_ceil(64)).map(|index| u64::from(self.word(index).count_ones())).sum()
    }

    /// The word `index`: bits from `64 * index` on, the first being the lowest.
    pub(crate) fn word(&self, index: u64) -> u64 {
        let inside = inside(self.len, index);
        match self.slots.get((index / SLOT_WORDS as u64) as usize) {
            Some(slot) => slot.word((index % SLOT_WORDS as u64) as usize) & inside,
            None => 0,
        }
    }

    /// Fills `out` with the bytes from `first_byte` on, as they lie in a bitmap's clusters; zeroes behind the end. Both are multiples of 8.
    pub(crate) fn copy_to(&self, first_byte: u64, out: &mut [u8]) {
        for (index, word) in (first_byte / 8..).zip(out.as_chunks_mut::<8>().0) {
            *word = self.word(index).to_le_bytes();
        }
    }

    /// Sets the bits that `bytes` have, from `first_byte` on. Both are multiples of 8.
    pub(crate) fn set_bytes(&self, first_byte: u64, bytes: &[u8]) {
        for (index, word) in (first_byte / 8..).zip(bytes.as_chunks::<8>().0) {
            self.set_word(index, u64::from_le_bytes(*word));
        }
    }

    /// Sets the bits that `other` has.
    pub(crate) fn set_all_of(&self, other: &Self) {
        let touched = (0u64..).zip(&other.slots).filter(|(_, slot)| slot.is_touched());
        for (slot, _) in touched {
            let first = slot * SLOT_WORDS as u64;
            (first..first + SLOT_WORDS as u64).for_each(|index| self.set_word(index, other.word(index)));
        }
    }

    /// Whether certainly none of `bytes` bytes from `first_byte` on has a bit that is set. Costs a look at each slot, not at the bits.
    pub(crate) fn are_untouched(&self, first_byte: u64, bytes: u64) -> bool {
        let (first, last) = (first_byte * 8 / SLOT_BITS, ((first_byte + bytes) * 8 - 1) / SLOT_BITS);
        // A bitmap has at most 2^17 slots.
        let slots = self.slots.iter().take(last as usize + 1).skip(first as usize);
        !slots.into_iter().any(Slot::is_touched)
    }

    fn set_word(&self, index: u64, word: u64) {
        let word = word & inside(self.len, index);
        if let Some(slot) = self.slots.get((index / SLOT_WORDS as u64) as usize)
            && word != 0
        {
            slot.set_word((index % SLOT_WORDS as u64) as usize, word);
        }
    }
}

impl Slot {
    fn is_touched(&self) -> bool {
        self.full.load(Ordering::Relaxed) || self.words.get().is_some()
    }

    #[inline]
    fn set(&self, first: u32, last: u32) {
        if first == 0 && u64::from(last) == SLOT_BITS - 1 {
            self.full.store(true, Ordering::Relaxed);
            return;
        }
        for index in first / 64..=last / 64 {
            let from = if index == first / 64 { first % 64 } else { 0 };
            let to = if index == last / 64 { last % 64 } else { 63 };
            self.set_word(index as usize, (u64::MAX >> (63 - to)) & (u64::MAX << from));
        }
    }

    #[inline]
    fn set_word(&self, index: usize, bits: u64) {
        if self.full.load(Ordering::Relaxed) {
            return;
        }
        let words = self.words.get_or_init(|| (0..SLOT_WORDS).map(|_| AtomicU64::new(0)).collect());
        // Most bits are set already: then the cache line stays shared.
        if let Some(word) = words.get(index)
            && word.load(Ordering::Relaxed) & bits != bits
        {
            word.fetch_or(bits, Ordering::Relaxed);
        }
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        if self.full.load(Ordering::Relaxed) {
            return u64::MAX;
        }
        self.words.get().and_then(|words| words.get(index)).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

/// Bits of word `index` that are among the first `len`.
fn inside(len: u64, index: u64) -> u64 {
    match len.saturating_sub(index * 64) {
        0 => 0,
        left @ 1..64 => (1 << left) - 1,
        _ => u64::MAX,
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_counted_and_found_to_the_bit() {
        let bits = Bits::new(3 * SLOT_BITS + 100).unwrap();
        bits.set(5, 5);
        bits.set(60, 200);
        bits.set(SLOT_BITS - 1, 2 * SLOT_BITS + 3);
        bits.set(3 * SLOT_BITS + 99, u64::MAX - 1);
        assert_eq!(bits.count(), 1 + 141 + SLOT_BITS + 5 + 1);
        let last = bits.len() - 1;
        let (mut at, mut runs) = (0, Vec::new());
        while at <= last {
            let (set, len) = bits.run(at, last);
            runs.push((set, len));
            at += len;
        }
        let expected = [
            (false, 5),
            (true, 1),
            (false, 54),
            (true, 141),
            (false, SLOT_BITS - 202),
            (true, SLOT_BITS + 5),
            (false, SLOT_BITS - 4 + 99),
            (true, 1),
        ];
        assert_eq!(runs, expected);
        assert!(bits.all_set(60, 200) && !bits.all_set(59, 61) && !bits.all_set(200, 201));
    }

    #[test]
    fn bytes_are_copied_there_and_back_and_none_behind_the_end() {
        let bits = Bits::new(70).unwrap();
        bits.set_bytes(0, &[0xff; 16]);
        assert_eq!(bits.count(), 70);
        let mut bytes = [0xaa; 24];
        bits.copy_to(0, &mut bytes);
        assert_eq!((&bytes[..8], &bytes[8..]), (&[0xff; 8][..], &[&[0x3f][..], &[0; 15]].concat()[..]));
        let copy = Bits::new(70).unwrap();
        copy.set_all_of(&bits);
        assert_eq!(copy.run(0, 69), (true, 70));
    }
}
