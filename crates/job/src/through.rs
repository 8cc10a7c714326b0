//! What guests write to both sides: the target's part of it.
//!
//! A target that has not all of the disk itself has no rest for a unit of which a part is written, or another one than the source. So
//! unless it has the whole unit already, the unit is copied from the source, which has the change by then.

use std::ops::Range;

use block::Block;

use crate::content::Content;
use crate::copy::{Copy, CopyOptions};
use crate::counters::Counters;
use crate::error::Error;
use crate::layers::{Scope, widened};

/// A part of a change, and what of the target it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Whole units.
    Whole(Range<u64>),
    /// A part of one unit, and that unit.
    Of { unit: Range<u64>, part: Range<u64> },
}

/// Cuts `range` of a disk of `size` bytes where units of `unit_bytes` are written in part.
pub(crate) fn parts(range: Range<u64>, unit_bytes: u64, size: u64) -> Vec<Part> {
    let (mut at, mut parts) = (range.start, Vec::new());
    while at < range.end {
        let unit = widened(at..at + 1, unit_bytes, &(0..size));
        if at == unit.start && range.end >= unit.end {
            let last = if range.end == size { size } else { range.end / unit_bytes * unit_bytes };
            parts.push(Part::Whole(at..last));
            at = last;
        } else {
            let part = at..range.end.min(unit.end.max(at + 1));
            at = part.end;
            parts.push(Part::Of { unit, part });
        }
    }
    parts
}

/// Whether `target` has all of `unit` itself, so that a part of it can be written alone.
pub(crate) async fn has_all(target: &dyn Block, unit: Range<u64>) -> bool {
    let mut at = unit.start;
    while at < unit.end {
        match target.block_status(at, unit.end - at).await {
            Ok(status) if status.present && status.depth == 0 => at += status.len,
            Ok(_) | Err(_) => return false,
        }
    }
    true
}

/// Copies a whole unit. The caller keeps others from changing it.
pub(crate) async fn copy_unit(
    source: &dyn Block,
    target: &dyn Block,
    content: Content<'_>,
    unit: Range<u64>,
) -> Result<(), Error> {
    let to = unit.start;
    let options = CopyOptions { in_flight: 1, ..CopyOptions::default() };
    let copy = Copy { source, from: unit, target, to, scope: Scope::Everything, content, options };
    copy.transfer(&Counters::default()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_cut_where_a_unit_is_written_in_part() {
        let of = |unit, part| Part::Of { unit, part };
        assert_eq!(parts(0..8192, 4096, 10_000), [Part::Whole(0..8192)]);
        assert_eq!(parts(100..200, 4096, 10_000), [of(0..4096, 100..200)]);
        assert_eq!(
            parts(100..9000, 4096, 10_000),
            [of(0..4096, 100..4096), Part::Whole(4096..8192), of(8192..10_000, 8192..9000)]
        );
        assert_eq!(parts(4000..4200, 4096, 10_000), [of(0..4096, 4000..4096), of(4096..8192, 4096..4200)]);
        // The last unit ends with the disk.
        assert_eq!(parts(8192..10_000, 4096, 10_000), [Part::Whole(8192..10_000)]);
        assert_eq!(parts(9000..10_000, 4096, 10_000), [of(8192..10_000, 9000..10_000)]);
    }
}
