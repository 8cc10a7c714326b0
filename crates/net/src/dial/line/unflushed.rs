//! Writes that a remote store acknowledged and no flush has made durable yet.
//!
//! A store that is lost and comes back may have lost them. They are kept to be written again before a flush may succeed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;

use super::ask::{Ask, Kind};

/// Most bytes of such writes that are kept: as many as an NBD server takes in one request. Then a flush is sent.
pub const KEPT_BYTES_MAX: u64 = 32 << 20;
/// What a write costs beside its bytes; also bounds how many there are.
const ENTRY_BYTES: u64 = 512;
/// So many bytes are repeated before the store is asked to keep them.
const PART_BYTES: u64 = 4 << 20;

/// The writes, in the order in which they were acknowledged.
#[derive(Debug)]
pub struct Unflushed<K> {
    mode: UnflushedMode,
    list: Mutex<List<K>>,
}

/// What is remembered of such writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnflushedMode {
    /// All of it: they are repeated.
    Keep,
    /// That there are some.
    Count,
    /// Nothing: no client asks for them to be durable.
    Forget,
}

#[derive(Debug)]
struct List<K> {
    kept: VecDeque<Ask<K>>,
    bytes: u64,
    /// How many have been acknowledged so far.
    acknowledged: u64,
    /// How many of those a flush has covered.
    flushed: u64,
    /// The store was lost with some of them, which no process can repeat.
    lost: bool,
}

fn bytes_of<K>(ask: &Ask<K>) -> u64 {
    ask.data.len() as u64 + ENTRY_BYTES
}

impl<K: Kind> Unflushed<K> {
    /// None so far.
    pub fn new(mode: UnflushedMode) -> Self {
        let list = List { kept: VecDeque::new(), bytes: 0, acknowledged: 0, flushed: 0, lost: false };
        Self { mode, list: Mutex::new(list) }
    }

    /// The store acknowledged `ask`, which writes.
    pub fn acknowledged(&self, ask: Ask<K>) {
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

    /// Writes again what is kept, over a store that came back: `send` carries out one of them, many at a time; of those that touch each other one after the
    /// other, in their order. What was replaced as a whole by what came later is left out. After each part of some MiB a flush makes durable what was sent:
    /// when the store is lost once more, that part is not sent again. A part whose flush fails stays kept.
    ///
    /// Costs a look at all that is kept, and a flush for each part.
    ///
    /// # Errors
    /// The first failure of `send`; what is under way then is dropped.
    pub async fn repeat<E>(&self, send: impl AsyncFn(&Ask<K>) -> Result<(), E>) -> Result<(), E> {
        let flush = Ask::flush().repeated();
        for Part { asks, mark, .. } in self.parts() {
            repeat_all(&asks, &send).await?;
            if send(&flush).await.is_ok() {
                self.flushed(mark);
            }
        }
        Ok(())
    }

    /// What is to be written again, in order.
    fn parts(&self) -> Vec<Part<K>> {
        let list = self.list.lock();
        let mut replaced = Replaced::default();
        let numbered = list.kept.iter().rev().zip((1..=list.acknowledged).rev());
        let kept: Vec<(&Ask<K>, u64)> = numbered.filter(|(ask, _)| replaced.lacks(ask)).collect();
        let mut parts = Vec::<Part<K>>::new();
        for (ask, mark) in kept.into_iter().rev() {
            let (bytes, again) = (bytes_of(ask), ask.clone().repeated());
            match parts.last_mut().filter(|part| part.bytes < PART_BYTES) {
                Some(part) => {
                    part.asks.push(again);
                    (part.mark, part.bytes) = (mark, part.bytes + bytes);
                }
                None => parts.push(Part { asks: vec![again], mark, bytes }),
            }
        }
        parts
    }
}

/// Some writes that are made durable together.
struct Part<K> {
    asks: Vec<Ask<K>>,
    /// What a flush after them covers.
    mark: u64,
    /// What they keep in memory.
    bytes: u64,
}

/// Ranges that were written later than what is looked at, by their start; they touch none of each other.
#[derive(Debug, Default)]
struct Replaced(BTreeMap<u64, u64>);

impl Replaced {
    /// Whether a part of `ask` is not replaced; what it replaces itself is, from then on.
    fn lacks<K: Kind>(&mut self, ask: &Ask<K>) -> bool {
        let (mut start, mut end) = (ask.offset, ask.end());
        let before = self.0.range(..=start).next_back();
        if before.is_some_and(|(_, before)| *before >= end) {
            return false;
        }
        while let Some((&from, &to)) = self.0.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(start, end);
        true
    }
}

/// Has `send` carry out `asks`, many at a time; of those that touch each other one after the other, in their order. The first failure drops what is under
/// way.
async fn repeat_all<K: Kind, E>(
    asks: &[Ask<K>],
    send: impl AsyncFn(&Ask<K>) -> Result<(), E>,
) -> Result<(), E> {
    /// More at a time would not be faster.
    const TOGETHER_MAX: usize = 64;
    let (mut under_way, mut ranges) = (FuturesUnordered::new(), BTreeMap::new());
    for (number, ask) in asks.iter().enumerate() {
        let range = ask.offset..ask.end();
        let touches = |other: &Range<u64>| range.start < other.end && other.start < range.end;
        while under_way.len() >= TOGETHER_MAX || ranges.values().any(touches) {
            let Some((done, sent)) = under_way.next().await else { break };
            ranges.remove(&done);
            sent?;
        }
        ranges.insert(number, range.clone());
        let send = &send;
        under_way.push(async move { (number, send(ask).await) });
    }
    while let Some((_, sent)) = under_way.next().await {
        sent?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use memory::IoBytes;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    enum What {
        Write,
        Flush,
    }

    impl Kind for What {
        const FLUSH: Self = Self::Flush;

        fn writes(&self) -> bool {
            *self == Self::Write
        }
    }

    /// The bytes that it brings say which one it is.
    type Write = Ask<What>;

    fn write(offset: u64, len: u64) -> Write {
        Ask::write(What::Write, offset, IoBytes::zeroed(len as usize).into())
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_sent_and_nothing_else() {
        let unflushed = Unflushed::new(UnflushedMode::Keep);
        unflushed.acknowledged(write(0, 512));
        let mark = unflushed.mark();
        unflushed.acknowledged(write(512, 512));
        unflushed.flushed(mark);
        assert_eq!(to_repeat(&unflushed), [(512, 512)]);
        unflushed.connection_lost();
        assert!(!unflushed.are_lost());
        unflushed.flushed(unflushed.mark());
        assert!(to_repeat(&unflushed).is_empty() && unflushed.list.lock().bytes == 0);
    }

    #[test]
    fn writes_that_are_not_kept_are_lost_with_the_connection() {
        let unflushed = Unflushed::new(UnflushedMode::Count);
        unflushed.acknowledged(write(0, 512));
        unflushed.flushed(unflushed.mark());
        unflushed.connection_lost();
        assert!(!unflushed.are_lost());
        unflushed.acknowledged(write(0, 512));
        assert!(to_repeat(&unflushed).is_empty());
        unflushed.connection_lost();
        assert!(unflushed.are_lost());
    }

    /// Where they begin, and their lengths.
    fn to_repeat(unflushed: &Unflushed<What>) -> Vec<(u64, u64)> {
        unflushed.parts().iter().flat_map(|part| shown(&part.asks)).collect()
    }

    fn shown(asks: &[Write]) -> Vec<(u64, u64)> {
        asks.iter().map(|ask| (ask.offset, ask.len)).collect()
    }

    fn keeping(asks: &[Write]) -> Unflushed<What> {
        let unflushed = Unflushed::new(UnflushedMode::Keep);
        asks.iter().for_each(|ask| unflushed.acknowledged(ask.clone()));
        unflushed
    }

    fn kept(asks: &[Write]) -> Vec<(u64, u64)> {
        to_repeat(&keeping(asks))
    }

    #[test]
    fn what_was_replaced_later_is_not_written_again() {
        let asks = [write(0, 512), write(512, 512), write(256, 512), write(0, 300), write(600, 400)];
        // The two around the middle have parts of their own; of the first one nothing is left.
        assert_eq!(kept(&asks), shown(&asks[1..]));
        assert_eq!(kept(&[write(0, 512), write(0, 256), write(256, 256)]).len(), 2);
        let again: Vec<Write> = (0..1000).map(|at| write(at % 10 * 512, 512)).collect();
        assert_eq!(kept(&again), shown(&again[990..]));
    }

    /// Numbers below their argument.
    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut seed = 1_u64;
        move |end| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % end
        }
    }

    const DISK_BYTES: usize = 108;

    /// Writes of random places of a small disk, and what they leave. Each keeps `payload` bytes, and one more than the one before.
    fn random_writes(below: &mut impl FnMut(u64) -> u64, count: u64, payload: u64) -> (Vec<Write>, Vec<u64>) {
        let zeroes = IoBytes::zeroed((payload + count) as usize);
        let mut random = |number| {
            let data = zeroes.slice(0, (payload + number) as usize).into();
            Write { data, ..Ask::new(What::Write, below(100), 1 + below(8)) }
        };
        let asks: Vec<Write> = (0..count).map(&mut random).collect();
        let mut expected = vec![0; DISK_BYTES];
        asks.iter().for_each(|ask| put(&mut expected, ask));
        (asks, expected)
    }

    fn put(disk: &mut [u64], ask: &Write) {
        disk[ask.offset as usize..ask.end() as usize].fill(ask.data.len() as u64);
    }

    /// Comes back that much later.
    async fn wait(times: u64) {
        for _ in 0..times {
            reactor::yield_now().await;
        }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        reactor::Reactor::new(reactor::Backend::Ring).unwrap().run(future)
    }

    /// With answers in another order, they leave what the last ones wrote.
    #[test]
    fn writes_are_repeated_many_at_a_time_and_those_of_one_place_in_order() {
        use std::cell::{Cell, RefCell};

        let mut below = numbers();
        let (asks, expected) = random_writes(&mut below, 500, 1);
        let (disk, at_work, most) = (RefCell::new(vec![0; DISK_BYTES]), Cell::new(0), Cell::new(0));
        let below = RefCell::new(below);
        let send = async |ask: &Write| {
            at_work.set(at_work.get() + 1);
            most.set(most.get().max(at_work.get()));
            let waits = below.borrow_mut()(5);
            wait(waits).await;
            put(&mut disk.borrow_mut(), ask);
            at_work.set(at_work.get() - 1);
            Ok::<(), ()>(())
        };
        let unflushed = keeping(&asks);
        run(unflushed.repeat(send)).unwrap();
        assert_eq!(*disk.borrow(), expected);
        assert!(most.get() > 1, "one at a time");
        assert_eq!(to_repeat(&unflushed), []);
    }

    /// A store that is lost again and again while writes are repeated never got to the end of them: each time they began anew.
    #[test]
    fn a_store_that_is_lost_while_writes_are_repeated_takes_the_rest_of_them_the_next_time() {
        use std::cell::{Cell, RefCell};

        let mut below = numbers();
        // Each write is a quarter of a part.
        let (asks, expected) = random_writes(&mut below, 64, PART_BYTES / 4);
        let unflushed = keeping(&asks);
        let (durable, cache) = (RefCell::new(vec![0; DISK_BYTES]), RefCell::new(vec![0; DISK_BYTES]));
        let (lives, below) = (Cell::new(0), RefCell::new(below));
        let repeated = loop {
            // So many requests and it is lost, with what it has not flushed.
            let left = Cell::new(6 + below.borrow_mut()(4));
            let live = || (left.get() > 0).then(|| left.set(left.get() - 1)).ok_or(());
            cache.borrow_mut().clone_from(&durable.borrow());
            let send = async |ask: &Write| {
                live()?;
                match ask.kind {
                    What::Write => put(&mut cache.borrow_mut(), ask),
                    What::Flush => durable.borrow_mut().clone_from(&cache.borrow()),
                }
                Ok(())
            };
            lives.set(lives.get() + 1);
            let repeated: Result<(), ()> = run(unflushed.repeat(send));
            if repeated.is_ok() || lives.get() > 64 {
                break repeated;
            }
        };
        repeated.unwrap();
        assert!(lives.get() > 2, "it was not lost");
        assert_eq!(*cache.borrow(), expected);
    }

    #[test]
    fn what_a_failed_flush_leaves_is_repeated_again() {
        let asks = [write(0, 512), write(512, 512)];
        let unflushed = keeping(&asks);
        run(unflushed.repeat(async |ask: &Write| if ask.kind == What::Flush { Err(()) } else { Ok(()) }))
            .unwrap();
        assert_eq!(to_repeat(&unflushed), shown(&asks));
    }

    #[test]
    fn many_small_writes_fill_the_room_too() {
        let unflushed = Unflushed::new(UnflushedMode::Keep);
        let zero = Ask::new(What::Write, 0, 1);
        let taken =
            (0..1 << 20).take_while(|_| !unflushed.is_full()).map(|_| unflushed.acknowledged(zero.clone()));
        assert_eq!(taken.count() as u64, KEPT_BYTES_MAX / ENTRY_BYTES);
    }
}
