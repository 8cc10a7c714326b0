//! Bytes that an I/O owns while it is in flight, and memory for passwords and keys ([`secret`]).
//!
//! A kernel that reads into memory after the caller has forgotten it is a use-after-free, so an
//! operation takes its bytes by value: [`IoBuf`] for bytes to be filled (one owner, splittable),
//! [`IoBytes`] for bytes to be written (shared, immutable). Both are views of one aligned
//! allocation, which goes back to a pool of the thread that drops the last view, unless that thread
//! keeps none ([`keep_none_on_this_thread`]). [`ForeignBytes`] is memory of others, such as a guest's, that an operation
//! fills or reads in place.

#![warn(missing_docs)]

mod allocation;
mod buf;
mod bytes;
mod filling;
mod foreign;
mod reserve;
pub mod secret;
mod vec;

pub use allocation::{ALIGNMENT, keep_none_on_this_thread};
pub use buf::IoBuf;
pub use bytes::IoBytes;
pub use filling::Filling;
pub use foreign::{CopyError, ForeignBytes, ForeignPart, MayLose};
pub use reserve::{WithReserve, keep_reserve};
pub use vec::IoVec;
