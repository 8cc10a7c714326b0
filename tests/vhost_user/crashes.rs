//! The daemon is killed in mid-load, and started again: the guest sees a pause, no error and no loss.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use black_box::peer::{assert_leaks_at_most, converted};
use black_box::vhost_user::{Ask, FrontEnd, Machine, PATIENCE, SLOTS, Ways};
use black_box::{Random, Server};

use super::{Place, pattern};

pub(crate) const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;

/// A guest that writes blocks at random places, each slot one at a time, and knows what it wrote.
pub(crate) struct Guest {
    pub(crate) machine: Machine,
    ways: Ways,
    random: Random,
    /// What each slot of each queue is about, while it is in flight: block and seed; `None` is a flush.
    in_flight: BTreeMap<(u16, u16), Option<(u64, u64)>>,
    /// The last acknowledged seed of each block, and those sent since.
    pub(crate) blocks: BTreeMap<u64, u64>,
    pub(crate) acknowledged: u64,
}

impl Guest {
    pub(crate) fn new(ways: Ways, seed: u64) -> Self {
        let (machine, random) = (Machine::new(ways), Random::new(seed));
        Self { machine, ways, random, in_flight: BTreeMap::new(), blocks: BTreeMap::new(), acknowledged: 0 }
    }

    /// Fills free slots. No block is written twice at a time: the order of two such writes is undefined.
    fn fill(&mut self) {
        for queue in 0..self.ways.queues {
            let mut any = false;
            for slot in 0..SLOTS / 2 {
                if self.in_flight.contains_key(&(queue, slot)) {
                    continue;
                }
                any = true;
                if self.ways.flush && self.random.below(64) == 0 {
                    self.machine.submit(queue, slot, &Ask::Flush);
                    self.in_flight.insert((queue, slot), None);
                    continue;
                }
                let block = loop {
                    let block = self.random.below(BLOCKS);
                    if !self.in_flight.values().flatten().any(|(other, _)| *other == block) {
                        break block;
                    }
                };
                let seed = self.random.next_u64();
                let ask = pattern(seed, BLOCK);
                self.machine.submit(queue, slot, &Ask::Write(block * 8, &ask));
                self.in_flight.insert((queue, slot), Some((block, seed)));
            }
            if any {
                self.machine.kick(queue);
            }
        }
    }

    /// Takes what was answered; each answer is to a request in flight, and is no error.
    fn take(&mut self) -> usize {
        let mut taken = 0;
        for queue in 0..self.ways.queues {
            for done in self.machine.completed(queue) {
                assert_eq!(done.status, 0, "a guest sees an error");
                let what = self.in_flight.remove(&(queue, done.slot)).expect("an answer nobody waits for");
                if let Some((block, seed)) = what {
                    self.blocks.insert(block, seed);
                }
                taken += 1;
            }
        }
        self.acknowledged += taken as u64;
        taken
    }

    /// Works until so many are answered.
    pub(crate) fn work(&mut self, until: u64) {
        while self.acknowledged < until {
            self.fill();
            while self.take() == 0 {
                self.machine.called(0, Duration::from_millis(2));
            }
        }
    }

    pub(crate) fn finish(&mut self) {
        let start = std::time::Instant::now();
        while !self.in_flight.is_empty() {
            self.take();
            assert!(start.elapsed() < PATIENCE, "never answered: {:?}", self.in_flight);
            self.machine.called(0, Duration::from_millis(2));
        }
    }
}

fn restart(server: Server, place: &Place, options: &str) -> Server {
    server.kill();
    place.serve(options, &["--threads", "2"])
}

/// Front-ends with records in shared memory, and those that know only the used ring.
#[test]
fn requests_in_flight_at_kill_9_are_answered_once_after_a_restart() {
    for (ways, options) in [
        (Ways { queues: 3, ..Ways::default() }, ""),
        (Ways { queues: 2, inflight: false, ..Ways::default() }, ",cache=none"),
        (Ways { queues: 2, packed: true, ..Ways::default() }, ""),
        (
            Ways { queues: 1, packed: true, indirect: false, event_index: false, ..Ways::default() },
            ",cache=none",
        ),
    ] {
        let place = Place::new();
        let mut server = place.serve(options, &["--threads", "2"]);
        let mut guest = Guest::new(ways, 11);
        let mut repeated = 0;
        for round in 1..=8 {
            let front = FrontEnd::start(&place.socket, &mut guest.machine);
            let more = guest.random.between(1, 300);
            guest.work(guest.acknowledged + more);
            guest.fill();
            server = restart(server, &place, options);
            guest.take();
            repeated += guest.in_flight.len();
            drop(front);
            assert!(round < 8 || repeated > 0, "nothing was in flight");
        }
        let front = FrontEnd::start(&place.socket, &mut guest.machine);
        guest.finish();
        if ways.flush {
            guest.machine.ok(0, &Ask::Flush);
        }
        drop(front);
        server.stop();
        let raw = converted(&place.disk, "qcow2", &[], &place.scratch.file("raw"));
        assert!(guest.blocks.len() > 200);
        for (block, seed) in &guest.blocks {
            let at = *block as usize * BLOCK;
            assert!(
                raw[at..at + BLOCK] == pattern(*seed, BLOCK),
                "{ways:?}: block {block} is not what was written"
            );
        }
    }
}

/// A guest that turned the write cache off, cannot flush, or whose disk is written through: every write that was answered is there after
/// kill -9. The last daemon is not started again, so that nothing repeats what was lost.
#[test]
fn without_a_write_cache_every_answered_write_survives_kill_9() {
    let no_flush = Ways { queues: 2, flush: false, ..Ways::default() };
    for (ways, options, cache) in [
        (Ways::default(), "", Some(false)),
        (no_flush, "", None),
        (Ways::default(), ",cache=writethrough", None),
    ] {
        for seed in 0..2 {
            let place = Place::new();
            let server = place.serve(options, &["--threads", "2"]);
            let mut guest = Guest::new(ways, seed);
            let mut front = FrontEnd::start(&place.socket, &mut guest.machine);
            if let Some(on) = cache {
                assert_eq!(front.set_cache(on), 0);
                assert_eq!(front.config(32, 1), [u8::from(on)]);
            }
            let more = guest.random.between(100, 500);
            guest.work(more);
            server.kill();
            guest.take();
            let sent: Vec<_> = guest.in_flight.values().flatten().copied().collect();
            assert_kept(&place, &guest.blocks, &sent);
        }
    }
}

/// A guest goes on when the daemon is killed, with its page cache as it was: it repeats nothing that was answered. So every answered
/// write survives the process with the write cache on, too. QEMU's storage daemon loses those whose metadata it had in memory.
#[test]
fn with_a_write_cache_every_answered_write_survives_kill_9_as_well() {
    for (seed, options) in
        [(0, ""), (1, ",cache=none"), (2, ",discard=unmap,aio=threads"), (3, ",cache=unsafe")]
    {
        let place = Place::new();
        let server = place.serve(options, &["--threads", "2"]);
        let mut guest = Guest::new(Ways { queues: 2, ..Ways::default() }, 100 + seed);
        let front = FrontEnd::start(&place.socket, &mut guest.machine);
        let more = guest.random.between(100, 500);
        guest.work(more);
        server.kill();
        guest.take();
        let sent: Vec<_> = guest.in_flight.values().flatten().copied().collect();
        assert_kept(&place, &guest.blocks, &sent);
        drop(front);
    }
}

/// Each of `blocks` is on the disk, or what was sent to it later.
fn assert_kept(place: &Place, blocks: &BTreeMap<u64, u64>, sent: &[(u64, u64)]) {
    assert!(blocks.len() > 50, "{}", blocks.len());
    assert_leaks_at_most(Path::new(&place.disk));
    let raw = converted(&place.disk, "qcow2", &[], &place.scratch.file("raw"));
    for (block, seed) in blocks {
        let at = *block as usize * BLOCK;
        let found = &raw[at..at + BLOCK];
        let later = sent.iter().filter(|(other, _)| other == block).map(|(_, seed)| seed);
        let any = std::iter::once(seed).chain(later).any(|seed| found == pattern(*seed, BLOCK));
        assert!(any, "block {block} was answered, and is lost");
    }
}

/// The state of the write cache is the driver's: a restart in between does not turn it on again.
#[test]
fn a_cache_that_was_turned_off_stays_off_over_a_restart() {
    for inflight in [true, false] {
        let place = Place::new();
        let server = place.serve("", &[]);
        let mut machine = Machine::new(Ways { inflight, ..Ways::default() });
        let mut front = FrontEnd::start(&place.socket, &mut machine);
        assert_eq!(front.config(32, 1), [1]);
        machine.ok(0, &Ask::Write(0, &[1; 512]));
        assert_eq!(front.set_cache(false), 0);
        let server = restart(server, &place, "");
        let mut front = FrontEnd::start(&place.socket, &mut machine);
        // The first daemon may have been killed before a call that the driver waits for.
        assert!(machine.called(0, PATIENCE), "a driver waits for ever");
        machine.ok(0, &Ask::Write(8, &[2; 512]));
        assert_eq!(front.config(32, 1), [0], "records: {inflight}");
        assert_eq!(front.set_cache(true), 0);
        assert_eq!(front.config(32, 1), [1]);
        drop(front);
        server.stop();
    }
}
