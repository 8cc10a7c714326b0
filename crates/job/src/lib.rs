//! One copy engine over blocks. Converting, committing and rebasing an image are plans for it.
//!
//! [`struct@Copy`] says what is copied from where to where; [`Copy::run`] does it. What of the source has to be read is decided by its
//! map alone ([`Scope`]), what of the target has to be written by what is known of its content ([`Content`]). Success means that
//! every byte of the range was written or proved to be right, and that the target is flushed.
//!
//! Jobs on disks at work are made of it: [`Mirror`], [`Stream`], [`Merge`], [`Backup`], each with the filter through which guests write
//! meanwhile, and with its last step and its undo over a [`Host`] ([`Task`]). [`Life`] is what their users see: states and verbs ([`Status`], [`Verb`]), limits, failures.

#![forbid(unsafe_code)]

mod backup;
mod base;
mod content;
pub mod copies;
mod copy;
mod counters;
#[cfg(feature = "deliberate-bugs")]
pub mod deliberate;
#[cfg(not(feature = "deliberate-bugs"))]
mod deliberate;
mod dirty;
mod error;
mod host;
mod joined;
mod layers;
mod life;
mod marked;
mod merge;
mod mirror;
mod mirror_job;
mod plan;
mod rate;
mod read;
mod runs;
mod snapshot;
mod state;
mod steps;
mod stored;
mod stream;
mod task;
mod terms;
mod through;
mod tracked;

pub use backup::{Backup, BackupPace, BeforeWrite};
pub use content::Content;
pub use copy::{Copy, CopyOptions, Order, Zeroes};
pub use counters::{Counters, Progress, Report};
pub use dirty::Dirty;
pub use error::{Action, Error, Side};
pub use host::{Exchange, Host, Over, Pivot, take_filter_off};
pub use joined::Joined;
pub use layers::{Above, Says, Scope};
pub use life::Life;
pub use marked::Marked;
pub use merge::{Merge, merge_into};
pub use mirror::{Ended, Mirror, What};
pub use mirror_job::MirrorJob;
pub use rate::{Clock, LoopClock, RateLimit};
pub use snapshot::{Snapshot, SnapshotHost};
pub use state::{Status, Verb};
pub use stream::{Guarded, Stream, StreamJob};
pub use task::Task;
pub use terms::{End, IoStatus, Notice, OnError, Terms, VerbError, Verdict};
pub use tracked::Tracked;
