//! The anti-forensic splitter (specification, 2.4): a key spread over many stripes, so that losing any bit of them loses it.

use zeroize::Zeroize;

use crate::layout::{Hash, LuksError, Secret};

/// Spreads `key` over `material`, whose length is a multiple of the key's. All stripes but the last hold random bytes already.
pub(crate) fn split(hash: Hash, key: &[u8], material: &mut [u8]) -> Result<(), LuksError> {
    let Some(last) = material.len().checked_sub(key.len()) else { return Ok(()) };
    let (random, last) = material.split_at_mut(last);
    let mixed = mix(hash, random, key.len())?;
    for ((last, mixed), key) in last.iter_mut().zip(mixed.bytes()).zip(key) {
        *last = mixed ^ key;
    }
    Ok(())
}

/// The key of `key_bytes` that was spread over `material`.
pub(crate) fn merge(hash: Hash, material: &[u8], key_bytes: usize) -> Result<Secret, LuksError> {
    let last = material.len().saturating_sub(key_bytes);
    let mut key = mix(hash, &material[..last], key_bytes)?;
    xor(key.bytes_mut(), &material[last..]);
    Ok(key)
}

/// What all stripes but the last one come to.
fn mix(hash: Hash, stripes: &[u8], key_bytes: usize) -> Result<Secret, LuksError> {
    let mut mixed = Secret::zeroed(key_bytes);
    for stripe in stripes.chunks_exact(key_bytes) {
        xor(mixed.bytes_mut(), stripe);
        diffuse(hash, mixed.bytes_mut())?;
    }
    Ok(mixed)
}

/// Every part as long as a digest becomes the digest of its number and itself; the last one is cut off.
fn diffuse(hash: Hash, block: &mut [u8]) -> Result<(), LuksError> {
    let mut copy = [0; 64];
    for (index, part) in (0_u32..).zip(block.chunks_mut(hash.bytes())) {
        let copy = &mut copy[..part.len()];
        copy.copy_from_slice(part);
        hash.digest_into(&index.to_be_bytes(), copy, part)?;
    }
    copy.zeroize();
    Ok(())
}

fn xor(target: &mut [u8], with: &[u8]) {
    target.iter_mut().zip(with).for_each(|(target, with)| *target ^= with);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_split_key_merges_and_no_bit_of_it_can_be_missing(
            key in prop::collection::vec(any::<u8>(), 16..=64), stripes in 1_usize..20, seed: u8, flip: prop::sample::Index,
        ) {
            for hash in Hash::ALL {
                let mut material: Vec<u8> = (0..key.len() * stripes).map(|at| (at as u8).wrapping_mul(seed)).collect();
                split(hash, &key, &mut material).unwrap();
                let merged = merge(hash, &material, key.len()).unwrap();
                prop_assert_eq!(merged.bytes(), &key[..]);
                let bit = flip.index(material.len() * 8);
                material[bit / 8] ^= 1 << (bit % 8);
                let merged = merge(hash, &material, key.len()).unwrap();
                prop_assert_ne!(merged.bytes(), &key[..]);
            }
        }
    }
}
