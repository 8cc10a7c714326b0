//! Edits of a valid image, as an input decides them: fields, entries, flags, bytes and the length.

use storage::{MemoryStorage, Storage};

use crate::base::{Base, Region, RegionKind};
use crate::executor::block_on;
use crate::input::Input;
use crate::medium::Medium;

/// Offset and width in bytes of the header's fields.
const FIELDS: [(u64, usize); 23] = [
    (4, 4),
    (8, 8),
    (16, 4),
    (20, 4),
    (24, 8),
    (32, 4),
    (36, 4),
    (40, 8),
    (48, 8),
    (56, 4),
    (60, 4),
    (64, 8),
    (72, 8),
    (80, 8),
    (88, 8),
    (96, 4),
    (100, 4),
    (104, 1),
    (112, 4),
    (116, 4),
    (120, 8),
    (128, 8),
    (136, 8),
];

/// Numbers at which limits lie.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    511,
    512,
    513,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 55,
    1 << 56,
    1 << 62,
    1 << 63,
    u64::MAX,
];

/// Most edits of a case: single faults find most, and too many hide each other.
const EDITS_MAX: u64 = 12;

/// An image that may be anything now.
#[derive(Debug)]
pub struct Mutated {
    /// The image file.
    pub medium: Medium,
    /// Edits that were made; with none the image is valid.
    pub edits: u64,
}

/// Chooses a base image and edits it.
pub fn image(input: &mut Input<'_>) -> Mutated {
    let bases = crate::base::all();
    let base = input.pick(&bases);
    edited(base, input)
}

/// Edits `base`.
pub fn edited(base: &Base, input: &mut Input<'_>) -> Mutated {
    let mut bytes = base.bytes.clone();
    let edits = u64::from(input.byte()) % (EDITS_MAX + 1);
    let mut length = None;
    for _ in 0..edits {
        edit(base, &mut bytes, &mut length, input);
    }
    let inner = MemoryStorage::from_bytes(&bytes);
    if let Some(length) = length {
        let either = async { inner.shorten_to(length).await.and(inner.grow_to(length).await) };
        block_on(either).expect("memory has any length");
    }
    Mutated { medium: Medium::of(inner), edits }
}

fn edit(base: &Base, bytes: &mut [u8], length: &mut Option<u64>, input: &mut Input<'_>) {
    match input.byte() % 8 {
        0 | 1 => {
            let &(at, width) = input.pick(&FIELDS);
            change(base, bytes, at, width, input);
        }
        2..=4 => {
            let at = place(base, input, 8);
            change(base, bytes, at, 8, input);
        }
        5 => {
            let at = place(base, input, 1);
            let new = input.byte();
            let count = usize::from(input.byte() % 32);
            let new: Vec<u8> = std::iter::once(new).chain(input.bytes(count).iter().copied()).collect();
            put(bytes, at, &new);
        }
        6 => {
            // One structure over another.
            let (from, to) = (place(base, input, 8), place(base, input, 8));
            let len = usize::from(input.byte()) + 1;
            let from = usize::try_from(from).unwrap_or(0).min(bytes.len());
            let copied = bytes[from..(from + len).min(bytes.len())].to_vec();
            put(bytes, to, &copied);
        }
        _ => {
            let here = bytes.len() as u64;
            *length = Some(match input.byte() % 4 {
                0 => input.number(2),
                1 => here.saturating_sub(input.number(2)),
                2 => here + input.number(3),
                _ => input.number(6),
            });
        }
    }
}

/// Somewhere that matters, at a multiple of `step` where there are words.
fn place(base: &Base, input: &mut Input<'_>, step: u64) -> u64 {
    let Region { kind, offset, len } = *input.pick(&base.regions);
    match kind {
        RegionKind::Words => offset + input.below((len / step).max(1)) * step,
        RegionKind::Bytes => offset + input.below(len),
    }
}

fn change(base: &Base, bytes: &mut [u8], at: u64, width: usize, input: &mut Input<'_>) {
    let start = usize::try_from(at).unwrap_or(0);
    let Some(field) = bytes.get(start..start + width) else { return };
    let old = field.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let new = value(base, old, bytes.len() as u64, width, input).to_be_bytes();
    put(bytes, at, &new[8 - width..]);
}

fn value(base: &Base, old: u64, length: u64, width: usize, input: &mut Input<'_>) -> u64 {
    let bits = width as u64 * 8;
    match input.byte() % 8 {
        0 => input.number(width),
        1 => old ^ 1 << input.below(bits),
        2 => old.wrapping_add(input.number(1)).wrapping_sub(128),
        3 => *input.pick(&EDGES),
        4 => old ^ *input.pick(&EDGES),
        // Another structure's place, with the old flags.
        5 => input.pick(&base.regions).offset & !511 | old & (3 << 62 | 1),
        // Any cluster of the file and a little beyond.
        6 => {
            input.below((length >> base.geometry.cluster_bits) + 4) << base.geometry.cluster_bits
                | u64::from(input.byte() & 1) << 63
        }
        _ => old.rotate_left(8 * u32::from(input.byte() % 8)),
    }
}

fn put(bytes: &mut [u8], at: u64, new: &[u8]) {
    let start = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    let len = new.len().min(bytes.len() - start);
    bytes[start..start + len].copy_from_slice(&new[..len]);
}
