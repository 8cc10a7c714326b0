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
    (piece * PIECE..one.len()).find(|&place| one[place] != other[place])
}

/// Whether each byte of `found` is the one of `was`, or zero: what a trim may leave.
pub fn are_kept_or_zero(found: &[u8], was: &[u8]) -> bool {
    let each = || found.iter().zip(was).all(|(found, was)| found == was || *found == 0);
    found == was || are_all(found, 0) || each()
}

#[cfg(test)]
mod tests {
    use super::{are_all, are_kept_or_zero, first_difference};

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
        assert!(are_kept_or_zero(&[0, 2], &[1, 2]) && are_kept_or_zero(&[0, 0], &[1, 2]));
        assert!(are_kept_or_zero(&[1, 2], &[1, 2]) && !are_kept_or_zero(&[0, 3], &[1, 2]));
    }
}
