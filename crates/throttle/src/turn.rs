//! Whose turn it is, of reads and writes.

use crate::Direction;

/// Keeps two directions that wait for the same thing level: the one that has got less goes next.
/// Only what is served while both wait counts, so the balance never exceeds one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    /// What reads have got more than writes.
    reads_ahead: i128,
}

impl Turn {
    /// The direction to serve while both wait.
    pub(crate) fn next(&self) -> Direction {
        if self.reads_ahead <= 0 { Direction::Read } else { Direction::Write }
    }

    /// `direction` was served for `price` while both waited.
    pub(crate) fn served(&mut self, direction: Direction, price: u128) {
        let price = i128::try_from(price).unwrap_or(i128::MAX);
        self.reads_ahead = match direction {
            Direction::Read => self.reads_ahead.saturating_add(price),
            Direction::Write => self.reads_ahead.saturating_sub(price),
        };
    }
}
