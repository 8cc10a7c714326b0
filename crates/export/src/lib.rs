//! What doors share: the contract of a disk that is served, its names, the loops that serve, and the accounts.
//!
//! A *door* is a way in which clients reach a disk: a protocol on a socket, a queue in a guest's memory, a mount. It
//! speaks its protocol; everything else is here. It serves [`Exports`], disks that implement [`Export`], by name. It
//! attaches to the [`Loops`] of the process as a [`Door`] and gives each client to one of them: [`Door::give`]. On its
//! loop a client has a [`Seat`], whose [`Pace`] says when a step of its requests may begin, and an [`InFlight`] account
//! of what it holds. When the [`Shutdown`] is triggered every client is asked to end ([`HangUp`]), and the loops wait
//! until all have.
//!
//! A request fails with an [`Error`]: its kind is what the door answers in the words of its protocol, its cause is for
//! the log.
#![forbid(unsafe_code)]

mod budget;
mod clients;
mod counters;
mod departure;
mod door;
mod error;
mod export;
mod exports;
mod few_names;
mod latch;
pub mod limits;
mod local_event;
mod loops;
pub mod merge;
pub mod peer;
mod place;
pub mod repeats;
mod shutdown;
mod turns;

pub use block::pace::STEP_BYTES;
pub use block::{Hints, ReadKind};
pub use budget::{Budget, InFlight, Permit};
pub use counters::{Counters, KindCounts, RequestCount, RequestKind, Snapshot};
pub use departure::Departure;
pub use door::{ClientCosts, Door, Room};
pub use error::{Error, ErrorKind};
pub use export::{Abilities, BlockSizes, Depth, Dirtiness, Export, Extent, IoFuture, ZeroFlags};
pub use exports::{DuplicateName, ExportEntry, Exports, Landing, NotRemoved, Removal, UnknownExport};
pub use few_names::few_names;
pub use latch::Latch;
pub use local_event::LocalEvent;
pub use loops::{Answers, Ending, HangUp, Loops, Seat, Served};
pub use place::{NoPlace, Place};
pub use shutdown::Shutdown;
pub use turns::Pace;
