//! How jobs are begun.

use graph::drive::OptionTree;
use graph::options::DiskOptions;

/// What of a disk is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copied {
    /// All that it reads as.
    #[default]
    Everything,
    /// What its own image holds, for a target that is, or will be, over the same backing file.
    Top,
    /// Nothing but what is written from now on.
    Nothing,
}

/// What [`Disk::commit`](crate::Disk::commit) is to do. Images are counted from the disk's own, which is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// The uppermost image that is committed.
    pub top: usize,
    /// The one that takes what those from `top` on have; `None`: the lowest.
    pub base: Option<usize>,
    /// Bytes a second at most; 0 is no limit.
    pub speed_bytes: u64,
}

/// What [`Disk::stream`](crate::Disk::stream) is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// The image that stays below the disk's own, counted from that; `None`: none stays.
    pub base: Option<usize>,
    /// Bytes a second at most; 0 is no limit.
    pub speed_bytes: u64,
}

/// What [`Disk::mirror`](crate::Disk::mirror) is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// What is copied before it is ready.
    pub copied: Copied,
    /// A write completes when both sides have it, from the beginning. Otherwise the job makes writers do so when it does not converge.
    pub synchronous: bool,
    /// Bytes a second at most; 0 is no limit.
    pub speed_bytes: u64,
}

/// What [`Disk::backup`](crate::Disk::backup) is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backup {
    /// What is copied.
    pub copied: Copied,
    /// A write whose old content cannot be copied fails, and the copy stays whole. Otherwise the job fails.
    pub break_writes: bool,
    /// Bytes a second at most; 0 is no limit.
    pub speed_bytes: u64,
}

/// The image that a job copies to.
pub(crate) struct Target {
    pub(crate) options: DiskOptions,
    pub(crate) tree: OptionTree,
}
