//! LUKS: headers and key slots as checked values, keys from passwords, sectors encrypted and decrypted.

//!
//! Pure: bytes come in and go out; the rest of the crate reads and writes them. Version 1 of the format is read and
//! written (LUKS On-Disk Format Specification 1.2.3), version 2 is read ([`luks2`]). Ciphers: AES in XTS and CBC mode.
//!
//! What is secret ([`Secret`], [`SectorCipher`]) lies in locked pages, is overwritten when it is dropped, and has no `Debug` that shows it. What
//! calculations with it leave on the stack is overwritten at their end.

pub mod base64;
mod calibrate;
mod cipher;
mod error;
mod hash;
mod header;
mod key_slot;
pub mod luks2;
#[cfg(feature = "ciphers")]
mod primitives;
#[cfg(not(feature = "ciphers"))]
#[path = "not_built.rs"]
mod primitives;
mod sectors;
mod split;

pub use calibrate::{ITERATIONS_MIN, calibrate};
pub use cipher::{Algorithm, Cipher, Iv, Mode, SECTOR_BYTES, SectorSize};
pub use error::LuksError;
pub(crate) use hash::DERIVATION_STACK_BYTES;
pub use hash::Hash;
pub(crate) use header::PBKDF2_COST;
pub use header::{DIGEST_BYTES, HEADER_BYTES, Header, MAGIC, PBKDF2_COST_MAX, SALT_BYTES, SLOTS, STRIPES};
pub use key_slot::{KeySlot, NewHeader, NewSlot, area_bytes};
pub use memory::secret::Secret;
pub use sectors::SectorCipher;
