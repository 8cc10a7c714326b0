//! How we know that nothing is lost: a simulated machine for the engine, deterministic from a seed.
//!
//! [`World`] holds disks ([`SimStorage`] behind the storage contract) whose requests end in an order
//! that the seed decides, fail where a plan says, and are recorded; [`run`] drives futures on it;
//! [`CrashStates`] builds from a recording every image that a crash may leave; [`Model`] knows which
//! bytes a reader may then see; [`Workload`]s come from a seed and shrink; a [`Target`] and its
//! [`Subject`] are what is put to the test; [`campaign`] puts all of it together.

#![forbid(unsafe_code)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths in a simulation fit usize on every machine that runs it"
)]

pub mod campaign;
mod clients;
mod content;
mod crash;
pub mod deliberate;
mod executor;
mod failure;
mod model;
mod request;
mod rng;
mod stamp;
mod subject;
mod sweep;
mod workload;
mod world;

pub use campaign::CLIENT_DISK;
pub use content::{Content, SECTOR_BYTES};
pub use crash::{CrashOptions, CrashState, CrashStates, Recording};
pub use executor::{STEPS_MAX, Sim, Stuck, Task, run, spawn};
pub use failure::{Failure, FailureKind};
pub use model::{DiscardedReads, Mismatch, Model, Started};
pub use request::{IoKind, Leaves, Outcome, Part, Record, Request, Tick};
pub use rng::Rng;
pub use stamp::{SectorContent, Stamp, fill};
pub use subject::{Abilities, Durability, Management, Subject, Target};
pub use sweep::{MINUTES_VARIABLE, SCALE_VARIABLE, SEED_VARIABLE, Sweep, scaled};
pub use workload::{Mix, Op, Shape, Step, Workload, shrink};
pub use world::{
    DiskLock, Fault, FaultKind, IoCounts, Order, Persistence, Shortage, SimStorage, Sleep, UnlockedDisk,
    World,
};
