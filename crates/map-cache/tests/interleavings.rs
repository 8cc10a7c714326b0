//! Laws of the slice cache under explored thread interleavings: `cargo xtask interleave`.

#![cfg(feature = "shuttle")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;

use map_cache::{Budget, CacheLimits, ColumnShape, Field, Load, MapCache, Outcome, Packing, SliceKey};
use sync::atomic::{AtomicU64, Ordering::SeqCst};
use sync::explore::{block_on, explore, pause, thread};
use sync::{Arc, Mutex};

type Words = [u64; 2];

/// A cache and what lies below it.
struct Disk {
    cache: MapCache<&'static str>,
    stored: Mutex<BTreeMap<SliceKey, Words>>,
    /// Held while a commit runs: there is one at a time.
    committing: Mutex<()>,
    reads: AtomicU64,
}

fn key(slice: u32) -> SliceKey {
    SliceKey { l1_index: slice / 2, slice: slice % 2 }
}

const COLUMN: ColumnShape = ColumnShape { fields: [Field::new(0, 56), Field::new(0, 32)] };

/// Room for everything.
const AMPLE: u64 = 1 << 20;
/// Room for two slices, which a cache always keeps.
const TIGHT: u64 = 0;

fn disk(bytes_max: u64) -> Arc<Disk> {
    disk_in(bytes_max, &Budget::unlimited())
}

fn disk_in(bytes_max: u64, budget: &std::sync::Arc<Budget>) -> Arc<Disk> {
    let limits = CacheLimits { slices_per_table: 2, bytes_max };
    Arc::new(Disk {
        cache: MapCache::new(limits, Packing::two([COLUMN, COLUMN]), budget),
        stored: Mutex::default(),
        committing: Mutex::default(),
        reads: AtomicU64::new(0),
    })
}

impl Disk {
    fn stored(&self, key: SliceKey) -> Words {
        self.stored.lock().get(&key).copied().unwrap_or_default()
    }

    /// Brings a slice into memory as the engine does.
    fn load(&self, key: SliceKey) {
        match self.cache.load(key) {
            Load::Present => {}
            Load::Wait(waiting) => block_on(waiting.landed()).unwrap(),
            Load::Lead(ticket) => {
                self.reads.fetch_add(1, SeqCst);
                let words = self.stored(key);
                self.cache.insert(key, words.into_iter());
                drop(ticket);
            }
        }
    }

    fn read(&self, key: SliceKey) -> Words {
        loop {
            if let Some(words) = self.cache.with(key, |slice| slice.entry::<2>(0)) {
                return words;
            }
            self.load(key);
        }
    }

    /// Adds one to both words.
    fn raise(&self, key: SliceKey) {
        loop {
            let outcome = self.cache.modify(key, |slice| {
                let [one, two] = [slice.word(0), slice.word(1)];
                slice.set_word(0, one + 1);
                slice.set_word(1, two + 1);
            });
            match outcome {
                Outcome::Modified => return,
                Outcome::Gone => self.load(key),
            }
        }
    }

    /// Makes everything that was modified before this call part of what is stored.
    fn commit(&self) {
        let _one_at_a_time = self.committing.lock();
        let copies = self.cache.copy_dirty();
        for copy in &copies {
            pause();
            self.stored.lock().insert(copy.key(), copy.words[..].try_into().unwrap());
        }
        self.cache.written(&copies);
    }
}

/// Runs all of these at once, to their end.
fn together(disk: &Arc<Disk>, threads: impl IntoIterator<Item = fn(&Disk)>) {
    let start = |body: fn(&Disk)| {
        let disk = Arc::clone(disk);
        thread::spawn(move || body(&disk))
    };
    let threads: Vec<_> = threads.into_iter().map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn an_extended_entry_is_never_seen_torn() {
    explore(|| {
        let disk = disk(AMPLE);
        let read = |disk: &Disk| {
            for _ in 0..2 {
                let [one, two] = disk.read(key(0));
                assert_eq!(one, two, "half of a modification");
            }
        };
        let raise = |disk: &Disk| (0..2).for_each(|_| disk.raise(key(0)));
        together(&disk, [read as fn(&Disk), read, raise, raise]);
        assert_eq!(disk.read(key(0)), [4, 4]);
    });
}

#[test]
fn no_modification_is_lost_to_eviction_or_write_back() {
    explore(|| {
        let disk = disk(TIGHT);
        let raise = |disk: &Disk| (0..2).for_each(|_| disk.raise(key(0)));
        let evict = |disk: &Disk| {
            disk.read(key(1));
            disk.cache.clear();
            disk.read(key(2));
        };
        let commit = |disk: &Disk| (0..2).for_each(|_| disk.commit());
        together(&disk, [raise as fn(&Disk), raise, evict, commit]);
        assert_eq!(disk.read(key(0)), [4, 4]);
        disk.commit();
        assert_eq!(disk.stored(key(0)), [4, 4], "what memory holds is stored by a commit");
        assert_eq!(disk.cache.dirty_slices(), 0);
    });
}

#[test]
fn what_was_modified_before_a_commit_is_in_it() {
    explore(|| {
        let disk = disk(TIGHT);
        disk.load(key(0));
        let raise_and_commit = |disk: &Disk| {
            for _ in 0..2 {
                disk.raise(key(0));
                let raised = disk.read(key(0))[0];
                disk.commit();
                let stored = disk.stored(key(0))[0];
                assert!(stored >= raised, "memory had {raised} before the commit; stored is {stored}");
            }
        };
        let evict = |disk: &Disk| {
            disk.cache.clear();
            disk.read(key(1));
        };
        together(&disk, [raise_and_commit as fn(&Disk), raise_and_commit, evict]);
        assert_eq!(disk.stored(key(0)), [4, 4]);
    });
}

#[test]
fn a_reader_never_sees_an_older_value_after_a_newer_one() {
    explore(|| {
        let disk = disk(TIGHT);
        let read = |disk: &Disk| {
            let mut latest = 0;
            for _ in 0..3 {
                let [value, _] = disk.read(key(0));
                assert!(value >= latest, "{value} after {latest}");
                latest = value;
            }
        };
        let raise = |disk: &Disk| {
            for _ in 0..2 {
                disk.raise(key(0));
                disk.commit();
            }
        };
        let evict = |disk: &Disk| {
            disk.read(key(1));
            disk.read(key(3));
        };
        together(&disk, [read as fn(&Disk), raise, evict]);
    });
}

#[test]
fn slices_that_are_read_at_once_are_loaded_once_each() {
    explore(|| {
        let disk = disk(AMPLE);
        let read = |disk: &Disk| {
            assert_eq!(disk.read(key(0)), [0, 0]);
            assert_eq!(disk.read(key(1)), [0, 0]);
        };
        let read_backwards = |disk: &Disk| {
            assert_eq!(disk.read(key(1)), [0, 0]);
            assert_eq!(disk.read(key(0)), [0, 0]);
        };
        together(&disk, [read as fn(&Disk), read_backwards, read]);
        assert_eq!(disk.reads.load(SeqCst), 2);
        assert_eq!(disk.cache.counters().resident_slices, 2);
    });
}

#[test]
fn a_load_that_fails_or_is_abandoned_leaves_nobody_waiting() {
    explore(|| {
        let disk = disk(AMPLE);
        let start = |which: u64| {
            let disk = Arc::clone(&disk);
            thread::spawn(move || match disk.cache.load(key(0)) {
                Load::Present => None,
                Load::Wait(waiting) => block_on(waiting.landed()).err(),
                Load::Lead(ticket) => {
                    disk.reads.fetch_add(1, SeqCst);
                    if which == 0 {
                        ticket.fail("disk on fire");
                        return Some("disk on fire");
                    }
                    // A request that was dropped.
                    drop(ticket);
                    None
                }
            })
        };
        let failing = start(0);
        let others: Vec<_> = (1..4).map(start).collect();
        let failed = failing.join().unwrap();
        for other in others {
            let error = other.join().unwrap();
            assert!(error.is_none() || failed.is_some(), "an error that no load had");
        }
        assert!(disk.reads.load(SeqCst) >= 1);
        assert_eq!(disk.read(key(0)), [0, 0], "the next one tries again");
    });
}

#[test]
fn memory_is_accounted_for_whoever_comes_and_goes() {
    explore(|| {
        let disk = disk(TIGHT);
        let read = |disk: &Disk| {
            (0..4).for_each(|slice| {
                disk.read(key(slice));
            })
        };
        let clean = |disk: &Disk| {
            (0..2).for_each(|_| {
                disk.cache.clean();
            })
        };
        together(&disk, [read as fn(&Disk), read, clean]);
        disk.cache.clear();
        let counters = disk.cache.counters();
        assert_eq!((counters.resident_slices, counters.bytes_by_form), (0, [0; 5]));
        assert_eq!(counters.loads, counters.evictions);
        assert!((0..4).all(|slice| disk.cache.with(key(slice), |_| ()).is_none()));
    });
}

#[test]
fn no_modification_is_lost_to_packing() {
    explore(|| {
        let disk = disk(AMPLE);
        let raise = |disk: &Disk| (0..2).for_each(|_| disk.raise(key(0)));
        let pack = |disk: &Disk| {
            for _ in 0..3 {
                disk.commit();
                disk.cache.pack_idle();
            }
        };
        let read = |disk: &Disk| {
            let mut latest = 0;
            for _ in 0..3 {
                let [one, two] = disk.read(key(0));
                assert_eq!(one, two, "half of a modification");
                assert!(one >= latest, "{one} after {latest}");
                latest = one;
            }
        };
        together(&disk, [raise as fn(&Disk), raise, pack, read]);
        assert_eq!(disk.read(key(0)), [4, 4]);
        disk.commit();
        assert_eq!(disk.stored(key(0)), [4, 4]);
        disk.cache.pack_idle();
        disk.cache.pack_idle();
        assert_eq!(disk.read(key(0)), [4, 4]);
        let plain = disk.cache.counters().bytes_by_form[map_cache::Form::Plain as usize];
        assert_eq!((plain, disk.cache.dirty_slices()), (0, 0), "what is clean and idle is packed");
    });
}

#[test]
fn no_modification_is_lost_to_packing_and_eviction_for_want_of_room() {
    explore(|| {
        let disk = disk(TIGHT);
        let raise = |disk: &Disk| (0..2).for_each(|_| disk.raise(key(0)));
        let crowd = |disk: &Disk| {
            disk.raise(key(1));
            disk.read(key(2));
            disk.raise(key(3));
        };
        let commit = |disk: &Disk| {
            disk.commit();
            disk.cache.pack_idle();
            disk.commit();
        };
        together(&disk, [raise as fn(&Disk), raise, crowd, commit]);
        let found = [0, 1, 2, 3].map(|slice| disk.read(key(slice))[0]);
        assert_eq!(found, [4, 1, 0, 1]);
        disk.commit();
        let stored = [0, 1, 2, 3].map(|slice| disk.stored(key(slice))[0]);
        assert_eq!(stored, [4, 1, 0, 1]);
    });
}

#[test]
fn a_load_raced_by_a_write_shows_the_write_from_then_on() {
    explore(|| {
        let disk = disk(TIGHT);
        let write_and_read = |disk: &Disk| {
            for _ in 0..2 {
                let before = disk.read(key(0))[0];
                disk.raise(key(0));
                let after = disk.read(key(0))[0];
                assert!(after > before, "{after} after one was added to {before}");
            }
        };
        let load = |disk: &Disk| {
            disk.commit();
            disk.cache.clear();
            disk.load(key(0));
            disk.read(key(0));
        };
        together(&disk, [write_and_read as fn(&Disk), write_and_read, load, load]);
        assert_eq!(disk.read(key(0)), [4, 4]);
    });
}

#[test]
fn what_is_about_to_be_modified_is_not_packed_again() {
    explore(|| {
        let disk = disk(TIGHT);
        let modify = |disk: &Disk| (0..2).for_each(|_| disk.raise(key(0)));
        let crowd = |disk: &Disk| {
            disk.read(key(1));
        };
        together(&disk, [modify as fn(&Disk), modify, crowd]);
        assert_eq!(disk.read(key(0)), [4, 4]);
        // Once modified it is dirty, and no task writes it.
        assert_eq!(
            disk.cache.counters().packed_slices,
            0,
            "two who take each other's slice away may never get on"
        );
    });
}

#[test]
fn two_caches_that_take_from_each_other_lose_nothing_and_always_get_on() {
    explore(|| {
        let budget = Budget::new(0);
        let disks = [disk_in(AMPLE, &budget), disk_in(AMPLE, &budget)];
        let use_up = |disk: &Disk| {
            (0..3).for_each(|slice| disk.raise(key(slice)));
            disk.commit();
            disk.read(key(3));
        };
        let threads = disks.each_ref().map(|disk| {
            let disk = Arc::clone(disk);
            thread::spawn(move || use_up(&disk))
        });
        let change = {
            let budget = std::sync::Arc::clone(&budget);
            thread::spawn(move || {
                budget.set_bytes_max(AMPLE);
            })
        };
        threads.into_iter().chain([change]).for_each(|thread| thread.join().unwrap());
        for disk in &disks {
            assert!((0..4).all(|slice| disk.read(key(slice))[0] == u64::from(slice < 3)));
            assert!(disk.cache.counters().resident_slices >= 2);
        }
        let held: u64 = disks.iter().map(|disk| disk.cache.counters().resident_bytes).sum();
        assert_eq!(budget.used_bytes(), held);
        drop(disks);
        assert_eq!(budget.used_bytes(), 0, "memory that is gone is still charged");
    });
}

/// A cache above tables that come and go. A table's words are its number; 0 is no table.
struct Tables {
    cache: MapCache<&'static str>,
    l1: AtomicU64,
}

impl Tables {
    /// As the engine reads: the cache first, then L1. The ticket is taken before L1 is looked at.
    fn read(&self) -> u64 {
        loop {
            if let Some([word]) = self.cache.with(key(0), |slice| slice.entry::<1>(0)) {
                return word;
            }
            if self.l1.load(SeqCst) == 0 {
                return 0;
            }
            match self.cache.load(key(0)) {
                Load::Present => {}
                Load::Wait(waiting) => block_on(waiting.landed()).unwrap(),
                Load::Lead(ticket) => self.land(ticket),
            }
        }
    }

    fn read_ahead(&self) {
        self.cache.try_lead(key(0)).into_iter().for_each(|ticket| self.land(ticket));
    }

    fn land(&self, ticket: map_cache::LoadTicket<'_, &'static str>) {
        let table = self.l1.load(SeqCst);
        pause();
        if table != 0 {
            self.cache.insert_loaded(ticket, [table].into_iter());
        }
    }

    /// The table goes, and another comes.
    fn replace(&self, next: u64) {
        self.l1.store(0, SeqCst);
        self.cache.forget_tables(0..1);
        let found = self.read();
        assert_eq!(found, 0, "a look-up found table {found} after it was forgotten");
        self.l1.store(next, SeqCst);
        assert_eq!(self.read(), next);
    }
}

#[test]
fn a_load_that_began_before_its_table_was_forgotten_never_lands_after() {
    explore(|| {
        let limits = CacheLimits { slices_per_table: 2, bytes_max: AMPLE };
        let cache = MapCache::new(limits, Packing::one(COLUMN), &Budget::unlimited());
        let tables = Arc::new(Tables { cache, l1: AtomicU64::new(1) });
        let bodies: [fn(&Tables); 3] = [
            |tables| (2..4).for_each(|next| tables.replace(next)),
            |tables| {
                (0..3).fold(0, |latest, _| {
                    let table = tables.read();
                    assert!(table == 0 || table >= latest, "table {table} after {latest}");
                    table.max(latest)
                });
            },
            |tables| (0..3).for_each(|_| tables.read_ahead()),
        ];
        let threads = bodies.map(|body| {
            let tables = Arc::clone(&tables);
            thread::spawn(move || body(&tables))
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(tables.read(), 3);
    });
}
