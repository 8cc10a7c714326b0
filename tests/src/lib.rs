//! What the black-box tests share: processes with bounds, the daemon, an NBD client of their own,
//! the tools of others, and bytes that a seed decides.
//!
//! Nothing here knows a line of the program under test: it sees what a user sees.

#![deny(unsafe_code)]

pub mod at_end;
pub mod bytes;
pub mod ceph;
pub mod client;
pub mod cutter;
pub mod default_signals;
pub mod fake_cloud;
pub mod fault_server;
pub mod faulty_store;
pub mod holder;
pub mod libblkio;
pub mod media;
pub mod metrics;
pub mod moto;
pub mod nginx;
pub mod peer;
pub mod ports;
pub mod program;
pub mod qemu_nbd;
pub mod qmp;
pub mod radosgw;
pub mod random;
pub mod ready;
pub mod run;
pub mod scratch;
pub mod server;
pub mod store_scene;
pub mod vhost_user;
pub mod virtio_driver;
pub mod wire;

pub use ceph::Ceph;
pub use client::Client;
pub use fake_cloud::{Cloud, FakeCloud};
pub use fault_server::{Fault, FaultServer};
pub use faulty_store::{FaultyStore, Planned, StoreFault};
pub use holder::Holder;
pub use moto::Moto;
pub use nginx::Nginx;
pub use program::cowhand;
pub use qemu_nbd::QemuNbd;
pub use radosgw::Radosgw;
pub use random::Random;
pub use run::{Outcome, Run};
pub use scratch::Scratch;
pub use server::Server;
pub use store_scene::StoreScene;
