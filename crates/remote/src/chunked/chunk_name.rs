//! The name of an object: the hash of its bytes.

use std::fmt;

use wire::http::hash::hash;

use crate::chunked::key::ImageKey;

/// Bytes of a name, SHA-256.
pub(crate) const NAME_BYTES: usize = 32;

/// The name of a chunk or of a table. Two that are equal have the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkName([u8; NAME_BYTES]);

impl ChunkName {
    /// The name of these bytes. Costs their hash.
    pub fn of(bytes: &[u8]) -> Self {
        // What the hash gives are digits.
        Self::parse(&hash(bytes)).unwrap_or(Self([0; NAME_BYTES]))
    }

    /// The name of a chunk of these bytes in an image of `key`: a keyed hash, if it has one. Costs the hash.
    pub fn of_chunk(bytes: &[u8], key: Option<&ImageKey>) -> Self {
        key.map_or_else(|| Self::of(bytes), |key| key.name_of(bytes))
    }

    /// Reads 64 hexadecimal digits in lower case.
    pub(crate) fn parse(digits: &str) -> Option<Self> {
        let (pairs, []) = digits.as_bytes().as_chunks::<2>() else { return None };
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|&[high, low]| Some(value(high)? << 4 | value(low)?)).collect();
        Some(Self(bytes?.try_into().ok()?))
    }

    /// Of the bytes of an entry of a table.
    pub(crate) fn from_bytes(bytes: [u8; NAME_BYTES]) -> Self {
        Self(bytes)
    }

    /// As an entry of a table has it.
    pub(crate) fn bytes(&self) -> &[u8; NAME_BYTES] {
        &self.0
    }

    /// The object of this name in the folder of an image: 256 directories, where the folder is one of a file system.
    pub fn object(&self) -> String {
        let name = self.to_string();
        format!("chunks/{}/{name}", name.get(..2).unwrap_or_default())
    }
}

impl fmt::Display for ChunkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_hash_in_64_digits_and_nothing_else() {
        let name = ChunkName::of(b"abc");
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(name.to_string(), digits);
        assert_eq!(ChunkName::parse(digits), Some(name));
        assert_eq!(name.object(), format!("chunks/ba/{digits}"));
        for wrong in [
            "",
            "ba",
            &digits[2..],
            &digits.to_uppercase(),
            &format!("{digits}00"),
            &digits.replace('b', "/"),
        ] {
            assert_eq!(ChunkName::parse(wrong), None, "{wrong}");
        }
    }
}
