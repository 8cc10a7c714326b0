//! What was read of a remote file, kept on this machine.
//!
//! A cache is a qcow2 image that is valid on its own: as long as the remote file, without a backing file, and each allocated cluster holds
//! what the remote file has there. A header extension says of which version of which file ([`Identity`]). The image is opened without
//! an allocation reserve, so that an entry of its map reaches the file after the data it leads to (docs/internals/write-order.md): a crash leaks
//! clusters at most, and a cluster that is allocated afterwards is whole.

#![forbid(unsafe_code)]

mod ahead;
mod cached;
#[cfg(test)]
mod crashes;
mod figures;
mod fill;
mod flight;
mod identity;
mod image;
mod shared;
#[cfg(test)]
mod tests;

pub use cached::CachedStorage;
pub use figures::Figures;
pub use identity::Identity;
pub use image::{CacheError, CacheState, create, look};
pub use shared::{BYTES_MAX_LEAST, CacheFile};
