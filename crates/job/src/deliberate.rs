//! Bugs put in on purpose, to show that the simulation of unlike chains can fail (docs/internals/testing.md). Without the
//! feature `deliberate-bugs` every question is the constant `false` and costs nothing.

/// A fault in a copy. All but the last were really there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The zeroes behind the end of a short layer are no content of a range of layers.
    ShortLayerSaysNothing,
    /// A cluster of a target without a backing file of its own that is written in part gets zeroes for its rest.
    RestFromTarget,
    /// A guest's write to both sides reaches a target without a backing file as it is.
    PartWrittenThrough,
    /// "The base is zero here" is asked of a part of a cluster, and the whole cluster is skipped.
    BaseAskedInPart,
    /// Zeroes are not stored where a target that was opened without its backing file reads as zeroes.
    ZeroesLeftOut,
    /// A compressed cluster, which is nowhere in the file as it is, is no content of a range of layers.
    CompressedSaysNothing,
}

#[cfg(not(feature = "deliberate-bugs"))]
pub(crate) const fn has(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "deliberate-bugs")]
mod switch {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PRESENT: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Puts a fault into everything that runs on this thread from now on.
    pub fn put_in(bug: Option<Bug>) {
        PRESENT.set(bug);
    }

    pub(crate) fn has(bug: Bug) -> bool {
        PRESENT.get() == Some(bug)
    }
}

#[cfg(feature = "deliberate-bugs")]
pub(crate) use switch::has;
#[cfg(feature = "deliberate-bugs")]
pub use switch::put_in;
