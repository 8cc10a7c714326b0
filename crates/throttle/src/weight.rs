//! How much of a group a member gets.

use crate::LimitsError;

/// A member's weight: while two members of a group wait, they are served in proportion to their
/// weights. 1 to 10000, 100 unless set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u16);

impl Weight {
    /// The smallest weight.
    pub const MIN: Self = Self(1);
    /// The largest weight; cgroup's `io.weight` has the same range.
    pub const MAX: Self = Self(10_000);

    /// A weight, if it is one of 1 to 10000.
    pub fn new(weight: u64) -> Result<Self, LimitsError> {
        u16::try_from(weight)
            .ok()
            .map(Self)
            .filter(|weight| (Self::MIN..=Self::MAX).contains(weight))
            .ok_or(LimitsError::Weight { found: weight })
    }

    /// The number, 1 to 10000.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(100)
    }
}
