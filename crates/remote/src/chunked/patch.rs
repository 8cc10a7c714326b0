//! A patch: other bytes in a few ranges of a chunk.
//!
//! Its bytes are the number of its ranges, start and length of each (all of them 32 bits, little-endian), and then the bytes of the ranges one behind the other.
//! At the store it is these bytes or a shorter zstd frame of them, encrypted if the image has a key.

use std::ops::Range;

use crate::chunked::chunk_name::ChunkName;
use crate::chunked::frame;
use crate::chunked::key::{ImageKey, KeyError};

/// Bytes of a number.
const WORD: usize = 4;

/// A patch as it is at the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Its bytes there.
    pub(crate) stored: Vec<u8>,
    /// Bytes of the patch.
    pub(crate) plain: usize,
}

/// The patch that gives a chunk, which `base` is otherwise, the bytes that `chunk` has in `ranges`: those are in order and inside it.
///
/// # Errors
/// When the key cannot be used.
pub(crate) fn packed(
    chunk: &[u8],
    ranges: &[Range<usize>],
    base: ChunkName,
    key: Option<&ImageKey>,
) -> Result<Packed, KeyError> {
    let mut bytes = word(ranges.len()).to_vec();
    for range in ranges {
        bytes.extend([word(range.start), word(range.len())].as_flattened());
    }
    for range in ranges {
        bytes.extend_from_slice(chunk.get(range.clone()).unwrap_or_default());
    }
    let plain = bytes.len();
    let shortest = frame::compressed(&bytes).unwrap_or(bytes);
    let stored = match key {
        Some(key) => key.encrypted_patch(base, &shortest)?.to_vec(),
        None => shortest,
    };
    Ok(Packed { stored, plain })
}

/// The `plain` bytes of a patch, as it is at the store.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn unpacked(
    stored: Vec<u8>,
    plain: usize,
    base: ChunkName,
    key: Option<&ImageKey>,
) -> Result<Vec<u8>, String> {
    let body = match key {
        Some(key) => key
            .decrypted_patch(base, stored)
            .ok_or("was not encrypted with the image's key for this chunk, or was changed")?,
        None => stored,
    };
    let found = body.len();
    frame::unpacked(body, plain)
        .map_err(|_| format!("is neither {plain} bytes nor a zstd frame of them: it has {found} bytes"))
}

/// The ranges of a patch of a chunk of `len` bytes, and the place of their bytes in it.
///
/// # Errors
/// When they are not in order, reach over the end, or their bytes are not those that follow.
pub(crate) fn ranges(patch: &[u8], len: usize) -> Result<(Vec<Range<usize>>, usize), String> {
    let (words, _) = patch.as_chunks::<WORD>();
    let mut words = words.iter().map(|word| u32::from_le_bytes(*word) as usize);
    let count = words.next().unwrap_or_default();
    let data = count.checked_mul(2 * WORD).and_then(|bytes| bytes.checked_add(WORD));
    let data = data.filter(|data| *data <= patch.len()).ok_or("ends before its ranges do")?;
    let (mut found, mut end, mut bytes) = (Vec::with_capacity(count), 0, 0);
    for _ in 0..count {
        let (start, length) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let range = start..start.saturating_add(length);
        if range.start < end || range.is_empty() || range.end > len {
            return Err(format!("has the range {range:?} behind {end}, of a chunk of {len} bytes"));
        }
        end = range.end;
        bytes += range.len();
        found.push(range);
    }
    match data + bytes == patch.len() {
        true => Ok((found, data)),
        false => Err(format!("has {} bytes for ranges of {bytes}", patch.len() - data)),
    }
}

/// Gives `chunk` what a patch has.
///
/// # Errors
/// As [`ranges`]; then the chunk is as it was.
pub(crate) fn apply(patch: &[u8], chunk: &mut [u8]) -> Result<(), String> {
    let (ranges, mut at) = ranges(patch, chunk.len())?;
    for range in ranges {
        let end = at + range.len();
        if let (Some(to), Some(from)) = (chunk.get_mut(range), patch.get(at..end)) {
            to.copy_from_slice(from);
        }
        at = end;
    }
    Ok(())
}

/// All that one of these has, in order.
pub(crate) fn union(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut found: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match found.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => found.push(range),
        }
    }
    found
}

fn word(number: usize) -> [u8; WORD] {
    // No chunk has more than 4 MiB.
    u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 10_000;

    fn noise(seed: u8) -> Vec<u8> {
        (0..LEN.div_ceil(32) as u32)
            .flat_map(|part| *ChunkName::of(&[&[seed][..], &part.to_le_bytes()].concat()).bytes())
            .take(LEN)
            .collect()
    }

    #[test]
    fn a_patch_makes_of_its_base_what_it_was_made_of() {
        let (base, mut new) = (noise(1), noise(1));
        let ranges = [0..7, 100..101, 4096..8000, 9999..LEN];
        for range in &ranges {
            new[range.clone()].copy_from_slice(&noise(2)[range.clone()]);
        }
        let (name, other) = (ChunkName::of(&base), ChunkName::of(b"other"));
        let key = ImageKey::of_secret(&[7; 32]).unwrap();
        for key in [None, Some(&key)] {
            let packed = packed(&new, &ranges, name, key).unwrap();
            assert_eq!(packed, super::packed(&new, &ranges, name, key).unwrap(), "the same each time");
            let plain = unpacked(packed.stored.clone(), packed.plain, name, key).unwrap();
            assert_eq!(super::ranges(&plain, LEN).unwrap().0, ranges);
            let mut chunk = base.clone();
            apply(&plain, &mut chunk).unwrap();
            assert!(chunk == new);
            if key.is_some() {
                let of_another = unpacked(packed.stored.clone(), packed.plain, other, key).unwrap_err();
                assert!(of_another.contains("was not encrypted with the image's key"), "{of_another}");
            }
            let cut = packed.stored[..packed.stored.len() - 1].to_vec();
            unpacked(cut, packed.plain, name, key).unwrap_err();
        }
        // What gets shorter is a frame.
        let packed = packed(&vec![5; LEN], std::slice::from_ref(&(0..LEN)), name, None).unwrap();
        assert!(packed.stored.len() < 100 && packed.plain == LEN + 12, "{packed:?}");
        assert_eq!(unpacked(packed.stored, packed.plain, name, None).unwrap().len(), LEN + 12);
    }

    #[test]
    fn a_hostile_patch_changes_nothing() {
        let of = |words: &[u32], bytes: usize| {
            let head = words.iter().flat_map(|word| word.to_le_bytes());
            head.chain(std::iter::repeat_n(9, bytes)).collect::<Vec<u8>>()
        };
        for (patch, says) in [
            (of(&[0], 0), ""),
            (of(&[], 3), "ends before its ranges do"),
            (of(&[0], 3), "has 3 bytes for ranges of 0"),
            (of(&[u32::MAX], 100), "ends before its ranges do"),
            (of(&[2, 0, 1], 0), "ends before its ranges do"),
            (of(&[1, 0, 10], 9), "has 9 bytes for ranges of 10"),
            (of(&[1, 0, 10], 11), "has 11 bytes for ranges of 10"),
            (of(&[1, 5, 0], 0), "has the range 5..5"),
            (of(&[1, 9_999, 2], 2), "has the range 9999..10001 behind 0, of a chunk of 10000 bytes"),
            (of(&[1, u32::MAX, u32::MAX], 2), "of a chunk of 10000 bytes"),
            (of(&[2, 5, 5, 9, 1], 6), "has the range 9..10 behind 10"),
            (of(&[2, 5, 5, 0, 1], 6), "has the range 0..1 behind 10"),
        ] {
            let mut chunk = vec![0; LEN];
            match apply(&patch, &mut chunk) {
                Ok(()) => assert_eq!(says, ""),
                Err(error) => assert!(!says.is_empty() && error.contains(says), "{error}: {says}"),
            }
            assert!(chunk == vec![0; LEN]);
        }
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(union(vec![5..9, 0..2, 9..11, 6..7, 20..21]), [0..2, 5..11, 20..21]);
        assert_eq!(union(Vec::new()), []);
    }
}
