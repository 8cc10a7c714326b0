//! cowhand's disks as the storage traits of virtual machine monitors: a module for each, behind a feature of its name.

#![warn(missing_docs)]

#[cfg(feature = "vm-memory")]
pub mod guest_memory;
#[cfg(feature = "imago")]
pub mod imago;
#[cfg(feature = "virtio-queue")]
pub mod virtio_blk;

/// The page of the crate, whose example is compiled.
#[cfg(all(doctest, feature = "imago", feature = "virtio-queue"))]
#[doc = include_str!("../README.md")]
struct Readme;
