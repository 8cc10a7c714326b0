//! Writes that a remote store acknowledged and no flush has made durable yet.
//!
//! A store that is lost and comes back may have lost them. They are kept to be written again before a flush may succeed.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Most bytes of such writes that are kept: as many as an NBD server takes in one request. Then a flush is sent.
pub const KEPT_BYTES_MAX: u64 = 32 << 20;
/// What a write costs beside its bytes; also bounds how many there are.
const ENTRY_BYTES: u64 = 512;

/// A change of a range that can be carried out again.
pub trait Repeatable: Clone {
    /// Its first byte.
    fn offset(&self) -> u64;

    /// The byte after its last one.
    fn end(&self) -> u64;

    /// Bytes in memory that it keeps.
    fn payload_bytes(&self) -> u64;
}

/// The writes, in the order in which they were acknowledged.
#[derive(Debug)]
pub struct Unflushed<A> {
    mode: UnflushedMode,
    list: Mutex<List<A>>,
}

/// What is remembered of such writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnflushedMode {
    /// All of it: they are repeated.
    Keep,
    /// That there are some.
    Count,
    /// Nothing: nobody asks for them to be durable.
    Forget,
}

#[derive(Debug)]
struct List<A> {
    kept: VecDeque<A>,
    bytes: u64,
    /// How many have been acknowledged so far.
    acknowledged: u64,
    /// How many of those a flush has covered.
    flushed: u64,
    /// The store was lost with some of them, which nobody can repeat.
    lost: bool,
}

fn bytes_of(ask: &impl Repeatable) -> u64 {
    ask.payload_bytes() + ENTRY_BYTES
}

impl<A: Repeatable> Unflushed<A> {
    /// None so far.
    pub fn new(mode: UnflushedMode) -> Self {
        let list = List { kept: VecDeque::new(), bytes: 0, acknowledged: 0, flushed: 0, lost: false };
        Self { mode, list: Mutex::new(list) }
    }

    /// The store acknowledged `ask`.
    pub fn acknowledged(&self, ask: A) {
        if self.mode == UnflushedMode::Forget {
            return;
        }
        let mut list = self.list.lock();
        list.acknowledged += 1;
        if self.mode == UnflushedMode::Keep {
            list.bytes += bytes_of(&ask);
            list.kept.push_back(ask);
        }
    }

    /// What a flush that is sent now will cover.
    pub fn mark(&self) -> u64 {
        self.list.lock().acknowledged
    }

    /// A flush that was sent at `mark` has succeeded.
    pub fn flushed(&self, mark: u64) {
        let mut list = self.list.lock();
        while list.flushed < mark {
            list.flushed += 1;
            if let Some(ask) = list.kept.pop_front() {
                list.bytes -= bytes_of(&ask);
            }
        }
    }

    /// Whether a flush is due before more is written.
    pub fn is_full(&self) -> bool {
        self.list.lock().bytes >= KEPT_BYTES_MAX
    }

    /// The store is lost: it may come back without them.
    pub fn connection_lost(&self) {
        let mut list = self.list.lock();
        list.lost |= self.mode == UnflushedMode::Count && list.flushed < list.acknowledged;
    }

    /// Whether some are gone that cannot be repeated.
    pub fn are_lost(&self) -> bool {
        self.list.lock().lost
    }

    /// What is to be written again, in order.
    pub fn kept(&self) -> Vec<A> {
        self.list.lock().kept.iter().cloned().collect()
    }
}

/// How many of the first of `asks` touch none of each other: they may be on their way at the same time.
pub fn disjoint(asks: &[impl Repeatable]) -> usize {
    /// More at a time would not be faster.
    const TOGETHER_MAX: usize = 64;
    let together = asks.len().min(TOGETHER_MAX);
    let touches_earlier = |at: &usize| {
        let (earlier, rest) = asks.split_at(*at);
        rest.first().is_some_and(|ask| earlier.iter().any(|other| overlap(ask, other)))
    };
    (1..together).find(touches_earlier).unwrap_or(together)
}

fn overlap(a: &impl Repeatable, b: &impl Repeatable) -> bool {
    a.offset() < b.end() && b.offset() < a.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Write {
        offset: u64,
        len: u64,
        payload: u64,
    }

    impl Repeatable for Write {
        fn offset(&self) -> u64 {
            self.offset
        }

        fn end(&self) -> u64 {
            self.offset + self.len
        }

        fn payload_bytes(&self) -> u64 {
            self.payload
        }
    }

    fn write(offset: u64, len: u64) -> Write {
        Write { offset, len, payload: len }
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_sent_and_nothing_else() {
        let unflushed = Unflushed::new(UnflushedMode::Keep);
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
        let unflushed = Unflushed::new(UnflushedMode::Count);
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
        assert_eq!((disjoint(&asks[..1]), disjoint(&asks[..0])), (1, 0));
        let many: Vec<Write> = (0..1000).map(|at| write(at * 512, 512)).collect();
        assert_eq!(disjoint(&many), 64);
    }

    #[test]
    fn many_small_writes_fill_the_room_too() {
        let unflushed = Unflushed::new(UnflushedMode::Keep);
        let zero = Write { offset: 0, len: 1, payload: 0 };
        let taken =
            (0..1 << 20).take_while(|_| !unflushed.is_full()).map(|_| unflushed.acknowledged(zero.clone()));
        assert_eq!(taken.count() as u64, KEPT_BYTES_MAX / ENTRY_BYTES);
    }
}
