//! The vhost-user-blk door: disks for virtual machines, whose queues lie in memory that they share with us.
//!
//! [`Server`] is a door to [`export::Exports`]. A front-end (a virtual machine monitor) connects to an export's socket and describes,
//! by messages, its guest's memory and the rings of the disk's queues; from then on guest and door exchange requests through the rings.
//! Each queue lives on one of the [`export::Loops`], the connection on one, too.
//!
//! The way of a request: `ring` (descriptors) -> `request` (checked values) -> `ledger` (taken, recorded) -> `work` (merged where
//! requests came together, one task each) -> [`export::Export`], straight between guest memory and file where the disk can -> `ledger`
//! (used) -> the driver is called. The way of a message: `connection` (bytes, descriptors) -> `message` (checked values) -> `session`.
//!
//! What a guest writes is hostile: every field is read once, every address looked up, every chain bounded. A guest that breaks its ring
//! loses that ring. A front-end is hostile, too: what its descriptors are is found out before they are used (`mapping`), what may wait for ever
//! waits `aside`, and what it may have mapped is limited (`allowance`). Unsafe code is in `mapping` alone.

pub mod allowance;
mod aside;
mod channel;
pub mod config;
mod connection;
mod device;
pub mod features;
mod handed;
pub mod inflight;
mod ledger;
pub mod limits;
pub mod mapping;
pub mod memory;
pub mod message;
mod queue;
pub mod request;
pub mod ring;
mod server;
mod session;
mod shown_disk;
mod state;
mod work;

pub use handed::{HandedFrontEnd, NotResumed, Said};
pub use mapping::FilePolicy;
pub use server::Server;
pub use shown_disk::{DeviceOptions, OptionsError, VhostExport};
