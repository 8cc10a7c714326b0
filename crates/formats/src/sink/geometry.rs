//! Cylinders, heads and sectors of a disk, as the VHD specification (1.0, "Appendix: CHS Calculation") wants them.

use crate::vpc::CHS_MAX;

/// Of geometries with 63 sectors a track.
const SECTORS_OF_63_MAX: u64 = 65_535 * 16 * 63;
/// What a BIOS counts.
const CYLINDERS_MAX: u64 = 1024;
const HEADS_MIN: u64 = 4;
const HEADS_MAX: u64 = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) cylinders: u64,
    pub(crate) heads: u64,
    pub(crate) sectors: u64,
}

impl Geometry {
    pub(crate) const MAX: Self = Self { cylinders: 65_535, heads: 16, sectors: 255 };

    pub(crate) fn total(self) -> u64 {
        self.cylinders * self.heads * self.sectors
    }

    /// The largest geometry that the specification gives a disk of so many sectors: it may have less than those.
    fn of(total: u64) -> Self {
        let total = total.min(CHS_MAX);
        if total >= SECTORS_OF_63_MAX {
            return Self::with(total, HEADS_MAX, 255);
        }
        let heads = (total / 17).div_ceil(CYLINDERS_MAX).max(HEADS_MIN);
        if heads <= HEADS_MAX && total / 17 < heads * CYLINDERS_MAX {
            return Self::with(total, heads, 17);
        }
        match total / 31 < HEADS_MAX * CYLINDERS_MAX {
            true => Self::with(total, HEADS_MAX, 31),
            false => Self::with(total, HEADS_MAX, 63),
        }
    }

    fn with(total: u64, heads: u64, sectors: u64) -> Self {
        Self { cylinders: total / sectors / heads, heads, sectors }
    }

    /// The smallest one with at least so many sectors; the largest there is for more.
    pub(crate) fn holding(total: u64) -> Self {
        let total = total.min(CHS_MAX);
        if total == 0 {
            return Self::default();
        }
        // A cylinder more is always enough, and one has at most 16 * 255 sectors.
        let mut tried = (total..).map(Self::of);
        tried.find(|geometry| geometry.total() >= total).unwrap_or(Self::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// QEMU 10's images have these sizes.
    #[test]
    fn a_disk_is_rounded_up_to_a_geometry() {
        let table = [
            (0, (0, 0, 0)),
            (1, (1, 4, 17)),
            (2048, (31, 4, 17)),
            (20_480, (302, 4, 17)),
            (2_097_152, (2081, 16, 63)),
            (SECTORS_OF_63_MAX - 1008, (65_534, 16, 63)),
            (SECTORS_OF_63_MAX - 1, (16_191, 16, 255)),
            (SECTORS_OF_63_MAX, (16_191, 16, 255)),
            (CHS_MAX, (65_535, 16, 255)),
            (u64::MAX, (65_535, 16, 255)),
        ];
        for (total, (cylinders, heads, sectors)) in table {
            assert_eq!(Geometry::holding(total), Geometry { cylinders, heads, sectors }, "{total} sectors");
        }
    }
}
