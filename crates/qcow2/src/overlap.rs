//! Where metadata lies in the file, so that nothing else is read from or written to there.

use std::collections::BTreeMap;
use std::fmt;

use sync::RwLock;

/// Kinds of metadata, as `overlap-check` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The first cluster.
    MainHeader,
    /// The active L1 table.
    ActiveL1,
    /// An L2 table of the active L1 table.
    ActiveL2,
    /// The refcount table.
    RefcountTable,
    /// A refcount block.
    RefcountBlock,
    /// The snapshot table.
    SnapshotTable,
    /// The L1 table of a snapshot.
    InactiveL1,
    /// An L2 table of a snapshot.
    InactiveL2,
    /// The bitmap directory.
    BitmapDirectory,
}

impl Section {
    /// All of them.
    pub const ALL: [Section; 9] = [
        Section::MainHeader,
        Section::ActiveL1,
        Section::ActiveL2,
        Section::RefcountTable,
        Section::RefcountBlock,
        Section::SnapshotTable,
        Section::InactiveL1,
        Section::InactiveL2,
        Section::BitmapDirectory,
    ];

    /// The name in `overlap-check.NAME`.
    pub fn name(self) -> &'static str {
        match self {
            Section::MainHeader => "main-header",
            Section::ActiveL1 => "active-l1",
            Section::ActiveL2 => "active-l2",
            Section::RefcountTable => "refcount-table",
            Section::RefcountBlock => "refcount-block",
            Section::SnapshotTable => "snapshot-table",
            Section::InactiveL1 => "inactive-l1",
            Section::InactiveL2 => "inactive-l2",
            Section::BitmapDirectory => "bitmap-directory",
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which sections are checked before a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlapCheck(u16);

impl OverlapCheck {
    /// No checks.
    pub const NONE: Self = Self(0);

    /// Sections whose place is known without looking at anything that changes.
    pub const CONSTANT: Self = Self(
        Section::MainHeader.bit()
            | Section::ActiveL1.bit()
            | Section::RefcountTable.bit()
            | Section::SnapshotTable.bit()
            | Section::BitmapDirectory.bit(),
    );

    /// Everything that is known without reading the file: the default.
    pub const CACHED: Self = Self(
        Self::CONSTANT.0 | Section::ActiveL2.bit() | Section::RefcountBlock.bit() | Section::InactiveL1.bit(),
    );

    /// Everything; the L2 tables of snapshots are read when the image is opened.
    pub const ALL: Self = Self(Self::CACHED.0 | Section::InactiveL2.bit());

    /// The sets by name, as `overlap-check` takes them.
    pub const NAMED: [(&'static str, Self); 4] =
        [("none", Self::NONE), ("constant", Self::CONSTANT), ("cached", Self::CACHED), ("all", Self::ALL)];

    /// The same with one section switched on or off.
    pub fn with(self, section: Section, on: bool) -> Self {
        if on { Self(self.0 | section.bit()) } else { Self(self.0 & !section.bit()) }
    }

    /// Whether `section` is checked.
    pub fn checks(self, section: Section) -> bool {
        self.0 & section.bit() != 0
    }
}

impl Default for OverlapCheck {
    fn default() -> Self {
        Self::CACHED
    }
}

/// The place of every piece of metadata of one image.
#[derive(Debug)]
pub(crate) struct MetadataMap(RwLock<Known>);

/// What is looked at, and where it is.
#[derive(Debug)]
struct Known {
    check: OverlapCheck,
    /// Start -> end (excluded) and section. Two pieces may only meet in a corrupt image; the later
    /// one then hides the earlier.
    ranges: BTreeMap<u64, (u64, Section)>,
}

impl MetadataMap {
    pub(crate) fn new(check: OverlapCheck, pieces: Vec<(u64, u64, Section)>) -> Self {
        Self(RwLock::new(Known::new(check, pieces)))
    }

    /// Looks at other sections from now on; `pieces` are all there are of them.
    pub(crate) fn change(&self, check: OverlapCheck, pieces: Vec<(u64, u64, Section)>) {
        *self.0.write() = Known::new(check, pieces);
    }

    /// The sections that are looked at.
    pub(crate) fn check(&self) -> OverlapCheck {
        self.0.read().check
    }

    /// Whether `section` is looked at.
    pub(crate) fn checks(&self, section: Section) -> bool {
        self.check().checks(section)
    }

    /// Enters a new piece.
    pub(crate) fn add(&self, start: u64, len: u64, section: Section) {
        let mut known = self.0.write();
        if known.check.checks(section) {
            known.ranges.insert(start, (start + len, section));
        }
    }

    /// Forgets a piece.
    pub(crate) fn remove(&self, start: u64) {
        self.0.write().ranges.remove(&start);
    }

    /// Forgets all pieces of `sections`, and enters `pieces` of them: section, offset and length.
    pub(crate) fn replace(&self, sections: &[Section], pieces: impl Iterator<Item = (Section, u64, u64)>) {
        let mut known = self.0.write();
        let Known { check, ranges } = &mut *known;
        ranges.retain(|_, (_, section)| !sections.contains(section));
        let pieces = pieces.filter(|(section, _, len)| check.checks(*section) && *len > 0);
        ranges.extend(pieces.map(|(section, start, len)| (start, (start.saturating_add(len), section))));
    }

    /// The metadata, other than `except`, that `start..start + len` would touch.
    #[inline]
    pub(crate) fn touched(&self, start: u64, len: u64, except: Option<Section>) -> Option<(u64, Section)> {
        let known = self.0.read();
        let mut below = known.ranges.range(..start.saturating_add(len)).rev();
        // Pieces are cluster-aligned and do not meet, so the nearest few tell.
        below
            .by_ref()
            .take(2)
            .find(|(_, (end, section))| *end > start && Some(*section) != except)
            .map(|(&at, &(_, section))| (at, section))
    }
}

impl Known {
    fn new(check: OverlapCheck, mut pieces: Vec<(u64, u64, Section)>) -> Self {
        pieces.retain(|&(start, end, section)| start < end && check.checks(section));
        pieces.sort_unstable_by_key(|&(start, ..)| start);
        let ranges = pieces.into_iter().map(|(start, end, section)| (start, (end, section))).collect();
        Self { check, ranges }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_touches_what_it_overlaps_and_nothing_else() {
        let pieces = vec![(0, 512, Section::MainHeader), (1024, 2048, Section::ActiveL2)];
        let map = MetadataMap::new(OverlapCheck::CACHED, pieces);
        assert_eq!(map.touched(512, 512, None), None);
        assert_eq!(map.touched(511, 1, None), Some((0, Section::MainHeader)));
        assert_eq!(map.touched(512, 513, None), Some((1024, Section::ActiveL2)));
        assert_eq!(map.touched(1500, 10, None), Some((1024, Section::ActiveL2)));
        assert_eq!(map.touched(1500, 10, Some(Section::ActiveL2)), None);
        assert_eq!(map.touched(2048, 1 << 40, None), None);
        map.remove(1024);
        assert_eq!(map.touched(1500, 10, None), None);
    }

    #[test]
    fn templates_hold_what_their_names_promise() {
        assert!(!OverlapCheck::CONSTANT.checks(Section::ActiveL2));
        assert!(OverlapCheck::CACHED.checks(Section::ActiveL2));
        assert!(!OverlapCheck::CACHED.checks(Section::InactiveL2));
        assert!(Section::ALL.iter().all(|&section| OverlapCheck::ALL.checks(section)));
        assert!(!OverlapCheck::ALL.with(Section::ActiveL1, false).checks(Section::ActiveL1));
    }
}
