//! What the server last said of holes and data.
//!
//! Tools walk a disk from one end to the other and ask at each step; one answer covers many steps. It is forgotten when this
//! driver changes the disk, and soon anyway: others may.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use storage::{Extent, ExtentKind};
use wire::nbd::{ALLOCATION_ZERO, Descriptor};

/// How long an answer is believed.
const BELIEVED: Duration = Duration::from_secs(1);

/// The newest answer.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    state: Mutex<State>,
    meaning: Meaning,
}

/// What the numbers of an answer mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// `base:allocation`: which bytes read as zeroes.
    #[default]
    Allocation,
    /// A bitmap: which bytes are dirty.
    Bitmap,
}

/// A bitmap: the extent is dirty.
const DIRTY: u64 = 1;

#[derive(Debug, Default)]
struct State {
    /// Ends of its extents, ascending, and what each is; the first begins at `start`.
    ends: Vec<(u64, ExtentKind)>,
    start: u64,
    until: Option<Instant>,
    /// How often the disk was changed: an answer from before a change is not kept.
    changes: u64,
}

impl Meaning {
    fn kind(self, flags: u64) -> ExtentKind {
        match self {
            Self::Allocation if flags & ALLOCATION_ZERO != 0 => ExtentKind::Hole,
            Self::Bitmap if flags & DIRTY != 0 => ExtentKind::Marked,
            Self::Allocation | Self::Bitmap => ExtentKind::Data,
        }
    }
}

impl Extents {
    /// Of answers that mean this.
    pub(crate) fn new(meaning: Meaning) -> Self {
        Self { state: Mutex::default(), meaning }
    }

    /// What is at `offset`, for at most `len` bytes, if the newest answer says so.
    pub(crate) fn at(&self, offset: u64, len: u64, now: Instant) -> Option<Extent> {
        let state = self.state.lock();
        if state.until.is_none_or(|until| now >= until) || offset < state.start {
            return None;
        }
        let at = state.ends.partition_point(|(end, _)| *end <= offset);
        let (end, kind) = state.ends.get(at)?;
        Some(Extent { len: (end - offset).min(len), kind: *kind })
    }

    /// To be asked for before a status is, and given with its answer.
    pub(crate) fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// The disk changes, or has changed: call it before and after.
    pub(crate) fn changed(&self) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.ends.clear();
        state.until = None;
    }

    /// Takes an answer to a status at `start` of a disk that ends at `end`. The first extent; None if the answer says nothing of it.
    pub(crate) fn take(
        &self,
        start: u64,
        end: u64,
        said: &[Descriptor],
        changes: u64,
        now: Instant,
    ) -> Option<Extent> {
        let ends = ends(start, end, said, self.meaning);
        let first = ends.first().map(|(end, kind)| Extent { len: end - start, kind: *kind });
        let mut state = self.state.lock();
        if state.changes == changes {
            (state.ends, state.start, state.until) = (ends, start, Some(now + BELIEVED));
        }
        first
    }
}

/// Neighbours of one kind are one extent. Lengths are a server's: an extent without bytes ends what is believed, and none goes beyond
/// `end`.
fn ends(start: u64, end: u64, said: &[Descriptor], meaning: Meaning) -> Vec<(u64, ExtentKind)> {
    let mut ends: Vec<(u64, ExtentKind)> = Vec::new();
    let mut at = start;
    for Descriptor { len, flags } in said.iter().take_while(|said| said.len > 0) {
        let kind = meaning.kind(*flags);
        at = at.saturating_add(*len).min(end);
        match ends.last_mut() {
            Some((last, known)) if *known == kind => *last = at,
            _ => ends.push((at, kind)),
        }
        if at == end {
            break;
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use wire::nbd::ALLOCATION_HOLE;

    use super::*;

    const DATA: u64 = 0;
    const ZERO: u64 = ALLOCATION_HOLE | ALLOCATION_ZERO;

    fn said(extents: &[(u64, u64)]) -> Vec<Descriptor> {
        extents.iter().map(|&(len, flags)| Descriptor { len, flags }).collect()
    }

    fn extent(len: u64, kind: ExtentKind) -> Option<Extent> {
        Some(Extent { len, kind })
    }

    #[test]
    fn one_answer_covers_the_steps_behind_it() {
        let (extents, now) = (Extents::default(), Instant::now());
        let answer = said(&[(4096, DATA), (4096, ZERO), (4096, ALLOCATION_ZERO), (4096, ALLOCATION_HOLE)]);
        assert_eq!(extents.take(4096, 1 << 20, &answer, 0, now), extent(4096, ExtentKind::Data));
        assert_eq!(extents.at(0, 512, now), None);
        assert_eq!(extents.at(5000, 512, now), extent(512, ExtentKind::Data));
        assert_eq!(extents.at(8192, 1 << 20, now), extent(8192, ExtentKind::Hole));
        assert_eq!(extents.at(16384, 1 << 20, now), extent(4096, ExtentKind::Data));
        assert_eq!(extents.at(20480, 512, now), None);
        assert_eq!(extents.at(8192, 512, now + BELIEVED), None);
    }

    /// What is dirty is not zero: a copy that took it for a hole would leave out what changed.
    #[test]
    fn what_a_bitmap_marks_is_no_hole() {
        let (extents, now) = (Extents::new(Meaning::Bitmap), Instant::now());
        let answer = said(&[(4096, DIRTY), (4096, 0), (4096, DIRTY | ALLOCATION_ZERO)]);
        assert_eq!(extents.take(0, 1 << 20, &answer, 0, now), extent(4096, ExtentKind::Marked));
        assert_eq!(extents.at(4096, 512, now), extent(512, ExtentKind::Data));
        assert_eq!(extents.at(8192, 512, now), extent(512, ExtentKind::Marked));
    }

    /// A hole that is believed after data was written there is data lost: a copy would leave it out.
    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let (extents, now) = (Extents::default(), Instant::now());
        let asked = extents.changes();
        extents.changed();
        assert_eq!(extents.take(0, 8192, &said(&[(8192, ZERO)]), asked, now), extent(8192, ExtentKind::Hole));
        assert_eq!(extents.at(0, 512, now), None);
        extents.take(0, 8192, &said(&[(8192, ZERO)]), extents.changes(), now);
        assert!(extents.at(0, 512, now).is_some());
        extents.changed();
        assert_eq!(extents.at(0, 512, now), None);
    }

    #[test]
    fn lengths_of_a_liar_lead_nowhere() {
        let (extents, now) = (Extents::default(), Instant::now());
        assert_eq!(extents.take(512, 4096, &said(&[(0, DATA), (512, ZERO)]), 0, now), None);
        let long = said(&[(u64::MAX, ZERO), (u64::MAX, DATA)]);
        assert_eq!(extents.take(512, 4096, &long, 0, now), extent(3584, ExtentKind::Hole));
        assert_eq!(extents.at(512, u64::MAX, now), extent(3584, ExtentKind::Hole));
    }
}
