//! The qcow2 image engine over the storage contract.
//!
//! [`Qcow2`] is an open image: reads, writes, zeroes, discards and flushes from any number of threads
//! at a time. The order in which anything reaches the file is in `commit`, `free` and
//! docs/internals/write-order.md. The engine names no runtime: what must run to its end goes to a [`Host`].
//!
//! What others call and wait for returns a boxed future. An `async fn` would be compiled again in each crate that calls it, with all that it
//! waits for: the engine's tests alone took a minute longer to build.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

// The harness of the simulation, which `deliberate_bugs` shares with the tests outside, has this name for the engine.
#[cfg(all(test, not(feature = "shuttle")))]
extern crate self as qcow2;

mod allocator;
mod amend;
mod backing_name;
mod below;
pub mod bitmap;
mod block_status;
pub mod cache_sizes;
mod chain;
mod change;
mod changing;
mod check;
mod close;
mod commit;
mod committer;
mod compact;
mod compressed;
mod compressing;
mod create;
mod deliberate;
// The model checker has threads of its own.
#[cfg(all(test, not(feature = "shuttle")))]
mod deliberate_bugs;
mod encryption;
mod entries;
mod foreign;
mod free;
mod gate;
mod guest_range;
mod header_sector;
mod header_update;
mod health;
mod host;
mod image;
mod in_flight;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod l1;
mod lists;
mod machine_state;
mod map;
mod map_slices;
mod medium;
mod open;
mod options;
mod other_files;
mod overlap;
mod pause;
mod prefetch;
mod read;
mod refcount;
mod requests;
mod reserve;
mod resize;
mod room;
mod shape;
pub mod snapshot;
mod space;
mod status;
mod stored;
mod survey;
mod table_io;
mod tables_account;
mod tracking;
mod turns;
mod waiting;
mod with_bitmaps;
mod write;
mod zero;

pub use amend::{Amendment, amend};
pub use block::{BlockStatus, Error, ErrorKind, ReadKind, ZeroOptions};
pub use chain::ChainStatus;
pub use check::{
    CheckError, CheckReport, Finding, Owner, Progress, Repair, Severity, Stage, check, check_in_parallel,
};
pub use compact::{CompactError, CompactOptions, CompactProgress, CompactReport, compact};
pub use compressing::Compressing;
pub use create::{
    Content, CreateError, CreateOptions, DataClusters, FileSizes, InOrder, InOrderCluster, Packer,
    Preallocation, create, create_encrypted,
};
pub use encryption::luks_area;
pub use header_update::is_dirty;
pub use health::Corruption;
pub use host::{Calculation, Host, Work};
pub use image::Qcow2;
pub use map_cache::{Advice, Budget, Counters, Form, GhostHits, Model, SliceKey};
pub use map_slices::MapSlice;
pub use open::{Files, plain_text, read_header};
pub use options::{DiscardOptions, Options, Prefetch};
pub use other_files::{OnOtherFiles, OtherFiles};
pub use overlap::{OverlapCheck, Section};
pub use pause::HeldStill;
pub use resize::ResizeOptions;
pub use status::Status;
pub use survey::{Surveyed, survey};
pub use tables_account::{TablesAccount, TablesFull};
pub use with_bitmaps::{NotedChange, WithBitmaps};
