//! One unit of a chain's map in 64 bits.
//!
//! Host offsets count in units, and layer and offset take no more bits than this chain needs: the words
//! of consecutive units of one file differ by one, and words of different layers lie close together,
//! so that a slice packs like one of an ordinary image.

use map_cache::{ColumnShape, Field, Packing};

/// Where one unit of the chain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitPlace {
    /// No layer knows of it. The number is that of the last layer asked.
    Nothing { layer: usize },
    /// The layer says that it reads as zeroes; no space is reserved for them.
    Zero { layer: usize },
    /// No layer above this one has anything, and a word cannot say what follows (a compressed cluster, a reserved one, a
    /// contradiction, a unit that the layer below covers in part or that lies below this map): the layer's own map can.
    Ask { layer: usize },
    /// Bytes of the layer, at so many units into its file.
    Data { layer: usize, unit: u64 },
}

/// Layers that a word can name.
pub(crate) const LAYERS_MAX: usize = 1 << 14;

/// Bits of a host offset at least: below them there must be room for the words that hold none.
const HOST_BITS_MIN: u32 = 17;
/// Bits of a host offset at most, so that a word has room for every layer.
const HOST_BITS_MAX: u32 = 48;

const NOTHING: u64 = 0;
const ZERO: u64 = 1;
const ASK: u64 = 2;

/// How words of one chain are laid out. Words without a host offset are numbers below
/// `1 << host_bits`; others are `(layer + 1) << host_bits | offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WordShape {
    host_bits: u32,
}

impl WordShape {
    /// A shape for host offsets below `host_end` units. Larger ones can be refused only.
    pub(crate) fn new(host_end: u64) -> Self {
        let host_bits = u64::BITS - host_end.leading_zeros();
        Self { host_bits: host_bits.clamp(HOST_BITS_MIN, HOST_BITS_MAX) }
    }

    /// What these words are like: the offset counts up, or layers take turns.
    pub(crate) fn packing(self) -> Packing {
        Packing::one(ColumnShape { fields: [Field::new(0, self.host_bits), Field::new(0, 64)] })
    }

    /// The word of a place; `None` if the offset has no room in it. Layers are below [`LAYERS_MAX`].
    pub(crate) fn encode(self, place: UnitPlace) -> Option<u64> {
        let plain = |kind: u64, layer: usize| kind | (layer as u64) << 2;
        Some(match place {
            UnitPlace::Nothing { layer } => plain(NOTHING, layer),
            UnitPlace::Zero { layer } => plain(ZERO, layer),
            UnitPlace::Ask { layer } => plain(ASK, layer),
            UnitPlace::Data { unit, .. } if unit >> self.host_bits != 0 => return None,
            UnitPlace::Data { layer, unit } => (layer as u64 + 1) << self.host_bits | unit,
        })
    }

    /// The place that a word stands for.
    #[inline]
    pub(crate) fn decode(self, word: u64) -> UnitPlace {
        let owner = word >> self.host_bits;
        if owner != 0 {
            return UnitPlace::Data { layer: (owner - 1) as usize, unit: word & ((1 << self.host_bits) - 1) };
        }
        let layer = (word >> 2) as usize;
        match word & 3 {
            NOTHING => UnitPlace::Nothing { layer },
            ZERO => UnitPlace::Zero { layer },
            _ => UnitPlace::Ask { layer },
        }
    }

    /// The word of the unit behind that of `word`, if it goes on in the same way.
    #[inline]
    pub(crate) fn next(self, word: u64) -> u64 {
        if word >> self.host_bits == 0 { word } else { word + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_survives_its_word() {
        for host_end in [0, 1, 5000, 1 << 30, 1 << 47, u64::MAX] {
            let shape = WordShape::new(host_end);
            for layer in [0, 1, 499, LAYERS_MAX - 1] {
                let unit = host_end.min((1 << HOST_BITS_MAX) - 1).saturating_sub(1);
                for place in [
                    UnitPlace::Nothing { layer },
                    UnitPlace::Zero { layer },
                    UnitPlace::Ask { layer },
                    UnitPlace::Data { layer, unit: 0 },
                    UnitPlace::Data { layer, unit },
                ] {
                    let word = shape.encode(place).unwrap();
                    assert_eq!(shape.decode(word), place, "{shape:?}");
                }
            }
        }
    }

    #[test]
    fn a_host_offset_without_room_is_refused() {
        let shape = WordShape::new(u64::MAX);
        assert_eq!(shape.encode(UnitPlace::Data { layer: 0, unit: 1 << HOST_BITS_MAX }), None);
    }

    #[test]
    fn consecutive_units_of_a_file_are_consecutive_words() {
        let shape = WordShape::new(1 << 20);
        let word = |unit| shape.encode(UnitPlace::Data { layer: 7, unit }).unwrap();
        assert_eq!(shape.next(word(9)), word(10));
        let nothing = shape.encode(UnitPlace::Nothing { layer: 7 }).unwrap();
        assert_eq!(shape.next(nothing), nothing);
    }
}
