//! The ublk door: a disk as a block device of this machine, for everything that wants one. The kernel's driver (ublk_drv, Linux 6.0) hands requests to
//! this process over the rings of its loops.
//!
//! [`Server::add`] makes a device, or takes over one whose server is gone, and gives each of its queues to one of the [`export::Loops`].
//!
//! The way of a request: `queue` (each place of a queue waits for one) -> `abi` (checked values) -> `requests` -> [`export::Export`] -> the answer,
//! which is the wait for the next one. The kernel copies data between its pages and the place's buffer.
//!
//! The kernel is trusted; programs are behind it. A request that makes no sense is answered with an error.

mod abi;
mod control;
mod kernel;
pub mod limits;
mod queue;
mod requests;
mod server;

pub use control::{DeviceError, Number};
pub use server::{NotAdded, Server, UblkExport};
