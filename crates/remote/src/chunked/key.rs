//! The key of an encrypted image: it names chunks, encrypts them, and proves who wrote a manifest.
//!
//! From the bytes of a secret HKDF (RFC 5869) derives one key for each of these and the key's id. A chunk is called by the HMAC of its plain bytes, so that its
//! name confirms no known content to others, and equal chunks are one object among the images of one key. Each object has a key of its own, the HMAC of its
//! name: the same nonce, which is random, never meets another object's. An object that lies under another name does not decrypt.

use std::fmt;

use memory::secret::{Locked, wiped_stack};
use memory::{IoBuf, IoBytes};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac::{self, HMAC_SHA256};

use crate::chunked::chunk_name::ChunkName;

/// The value of `cipher` in a manifest.
pub(crate) const CIPHER: &str = "aes-256-gcm";
/// Bytes of a secret at least: a password of people would be guessed from what is at the store.
pub const SECRET_BYTES_MIN: usize = 32;
/// What an object has besides: the nonce before, the tag behind.
pub(crate) const OVERHEAD_BYTES: u64 = (NONCE_LEN + TAG_BYTES) as u64;
/// What proves that an object was not changed.
const TAG_BYTES: usize = 16;
/// What all keys of these images are derived with, so that the same secret may have other uses.
const SALT: &[u8] = b"cowhand-chunked-image 3";
/// What stands behind the name of a chunk in the name of the key of its patches.
const PATCH_KEY: &[u8] = b"patch";
/// The same before a patch, in what its nonce is a hash of.
const PATCH_NONCE: &[u8] = b"patch nonce";
/// Bytes of a derived key.
const KEY_BYTES: usize = 32;
/// Bytes of a key's id.
const ID_BYTES: usize = 8;
/// What a derivation or an object's cipher leaves on the stack at most.
const STACK_BYTES: usize = 16 << 10;

/// Why a secret is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It could be guessed.
    #[error(
        "the secret has {found} bytes; allowed: {SECRET_BYTES_MIN} and more, all random, as head -c 32 /dev/urandom makes them"
    )]
    Short {
        /// Its bytes.
        found: usize,
    },
    /// The system gives no random bytes, or the cipher refuses.
    #[error("the key cannot be used: {0}")]
    Unusable(&'static str),
}

/// Which key it is. It says nothing of the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyId([u8; ID_BYTES]);

impl KeyId {
    /// Reads 16 hexadecimal digits in lower case.
    pub fn parse(digits: &str) -> Option<Self> {
        // Those of a name, the rest of which are zeroes.
        let rest = "0".repeat(2 * (KEY_BYTES - ID_BYTES));
        let name = ChunkName::parse(&format!("{digits}{rest}")).filter(|_| digits.len() == 2 * ID_BYTES)?;
        Some(Self(*name.bytes().first_chunk()?))
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key. What it is made of lies in locked pages, and is overwritten when it is dropped.
pub struct ImageKey {
    id: KeyId,
    keys: Locked<Keys>,
}

struct Keys {
    names: hmac::Key,
    objects: hmac::Key,
    manifests: hmac::Key,
}

impl fmt::Debug for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ImageKey {
    /// The key that these bytes are.
    ///
    /// # Errors
    /// When there are too few.
    pub fn of_secret(secret: &[u8]) -> Result<Self, KeyError> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(KeyError::Short { found: secret.len() });
        }
        let derived = wiped_stack::<STACK_BYTES, _>(|| {
            let root = Salt::new(HKDF_SHA256, SALT).extract(secret);
            let id = derive::<ID_BYTES>(&root, "id")?;
            let key = |of| Some(hmac::Key::new(HMAC_SHA256, &derive::<KEY_BYTES>(&root, of)?));
            let make = || {
                Some(Keys { names: key("names")?, objects: key("objects")?, manifests: key("manifests")? })
            };
            Some(Self { id: KeyId(id), keys: Locked::new(make)? })
        });
        derived.ok_or(KeyError::Unusable("none can be derived"))
    }

    /// Which one it is.
    pub fn id(&self) -> KeyId {
        self.id
    }

    /// The name of a chunk of these bytes. Costs their hash.
    pub(crate) fn name_of(&self, chunk: &[u8]) -> ChunkName {
        ChunkName::from_bytes(tag(&self.keys.names, chunk))
    }

    /// What proves that the owner of the key wrote `bytes`.
    pub(crate) fn proof_of(&self, bytes: &[u8]) -> ChunkName {
        ChunkName::from_bytes(tag(&self.keys.manifests, bytes))
    }

    /// Whether `proof` is that of `bytes`, in the same time whatever it is.
    pub(crate) fn is_proof(&self, proof: ChunkName, bytes: &[u8]) -> bool {
        hmac::verify(&self.keys.manifests, bytes, proof.bytes()).is_ok()
    }

    /// The object of the name `name` with these bytes, encrypted.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub(crate) fn encrypted(&self, name: ChunkName, bytes: &[u8]) -> Result<IoBytes, KeyError> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|_| KeyError::Unusable("there are no random bytes"))?;
        self.sealed(name.bytes(), nonce, bytes)
    }

    /// A patch of the chunk `base` with these bytes, encrypted: as the same patch always is, so that a publication that continues finds what another one sent.
    /// Its nonce is a keyed hash of it: the same one never meets other bytes.
    ///
    /// # Errors
    /// When the cipher refuses.
    pub(crate) fn encrypted_patch(&self, base: ChunkName, bytes: &[u8]) -> Result<IoBytes, KeyError> {
        let mut nonce = [0; NONCE_LEN];
        let hashed = tag(&self.keys.objects, &[&base.bytes()[..], PATCH_NONCE, bytes].concat());
        nonce.iter_mut().zip(hashed).for_each(|(to, from)| *to = from);
        self.sealed(&patch_of(base), nonce, bytes)
    }

    /// What `of` names, with these bytes, encrypted.
    fn sealed(&self, of: &[u8], nonce: [u8; NONCE_LEN], bytes: &[u8]) -> Result<IoBytes, KeyError> {
        let mut body = IoBuf::uninit(NONCE_LEN + bytes.len() + TAG_BYTES);
        let encrypted = self.with_cipher(of, |cipher| {
            let (before, rest) = body.split_at_mut_checked(NONCE_LEN)?;
            let (text, behind) = rest.split_at_mut_checked(bytes.len())?;
            before.copy_from_slice(&nonce);
            text.copy_from_slice(bytes);
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = cipher.seal_in_place_separate_tag(nonce, Aad::empty(), text).ok()?;
            behind.copy_from_slice(tag.as_ref());
            Some(())
        });
        encrypted.ok_or(KeyError::Unusable("the cipher refuses it"))?;
        Ok(body.freeze())
    }

    /// The bytes of an object of this name; `None` if it was not encrypted with this key under that name, or was changed.
    pub(crate) fn decrypted(&self, name: ChunkName, body: Vec<u8>) -> Option<Vec<u8>> {
        self.opened(name.bytes(), body)
    }

    /// The bytes of a patch of the chunk `base`; `None` if it was not encrypted with this key as that, or was changed.
    pub(crate) fn decrypted_patch(&self, base: ChunkName, body: Vec<u8>) -> Option<Vec<u8>> {
        self.opened(&patch_of(base), body)
    }

    fn opened(&self, of: &[u8], mut body: Vec<u8>) -> Option<Vec<u8>> {
        let len = self.with_cipher(of, |cipher| {
            let (nonce, text) = body.split_at_mut_checked(NONCE_LEN)?;
            let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
            cipher.open_in_place(nonce, Aad::empty(), text).ok().map(|plain| plain.len())
        })?;
        body.drain(..NONCE_LEN);
        body.truncate(len);
        Some(body)
    }

    /// Uses the key of one object, or of the patches of one.
    fn with_cipher<T>(&self, of: &[u8], work: impl FnOnce(&LessSafeKey) -> Option<T>) -> Option<T> {
        wiped_stack::<STACK_BYTES, _>(|| {
            let key = tag(&self.keys.objects, of);
            work(&LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).ok()?))
        })
    }
}

/// Which key patches of a chunk have: no object is called so.
fn patch_of(base: ChunkName) -> Vec<u8> {
    [&base.bytes()[..], PATCH_KEY].concat()
}

fn tag(key: &hmac::Key, bytes: &[u8]) -> [u8; KEY_BYTES] {
    let mut tag = [0; KEY_BYTES];
    tag.copy_from_slice(hmac::sign(key, bytes).as_ref());
    tag
}

/// A length, for HKDF.
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive<const BYTES: usize>(root: &Prk, of: &str) -> Option<[u8; BYTES]> {
    let mut derived = [0; BYTES];
    root.expand(&[of.as_bytes()], Bytes(BYTES)).ok()?.fill(&mut derived).ok()?;
    Some(derived)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> ImageKey {
        ImageKey::of_secret(&[byte; 32]).unwrap()
    }

    #[test]
    fn an_object_decrypts_with_its_key_under_its_name_and_in_no_other_way() {
        let (own, other) = (key(1), key(2));
        let (text, name) = (b"all work and no play".to_vec(), own.name_of(b"x"));
        let body = own.encrypted(name, &text).unwrap().to_vec();
        assert_eq!(body.len() as u64, text.len() as u64 + OVERHEAD_BYTES);
        assert_eq!(own.decrypted(name, body.clone()), Some(text.clone()));
        assert_ne!(own.encrypted(name, &text).unwrap().to_vec(), body, "nonces are new each time");
        assert_eq!(other.decrypted(name, body.clone()), None);
        assert_eq!(own.decrypted(own.name_of(b"y"), body.clone()), None);
        for at in 0..body.len() {
            let mut changed = body.clone();
            changed[at] ^= 1;
            assert_eq!(own.decrypted(name, changed), None, "byte {at}");
        }
        for len in [0, 1, NONCE_LEN, NONCE_LEN + 15, body.len() - 1] {
            assert_eq!(own.decrypted(name, body[..len].to_vec()), None, "{len} bytes");
        }
    }

    /// They are what readers of other builds derive: they never change. Python's hmac says the same.
    #[test]
    fn names_and_ids_follow_from_the_secret_alone() {
        const ID: &str = "25c10ccca63285da";
        const NAME: &str = "e8d671d05a52668577b67980548211c34c0dc192132d9a1d19982fa1fb7aefa0";
        let own = key(1);
        assert_ne!(own.name_of(b"abc"), ChunkName::of(b"abc"));
        assert_ne!(own.name_of(b"abc"), own.proof_of(b"abc"));
        assert_ne!(own.name_of(b"abc"), key(2).name_of(b"abc"));
        assert_eq!((own.id().to_string(), own.name_of(b"abc").to_string()), (ID.to_owned(), NAME.to_owned()));
        assert_eq!(KeyId::parse(&own.id().to_string()), Some(own.id()));
        for wrong in ["", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdef0"] {
            assert_eq!(KeyId::parse(wrong), None, "{wrong}");
        }
        assert!(own.is_proof(own.proof_of(b"m"), b"m") && !own.is_proof(own.proof_of(b"m"), b"n"));
        assert!(!format!("{own:?}").contains("keys"));
    }

    #[test]
    fn a_password_is_no_key() {
        assert_eq!(ImageKey::of_secret(b"hush").unwrap_err(), KeyError::Short { found: 4 });
    }
}
