//! Bugs put in on purpose, to show that the simulation can fail (docs/internals/testing.md). They exist in the engine's own tests alone: in every
//! other build [`has`] is the constant `false` and costs nothing.

#[cfg(test)]
pub use switch::{has, put_in};

/// A bug that other implementations really had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// L2 entries are published before the data they lead to is written.
    WriteOrderSwapped,
    /// L2 tables reach the file before the refcounts of what they lead to.
    RefcountAfterL2,
    /// No barrier between data and refcounts on one side and L2 tables on the other.
    MissingFlush,
    /// Space is punched when the entry changes in memory, not when the file has forgotten it.
    PunchTooEarly,
    /// A freed cluster is given to the allocator before it is punched.
    PunchTooLate,
    /// Who finds a slice being loaded loads it too, over what was changed meanwhile.
    SingleFlightBroken,
    /// Writers and zeroers do not own the guest clusters whose mapping they change.
    LockDropped,
    /// Freed clusters are used again while requests that found them still run.
    GraceSkipped,
    /// An entry does not wait for data although its cluster held something before.
    DataNotAwaited,
    /// An entry does not wait for a refcount that only memory has.
    RefcountNotAwaited,
    /// An L1 entry waits for nothing, whatever its table's cluster held before.
    TableNotAwaited,
    /// Who writes a subcluster sets the whole entry, as it was found before the data was written.
    EntryNotMerged,
    /// A write lands in a raw data file while its range is zeroed there.
    RawRangeShared,
    /// Slices of L2 tables that a shrink frees stay in the map cache until all of it has gone well.
    TablesForgottenAtTheEnd,
    /// A table that was being read ahead when it was freed lands in the map cache all the same.
    StaleLoadLands,
    /// Zeroes that are written where a disk reads as zeroes anyway are not recorded: parts of clusters, and what has nothing below.
    ZeroesNotRecorded,
    /// A shrink forgets refcount blocks in memory before the file's table does.
    BlocksForgottenFirst,
    /// A compressed cluster that is overwritten in part has zeroes in its rest.
    PackedRestLost,
    /// The place of a compressed cluster that is overwritten is given to the allocator before the file has the new entry.
    PackedFreedEarly,
    /// A cluster of the file is punched when one of the compressed clusters in it goes, whatever else is there.
    PackedNeighboursPunched,
}

#[cfg(not(test))]
pub const fn has(_bug: Bug) -> bool {
    false
}

#[cfg(test)]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PRESENT: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Puts a bug into everything that runs on this thread from now on.
    pub fn put_in(bug: Option<Bug>) {
        PRESENT.set(bug);
    }

    pub fn has(bug: Bug) -> bool {
        PRESENT.get() == Some(bug)
    }
}
