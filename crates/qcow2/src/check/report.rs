//! What a check finds, and what it tells while it runs.

use std::fmt;

use qcow2_layout::{
    BitmapError, EntryError, HostOffset, SNAPSHOT_TABLE_BYTES_MAX, SNAPSHOTS_MAX, SnapshotError,
};

/// What a check may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// Nothing.
    #[default]
    None,
    /// Refcounts that are too high, and the COPIED flags that follow from them.
    Leaks,
    /// All that can be repaired: refcounts, the refcount structure, COPIED flags, the snapshot table.
    All,
}

/// The numbers of `qemu-img check`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Contradictions that can lose data, still there.
    pub corruptions: u64,
    /// Clusters that are in no use but counted as used, still there.
    pub leaks: u64,
    /// Corruptions that were repaired.
    pub corruptions_fixed: u64,
    /// Leaks that were repaired.
    pub leaks_fixed: u64,
    /// Clusters of the guest's disk.
    pub total_clusters: u64,
    /// Of those, in this image and not just zeroes.
    pub allocated_clusters: u64,
    /// Allocated clusters that do not follow the one before them in the file.
    pub fragmented_clusters: u64,
    /// Compressed clusters.
    pub compressed_clusters: u64,
    /// End of the last cluster in use, in bytes of the file.
    pub image_end_offset: u64,
    /// Metadata that could not be read.
    pub check_errors: u64,
}

impl CheckReport {
    /// Nothing is wrong any more.
    pub fn is_clean(&self) -> bool {
        self.corruptions == 0 && self.leaks == 0 && self.check_errors == 0
    }
}

/// What the check is doing or has just seen.
#[derive(Debug)]
pub enum Progress<'a> {
    /// A new stage begins.
    Stage(Stage),
    /// The map of so many bytes of the disk was read.
    Scanned {
        /// Bytes.
        done: u64,
        /// Of so many.
        total: u64,
    },
    /// Something is wrong.
    Found(&'a Finding),
    /// What shared its place with something else got one of its own.
    Copied {
        /// Data, or L2 tables.
        owner: Owner,
        /// So many clusters.
        clusters: u64,
    },
}

/// Stages of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading everything.
    Check,
    /// Writing.
    Repair,
    /// Reading everything again.
    Verify,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The image contradicts itself.
    Corruption,
    /// Space is wasted.
    Leak,
    /// Metadata could not be read.
    Error,
    /// Tells why something was not repaired; counts as nothing.
    Note,
}

/// Who refers to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Guest data.
    Data,
    /// The header.
    Header,
    /// The active L1 table or one of a snapshot.
    L1,
    /// An L2 table.
    L2,
    /// The snapshot table.
    SnapshotTable,
    /// The LUKS header.
    Luks,
    /// The bitmap directory.
    BitmapDirectory,
    /// A bitmap's table.
    BitmapTable,
    /// A bitmap's bits.
    BitmapData,
    /// What bitmaps miss since they were stored.
    ChangeRecord,
    /// The refcount table.
    RefcountTable,
    /// A refcount block.
    RefcountBlock,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Owner::Data => "guest data",
            Owner::Header => "the header",
            Owner::L1 => "an L1 table",
            Owner::L2 => "an L2 table",
            Owner::SnapshotTable => "the snapshot table",
            Owner::Luks => "the LUKS header",
            Owner::BitmapDirectory => "the bitmap directory",
            Owner::BitmapTable => "a bitmap table",
            Owner::BitmapData => "bitmap data",
            Owner::ChangeRecord => "the record of changes",
            Owner::RefcountTable => "the refcount table",
            Owner::RefcountBlock => "a refcount block",
        })
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Neighbouring clusters have a wrong refcount: too low is corruption, too high a leak.
    Refcount {
        /// The first cluster, as an index.
        cluster: u64,
        /// So many clusters.
        clusters: u64,
        /// On disk.
        refcount: u64,
        /// References that were found.
        references: u64,
    },
    /// A table entry is not one.
    Entry {
        /// Where it is.
        at: HostOffset,
        /// What is wrong with it.
        error: EntryError,
    },
    /// The COPIED flag of an entry disagrees with the refcount of its cluster.
    Copied {
        /// Where the entry is.
        at: HostOffset,
        /// What it points to.
        target: HostOffset,
        /// The flag.
        copied: bool,
        /// Whether the refcount is one.
        refcount_is_one: bool,
    },
    /// Something lies beyond the end of the file.
    BeyondEnd {
        /// What.
        owner: Owner,
        /// Where it starts.
        offset: u64,
        /// Bytes of it.
        len: u64,
        /// Length of the file.
        file_length: u64,
    },
    /// A cluster is metadata and something else at once.
    Overlap {
        /// Where.
        offset: HostOffset,
        /// The first use that was found.
        owner: Owner,
    },
    /// A snapshot, or the whole table, is damaged.
    Snapshot(SnapshotError),
    /// The last snapshots of the table are beyond what it may have: more entries, or more bytes.
    SnapshotsBeyond {
        /// So many.
        snapshots: u32,
    },
    /// A version 3 snapshot lacks the extra data that version 3 demands.
    SnapshotIncomplete {
        /// Which entry.
        index: usize,
        /// Bytes of extra data.
        extra_bytes: u32,
    },
    /// The bitmap directory is damaged.
    Bitmaps(BitmapError),
    /// There is no refcount table.
    NoRefcountTable,
    /// Metadata could not be read.
    Unreadable {
        /// What.
        owner: Owner,
        /// Where.
        offset: u64,
        /// What the file said.
        error: String,
    },
    /// A repair is not possible.
    NotRepaired {
        /// Why.
        reason: &'static str,
    },
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        match self {
            Finding::Refcount { refcount, references, .. } if refcount > references => Severity::Leak,
            Finding::Unreadable { .. } => Severity::Error,
            Finding::NotRepaired { .. } => Severity::Note,
            Finding::Refcount { .. }
            | Finding::Entry { .. }
            | Finding::Copied { .. }
            | Finding::BeyondEnd { .. }
            | Finding::Overlap { .. }
            | Finding::Snapshot(_)
            | Finding::SnapshotsBeyond { .. }
            | Finding::SnapshotIncomplete { .. }
            | Finding::Bitmaps(_)
            | Finding::NoRefcountTable => Severity::Corruption,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Refcount { cluster, clusters, refcount, references } => {
                let last = cluster + clusters - 1;
                let what = if refcount > references { "leaked" } else { "used more often than counted" };
                match clusters {
                    1 => write!(f, "cluster {cluster} is {what}")?,
                    _ => write!(f, "clusters {cluster} to {last} are {what}")?,
                }
                write!(f, ": refcount {refcount}, references {references}")
            }
            Finding::Entry { at, error } => write!(f, "at {at}: {error}"),
            Finding::Copied { at, target, copied, refcount_is_one } => {
                let flag = if *copied { "set" } else { "not set" };
                let count = if *refcount_is_one { "one" } else { "not one" };
                write!(f, "the entry at {at} for {target} has COPIED {flag}, but the refcount is {count}")
            }
            Finding::BeyondEnd { owner, offset, len, file_length } => {
                write!(
                    f,
                    "{owner} at {offset:#x} with {len} bytes lies beyond the end of the file ({file_length} bytes)"
                )
            }
            Finding::Overlap { offset, owner } => {
                write!(f, "the cluster at {offset} is {owner} and something else at once")
            }
            Finding::Snapshot(error) => error.fmt(f),
            Finding::SnapshotsBeyond { snapshots } => write!(
                f,
                "the snapshot table has {snapshots} entries too many at its end; at most {SNAPSHOTS_MAX} entries and {SNAPSHOT_TABLE_BYTES_MAX} bytes are allowed"
            ),
            Finding::SnapshotIncomplete { index, extra_bytes } => {
                write!(f, "snapshot {index} has {extra_bytes} bytes of extra data; version 3 needs 16")
            }
            Finding::Bitmaps(error) => error.fmt(f),
            Finding::NoRefcountTable => f.write_str("there is no refcount table"),
            Finding::Unreadable { owner, offset, error } => {
                write!(f, "{owner} at {offset:#x} cannot be read: {error}")
            }
            Finding::NotRepaired { reason } => write!(f, "not repaired: {reason}"),
        }
    }
}
