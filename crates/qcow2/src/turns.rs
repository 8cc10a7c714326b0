//! Which requests are inside the image, which commit is next, and which request owns what.

use sync::AsyncMutex;
use sync::atomic::AtomicBool;

use crate::committer::Committer;
use crate::gate::Gate;
use crate::in_flight::InFlight;

/// Who may do what at the same time.
///
/// Law: what is waited for here is taken in the order of this list, so that no two wait for each other.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Held by changes of the disk as a whole: size, snapshots, its end.
    pub(crate) managing: AsyncMutex<()>,
    pub(crate) gate: Gate,
    /// Guest subclusters (clusters, where there are none) whose mapping is being changed: all of a cluster while
    /// its place changes, those of one write while it stays.
    pub(crate) subclusters: InFlight,
    /// Bytes of a raw data file that are being zeroed, or written in place.
    pub(crate) raw_ranges: InFlight,
    pub(crate) committer: Committer,
    /// What is read ahead is not needed any more.
    pub(crate) closing: AtomicBool,
    /// The image switches to other files, under another handle: the gate is closed for ever, and nothing is written here any more.
    pub(crate) went_on: AtomicBool,
}
