//! How many other slices were used since the last use of a slice: an LRU cache of more slices than that would
//! have kept it. One pass has the answer for every cache size.

use std::collections::HashMap;

/// Where a slice is found whose last use is further back than counts.
const FAR: u32 = u32::MAX;

/// When a slice was used last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Never.
    Never,
    /// So many slices ago, itself included: the one that was used just now is 1.
    Ago(usize),
    /// More slices ago than counts.
    Far,
}

/// The order of uses.
#[derive(Debug)]
pub struct Recency {
    /// Slices further back than this are not distinguished.
    depth: usize,
    /// The moment of the last use, or [`FAR`].
    last: HashMap<u64, u32>,
    /// 1 at each moment that is some slice's last use, as a tree of partial sums.
    sums: Vec<u32>,
    now: u32,
    live: usize,
}

impl Recency {
    /// Distinguishes slices up to `depth` back (at most 2^28). Takes 8 bytes for each of them, and 16 or so
    /// for each slice there is.
    pub fn new(depth: usize) -> Self {
        let depth = depth.clamp(1, 1 << 28);
        Self { depth, last: HashMap::new(), sums: vec![0; 2 * depth + 1024], now: 0, live: 0 }
    }

    /// Slices that were ever used.
    pub fn slices(&self) -> usize {
        self.last.len()
    }

    /// Uses a slice, and says when it was used last.
    pub fn use_now(&mut self, slice: u64) -> Last {
        // Moments are 1 to the length of the tree less 1.
        if self.now as usize + 1 == self.sums.len() {
            self.renumber();
        }
        self.now += 1;
        let found = match self.last.insert(slice, self.now) {
            None => Last::Never,
            Some(FAR) => Last::Far,
            Some(before) => {
                let ago = self.live - self.used_before(before);
                self.add(before, false);
                if ago > self.depth { Last::Far } else { Last::Ago(ago) }
            }
        };
        self.add(self.now, true);
        found
    }

    fn add(&mut self, moment: u32, last: bool) {
        self.live = if last { self.live + 1 } else { self.live - 1 };
        let mut at = moment as usize;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum = if last { *sum + 1 } else { *sum - 1 };
            at += at & at.wrapping_neg();
        }
    }

    /// Last uses before `moment`.
    fn used_before(&self, moment: u32) -> usize {
        let (mut at, mut sum) = (moment as usize - 1, 0);
        while at > 0 {
            sum += self.sums.get(at).map_or(0, |&part| part as usize);
            at &= at - 1;
        }
        sum
    }

    /// Numbers the moments anew that still count, from 1 on.
    fn renumber(&mut self) {
        let mut moments: Vec<u32> = self.last.values().copied().filter(|&moment| moment != FAR).collect();
        moments.sort_unstable();
        let counting = moments.split_off(moments.len().saturating_sub(self.depth));
        for moment in self.last.values_mut().filter(|moment| **moment != FAR) {
            *moment = counting.binary_search(moment).map_or(FAR, |at| at as u32 + 1);
        }
        self.sums.fill(0);
        (self.live, self.now) = (0, counting.len() as u32);
        (1..=self.now).for_each(|moment| self.add(moment, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_a_list_in_order_of_use_says() {
        const DEPTH: usize = 50;
        let (mut recency, mut list) = (Recency::new(DEPTH), Vec::<u64>::new());
        let mut random = 7_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let slice = (random >> 40) % 20 * ((random >> 33) % 8);
            let place = list.iter().rposition(|&other| other == slice);
            let expected = match place.map(|place| list.len() - place) {
                None => Last::Never,
                Some(ago) if ago > DEPTH => Last::Far,
                Some(ago) => Last::Ago(ago),
            };
            place.map(|place| list.remove(place));
            list.push(slice);
            assert_eq!(recency.use_now(slice), expected);
        }
        assert_eq!(recency.slices(), list.len());
        assert!(list.len() > DEPTH, "some are further back than counts");
    }
}
