//! All that is calculated by crates of others: digests, keys from passwords, AES.
//!
//! A build without the feature `ciphers` has `not_built.rs` in its place.

mod sectors;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use memory::secret::wiped_stack;
use pbkdf2::pbkdf2_hmac;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use zeroize::Zeroize;

pub(crate) use self::sectors::keyed;
use crate::layout::luks2::Argon2Kind;
use crate::layout::{DERIVATION_STACK_BYTES, Hash, LuksError, Secret};

/// What a password costs by Argon2.
pub(crate) struct Argon2Cost {
    pub(crate) kind: Argon2Kind,
    pub(crate) passes: u32,
    pub(crate) memory_kib: u32,
    pub(crate) lanes: u32,
}

/// As [`Hash::digest_into`].
pub(crate) fn digest_into(hash: Hash, first: &[u8], second: &[u8], out: &mut [u8]) -> Result<(), LuksError> {
    fn digest<D: Digest>(first: &[u8], second: &[u8], out: &mut [u8]) {
        let mut digest = D::new().chain_update(first).chain_update(second).finalize();
        let len = out.len().min(digest.len());
        out[..len].copy_from_slice(&digest[..len]);
        digest.as_mut_slice().zeroize();
    }
    match hash {
        Hash::Sha1 => digest::<Sha1>(first, second, out),
        Hash::Sha256 => digest::<Sha256>(first, second, out),
        Hash::Sha512 => digest::<Sha512>(first, second, out),
    }
    Ok(())
}

/// As [`Hash::digest`].
pub(crate) fn digest(hash: Hash, parts: &[&[u8]]) -> Result<Vec<u8>, LuksError> {
    fn digest<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
        parts.iter().fold(D::new(), |digest, part| digest.chain_update(part)).finalize().to_vec()
    }
    Ok(match hash {
        Hash::Sha1 => digest::<Sha1>(parts),
        Hash::Sha256 => digest::<Sha256>(parts),
        Hash::Sha512 => digest::<Sha512>(parts),
    })
}

/// As [`Hash::pbkdf2`], into `out`.
pub(crate) fn pbkdf2(
    hash: Hash,
    password: &[u8],
    salt: &[u8],
    iterations: u32,
    out: &mut [u8],
) -> Result<(), LuksError> {
    match hash {
        Hash::Sha1 => pbkdf2_hmac::<Sha1>(password, salt, iterations, out),
        Hash::Sha256 => pbkdf2_hmac::<Sha256>(password, salt, iterations, out),
        Hash::Sha512 => pbkdf2_hmac::<Sha512>(password, salt, iterations, out),
    }
    Ok(())
}

/// `len` bytes made of `password` by Argon2 (RFC 9106, version 1.3).
pub(crate) fn argon2(
    cost: Argon2Cost,
    password: &Secret,
    salt: &[u8],
    len: usize,
) -> Result<Secret, LuksError> {
    let Argon2Cost { kind, passes, memory_kib, lanes } = cost;
    let no_memory = LuksError::NoMemory { needed_kib: memory_kib };
    let mut memory = Memory::of_kib(memory_kib).ok_or_else(|| no_memory.clone())?;
    let algorithm = match kind {
        Argon2Kind::I => Algorithm::Argon2i,
        Argon2Kind::Id => Algorithm::Argon2id,
    };
    // Everything keeps to its limits, and to those of the crate: only memory can be missing.
    let params = Params::new(memory_kib, passes, lanes, None).map_err(|_| no_memory.clone())?;
    let mut key = Secret::zeroed(len);
    let hasher = Argon2::new(algorithm, Version::V0x13, params);
    let made = wiped_stack::<DERIVATION_STACK_BYTES, _>(|| {
        hasher.hash_password_into_with_memory(password.bytes(), salt, key.bytes_mut(), &mut memory.0)
    });
    made.map_err(|_| no_memory)?;
    Ok(key)
}

/// What Argon2 fills: blocks of a KiB, made of the password, and overwritten when they are dropped.
struct Memory(Vec<Block>);

impl Memory {
    /// `None`: so much is not there.
    fn of_kib(kib: u32) -> Option<Self> {
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(kib as usize).ok()?;
        blocks.resize(kib as usize, Block::new());
        Some(Self(blocks))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(Zeroize::zeroize);
    }
}
