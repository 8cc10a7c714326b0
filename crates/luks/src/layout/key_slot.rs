//! Key slots: the disk's key, spread and ciphered with a key that is made of a password.

use memory::secret::wiped_stack;

use crate::layout::split::{merge, split};
use crate::layout::{
    Cipher, DERIVATION_STACK_BYTES, DIGEST_BYTES, Hash, Header, LuksError, SALT_BYTES, SECTOR_BYTES, SLOTS,
    STRIPES, Secret, SectorCipher,
};

/// Key material begins at multiples of this, as in QEMU's headers.
const MATERIAL_ALIGNMENT: u64 = 4096;

/// The entry of a slot in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySlot {
    /// It has a key.
    pub active: bool,
    /// Iterations that its password needs.
    pub iterations: u32,
    /// Salt of its password.
    pub salt: [u8; SALT_BYTES],
    /// First sector of its key material.
    pub material_sector: u32,
    /// Stripes that the key is spread over there.
    pub stripes: u32,
}

/// What a new header is made with. Everything random comes from the caller.
#[derive(Debug)]
pub struct NewHeader<'a> {
    /// How sectors are ciphered.
    pub cipher: Cipher,
    /// How keys are made.
    pub hash: Hash,
    /// The disk's key: random bytes, as many as the cipher takes.
    pub key: &'a Secret,
    /// Random.
    pub digest_salt: [u8; SALT_BYTES],
    /// Iterations of the key's digest ([`crate::layout::calibrate`]).
    pub digest_iterations: u32,
    /// 16 random bytes, for the volume's name.
    pub uuid: [u8; 16],
}

/// What a slot is filled with.
#[derive(Debug)]
pub struct NewSlot<'a> {
    /// The password that will open it.
    pub password: &'a Secret,
    /// Iterations of the password ([`crate::layout::calibrate`]).
    pub iterations: u32,
    /// Random.
    pub salt: [u8; SALT_BYTES],
}

impl Header {
    /// A header without any key slot in use, laid out as QEMU's: the material of the slots begins at 4096, the data behind
    /// the last of them.
    ///
    /// # Errors
    /// When the key has another length than the cipher's.
    pub fn new(new: &NewHeader<'_>) -> Result<Self, LuksError> {
        SectorCipher::new(new.cipher, new.key)?;
        let mut slots = [KeySlot { stripes: STRIPES, ..KeySlot::default() }; SLOTS];
        let material =
            (new.cipher.key_bytes() as u64 * u64::from(STRIPES)).next_multiple_of(MATERIAL_ALIGNMENT);
        // At most 8 times 252 KiB.
        let sector = |index: usize| ((MATERIAL_ALIGNMENT + index as u64 * material) / SECTOR_BYTES) as u32;
        for (index, slot) in slots.iter_mut().enumerate() {
            slot.material_sector = sector(index);
        }
        let mut header = Self {
            cipher: new.cipher,
            hash: new.hash,
            payload_sector: sector(SLOTS),
            digest: [0; DIGEST_BYTES],
            digest_salt: new.digest_salt,
            digest_iterations: new.digest_iterations,
            uuid: uuid_text(new.uuid),
            slots,
        };
        let digest = header.digest_of(new.key)?;
        header.digest.copy_from_slice(digest.bytes());
        Ok(header)
    }

    /// Fills slot `index` with `key`, the disk's key, and gives its material: the random bytes that `material` holds, as many as
    /// [`Header::material_bytes`] says, become it. Costs the iterations of the password.
    ///
    /// # Errors
    /// When the key has another length than the cipher's.
    pub fn fill_slot(
        &mut self,
        index: usize,
        key: &Secret,
        new: &NewSlot<'_>,
        mut material: Secret,
    ) -> Result<Secret, LuksError> {
        let slot = KeySlot { active: true, iterations: new.iterations, salt: new.salt, ..self.slots[index] };
        let cipher = self.slot_cipher(&slot, new.password)?;
        let len = self.cipher.key_bytes() * slot.stripes as usize;
        let plain = &mut material.bytes_mut()[..len];
        wiped_stack::<DERIVATION_STACK_BYTES, _>(|| split(self.hash, key.bytes(), plain))?;
        cipher.encipher(0, material.bytes_mut());
        self.slots[index] = slot;
        Ok(material)
    }

    /// The disk's key, if `password` opens the slot whose material this is; the material is decrypted in place. Costs the iterations
    /// of the slot and of the digest.
    ///
    /// # Errors
    /// Never for a header that was decoded.
    pub fn open_slot(
        &self,
        slot: &KeySlot,
        password: &Secret,
        mut material: Secret,
    ) -> Result<Option<Secret>, LuksError> {
        self.slot_cipher(slot, password)?.decipher(0, material.bytes_mut());
        let len = self.cipher.key_bytes() * slot.stripes as usize;
        let plain = &material.bytes()[..len];
        let key =
            wiped_stack::<DERIVATION_STACK_BYTES, _>(|| merge(self.hash, plain, self.cipher.key_bytes()))?;
        let digest = self.digest_of(&key)?;
        Ok(is_same(digest.bytes(), &self.digest).then_some(key))
    }

    /// The cipher of a slot's key material.
    fn slot_cipher(&self, slot: &KeySlot, password: &Secret) -> Result<SectorCipher, LuksError> {
        let len = self.cipher.key_bytes();
        let key = self.hash.pbkdf2(password.bytes(), &slot.salt, slot.iterations, len)?;
        SectorCipher::new(self.cipher, &key)
    }

    fn digest_of(&self, key: &Secret) -> Result<Secret, LuksError> {
        self.hash.pbkdf2(key.bytes(), &self.digest_salt, self.digest_iterations, DIGEST_BYTES)
    }
}

/// Bytes that a new header takes with its key material: what [`Header::new`] has behind them is the disk's data.
pub fn area_bytes(cipher: Cipher) -> u64 {
    MATERIAL_ALIGNMENT + SLOTS as u64 * material_bytes(cipher)
}

/// Bytes from one slot's key material to the next.
fn material_bytes(cipher: Cipher) -> u64 {
    (cipher.key_bytes() as u64 * u64::from(STRIPES)).next_multiple_of(MATERIAL_ALIGNMENT)
}

/// Whether two digests are the same, in a time that does not depend on where they differ.
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |differences, (one, other)| differences | (one ^ other));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}

/// A random UUID (RFC 9562, 5.4), in words.
fn uuid_text(mut random: [u8; 16]) -> String {
    random[6] = random[6] & 0x0f | 0x40;
    random[8] = random[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (at, byte) in random.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
