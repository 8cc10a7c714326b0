//! Feature bits of a header, and the table that names them.

use std::fmt;

use crate::bytes::part;

/// Bytes of an entry of the feature name table: type, bit, name.
const NAME_ENTRY_BYTES: usize = 48;
/// Bytes of the name in it, padded with zeroes.
const NAME_BYTES: usize = 46;

macro_rules! feature_bits {
    ($(#[$doc:meta])* $name:ident { $($(#[$bit_doc:meta])* $bit_name:ident = $bit:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u64);

        impl $name {
            $($(#[$bit_doc])* pub const $bit_name: Self = Self(1 << $bit);)*
            const KNOWN: u64 = 0 $(| 1 << $bit)*;

            /// Whether all bits of `other` are set.
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Sets or clears all bits of `other`.
            pub fn set(&mut self, other: Self, on: bool) {
                self.0 = if on { self.0 | other.0 } else { self.0 & !other.0 };
            }

            /// Sets all bits of `other`.
            pub fn insert(&mut self, other: Self) {
                self.set(other, true);
            }

            /// Clears all bits of `other`.
            pub fn remove(&mut self, other: Self) {
                self.set(other, false);
            }

            /// The bits whose meaning is unknown here.
            #[inline]
            pub const fn unknown(self) -> Self {
                Self(self.0 & !Self::KNOWN)
            }

            /// Whether no bit is set.
            #[inline]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
    };
}

feature_bits! {
    /// Features without which an image must not be opened.
    Incompatible {
        /// Refcounts may be wrong; rebuild them before the first write.
        DIRTY = 0,
        /// Metadata was seen to be damaged; write only to repair.
        CORRUPT = 1,
        /// Guest data lives in another file.
        EXTERNAL_DATA = 2,
        /// The header names a compression type other than deflate.
        COMPRESSION = 3,
        /// L2 entries have 16 bytes and subclusters.
        EXTENDED_L2 = 4,
    }
}

feature_bits! {
    /// Features that may be ignored.
    Compatible {
        /// Refcounts may be postponed, with the dirty bit set meanwhile.
        LAZY_REFCOUNTS = 0,
        /// Cowhand's own, far from what QEMU numbers, which leaves it as it is: a writer with clusters in reserve was not closed,
        /// so there may be clusters that are counted and that nothing leads to.
        RESERVE = 63,
    }
}

feature_bits! {
    /// Features whose bit must be cleared by a writer that does not keep their promise.
    Autoclear {
        /// The bitmaps extension agrees with the data.
        BITMAPS = 0,
        /// The external data file can be read as a raw image.
        RAW_EXTERNAL_DATA = 1,
        /// Cowhand's own, far from what QEMU numbers: the record of changes is true ([`crate::RecordExtension`]). A program that does not know
        /// the bit clears it before the first write, and the record is stale from then on.
        BITMAP_RECORD = 63,
    }
}

/// Which set of feature bits a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureKind {
    /// [`Incompatible`]
    Incompatible,
    /// [`Compatible`]
    Compatible,
    /// [`Autoclear`]
    Autoclear,
}

impl FeatureKind {
    fn of(code: u8) -> Option<Self> {
        match code {
            0 => Some(FeatureKind::Incompatible),
            1 => Some(FeatureKind::Compatible),
            2 => Some(FeatureKind::Autoclear),
            _ => None,
        }
    }

    fn code(self) -> u8 {
        match self {
            FeatureKind::Incompatible => 0,
            FeatureKind::Compatible => 1,
            FeatureKind::Autoclear => 2,
        }
    }
}

/// An entry of the feature name table, for the messages of programs that do not know the bit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureName {
    /// Which set.
    pub kind: FeatureKind,
    /// Which bit of it, 0 to 63.
    pub bit: u8,
    /// At most 46 bytes are stored.
    pub name: String,
}

impl FeatureName {
    /// The table that new images carry: every bit known here.
    pub fn defaults() -> Vec<FeatureName> {
        use FeatureKind::{Autoclear, Compatible, Incompatible};
        [
            (Incompatible, 0, "dirty bit"),
            (Incompatible, 1, "corrupt bit"),
            (Incompatible, 2, "external data file"),
            (Incompatible, 3, "compression type"),
            (Incompatible, 4, "extended L2 entries"),
            (Compatible, 0, "lazy refcounts"),
            (Autoclear, 0, "bitmaps"),
            (Autoclear, 1, "raw external data"),
        ]
        .into_iter()
        .map(|(kind, bit, name)| FeatureName { kind, bit, name: name.to_owned() })
        .collect()
    }

    /// The names in a table; entries of unknown type are left out, a torn last entry too.
    pub(crate) fn decode_table(bytes: &[u8]) -> Vec<FeatureName> {
        bytes.as_chunks::<NAME_ENTRY_BYTES>().0.iter().filter_map(Self::decode).collect()
    }

    fn decode(entry: &[u8; NAME_ENTRY_BYTES]) -> Option<FeatureName> {
        let [kind, bit, name @ ..] = entry;
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        Some(FeatureName {
            kind: FeatureKind::of(*kind)?,
            bit: *bit,
            name: String::from_utf8_lossy(name).into_owned(),
        })
    }

    pub(crate) fn encode_table(names: &[FeatureName]) -> Vec<u8> {
        let mut out = Vec::with_capacity(names.len() * NAME_ENTRY_BYTES);
        for feature in names {
            let end = out.len() + NAME_ENTRY_BYTES;
            let mut ends = (0..=NAME_BYTES.min(feature.name.len())).rev();
            let stored = ends.find(|&end| feature.name.is_char_boundary(end)).unwrap_or(0);
            out.extend([feature.kind.code(), feature.bit]);
            out.extend(part(feature.name.as_bytes(), 0, stored).unwrap_or_default());
            out.resize(end, 0);
        }
        out
    }
}

/// Unknown incompatible bits, by the names that the image gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFeatures {
    /// The bits, lowest first, with the image's name for each, if it has one.
    pub features: Vec<(u8, Option<String>)>,
}

impl UnknownFeatures {
    pub(crate) fn of(bits: Incompatible, names: &[FeatureName]) -> Self {
        let name_of = |bit: u8| {
            let named = |name: &&FeatureName| name.kind == FeatureKind::Incompatible && name.bit == bit;
            names.iter().find(named).map(|name| name.name.clone())
        };
        let set = (0..64u8).filter(|bit| bits.0 >> bit & 1 != 0);
        Self { features: set.map(|bit| (bit, name_of(bit))).collect() }
    }
}

impl fmt::Display for UnknownFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (bit, name)) in self.features.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match name {
                Some(name) => write!(f, "{separator}{name:?} (bit {bit})")?,
                None => write!(f, "{separator}bit {bit}")?,
            }
        }
        Ok(())
    }
}
