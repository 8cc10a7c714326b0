//! Who leaves when room is needed: the clock algorithm over all resident slices.

use crate::slice::Slice;
use sync::Arc;

/// A circle of resident slices and a hand. A slice touched since the hand passed gets another round.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    circle: Vec<Arc<Slice>>,
    hand: usize,
}

impl Clock {
    pub(crate) fn len(&self) -> usize {
        self.circle.len()
    }

    pub(crate) fn insert(&mut self, slice: Arc<Slice>) {
        // Directly behind the hand: the newcomer is looked at last, after a whole round.
        let at = self.hand.min(self.circle.len());
        self.circle.push(slice);
        let last = self.circle.len() - 1;
        self.circle.swap(at, last);
        self.hand = at + 1;
    }

    /// Takes out one clean slice that was not touched lately; `None` if all are dirty.
    pub(crate) fn evict(&mut self) -> Option<Arc<Slice>> {
        // Two rounds: the first may only clear the visited marks.
        for _ in 0..self.circle.len() * 2 {
            if self.hand >= self.circle.len() {
                self.hand = 0;
            }
            let slice = self.circle.get(self.hand)?;
            if !slice.take_visited() && slice.evict() {
                return Some(self.circle.swap_remove(self.hand));
            }
            self.hand += 1;
        }
        None
    }

    /// Takes out every clean slice that `unwanted` names.
    pub(crate) fn retain(&mut self, mut unwanted: impl FnMut(&Slice) -> bool) -> Vec<Arc<Slice>> {
        let mut gone = Vec::new();
        let mut at = 0;
        while let Some(slice) = self.circle.get(at) {
            if unwanted(slice) && slice.evict() {
                gone.push(self.circle.swap_remove(at));
            } else {
                at += 1;
            }
        }
        gone
    }
}
