//! Which bytes of a read have arrived: each must, once.

use std::ops::Range;

/// Most separate pieces of one read that are held in mind: servers send holes and data in order, so that there is one.
const PIECES_MAX: usize = 1024;

/// The ranges that arrived, in order, none touching another.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    pieces: Vec<Range<u64>>,
}

impl Coverage {
    /// Notes that `range` arrives; false if it is empty, a part of it did before, or there are too many pieces.
    pub(crate) fn add(&mut self, range: Range<u64>) -> bool {
        let at = self.pieces.partition_point(|piece| piece.end <= range.start);
        let is_free = self.pieces.get(at).is_none_or(|next| range.end <= next.start);
        if range.is_empty() || !is_free || self.pieces.len() == PIECES_MAX {
            return false;
        }
        self.pieces.insert(at, range);
        self.join(at);
        if at > 0 {
            self.join(at - 1);
        }
        true
    }

    /// Makes one piece of two that touch.
    fn join(&mut self, at: usize) {
        if let Some([piece, next]) = self.pieces.get_mut(at..at + 2)
            && piece.end == next.start
        {
            piece.end = next.end;
            self.pieces.remove(at + 1);
        }
    }

    /// Whether all of `len` bytes have arrived.
    pub(crate) fn is_whole(&self, len: u64) -> bool {
        len == 0 || matches!(self.pieces.as_slice(), [only] if *only == (0..len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a read that no chunk brought would show what the buffer held before: another guest's data.
    #[test]
    fn a_read_is_whole_when_each_byte_arrived_once() {
        let orders: [&[Range<u64>]; 4] =
            [&[0..4, 4..8], &[4..8, 0..4], &[0..2, 6..8, 2..6], &[2..4, 6..8, 4..6, 0..2]];
        for order in orders {
            let mut coverage = Coverage::default();
            for (at, range) in order.iter().enumerate() {
                assert!(!coverage.is_whole(8), "{order:?}");
                assert!(coverage.add(range.clone()), "{order:?} at {at}");
                assert!(!coverage.add(range.clone()), "{order:?} twice");
            }
            assert!(coverage.is_whole(8), "{order:?}: {coverage:?}");
        }
        for wrong in [[0..4, 3..8], [4..8, 0..5], [0..4, 1..2], [2..3, 0..8]] {
            let mut coverage = Coverage::default();
            let [first, second] = wrong.clone();
            assert!(coverage.add(first) && !coverage.add(second), "{wrong:?}");
        }
        let mut coverage = Coverage::default();
        let added = (0..10_000).take_while(|at| coverage.add(at * 2..at * 2 + 1)).count();
        assert_eq!(added, PIECES_MAX);
    }
}
