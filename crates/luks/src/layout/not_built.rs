//! `primitives.rs` of a build without the feature `ciphers`: headers of version 1 are read, and nothing is calculated.

use crate::layout::luks2::Argon2Kind;
use crate::layout::sectors::Keyed;
use crate::layout::{Cipher, Hash, LuksError, Secret, SectorSize};

/// What a password costs by Argon2.
#[expect(dead_code, reason = "what would read it is not in this build")]
pub(crate) struct Argon2Cost {
    pub(crate) kind: Argon2Kind,
    pub(crate) passes: u32,
    pub(crate) memory_kib: u32,
    pub(crate) lanes: u32,
}

pub(crate) fn digest_into(_: Hash, _: &[u8], _: &[u8], _: &mut [u8]) -> Result<(), LuksError> {
    Err(LuksError::NotBuilt)
}

pub(crate) fn digest(_: Hash, _: &[&[u8]]) -> Result<Vec<u8>, LuksError> {
    Err(LuksError::NotBuilt)
}

pub(crate) fn pbkdf2(_: Hash, _: &[u8], _: &[u8], _: u32, _: &mut [u8]) -> Result<(), LuksError> {
    Err(LuksError::NotBuilt)
}

pub(crate) fn argon2(_: Argon2Cost, _: &Secret, _: &[u8], _: usize) -> Result<Secret, LuksError> {
    Err(LuksError::NotBuilt)
}

pub(crate) fn keyed(_: Cipher, _: SectorSize, _: &[u8]) -> Result<Option<Box<dyn Keyed>>, LuksError> {
    Err(LuksError::NotBuilt)
}
