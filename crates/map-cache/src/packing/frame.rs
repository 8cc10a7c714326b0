//! Frames: a dictionary of first words, and for each entry its code and its distance from there.
//!
//! Payload: the dictionary, a word each; then the entries, `value_bits + code_bits` bits each, the code
//! in the lowest. The word of an entry is `dictionary[code] + (value << shift)`.

use super::groups::Groups;
use super::{Field, bits};

/// A packed column.
#[derive(Debug)]
pub(crate) struct Frame {
    words: Box<[u64]>,
    dictionary: u16,
    value_bits: u8,
    code_bits: u8,
    shift: u8,
}

impl Frame {
    #[inline]
    pub(super) fn get(&self, index: usize) -> u64 {
        let (code_bits, value_bits) = (u32::from(self.code_bits), u32::from(self.value_bits));
        let width = code_bits + value_bits;
        let Some((dictionary, entries)) = self.words.split_at_checked(usize::from(self.dictionary)) else {
            return 0;
        };
        let entry = bits::get(entries, index * width as usize, width);
        let first = dictionary.get((entry & bits::mask(code_bits)) as usize).copied().unwrap_or(0);
        first.wrapping_add((entry >> code_bits) << self.shift)
    }

    pub(super) fn payload_words(&self) -> usize {
        self.words.len()
    }
}

/// A frame that could be made.
#[derive(Debug)]
pub(super) struct Plan {
    groups: Groups,
    field: Field,
    value_bits: u32,
    code_bits: u32,
}

impl Plan {
    /// `None` if there would be too many groups, or entries of more bits than a word.
    pub(super) fn new(words: &[u64], field: Field) -> Option<Self> {
        let groups = Groups::new(words, field)?;
        let furthest = groups.groups.iter().map(|group| group.max - group.min).max()?;
        let value_bits = bits::width(furthest);
        let code_bits = bits::width(groups.groups.len() as u64 - 1);
        (value_bits + code_bits <= 64).then_some(Self { groups, field, value_bits, code_bits })
    }

    /// Words of payload.
    pub(super) fn words(&self) -> usize {
        let bits = self.groups.codes.len() * (self.value_bits + self.code_bits) as usize;
        self.groups.groups.len() + bits.div_ceil(64)
    }

    pub(super) fn pack(&self, words: &[u64]) -> Frame {
        let groups = &self.groups.groups;
        let (low, width) = (self.field.low, self.value_bits + self.code_bits);
        let mut packed = Vec::with_capacity(self.words());
        packed.extend(groups.iter().map(|group| group.tag | (group.min << low)));
        let mut entries = bits::Writer::after(packed);
        for (&word, &code) in words.iter().zip(&self.groups.codes) {
            let min = groups.get(usize::from(code)).map_or(0, |group| group.min);
            let value = ((word & self.field.mask()) >> low) - min;
            // A code of 64 bits does not occur: it has 8 at most.
            entries.put(width, (value << self.code_bits) | u64::from(code));
        }
        Frame {
            words: entries.end().into(),
            dictionary: groups.len() as u16,
            value_bits: self.value_bits as u8,
            code_bits: self.code_bits as u8,
            shift: low,
        }
    }
}
