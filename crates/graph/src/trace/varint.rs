//! Numbers in as few bytes as they need: seven bits a byte, lowest first, the highest bit says that more follow.

/// Bytes of the longest number.
const BYTES_MAX: usize = 10;

/// Why there is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The bytes end in it.
    Short,
    /// It has more than 64 bits.
    Long,
}

pub(super) fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number off the front of `bytes`.
pub(super) fn take(bytes: &mut &[u8]) -> Result<u64, Failure> {
    let mut number = 0_u64;
    for at in 0..BYTES_MAX {
        let Some((&byte, rest)) = bytes.split_first() else { return Err(Failure::Short) };
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if at == BYTES_MAX - 1 && byte > 1 {
            return Err(Failure::Long);
        }
        number |= part << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Failure::Long)
}

/// Small numbers of either sign become small ones without.
pub(super) fn fold(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

pub(super) fn unfold(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}
