//! Sectors encrypted and decrypted in place.
//!
//! Sectors have numbers in units of 512 bytes, whatever their size, as dm-crypt counts them: the second sector of 4096 bytes has number 8.

use std::fmt;

use memory::secret::wiped_stack;

use crate::layout::primitives::keyed;
use crate::layout::{Cipher, LuksError, Secret, SectorSize};

/// Of the stack is overwritten behind a request: the processor's widest instructions have copies of all round keys there, up to 9 KiB
/// deep. Costs a request of 4 KiB a tenth, about.
const REQUEST_STACK_BYTES: usize = 12 << 10;

/// The key of a disk, ready for use, in locked pages. Overwritten when it is dropped.
pub struct SectorCipher {
    cipher: Cipher,
    sector: SectorSize,
    keyed: Box<dyn Keyed>,
}

/// A cipher with its key.
pub(crate) trait Keyed: Send + Sync {
    /// Encrypts whole sectors, the first of which has the number `first`.
    fn encipher(&self, first: u64, sectors: &mut [u8]);
    /// Decrypts them.
    fn decipher(&self, first: u64, sectors: &mut [u8]);
}

impl SectorCipher {
    /// `cipher` with the key `key`, for sectors of 512 bytes.
    ///
    /// # Errors
    /// When the key has another length than the cipher's.
    pub fn new(cipher: Cipher, key: &Secret) -> Result<Self, LuksError> {
        Self::of_sectors(cipher, SectorSize::SMALLEST, key)
    }

    /// Likewise, for sectors of another size.
    ///
    /// # Errors
    /// When the key has another length than the cipher's, or the mode does not take sectors of that size.
    pub fn of_sectors(cipher: Cipher, sector: SectorSize, key: &Secret) -> Result<Self, LuksError> {
        let sector = SectorSize::new(sector.bytes(), cipher.mode)?;
        let keyed = keyed(cipher, sector, key.bytes())?;
        let wrong_length = || LuksError::KeyLength {
            found: key.bytes().len(),
            needed: cipher.key_bytes(),
            cipher: cipher.to_string(),
        };
        Ok(Self { cipher, sector, keyed: keyed.ok_or_else(wrong_length)? })
    }

    /// Which cipher it is.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Bytes that are ciphered together.
    pub fn sector_bytes(&self) -> u64 {
        self.sector.bytes()
    }

    /// Encrypts `bytes` in place: whole sectors, the first of which has the number `first` (counted in 512 bytes).
    pub fn encipher(&self, first: u64, bytes: &mut [u8]) {
        debug_assert!(self.are_whole(bytes), "parts of a sector have no cipher text");
        wiped_stack::<REQUEST_STACK_BYTES, _>(|| self.keyed.encipher(first, bytes));
    }

    /// Decrypts `bytes` in place: whole sectors, the first of which has the number `first` (counted in 512 bytes).
    pub fn decipher(&self, first: u64, bytes: &mut [u8]) {
        debug_assert!(self.are_whole(bytes), "parts of a sector have no plain text");
        wiped_stack::<REQUEST_STACK_BYTES, _>(|| self.keyed.decipher(first, bytes));
    }

    fn are_whole(&self, bytes: &[u8]) -> bool {
        (bytes.len() as u64).is_multiple_of(self.sector.bytes())
    }
}

impl fmt::Debug for SectorCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SectorCipher({})", self.cipher)
    }
}
