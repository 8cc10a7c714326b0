//! Bugs put in on purpose, to show that the simulation can fail (docs/internals/testing.md). They exist in this crate's own tests alone: in every other build
//! [`has`] is the constant `false` and costs nothing.

#[cfg(test)]
pub use switch::{has, put_in};

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The disk's path leads to the overlay before the layer's name is durable.
    LayerNotAwaited,
    /// Guests write to an overlay whose name is not durable.
    OverlayNotAwaited,
    /// A disk's path leads to an overlay that no process has locked.
    #[cfg(test)]
    OverlayNotLocked,
    /// Files of merged layers go before the name of the merged one is durable.
    MergedNotAwaited,
    /// A new manifest takes the place of the one before, and its content is not durable.
    ManifestNotAwaited,
    /// A manifest says how a sealed layer looks, which is not durable.
    SealNotAwaited,
    /// A deleted layer goes although others are backed by it.
    NeededLayerRemoved,
    /// A merge takes its place although a fork of a layer that goes was made meanwhile.
    ForkMeanwhileMissed,
    /// The next command removes a layer that another one is making of several.
    OthersMergeRemoved,
    /// A layer's name that its command did not come to use is taken for a checkpoint.
    UnusedNameAdopted,
    /// What a killed command renamed is taken for durable by the next one.
    FoundNotAwaited,
    /// A directory of layers that a killed command made is taken for durable by the next one.
    DirectoryNotAwaited,
    /// What a killed command removed is taken for gone for ever by the next one.
    GoneNotAwaited,
    /// What was done before a step failed is not taken back.
    NotUndone,
    /// A disk is opened and written although a killed command gave it its name, which is not durable.
    #[cfg(test)]
    DiskNotAwaited,
    /// A layer is sealed although a server, which could not take back a checkpoint, still writes it.
    UsedSealed,
    /// A lost manifest is not rebuilt: layers without an entry stay so.
    NothingAdopted,
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
