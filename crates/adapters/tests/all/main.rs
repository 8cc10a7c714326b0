//! The adapters, each against the crate of the registry, or against traits in the shape of a monitor's sources.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

mod cloud_hypervisor;
mod crosvm;
mod guest_memory;
mod imago;
mod scratch;
mod vhost_user_backend;
mod virtio_blk;
