//! Bugs put in on purpose, to show that the simulation can fail (docs/testing.md). Without the
//! feature `deliberate-bugs` every question is the constant `false` and costs nothing.

/// A bug that was really there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The length of a file is taken before its lock is had.
    LengthBeforeLock,
    /// Flushes run side by side: the error that the kernel tells one of them is not the other's.
    FlushesSideBySide,
}

/// Which of a crate's bugs is in, thread by thread: `put_in` and `has` for the crate's enum `Bug`, by its own feature
/// `deliberate-bugs`.
#[doc(hidden)]
#[macro_export]
macro_rules! bug_switch {
    () => {
        #[cfg(feature = "deliberate-bugs")]
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

            pub(crate) fn has(bug: Bug) -> bool {
                PRESENT.get() == Some(bug)
            }
        }

        #[cfg(feature = "deliberate-bugs")]
        pub(crate) use switch::has;
        #[cfg(feature = "deliberate-bugs")]
        pub use switch::put_in;

        #[cfg(not(feature = "deliberate-bugs"))]
        pub(crate) const fn has(_bug: Bug) -> bool {
            false
        }
    };
}

bug_switch!();
