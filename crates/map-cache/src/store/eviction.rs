//! Which slices leave, when there is no room for all.

use sync::Arc;

use super::{Residents, SLICES_MIN, Slice, Store, TURN_PART};
use crate::directory::SliceKey;
use crate::queue::Look;

impl Store {
    /// Slices that may leave without a write, more or less: it changes any moment.
    fn clean_count(&self, residents: &Residents) -> usize {
        residents.queue.len().saturating_sub(self.dirty_count())
    }

    /// Evicts slices until `more` bytes fit under this cache's own ceiling. `needed` stays: the request that
    /// waits for it would load it again and again.
    pub(super) fn make_room(&self, residents: &mut Residents, more: u64, needed: Option<SliceKey>) {
        let ceiling = self.bytes_max();
        while self.total(residents).saturating_add(more) > ceiling {
            let steps = residents.queue.len() * 2;
            let went = self.pack_clean(residents)
                || (self.clean_count(residents) > SLICES_MIN && self.evict(residents, steps, needed));
            if !went {
                if residents.queue.len() > SLICES_MIN {
                    self.crowd();
                }
                break;
            }
        }
    }

    /// Lets one slice leave that was not used lately, after at most `steps` looks.
    fn evict(&self, residents: &mut Residents, steps: usize, needed: Option<SliceKey>) -> bool {
        let look = |key| if needed == Some(key) { Look::Busy } else { self.look(key) };
        let now = residents.ghosts.now();
        let Some(slice) = residents.queue.evict(steps, now, look) else { return false };
        let slices = residents.queue.len();
        residents.ghosts.insert(slice.key(), slice.bytes(), slices);
        // It left the queue, and no task can modify it any more.
        self.directory.take_out(slice.key());
        residents.leave(&slice);
        residents.evictions += 1;
        true
    }

    fn look(&self, key: SliceKey) -> Look<Arc<Slice>> {
        let Some(slice) = self.find(key) else { return Look::Absent };
        if slice.take_visited() {
            return Look::Used;
        }
        match slice.plain() {
            Some(plain) if !plain.seal() => Look::Busy,
            _ => Look::Cold(slice),
        }
    }

    /// A turn of the budget's hand. Returns whether there is anything that could leave in the end.
    pub(crate) fn give_way(&self) -> bool {
        let mut residents = self.residents.lock();
        if self.pack_clean(&mut residents) {
            self.settle(&mut residents);
            return true;
        }
        if self.clean_count(&residents) <= SLICES_MIN {
            return false;
        }
        residents.owed += residents.queue.len();
        let steps = residents.owed / TURN_PART;
        residents.owed %= TURN_PART;
        self.evict(&mut residents, steps, None);
        // Also if nothing left: keys may have moved to a queue that grew for them.
        self.settle(&mut residents);
        true
    }
}
