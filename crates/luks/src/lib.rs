//! Storage whose bytes are ciphered in another, and the LUKS headers and key slots that lead to its key; their bytes are in [`layout`].
//!
//! [`CipherStorage`] keeps the contract of [`storage::Storage`] over storage that holds cipher text. [`unlock`] finds the key by a
//! password, [`NewVolume`] makes a header, [`add_key`] and [`remove_key`] change who may open it. [`read_volume`] and [`open_volume`] do it
//! with files of their own, whose header may be of version 2 too, which is only read.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod around;
mod ciphered;
mod header;
mod key_slots;
pub mod layout;
mod new_volume;
mod parallel;
#[cfg(test)]
mod tests;
mod unlock;
mod volume;

pub use around::{Around, Calculation, Work};
pub use ciphered::{CipherStorage, Part};
pub use header::{Area, is_luks, read_header};
pub use key_slots::{Removal, add_key, remove_key, replace_key};
pub use layout::{
    Algorithm, Cipher, Hash, Header, Iv, KeySlot, LuksError, Mode, Secret, SectorCipher, SectorSize,
    area_bytes, base64, luks2,
};
pub use memory::secret::{read_key, why_unlocked};
pub use new_volume::{ITER_TIME_DEFAULT, NewVolume};
pub use unlock::{Unlocked, unlock};
pub use volume::{DataPlace, OpenedVolume, VolumeHeader, open_volume, read_volume};
