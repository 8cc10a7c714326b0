//! Which words of a column differ in one field alone.

use super::Field;

/// Groups at most: a code fits a byte, and a dictionary of more would cost more than it saves.
pub(super) const GROUPS_MAX: usize = 256;

/// Slots of the hash table: at most half of them are in use.
const SLOTS: usize = 2 * GROUPS_MAX;

/// So few groups are found without a table: most columns have no more.
const FEW: usize = 8;

/// Words that are alike but for one field; or, where the field is 0, just one word: what is not
/// allocated must not pull the start of a frame down to 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) tag: u64,
    pub(super) min: u64,
    pub(super) max: u64,
}

/// The groups of a column, and each word's.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) groups: Vec<Group>,
    pub(super) codes: Vec<u8>,
}

impl Groups {
    /// `None` if there are too many.
    pub(super) fn new(words: &[u64], field: Field) -> Option<Self> {
        let mut finder = Finder { groups: Vec::new(), slots: Vec::new(), last: 0 };
        let mask = field.mask();
        let mut codes = Vec::with_capacity(words.len());
        for &word in words {
            let code = finder.code(word & !mask, (word & mask) >> field.low)?;
            codes.push(code as u8);
        }
        Some(Self { groups: finder.groups, codes })
    }
}

struct Finder {
    groups: Vec<Group>,
    /// A group's number plus 1, or 0. Empty as long as there are few groups.
    slots: Vec<u16>,
    last: usize,
}

impl Finder {
    fn code(&mut self, tag: u64, offset: u64) -> Option<usize> {
        // Neighbours mostly belong together.
        if !self.holds(self.last, tag, offset) {
            self.last = self.find(tag, offset)?;
        }
        if let Some(group) = self.groups.get_mut(self.last) {
            group.min = group.min.min(offset);
            group.max = group.max.max(offset);
        }
        Some(self.last)
    }

    fn holds(&self, code: usize, tag: u64, offset: u64) -> bool {
        self.groups.get(code).is_some_and(|group| group.tag == tag && (group.max == 0) == (offset == 0))
    }

    fn find(&mut self, tag: u64, offset: u64) -> Option<usize> {
        if self.slots.is_empty() {
            if let Some(found) = (0..self.groups.len()).find(|&code| self.holds(code, tag, offset)) {
                return Some(found);
            }
        }
        let slot = if self.slots.is_empty() { 0 } else { self.slot(tag, offset) };
        if let Some(found) = self.slots.get(slot).and_then(|taken| usize::from(*taken).checked_sub(1)) {
            return Some(found);
        }
        if self.groups.len() == GROUPS_MAX {
            return None;
        }
        self.groups.push(Group { tag, min: offset, max: offset });
        if let Some(free) = self.slots.get_mut(slot) {
            *free = self.groups.len() as u16;
        } else if self.groups.len() > FEW {
            self.make_table();
        }
        Some(self.groups.len() - 1)
    }

    /// The slot of the group, or the free one where it would be.
    fn slot(&self, tag: u64, offset: u64) -> usize {
        let hash = (tag ^ u64::from(offset == 0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (hash >> 32) as usize % SLOTS;
        let is_it = |slot: &usize| match self.slots.get(*slot) {
            Some(0) | None => true,
            Some(&taken) => self.holds(usize::from(taken) - 1, tag, offset),
        };
        (0..SLOTS).map(|step| (first + step) % SLOTS).find(is_it).unwrap_or(first)
    }

    fn make_table(&mut self) {
        self.slots = vec![0; SLOTS];
        for (code, group) in self.groups.clone().into_iter().enumerate() {
            let slot = self.slot(group.tag, group.max);
            if let Some(free) = self.slots.get_mut(slot) {
                *free = code as u16 + 1;
            }
        }
    }
}
