//! What a range of layers says about a byte, and what a copy needs of the target for it. Pure: the one place where both are decided.
//!
//! docs/internals/copies.md has the table.

use std::ops::Range;

use block::{Block, BlockStatus};

use crate::content::Content;
use crate::deliberate::{self, Bug};

/// Which parts of the source count: a range of its layers, from an upper one down to, and without, a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of it.
    Everything,
    /// What its uppermost layers say, so many of them. The rest is left alone.
    Layers(u32),
    /// What its uppermost layer says; zeroes, too, where the backing image that ends early. For a target whose own backing file is not
    /// known to end there.
    Overlay,
    /// What its uppermost layer does not say.
    BelowTop,
    /// What its uppermost layer does not say, without what only layers further down than so many have.
    BelowTopWithin(u32),
}

/// The uppermost layers of a disk, beside a disk that has the others: what they say may differ from that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Above {
    /// How many layers.
    pub layers: u32,
    /// Bytes of the other disk: behind its end all of this one counts.
    pub end: u64,
}

impl Above {
    /// What counts at `offset`, and for how many of `len` bytes.
    pub fn at(self, offset: u64, len: u64) -> (Scope, u64) {
        match self.end.saturating_sub(offset) {
            0 => (Scope::Everything, len),
            left => (Scope::Layers(self.layers), len.min(left)),
        }
    }
}

/// What a range of layers says about a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Nothing: what lies behind the layers shows.
    Nothing,
    /// Zeroes, written or by the end of a layer that lies in the range.
    Zero,
    /// Data.
    Data,
}

impl Scope {
    /// What the layers in scope say about the bytes that `status`, of the whole source, is of.
    pub fn says(self, status: &BlockStatus) -> Says {
        let layer = layer(status);
        let counts = match self {
            Self::Everything => true,
            Self::Layers(layers) => layer < layers,
            Self::Overlay => layer == 0 || (layer == 1 && !status.present),
            Self::BelowTop => layer > 0,
            // What no layer has, the base does not have either, or it has ended: the image must not begin to show what the base has in
            // another chain. Where the base reads as zeroes, too, nothing comes of it.
            Self::BelowTopWithin(layers) => !status.present || (1..layers).contains(&layer),
        };
        let is_hidden = status.compressed && deliberate::has(Bug::CompressedSaysNothing);
        match (counts && !is_hidden, status.zero) {
            (false, _) => Says::Nothing,
            (true, true) => Says::Zero,
            (true, false) => Says::Data,
        }
    }
}

/// The layer that has the last word on bytes in this state. Where no layer has them, the last one that was asked is as long as the disk, and
/// the one below it ends before: its end says zeroes, as if they were written there. Below the lowest layer there is none, so the number
/// that comes out then is that of no layer.
fn layer(status: &BlockStatus) -> u32 {
    match status.present {
        true => status.depth,
        false if deliberate::has(Bug::ShortLayerSaysNothing) => u32::MAX,
        false => status.depth.saturating_add(1),
    }
}

/// Whether zeroes must be written where the target is in this state, with `known` of it before.
pub(crate) fn needs_zero(known: &Content<'_>, status: &BlockStatus, awaits_backing: bool) -> bool {
    match known {
        Content::Zeroes => false,
        Content::Overlay => true,
        Content::As(_) => !status.zero,
        // What an overlay does not say itself, the backing image it will say.
        Content::Unknown => {
            let is_own = status.present && status.depth == 0;
            !status.zero || (awaits_backing && !is_own)
        }
    }
}

/// Bytes of the target that are written together, so that a part of one does not get its rest from what lies behind the target: where
/// that is not what the source reads as there.
pub(crate) fn unit(content: &Content<'_>, target: &dyn Block, align_bytes: u64) -> u64 {
    let is_widened = match content {
        // The rest comes from the source, for want of a backing file.
        Content::Overlay => !deliberate::has(Bug::RestFromTarget) && !deliberate::has(Bug::ZeroesLeftOut),
        Content::Unknown => target.awaits_backing(),
        // "It reads so anyway" is asked of whole units: zeroes of a part cannot be recorded without the rest.
        Content::As(_) => true,
        Content::Zeroes => false,
    };
    let cluster = target.capabilities().cluster_bytes.filter(|_| is_widened).unwrap_or(1);
    align_bytes.max(cluster).max(1)
}

/// `range` made larger to whole units, cut off at the ends of `within`, which begins at the start of a unit or is cut there itself.
pub(crate) fn widened(range: Range<u64>, unit: u64, within: &Range<u64>) -> Range<u64> {
    let start = (range.start / unit * unit).max(within.start);
    let end = range.end.checked_next_multiple_of(unit).unwrap_or(u64::MAX).min(within.end);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeroes(depth: u32, present: bool) -> BlockStatus {
        BlockStatus { present, zero: true, hole: true, data: false, ..BlockStatus::data(512, depth, None) }
    }

    #[test]
    fn a_layer_that_ends_early_says_zeroes_like_one_that_has_them() {
        // Layers 0 and 1 are as long as the disk, layer 2 has ended.
        let ended = zeroes(1, false);
        assert_eq!(Scope::Layers(3).says(&ended), Says::Zero);
        assert_eq!(Scope::BelowTopWithin(3).says(&ended), Says::Zero);
        assert_eq!(Scope::BelowTop.says(&ended), Says::Zero);
        assert_eq!(Scope::Everything.says(&ended), Says::Zero);
        // The base itself has ended: nothing in the range says so.
        assert_eq!(Scope::Layers(2).says(&ended), Says::Nothing);
        assert_eq!(Scope::BelowTopWithin(2).says(&zeroes(2, true)), Says::Nothing);
        // Written zeroes belong to the layer that has them.
        assert_eq!(Scope::Layers(1).says(&zeroes(1, true)), Says::Nothing);
        assert_eq!(Scope::Layers(2).says(&zeroes(1, true)), Says::Zero);
    }

    #[test]
    fn what_no_layer_of_a_chain_says_is_nothing_above_its_lowest_one() {
        // The lowest of two layers was asked last.
        let absent = zeroes(1, false);
        assert_eq!(Scope::Layers(2).says(&absent), Says::Nothing);
        assert_eq!(Scope::Overlay.says(&absent), Says::Nothing);
        assert_eq!(Scope::Overlay.says(&zeroes(0, false)), Says::Zero);
        assert_eq!(Scope::Overlay.says(&zeroes(1, true)), Says::Nothing);
        assert_eq!(Scope::Overlay.says(&BlockStatus::data(512, 0, None)), Says::Data);
    }

    #[test]
    fn behind_the_end_of_the_other_disk_all_of_a_disk_counts() {
        let above = Above { layers: 1, end: 4096 };
        assert_eq!(above.at(0, 8192), (Scope::Layers(1), 4096));
        assert_eq!(above.at(4095, 8192), (Scope::Layers(1), 1));
        assert_eq!(above.at(4096, 8192), (Scope::Everything, 8192));
        // The layer below has ended there, and says nothing of its own: the disk reads as zeroes that the other one does not have.
        assert_eq!(above.at(4096, 8192).0.says(&zeroes(0, false)), Says::Zero);
    }

    #[test]
    fn zeroes_are_written_wherever_something_else_could_show() {
        let (own, below, absent) = (zeroes(0, true), zeroes(1, true), zeroes(0, false));
        let data = BlockStatus::data(512, 1, None);
        let needs = |known: &Content<'_>, awaits| {
            [&own, &below, &absent, &data].map(|s| needs_zero(known, s, awaits))
        };
        assert_eq!(needs(&Content::Zeroes, true), [false; 4]);
        assert_eq!(needs(&Content::Overlay, false), [true; 4]);
        assert_eq!(needs(&Content::Unknown, false), [false, false, false, true]);
        assert_eq!(needs(&Content::Unknown, true), [false, true, true, true]);
    }

    #[test]
    fn ranges_become_whole_units_inside_the_copy() {
        assert_eq!(widened(5000..5001, 4096, &(0..100_000)), 4096..8192);
        assert_eq!(widened(4096..8192, 4096, &(0..100_000)), 4096..8192);
        assert_eq!(widened(99_000..99_001, 4096, &(0..100_000)), 98_304..100_000);
        assert_eq!(widened(700..701, 4096, &(512..100_000)), 512..4096);
        assert_eq!(widened(7..u64::MAX, 4096, &(0..u64::MAX)), 0..u64::MAX);
    }
}
