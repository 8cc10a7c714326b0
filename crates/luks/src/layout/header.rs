//! The header of LUKS version 1 (specification, 2.3): bytes <-> checked values.

use crate::layout::{Cipher, Hash, KeySlot, LuksError, SECTOR_BYTES};

/// The first bytes of every LUKS header.
pub const MAGIC: [u8; 6] = *b"LUKS\xba\xbe";
/// Bytes of a header.
pub const HEADER_BYTES: usize = 592;
/// Key slots of a header.
pub const SLOTS: usize = 8;
/// Bytes of a salt.
pub const SALT_BYTES: usize = 32;
/// Bytes of the key's digest.
pub const DIGEST_BYTES: usize = 20;
/// Stripes that a key is spread over: what all programs write, and the most that is read.
pub const STRIPES: u32 = 4000;
/// What all active slots and the key's digest may cost together, as [`Hash::pbkdf2_cost`] counts it: a wrong password costs them all. Eight slots of two
/// seconds each, as cryptsetup and QEMU make them, cost half of it at most on the machines of today; all of it takes a minute, about, on one core.
pub const PBKDF2_COST_MAX: u64 = 1 << 27;

/// What [`PBKDF2_COST_MAX`] bounds, in errors.
pub(crate) const PBKDF2_COST: &str = "the sum of all iterations (times the digests of each)";

const VERSION: u16 = 1;
const UUID_BYTES: usize = 40;
const SLOTS_START: usize = 208;
const SLOT_BYTES: usize = 48;
const ACTIVE: u32 = 0x00ac_71f3;
const INACTIVE: u32 = 0x0000_dead;

/// A header of version 1. From [`Header::decode`] all of it keeps to the limits here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// How sectors are ciphered: those of the disk and those of key material.
    pub cipher: Cipher,
    /// With which hash keys are made.
    pub hash: Hash,
    /// First sector of the disk's data in a file of its own. Inside a qcow2 image it means nothing.
    pub payload_sector: u32,
    /// By which a key is known to be the right one.
    pub digest: [u8; DIGEST_BYTES],
    /// Salt of the digest.
    pub digest_salt: [u8; SALT_BYTES],
    /// Iterations of the digest.
    pub digest_iterations: u32,
    /// Name of the volume.
    pub uuid: String,
    /// What opens it.
    pub slots: [KeySlot; SLOTS],
}

impl Header {
    /// The header at the start of `bytes`, which lies at the start of `length` bytes that it may use.
    ///
    /// # Errors
    /// When something of it is no header's, not supported, or beyond its limits.
    pub fn decode(bytes: &[u8], length: u64) -> Result<Self, LuksError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(LuksError::Magic);
        }
        let short = LuksError::Short { found: bytes.len(), needed: HEADER_BYTES };
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(short)?;
        let version = u16::from_be_bytes(array_at(bytes, 6));
        if version != VERSION {
            return Err(LuksError::Version { found: version, supported: "version 1 is" });
        }
        let (cipher, mode) = (text_at(bytes, "cipher name", 8, 32)?, text_at(bytes, "cipher mode", 40, 32)?);
        let header = Self {
            cipher: Cipher::of_names(cipher, mode, word(bytes, 108))?,
            hash: Hash::of_name(text_at(bytes, "hash", 72, 32)?)?,
            payload_sector: word(bytes, 104),
            digest: array_at(bytes, 112),
            digest_salt: array_at(bytes, 132),
            digest_iterations: word(bytes, 164),
            uuid: text_at(bytes, "uuid", 168, UUID_BYTES)?.to_owned(),
            slots: slots(bytes)?,
        };
        header.check(length)?;
        Ok(header)
    }

    /// What must hold between the fields, and of the place they are in.
    pub(crate) fn check(&self, length: u64) -> Result<(), LuksError> {
        if self.digest_iterations == 0 {
            return Err(out_of_range("the number of iterations of the key's digest", 0, "1 or more"));
        }
        let cost = |iterations, len| self.hash.pbkdf2_cost(iterations, len);
        let active = self.slots.iter().filter(|slot| slot.active);
        let slots = active.map(|slot| cost(slot.iterations, self.cipher.key_bytes())).sum::<u64>();
        let sum = slots + cost(self.digest_iterations, DIGEST_BYTES);
        if sum > PBKDF2_COST_MAX {
            return Err(out_of_range(PBKDF2_COST, sum, &format!("at most {PBKDF2_COST_MAX}")));
        }
        self.slots.iter().enumerate().try_for_each(|(index, slot)| self.check_slot(index, slot, length))?;
        self.check_apart()
    }

    fn check_slot(&self, index: usize, slot: &KeySlot, length: u64) -> Result<(), LuksError> {
        if slot.stripes == 0 || slot.stripes > STRIPES {
            let what = format!("the number of stripes of slot {index}");
            return Err(out_of_range(&what, slot.stripes.into(), &format!("1 to {STRIPES}")));
        }
        if slot.active && slot.iterations == 0 {
            let what = format!("the number of iterations of slot {index}");
            return Err(out_of_range(&what, 0, "1 or more"));
        }
        let (start, end) = self.slot_sectors(slot);
        let what = || format!("the place of the key material of slot {index} (its last sector)");
        if end > length / SECTOR_BYTES {
            let allowed = format!("below sector {}, where the header's area ends", length / SECTOR_BYTES);
            return Err(out_of_range(&what(), end - 1, &allowed));
        }
        let payload = u64::from(self.payload_sector);
        if payload != 0 && start < payload && end > payload || start < HEADER_SECTORS {
            let other = if start < HEADER_SECTORS { "the header" } else { "the disk's data" };
            return Err(LuksError::Overlap { slot: index, start, end, other: other.into() });
        }
        if payload != 0 && start >= payload {
            let allowed = format!("below sector {payload}, where the disk's data begins");
            return Err(out_of_range(&what(), end - 1, &allowed));
        }
        Ok(())
    }

    /// No two slots use the same sectors.
    fn check_apart(&self) -> Result<(), LuksError> {
        for (index, slot) in self.slots.iter().enumerate() {
            let (start, end) = self.slot_sectors(slot);
            for (before, other) in self.slots.iter().enumerate().take(index) {
                let (other_start, other_end) = self.slot_sectors(other);
                if start < other_end && other_start < end {
                    let other = format!("that of slot {before}");
                    return Err(LuksError::Overlap { slot: index, start, end, other });
                }
            }
        }
        Ok(())
    }

    /// First and last (excluded) sector of a slot's key material.
    fn slot_sectors(&self, slot: &KeySlot) -> (u64, u64) {
        let start = u64::from(slot.material_sector);
        (start, start + (self.material_bytes(slot) as u64 / SECTOR_BYTES))
    }

    /// Bytes of a slot's key material, whole sectors.
    pub fn material_bytes(&self, slot: &KeySlot) -> usize {
        (self.cipher.key_bytes() * slot.stripes as usize).next_multiple_of(SECTOR_BYTES as usize)
    }

    /// The bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(6, &VERSION.to_be_bytes());
        put(8, b"aes");
        put(40, self.cipher.mode_text().as_bytes());
        put(72, self.hash.name().as_bytes());
        put(104, &self.payload_sector.to_be_bytes());
        // At most 64.
        put(108, &(self.cipher.key_bytes() as u32).to_be_bytes());
        put(112, &self.digest);
        put(132, &self.digest_salt);
        put(164, &self.digest_iterations.to_be_bytes());
        let uuid = self.uuid.as_bytes();
        put(168, &uuid[..uuid.len().min(UUID_BYTES - 1)]);
        for (index, slot) in self.slots.iter().enumerate() {
            put(Self::slot_offset(index), &slot.encode());
        }
        bytes
    }

    /// Where the entry of a slot begins. Its first four bytes say whether it is active: no entry has them in two sectors.
    pub fn slot_offset(index: usize) -> usize {
        SLOTS_START + index * SLOT_BYTES
    }
}

/// Sectors that the header itself is in.
const HEADER_SECTORS: u64 = (HEADER_BYTES as u64).div_ceil(SECTOR_BYTES);

impl KeySlot {
    /// The bytes of its entry.
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..4].copy_from_slice(&if self.active { ACTIVE } else { INACTIVE }.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.iterations.to_be_bytes());
        bytes[8..40].copy_from_slice(&self.salt);
        bytes[40..44].copy_from_slice(&self.material_sector.to_be_bytes());
        bytes[44..].copy_from_slice(&self.stripes.to_be_bytes());
        bytes
    }
}

fn slots(bytes: &[u8; HEADER_BYTES]) -> Result<[KeySlot; SLOTS], LuksError> {
    let mut slots = [KeySlot::default(); SLOTS];
    for (index, slot) in slots.iter_mut().enumerate() {
        let at = Header::slot_offset(index);
        let active = match word(bytes, at) {
            ACTIVE => true,
            INACTIVE => false,
            found => {
                let what = format!("the state of slot {index}");
                let allowed = format!("{ACTIVE} (active), {INACTIVE} (not active)");
                return Err(out_of_range(&what, found.into(), &allowed));
            }
        };
        *slot = KeySlot {
            active,
            iterations: word(bytes, at + 4),
            salt: array_at(bytes, at + 8),
            material_sector: word(bytes, at + 40),
            stripes: word(bytes, at + 44),
        };
    }
    Ok(slots)
}

fn out_of_range(field: &str, found: u64, allowed: &str) -> LuksError {
    LuksError::OutOfRange { field: field.into(), found, allowed: allowed.into() }
}

/// The field of `N` bytes at `at`, which is a constant inside a header.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_be_bytes(array_at(bytes, at))
}

/// A text with a zero byte behind it, in a field of `len` bytes at `at`, both constants inside a header.
pub(crate) fn text_at<'a>(
    bytes: &'a [u8],
    field: &'static str,
    at: usize,
    len: usize,
) -> Result<&'a str, LuksError> {
    let error = LuksError::Text { field };
    let bytes = &bytes[at..at + len];
    let Some(end) = bytes.iter().position(|&byte| byte == 0) else { return Err(error) };
    let printable = bytes[..end].iter().all(|byte| (b' '..=b'~').contains(byte));
    match str::from_utf8(&bytes[..end]) {
        Ok(text) if printable => Ok(text),
        _ => Err(error),
    }
}
