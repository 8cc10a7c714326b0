//! Frames: a dictionary of first words, and for each entry its code and its distance from there.
//!
//! Payload: the dictionary, a word each; then the entries, `value_bits + code_bits` bits each, the code
//! in the lowest. The word of an entry is `dictionary[code] + (value << shift)`.

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

/// Groups at most: a code fits a byte, and a dictionary of more would cost more than it saves.
const GROUPS_MAX: usize = 256;

/// Slots of the hash table: at most half of them are in use.
const SLOTS: usize = 2 * GROUPS_MAX;

/// So few groups are found without a table: most columns have no more.
const FEW: usize = 8;

/// Words that are alike but for one field; or, where the field is 0, just one word: what is not
/// allocated must not pull the start of a frame down to 0.
#[derive(Clone, Copy, Debug)]
struct Group {
    tag: u64,
    min: u64,
    max: u64,
}

impl Group {
    fn is_of(&self, part: Self) -> bool {
        self.tag == part.tag && (self.max == 0) == (part.max == 0)
    }
}

/// The groups of a column, and each word's.
#[derive(Debug)]
struct Groups {
    groups: Vec<Group>,
    codes: Vec<u8>,
}

impl Groups {
    /// `None` if there are too many.
    fn new(words: &[u64], field: Field) -> Option<Self> {
        let mut finder = Finder { groups: Vec::new(), slots: Vec::new() };
        let mask = field.mask();
        let mut codes = Vec::with_capacity(words.len());
        let mut rest = words;
        while let Some(&first) = rest.first() {
            let (tag, is_zero) = (first & !mask, first & mask == 0);
            // Neighbours mostly belong together.
            let (mut len, mut min, mut max) = (0, u64::MAX, 0);
            for &word in rest {
                let offset = word & mask;
                if word & !mask != tag || (offset == 0) != is_zero {
                    break;
                }
                (len, min, max) = (len + 1, min.min(offset), max.max(offset));
            }
            let code = finder.code(Group { tag, min: min >> field.low, max: max >> field.low })?;
            codes.resize(codes.len() + len, code as u8);
            (_, rest) = rest.split_at(len);
        }
        Some(Self { groups: finder.groups, codes })
    }
}

struct Finder {
    groups: Vec<Group>,
    /// A group's number plus 1, or 0. Empty as long as there are few groups.
    slots: Vec<u16>,
}

impl Finder {
    /// The number of the group that `part` is of; it has room for that then.
    fn code(&mut self, part: Group) -> Option<usize> {
        let code = self.find(part)?;
        if let Some(group) = self.groups.get_mut(code) {
            group.min = group.min.min(part.min);
            group.max = group.max.max(part.max);
        }
        Some(code)
    }

    fn holds(&self, code: usize, part: Group) -> bool {
        self.groups.get(code).is_some_and(|group| group.is_of(part))
    }

    fn find(&mut self, part: Group) -> Option<usize> {
        if self.slots.is_empty()
            && let Some(found) = self.groups.iter().position(|group| group.is_of(part))
        {
            return Some(found);
        }
        let slot = if self.slots.is_empty() { 0 } else { self.slot(part) };
        if let Some(found) = self.slots.get(slot).and_then(|taken| usize::from(*taken).checked_sub(1)) {
            return Some(found);
        }
        if self.groups.len() == GROUPS_MAX {
            return None;
        }
        self.groups.push(part);
        if let Some(free) = self.slots.get_mut(slot) {
            *free = self.groups.len() as u16;
        } else if self.groups.len() > FEW {
            self.make_table();
        }
        Some(self.groups.len() - 1)
    }

    /// The slot of the group, or the free one where it would be.
    fn slot(&self, part: Group) -> usize {
        let hash = (part.tag ^ u64::from(part.max == 0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (hash >> 32) as usize % SLOTS;
        let is_it = |slot: &usize| match self.slots.get(*slot) {
            Some(0) | None => true,
            Some(&taken) => self.holds(usize::from(taken) - 1, part),
        };
        (0..SLOTS).map(|step| (first + step) % SLOTS).find(is_it).unwrap_or(first)
    }

    fn make_table(&mut self) {
        self.slots = vec![0; SLOTS];
        for (code, group) in self.groups.clone().into_iter().enumerate() {
            let slot = self.slot(group);
            if let Some(free) = self.slots.get_mut(slot) {
                *free = code as u16 + 1;
            }
        }
    }
}
