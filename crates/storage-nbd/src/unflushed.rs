//! Writes that the server acknowledged and no flush has made durable yet.
//!
//! A server that comes back may have lost them with its machine. They are kept to be written again before a flush may succeed.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::ask::{Ask, What};

/// Most bytes of such writes that are kept: as many as a server takes in one request. Then a flush is sent.
pub(crate) const KEPT_BYTES_MAX: u64 = 32 << 20;
/// What a write costs beside its bytes; also bounds how many there are.
const ENTRY_BYTES: u64 = 512;

/// The writes, in the order in which they were acknowledged.
#[derive(Debug)]
pub(crate) struct Unflushed {
    mode: Mode,
    list: Mutex<List>,
}

/// What is remembered of such writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All of it: they are repeated.
    Keep,
    /// That there are some.
    Count,
    /// Nothing: nobody asks for them to be durable.
    Forget,
}

#[derive(Debug, Default)]
struct List {
    kept: VecDeque<Ask>,
    bytes: u64,
    /// How many have been acknowledged so far.
    acknowledged: u64,
    /// How many of those a flush has covered.
    flushed: u64,
    /// A connection was lost with some of them, which nobody can repeat.
    lost: bool,
}

fn bytes_of(ask: &Ask) -> u64 {
    let payload = match &ask.what {
        What::Write(data) => data.len() as u64,
        _ => 0,
    };
    payload + ENTRY_BYTES
}

impl Unflushed {
    pub(crate) fn new(mode: Mode) -> Self {
        Self { mode, list: Mutex::default() }
    }

    /// The server acknowledged `ask`.
    pub(crate) fn acknowledged(&self, ask: Ask) {
        if self.mode == Mode::Forget {
            return;
        }
        let mut list = self.list.lock();
        list.acknowledged += 1;
        if self.mode == Mode::Keep {
            list.bytes += bytes_of(&ask);
            list.kept.push_back(ask);
        }
    }

    /// What a flush that is sent now will cover.
    pub(crate) fn mark(&self) -> u64 {
        self.list.lock().acknowledged
    }

    /// A flush that was sent at `mark` has succeeded.
    pub(crate) fn flushed(&self, mark: u64) {
        let mut list = self.list.lock();
        while list.flushed < mark {
            list.flushed += 1;
            if let Some(ask) = list.kept.pop_front() {
                list.bytes -= bytes_of(&ask);
            }
        }
    }

    /// Whether a flush is due before more is written.
    pub(crate) fn is_full(&self) -> bool {
        self.list.lock().bytes >= KEPT_BYTES_MAX
    }

    /// The connection is lost: the server may come back without them.
    pub(crate) fn connection_lost(&self) {
        let mut list = self.list.lock();
        list.lost |= self.mode == Mode::Count && list.flushed < list.acknowledged;
    }

    /// Whether some are gone that cannot be repeated.
    pub(crate) fn are_lost(&self) -> bool {
        self.list.lock().lost
    }

    /// What is to be written again, in order.
    pub(crate) fn kept(&self) -> Vec<Ask> {
        let repeat = |ask: &Ask| Ask { is_repeat: true, ..ask.clone() };
        self.list.lock().kept.iter().map(repeat).collect()
    }
}

/// How many of the first of `asks` touch none of each other: they may be on their way at the same time.
pub(crate) fn disjoint(asks: &[Ask]) -> usize {
    /// More at a time would not be faster.
    const TOGETHER_MAX: usize = 64;
    let overlaps = |a: &Ask, b: &Ask| a.offset < b.end() && b.offset < a.end();
    let together = asks.len().min(TOGETHER_MAX);
    let touches_earlier = |at: &usize| {
        let (earlier, rest) = asks.split_at(*at);
        rest.first().is_some_and(|ask| earlier.iter().any(|other| overlaps(ask, other)))
    };
    (1..together).find(touches_earlier).unwrap_or(together)
}

#[cfg(test)]
mod tests {
    use buffer::IoBytes;

    use super::*;

    fn write(offset: u64, len: usize) -> Ask {
        Ask::new(What::Write(IoBytes::zeroed(len).into()), offset, len as u64)
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_sent_and_nothing_else() {
        let unflushed = Unflushed::new(Mode::Keep);
        unflushed.acknowledged(write(0, 512));
        let mark = unflushed.mark();
        unflushed.acknowledged(write(512, 512));
        unflushed.flushed(mark);
        assert_eq!(unflushed.kept().iter().map(|ask| ask.offset).collect::<Vec<_>>(), [512]);
        unflushed.connection_lost();
        assert!(!unflushed.are_lost());
        unflushed.flushed(unflushed.mark());
        assert!(unflushed.kept().is_empty() && unflushed.list.lock().bytes == 0);
    }

    #[test]
    fn writes_that_are_not_kept_are_lost_with_the_connection() {
        let unflushed = Unflushed::new(Mode::Count);
        unflushed.acknowledged(write(0, 512));
        unflushed.flushed(unflushed.mark());
        unflushed.connection_lost();
        assert!(!unflushed.are_lost());
        unflushed.acknowledged(write(0, 512));
        assert!(unflushed.kept().is_empty());
        unflushed.connection_lost();
        assert!(unflushed.are_lost());
    }

    #[test]
    fn writes_of_one_place_are_repeated_one_after_the_other() {
        let asks = [write(0, 512), write(512, 512), write(100, 10), write(4096, 1)];
        assert_eq!(disjoint(&asks), 2);
        assert_eq!(disjoint(&asks[2..]), 2);
        assert_eq!((disjoint(&asks[..1]), disjoint(&[])), (1, 0));
        let many: Vec<Ask> = (0..1000).map(|at| write(at * 512, 512)).collect();
        assert_eq!(disjoint(&many), 64);
    }

    #[test]
    fn many_small_writes_fill_the_room_too() {
        let unflushed = Unflushed::new(Mode::Keep);
        let zero = Ask::new(What::Zero(nbd_wire::CommandFlags::NONE), 0, 1);
        let taken =
            (0..1 << 20).take_while(|_| !unflushed.is_full()).map(|_| unflushed.acknowledged(zero.clone()));
        assert_eq!(taken.count() as u64, KEPT_BYTES_MAX / ENTRY_BYTES);
    }
}
