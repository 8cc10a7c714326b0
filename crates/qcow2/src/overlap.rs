//! Where metadata lies in the file, so that nothing else is read from or written to there.

mod clusters;
mod known;
mod places;
#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use known::MetadataMap;
pub(crate) use places::Places;

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

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sections(u16);

impl Sections {
    const NONE: Self = Self(0);

    fn of(sections: &[Section]) -> Self {
        Self(sections.iter().fold(0, |bits, section| bits | section.bit()))
    }

    fn without(self, others: Sections) -> Self {
        Self(self.0 & !others.0)
    }

    fn with(self, others: Sections) -> Self {
        Self(self.0 | others.0)
    }

    fn has(self, section: Section) -> bool {
        self.0 & section.bit() != 0
    }

    fn first(self) -> Option<Section> {
        Section::ALL.into_iter().find(|&section| self.has(section))
    }
}

impl From<OverlapCheck> for Sections {
    fn from(check: OverlapCheck) -> Self {
        Self(check.0)
    }
}
