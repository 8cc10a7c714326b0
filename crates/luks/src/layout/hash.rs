//! Hashes that headers name.

use memory::secret::wiped_stack;

use crate::layout::error::shortened;
use crate::layout::{LuksError, Secret, primitives};

/// Of the stack is overwritten behind a derivation of keys: it goes a few KiB deep.
pub(crate) const DERIVATION_STACK_BYTES: usize = 32 << 10;

/// The hash of a header: keys are made and key material is spread with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// `sha1`: of old headers.
    Sha1,
    /// `sha256`.
    Sha256,
    /// `sha512`.
    Sha512,
}

impl Hash {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sha1, Self::Sha256, Self::Sha512];

    /// Its name in headers and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// The hash of that name.
    ///
    /// # Errors
    /// When it is not one of [`Hash::ALL`].
    pub fn of_name(name: &str) -> Result<Self, LuksError> {
        let unsupported = || LuksError::Unsupported {
            what: "hash",
            found: shortened(name),
            allowed: "sha1, sha256, sha512",
        };
        Self::ALL.into_iter().find(|hash| hash.name() == name).ok_or_else(unsupported)
    }

    /// Bytes of a digest.
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// The digest of `first` and `second`, one behind the other, into the start of `out`; as much as fits there.
    pub(crate) fn digest_into(self, first: &[u8], second: &[u8], out: &mut [u8]) -> Result<(), LuksError> {
        primitives::digest_into(self, first, second, out)
    }

    /// The digest of `parts`, one behind the other.
    pub(crate) fn digest(self, parts: &[&[u8]]) -> Result<Vec<u8>, LuksError> {
        primitives::digest(self, parts)
    }

    /// What [`Hash::pbkdf2`] costs: iterations for each block of [`Hash::bytes`] that is derived, those of SHA-512 twice, whose digests take twice as long.
    /// A million is a quarter to a half of a second.
    pub fn pbkdf2_cost(self, iterations: u32, len: usize) -> u64 {
        let weight = match self {
            Self::Sha1 | Self::Sha256 => 1,
            Self::Sha512 => 2,
        };
        u64::from(iterations).saturating_mul(weight * len.div_ceil(self.bytes()) as u64)
    }

    /// PBKDF2 with HMAC (RFC 8018, 5.2): `len` bytes made of `password`. Costs `iterations` times two digests for every
    /// [`Hash::bytes`] of them: one million is a fifth of a second, about.
    ///
    /// # Errors
    /// [`LuksError::NotBuilt`] alone.
    pub fn pbkdf2(
        self,
        password: &[u8],
        salt: &[u8],
        iterations: u32,
        len: usize,
    ) -> Result<Secret, LuksError> {
        let mut key = Secret::zeroed(len);
        let out = key.bytes_mut();
        let derive = || primitives::pbkdf2(self, password, salt, iterations, out);
        wiped_stack::<DERIVATION_STACK_BYTES, _>(derive)?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn keys_are_those_of_the_published_vectors() {
        // RFC 6070, vectors 3 and 5; RFC 7914, 11.
        let key = Hash::Sha1.pbkdf2(b"password", b"salt", 4096, 20).unwrap();
        assert_eq!(hex(key.bytes()), "4b007901b765489abead49d926f721d065a429c1");
        let key = Hash::Sha1
            .pbkdf2(b"passwordPASSWORDpassword", b"saltSALTsaltSALTsaltSALTsaltSALTsalt", 4096, 25)
            .unwrap();
        assert_eq!(hex(key.bytes()), "3d2eec4fe41c849b80c8d83662c0e44a8b291a964cf2f07038");
        let key = Hash::Sha256.pbkdf2(b"passwd", b"salt", 1, 64).unwrap();
        assert_eq!(
            hex(key.bytes()),
            "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc\
             49ca9cccf179b645991664b39d77ef317c71b845b1e30bd509112041d3a19783"
        );
    }
}
