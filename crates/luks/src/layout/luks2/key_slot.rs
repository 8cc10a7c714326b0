//! Key slots of LUKS2 (specification, 3.2.2): what they need, and the disk's key that a password gets out of one.

use memory::secret::wiped_stack;

use super::kdf::Kdf;
use super::member::Member;
use super::metadata::{Digest, Header};
use crate::layout::split::merge;
use crate::layout::{
    Cipher, DERIVATION_STACK_BYTES, Hash, LuksError, SECTOR_BYTES, STRIPES, Secret, SectorCipher,
};

/// Bytes of a disk's key: of AES-128 in CBC mode, and of AES-256 in XTS mode.
const KEY_BYTES: (u64, u64) = (16, 64);

/// Which slots are tried first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Only if it is asked for by its number: never here.
    Ignore,
    /// After those that are preferred.
    Normal,
    /// First.
    Prefer,
}

impl Priority {
    /// cryptsetup's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Normal => "normal",
            Self::Prefer => "prefer",
        }
    }
}

/// A slot that a password may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySlot {
    /// Its number.
    pub number: u32,
    /// When it is tried.
    pub priority: Priority,
    /// How the password becomes the key of its material.
    pub kdf: Kdf,
    /// Where its key material begins in the header's file, in bytes.
    pub offset: u64,
    /// Bytes of the disk's key.
    pub key_bytes: usize,
    /// Stripes that the key is spread over.
    pub stripes: u32,
    /// With which hash they are made.
    pub hash: Hash,
    /// How the key material is ciphered.
    pub cipher: Cipher,
    /// Bytes of the place that the material has.
    pub(super) area_bytes: u64,
}

/// A slot that is there and is not tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherSlot {
    /// Its number.
    pub number: u32,
    /// What keeps it from being tried.
    pub reason: LuksError,
}

impl KeySlot {
    pub(super) fn decode(number: u32, slot: &Member<'_>) -> Result<Self, LuksError> {
        let kind = slot.get("type");
        if kind.text()? != "luks2" {
            return Err(kind.not_supported("supported: luks2"));
        }
        let priority = slot.get("priority");
        let priority = match priority.is_there().then(|| priority.number(0, 2)).transpose()? {
            Some(0) => Priority::Ignore,
            Some(2) => Priority::Prefer,
            _ => Priority::Normal,
        };
        let key_bytes = slot.get("key_size").number(KEY_BYTES.0, KEY_BYTES.1)?;
        let (split, area) = (slot.get("af"), slot.get("area"));
        if split.get("type").text()? != "luks1" {
            return Err(split.get("type").not_supported("supported: luks1"));
        }
        if area.get("type").text()? != "raw" {
            return Err(area.get("type").not_supported("supported: raw"));
        }
        let area_key_bytes = area.get("key_size").number(KEY_BYTES.0, KEY_BYTES.1)?;
        let slot = Self {
            number,
            priority,
            kdf: Kdf::decode(&slot.get("kdf"))?,
            offset: area.get("offset").number_as_text()?,
            key_bytes: key_bytes as usize,
            stripes: split.get("stripes").number(1, STRIPES.into())? as u32,
            hash: Hash::of_name(split.get("hash").text()?)?,
            cipher: Cipher::of_text(area.get("encryption").text()?, area_key_bytes as u32)?,
            area_bytes: area.get("size").number_as_text()?,
        };
        if (slot.material_bytes() as u64) > slot.area_bytes {
            let allowed = format!("at least {} for {} stripes", slot.material_bytes(), slot.stripes);
            return Err(area.get("size").refused(&allowed));
        }
        Ok(slot)
    }

    /// What a wrong password costs here by PBKDF2.
    pub(super) fn pbkdf2_cost(&self) -> u64 {
        self.kdf.pbkdf2_cost(self.cipher.key_bytes())
    }

    /// Bytes of its key material, whole sectors.
    pub fn material_bytes(&self) -> usize {
        (self.key_bytes * self.stripes as usize).next_multiple_of(SECTOR_BYTES as usize)
    }

    /// The disk's key, if `password` opens the slot and `digest` knows the key; `material` is decrypted in place. Costs what [`Kdf`] says
    /// and the iterations of the digest.
    pub(super) fn open(
        &self,
        digest: &Digest,
        password: &Secret,
        mut material: Secret,
    ) -> Result<Option<Secret>, LuksError> {
        let key = self.kdf.derive(password, self.cipher.key_bytes())?;
        SectorCipher::new(self.cipher, &key)?.decipher(0, material.bytes_mut());
        let len = self.key_bytes * self.stripes as usize;
        let plain = &material.bytes()[..len];
        let key = wiped_stack::<DERIVATION_STACK_BYTES, _>(|| merge(self.hash, plain, self.key_bytes))?;
        Ok(digest.is_of(&key).then_some(key))
    }
}

impl Header {
    /// The disk's key, if `password` opens `slot`, whose material this is.
    ///
    /// # Errors
    /// When the memory that the slot asks for is not there.
    pub fn open_slot(
        &self,
        slot: &KeySlot,
        password: &Secret,
        material: Secret,
    ) -> Result<Option<Secret>, LuksError> {
        slot.open(&self.digest, password, material)
    }
}
