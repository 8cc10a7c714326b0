//! LUKS version 2 (LUKS2 On-Disk Format Specification 1.1): headers read, passwords tried. Nothing of it is written.
//!
//! A header has two copies, each of a binary header and an area of JSON under one checksum. A copy that is intact ([`struct@Copy`]) is chosen by its
//! sequence number, and what its metadata says becomes a [`Header`], at once, or an error. A copy that is intact is never passed
//! over for what it says: the older one may know nothing of an operation that is going on.

mod binary;
mod kdf;
mod key_slot;
mod member;
mod metadata;

pub use self::binary::{BINARY_BYTES, BinaryHeader, Copy, HEADER_BYTES_MAX, Place, SECOND_PLACES};
pub use self::kdf::{ARGON2_MEMORY_KIB_MAX, ARGON2_PASSES_KIB_MAX, Argon2Kind, Kdf};
pub use self::key_slot::{KeySlot, OtherSlot, Priority};
pub use self::metadata::{Digest, Header, SLOTS_MAX, Segment};
