//! Tables in little memory: words of 64 bits, packed a column at a time, and read one by one.
//!
//! docs/internals/map-cache.md has the forms with their bits. Which one a column gets is decided by size alone;
//! every form gives back every word exactly, whatever the table holds.

mod bits;
mod frame;
mod runs;

use frame::{Frame, Plan};
use runs::Runs;

/// A part of a word: `bits` bits from bit `low` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    low: u8,
    bits: u8,
}

impl Field {
    /// Bits `low` to `high`, the latter not included.
    ///
    /// # Panics
    /// Unless `low <= high <= 64` and `low < 64`.
    pub const fn new(low: u32, high: u32) -> Self {
        assert!(low <= high && high <= 64 && low < 64, "a field is a part of a word");
        Self { low: low as u8, bits: (high - low) as u8 }
    }

    fn mask(self) -> u64 {
        bits::mask(u32::from(self.bits)) << self.low
    }

    /// One step of the field, as a word.
    fn unit(self) -> u64 {
        1 << self.low
    }
}

/// What the words of one column are like. Hints for packing: wrong ones cost memory, never a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnShape {
    /// The parts of a word that may differ from entry to entry while the rest hardly does; the first is
    /// also the one that counts up in runs.
    pub fields: [Field; 2],
}

/// What the entries of a table are like: one word each, or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    columns: [ColumnShape; 2],
    two: bool,
}

impl Packing {
    /// Entries of one word.
    pub const fn one(column: ColumnShape) -> Self {
        Self { columns: [column, column], two: false }
    }

    /// Entries of two words, one behind the other.
    pub const fn two(columns: [ColumnShape; 2]) -> Self {
        Self { columns, two: true }
    }

    /// Words of an entry.
    pub fn width(&self) -> usize {
        if self.two { 2 } else { 1 }
    }

    pub(crate) fn columns(&self) -> [ColumnShape; 2] {
        self.columns
    }
}

/// How a column lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// One run: a word, and whether it counts up.
    Run,
    /// A list of runs.
    Runs,
    /// Offsets from a frame's start in as few bits as the furthest needs.
    Frame,
    /// The words as they are, read-only.
    Explicit,
    /// The words as they are, to be written.
    Plain,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Run, Self::Runs, Self::Frame, Self::Explicit, Self::Plain];

    /// Its name in status lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Runs => "runs",
            Self::Frame => "frame",
            Self::Explicit => "explicit",
            Self::Plain => "plain",
        }
    }
}

/// One column, packed.
#[derive(Debug)]
pub(crate) enum Column {
    Run { base: u64, shift: u8, counts: bool },
    Runs(Runs),
    Frame(Frame),
    Explicit(Box<[u64]>),
}

impl Column {
    /// Packs `words` in the form that takes least. Costs a few passes over them.
    pub(crate) fn pack(words: &[u64], shape: ColumnShape) -> Self {
        let [first, second] = shape.fields;
        let runs = runs::count(words, first.unit());
        if runs <= 1 {
            let base = words.first().copied().unwrap_or(0);
            let counts = words.get(1).is_some_and(|&next| next != base);
            return Self::Run { base, shift: first.low, counts };
        }
        let mut best = Plan::new(words, first);
        // What takes half already is not looked at a second time.
        if best.as_ref().is_none_or(|plan| plan.words() * 2 > words.len()) {
            best = best.into_iter().chain(Plan::new(words, second)).min_by_key(Plan::words);
        }
        let frame_words = best.as_ref().map_or(usize::MAX, Plan::words);
        let runs_words = runs::words(runs);
        if runs_words <= frame_words && runs_words <= words.len() {
            return Self::Runs(Runs::new(words, first, runs));
        }
        match best {
            Some(plan) if frame_words < words.len() => Self::Frame(plan.pack(words)),
            _ => Self::Explicit(words.into()),
        }
    }

    /// The word of entry `index`, which must be one of those packed.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> u64 {
        match self {
            Self::Run { base, shift, counts } => {
                base.wrapping_add(u64::from(*counts).wrapping_mul(index as u64) << shift)
            }
            Self::Frame(frame) => frame.get(index),
            Self::Runs(runs) => runs.get(index),
            Self::Explicit(words) => words.get(index).copied().unwrap_or(0),
        }
    }

    pub(crate) fn form(&self) -> Form {
        match self {
            Self::Run { .. } => Form::Run,
            Self::Runs(_) => Form::Runs,
            Self::Frame(_) => Form::Frame,
            Self::Explicit(_) => Form::Explicit,
        }
    }

    /// Words of memory beside the column itself, in one allocation; 0 is none.
    pub(crate) fn payload_words(&self) -> usize {
        match self {
            Self::Run { .. } => 0,
            Self::Runs(runs) => runs.payload_words(),
            Self::Frame(frame) => frame.payload_words(),
            Self::Explicit(words) => words.len(),
        }
    }
}

#[cfg(test)]
mod tests;
