//! The binary header (specification, 3.1), and whether a copy of the header is intact.

use crate::layout::header::{array_at, text_at};
use crate::layout::key_slot::is_same;
use crate::layout::{Hash, LuksError, MAGIC};

/// Bytes of the binary header, in front of the JSON area.
pub const BINARY_BYTES: usize = 4096;
/// Bytes of one copy at most.
pub const HEADER_BYTES_MAX: u64 = 4 << 20;
/// Where the second copy may begin: behind a first one of any size that there is.
pub const SECOND_PLACES: [u64; 9] =
    [0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000];

/// The first bytes of a second copy.
const SECOND_MAGIC: [u8; 6] = *b"SKUL\xba\xbe";
const VERSION: u16 = 2;
const CHECKSUM_AT: usize = 448;
const CHECKSUM_BYTES: usize = 64;

/// Which copy of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The one at the start of the file.
    First,
    /// The one behind it, which begins here.
    Second(u64),
}

impl Place {
    /// Its first byte.
    pub fn start(self) -> u64 {
        match self {
            Self::First => 0,
            Self::Second(start) => start,
        }
    }
}

/// The binary header of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinaryHeader {
    /// Which copy it belongs to.
    pub place: Place,
    /// Bytes of this copy, with its JSON area: one of [`SECOND_PLACES`].
    pub bytes: u64,
    /// Grows with every change of the header.
    pub sequence: u64,
    /// What the user calls it; empty: nothing.
    pub label: String,
    /// Likewise, a second name.
    pub subsystem: String,
    /// Name of the volume.
    pub uuid: String,
    hash: Hash,
    checksum: [u8; CHECKSUM_BYTES],
}

impl BinaryHeader {
    /// The binary header at the start of `bytes`, which were read at `place`.
    ///
    /// # Errors
    /// When there is none, or a field of it is not as it must be.
    pub fn decode(bytes: &[u8], place: Place) -> Result<Self, LuksError> {
        let magic = match place {
            Place::First => MAGIC,
            Place::Second(_) => SECOND_MAGIC,
        };
        if !bytes.starts_with(&magic) {
            return Err(LuksError::Magic);
        }
        let short = LuksError::Short { found: bytes.len(), needed: BINARY_BYTES };
        let bytes: &[u8; BINARY_BYTES] = bytes.first_chunk().ok_or(short)?;
        let version = u16::from_be_bytes(array_at(bytes, 6));
        if version != VERSION {
            return Err(LuksError::Version { found: version, supported: "versions 1 and 2 are" });
        }
        let size = u64::from_be_bytes(array_at(bytes, 8));
        let start = u64::from_be_bytes(array_at(bytes, 256));
        // The second copy begins where the first one ends.
        let sizes = match place {
            Place::First => &SECOND_PLACES[..],
            Place::Second(_) => &[place.start()],
        };
        check("the size of a copy", size, sizes)?;
        check("the place of a copy", start, &[place.start()])?;
        Ok(Self {
            place,
            bytes: size,
            sequence: u64::from_be_bytes(array_at(bytes, 16)),
            label: free_text(&bytes[24..72]),
            subsystem: free_text(&bytes[208..256]),
            uuid: text_at(bytes, "uuid", 168, 40)?.to_owned(),
            hash: Hash::of_name(text_at(bytes, "checksum algorithm", 72, 32)?)?,
            checksum: array_at(bytes, CHECKSUM_AT),
        })
    }

    /// The whole copy that this begins, if `bytes`, all [`BinaryHeader::bytes`] of it, are as they were written.
    ///
    /// # Errors
    /// When the checksum is wrong: the copy was damaged, or not written to its end.
    pub fn check(self, bytes: &[u8]) -> Result<Copy, LuksError> {
        let needed = self.bytes as usize;
        let whole = bytes.get(..needed).ok_or(LuksError::Short { found: bytes.len(), needed })?;
        let behind = CHECKSUM_AT + CHECKSUM_BYTES;
        let checksum = self.hash.digest(&[&whole[..CHECKSUM_AT], &[0; CHECKSUM_BYTES], &whole[behind..]])?;
        match is_same(&checksum, &self.checksum[..checksum.len()]) {
            true => Ok(Copy { json: whole[BINARY_BYTES..].to_vec(), binary: self }),
            false => Err(LuksError::Checksum { at: self.place.start() }),
        }
    }
}

/// A copy of the header that is as it was written.
#[derive(Clone, Debug)]
pub struct Copy {
    /// Its first part.
    pub binary: BinaryHeader,
    /// Its second part: text that ends with a zero byte, and what is behind.
    pub(super) json: Vec<u8>,
}

impl Copy {
    /// The one of two intact copies that counts: that of the last change.
    pub fn newer(first: Self, second: Self) -> Self {
        if second.binary.sequence > first.binary.sequence { second } else { first }
    }
}

/// What a user wrote: any bytes, up to a zero byte or the end of the field.
fn free_text(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn check(field: &str, found: u64, allowed: &[u64]) -> Result<(), LuksError> {
    if allowed.contains(&found) {
        return Ok(());
    }
    let allowed: Vec<String> = allowed.iter().map(u64::to_string).collect();
    Err(LuksError::OutOfRange { field: field.into(), found, allowed: allowed.join(", ") })
}
