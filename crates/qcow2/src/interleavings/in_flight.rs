//! Ranges in flight: one owner each.

use std::ops::Range;
use std::sync::Arc;

use futures_util::FutureExt;
use sync::atomic::{AtomicBool, Ordering::SeqCst};
use sync::explore::{block_on, explore, pause, thread};

use crate::in_flight::InFlight;

#[derive(Default)]
struct Ranges {
    in_flight: InFlight,
    owned: [AtomicBool; 4],
}

impl Ranges {
    fn own(&self, range: Range<u64>) {
        let _owned = block_on(self.in_flight.own(range.clone()));
        let places = &self.owned[range.start as usize..range.end as usize];
        for place in places {
            assert!(!place.swap(true, SeqCst), "two owners in {range:?}");
        }
        pause();
        places.iter().for_each(|place| place.store(false, SeqCst));
    }

    /// Asks, and is gone before the answer.
    fn give_up(&self, range: Range<u64>) {
        let mut asking = Box::pin(self.in_flight.own(range));
        drop(asking.as_mut().now_or_never());
        pause();
    }
}

fn together(threads: impl IntoIterator<Item = fn(&Ranges)>) {
    let ranges = Arc::new(Ranges::default());
    let start = |body: fn(&Ranges)| {
        let ranges = Arc::clone(&ranges);
        thread::spawn(move || body(&ranges))
    };
    let threads: Vec<_> = threads.into_iter().map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_range_has_one_owner_and_everybody_gets_a_turn() {
    explore(|| {
        let low = |ranges: &Ranges| (0..2).for_each(|_| ranges.own(0..2));
        let middle = |ranges: &Ranges| (0..2).for_each(|_| ranges.own(1..3));
        let high = |ranges: &Ranges| (0..2).for_each(|_| ranges.own(2..4));
        let all = |ranges: &Ranges| ranges.own(0..4);
        together([low as fn(&Ranges), middle, high, all]);
    });
}

#[test]
fn those_who_give_up_waiting_stand_in_nobodys_way() {
    explore(|| {
        let owner = |ranges: &Ranges| (0..2).for_each(|_| ranges.own(0..3));
        let fickle = |ranges: &Ranges| (0..2).for_each(|_| ranges.give_up(1..4));
        let other = |ranges: &Ranges| ranges.own(2..4);
        together([owner as fn(&Ranges), fickle, other]);
    });
}
