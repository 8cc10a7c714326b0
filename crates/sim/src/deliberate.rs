//! Bugs put into the simulated disks on purpose, to show that the simulation can fail (docs/internals/testing.md).
//!
//! Both were bugs of the driver of files. A simulated disk that uses `storage`'s functions in the wrong order is what that driver was, and
//! nothing of it is in a program.

use std::cell::Cell;

/// A bug that was really there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The length of a disk is taken before its lock is held.
    LengthBeforeLock,
    /// Flushes run side by side: the error that the kernel reports to one of them is not the other's.
    FlushesSideBySide,
}

thread_local! {
    static PRESENT: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Puts a bug into all disks that this thread uses from now on.
pub fn put_in(bug: Option<Bug>) {
    PRESENT.set(bug);
}

pub(crate) fn has(bug: Bug) -> bool {
    PRESENT.get() == Some(bug)
}
