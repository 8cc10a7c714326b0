//! Clusters whose refcounts are raised before anybody wants them.
//!
//! A commit raises them and writes their refcounts along with everything else. From the next commit
//! on an L2 entry may lead to them without waiting for a refcount (docs/write-order.md, "The reserve"). A
//! crash leaks what is in here; a clean close gives it back.

use std::collections::VecDeque;

use sync::Mutex;

use crate::Error;
use crate::allocator::Run;
use crate::image::Inner;

/// Clusters of one image that are counted but not used.
#[derive(Debug)]
pub(crate) struct Reserve {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    runs: VecDeque<Run>,
    /// Clusters in `runs`.
    len: u64,
    len_max: u64,
    /// Somebody asked for clusters since the reserve was filled up: an image in which nothing is
    /// allocated gets none.
    asked: bool,
}

impl Reserve {
    /// A reserve of `len_max` clusters; 0 is none.
    pub(crate) fn new(len_max: u64) -> Self {
        let state = State { runs: VecDeque::new(), len: 0, len_max, asked: false };
        Self { state: Mutex::new(state) }
    }

    /// Up to `wanted` consecutive clusters, if there are any.
    pub(crate) fn take(&self, wanted: u64) -> Option<Run> {
        let mut state = self.state.lock();
        state.asked = true;
        let first = state.runs.front_mut()?;
        let taken = Run { len: first.len.min(wanted), ..*first };
        if taken.len == first.len {
            state.runs.pop_front();
        } else {
            first.start += taken.len;
            first.len -= taken.len;
        }
        state.len -= taken.len;
        Some(taken)
    }

    /// How many clusters are to be put in now.
    fn missing(&self) -> u64 {
        let mut state = self.state.lock();
        match std::mem::take(&mut state.asked) {
            true => state.len_max.saturating_sub(state.len),
            false => 0,
        }
    }

    /// Puts clusters in; says whether they are still wanted.
    fn put(&self, run: Run) -> bool {
        let mut state = self.state.lock();
        if state.len_max == 0 {
            return false;
        }
        state.len += run.len;
        state.runs.push_back(run);
        true
    }

    /// The medium counts everything that is in here, and the file there has `clusters` clusters.
    pub(crate) fn settle(&self, clusters: u64) {
        let mut state = self.state.lock();
        state.runs.iter_mut().for_each(|run| run.settled = run.end() <= clusters);
    }

    /// Everything that is in here. With `for_good` there will never be anything again.
    fn take_all(&self, for_good: bool) -> VecDeque<Run> {
        let mut state = self.state.lock();
        if for_good {
            state.len_max = 0;
        }
        state.asked = false;
        state.len = 0;
        std::mem::take(&mut state.runs)
    }
}

impl Inner {
    /// Fills the reserve up, in memory. Only with clusters that are known to be free: a medium that has
    /// none left is no reason to fail, because whoever needs one will be told.
    pub(crate) async fn fill_reserve(&self) -> Result<(), Error> {
        let mut missing = self.reserve.missing();
        while missing > 0 {
            let Some(run) = self.allocator.lock().take(missing) else { return Ok(()) };
            let claimed = match self.claim(run).await {
                Ok(claimed) => claimed,
                // The format's limits; likewise.
                Err(Error::Invalid { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
            let Some(run) = claimed else { continue };
            self.make_room(run.end()).await;
            missing -= run.len;
            if !self.reserve.put(run) {
                self.give_back(run).await;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Gives the reserve back: `for_good` when the image is closed, otherwise because somebody needs more
    /// clusters in a row than are left. Says whether there was anything.
    pub(crate) async fn empty_reserve(&self, for_good: bool) -> bool {
        let runs = self.reserve.take_all(for_good);
        for run in &runs {
            self.give_back(*run).await;
        }
        !runs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_filled_only_after_somebody_asked_and_never_beyond_its_size() {
        let reserve = Reserve::new(4);
        assert_eq!((reserve.missing(), reserve.take(1), reserve.missing()), (0, None, 4));
        assert!(reserve.put(Run::used(10, 4)));
        assert_eq!(reserve.take(3), Some(Run::used(10, 3)));
        reserve.settle(14);
        assert_eq!(reserve.missing(), 3);
        assert_eq!(reserve.take(3), Some(Run { settled: true, ..Run::used(13, 1) }));
    }

    #[test]
    fn what_is_put_in_after_the_end_is_refused() {
        let reserve = Reserve::new(4);
        assert!(reserve.put(Run::used(10, 1)));
        assert_eq!(reserve.take_all(true), [Run::used(10, 1)]);
        assert!(!reserve.put(Run::used(11, 1)));
        assert_eq!(reserve.take(1), None);
    }
}
