//! Long runs of bytes, compared as the C library does it: the tests are built without optimisation, and a loop over each byte costs a hundred times as much.

/// Whether every byte is `value`.
pub fn are_all(bytes: &[u8], value: u8) -> bool {
    match bytes {
        [] => true,
        [first, rest @ ..] => *first == value && *rest == bytes[..rest.len()],
    }
}

/// Where the first byte is that differs, of two of one length.
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    assert_eq!(one.len(), other.len(), "they are of one length");
    const PIECE: usize = 512;
    let piece = one.chunks(PIECE).zip(other.chunks(PIECE)).position(|(one, other)| one != other)?;
    let at = |bytes: &[u8], place: usize| bytes.get(place).copied();
    (piece * PIECE..one.len()).find(|&place| at(one, place) != at(other, place))
}

#[cfg(test)]
mod tests {
    use super::{are_all, first_difference};

    #[test]
    fn every_byte_counts() {
        assert!(are_all(&[], 1) && are_all(&[1], 1) && are_all(&[1; 700], 1) && !are_all(&[2; 700], 1));
        assert_eq!(first_difference(&[], &[]), None);
        for at in [0, 1, 511, 512, 699] {
            let mut bytes = [1; 700];
            bytes[at] = 2;
            assert!(!are_all(&bytes, 1), "{at}");
            assert_eq!(first_difference(&bytes, &[1; 700]), Some(at));
        }
        assert_eq!(first_difference(&[1; 700], &[1; 700]), None);
    }
}
