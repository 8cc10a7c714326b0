//! Laws of the slice cache.

use std::sync::Arc;

use map_cache::{
    Budget, CacheLimits, ColumnShape, Field, Form, Load, MapCache, Model, Outcome, Packing, SliceKey,
};

type Cache = MapCache<&'static str>;

const L2: ColumnShape = ColumnShape { fields: [Field::new(16, 56), Field::new(0, 54)] };

/// Room for everything.
const AMPLE: u64 = 1 << 30;

/// Words of a slice.
const WORDS: u64 = 512;

fn cache(bytes_max: u64) -> Cache {
    cache_in(bytes_max, &Budget::unlimited())
}

fn cache_in(bytes_max: u64, budget: &Arc<Budget>) -> Cache {
    MapCache::new(CacheLimits { slices_per_table: 8, bytes_max }, Packing::one(L2), budget)
}

fn key(slice: u32) -> SliceKey {
    SliceKey { l1_index: slice / 8, slice: slice % 8 }
}

/// An entry that does not continue the one before it.
fn word(slice: u32, index: u64) -> u64 {
    let mixed = (u64::from(slice) * WORDS + index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
    1 << 63 | mixed << 16
}

fn load(cache: &Cache, slice: u32) {
    let Load::Lead(ticket) = cache.load(key(slice)) else { panic!("slice {slice} is not to be loaded") };
    cache.insert(key(slice), (0..WORDS).map(|index| word(slice, index)));
    drop(ticket);
}

/// Looks a slice up, and loads it if it is missing. Returns whether it was there.
fn touch(cache: &Cache, slice: u32) -> bool {
    let found = cache.with(key(slice), |_| ()).is_some();
    if !found {
        load(cache, slice);
    }
    found
}

fn dirty(cache: &Cache, slice: u32, value: u64) {
    assert_eq!(cache.modify(key(slice), |slice| slice.set_word(2, value)), Outcome::Modified);
}

fn plain_bytes(cache: &Cache) -> u64 {
    cache.counters().bytes_by_form[Form::Plain as usize]
}

#[test]
fn a_loaded_slice_is_found_and_holds_its_words() {
    let cache = cache(AMPLE);
    assert_eq!(cache.with(key(9), |slice| slice.entry::<1>(1)), None);
    load(&cache, 9);
    for index in 0..WORDS {
        let found = cache.with(key(9), |slice| slice.entry::<1>(index as usize));
        assert_eq!(found, Some([word(9, index)]));
    }
    assert_eq!(cache.with(key(9), |slice| slice.entry::<1>(WORDS as usize)), Some([0]), "beyond the slice");
}

#[test]
fn entries_of_two_words_are_packed_and_modified_as_pairs() {
    let shape = Packing::two([L2, ColumnShape { fields: [Field::new(0, 0), Field::new(0, 32)] }]);
    let limits = CacheLimits { slices_per_table: 8, bytes_max: AMPLE };
    let cache = MapCache::<()>::new(limits, shape, &Budget::unlimited());
    let pair = |index: u64| [word(0, index), if index.is_multiple_of(3) { 0xffff_ffff } else { 0 }];
    cache.insert(key(0), (0..WORDS).flat_map(pair));
    let all_there =
        || (0..WORDS).all(|at| cache.with(key(0), |slice| slice.entry(at as usize)) == Some(pair(at)));
    assert!(all_there());
    assert_eq!(cache.modify(key(0), |slice| slice.set_word(11, pair(5)[1])), Outcome::Modified);
    assert!(all_there());
    cache.written(&cache.copy_dirty());
    assert_eq!((cache.pack_idle(), cache.pack_idle()), (0, 1));
    assert!(all_there());
}

#[test]
fn keys_that_no_table_has_are_misses_and_insert_nothing() {
    let cache = cache(AMPLE);
    for outside in [SliceKey { l1_index: 1 << 23, slice: 0 }, SliceKey { l1_index: 0, slice: 8 }] {
        cache.insert(outside, [1].into_iter());
        assert_eq!(cache.with(outside, |_| ()), None);
    }
    let last = SliceKey { l1_index: (1 << 22) - 1, slice: 7 };
    cache.insert(last, [1].into_iter());
    assert_eq!(cache.with(last, |slice| slice.entry(0)), Some([1]));
}

#[test]
fn dirty_slices_stay_until_they_are_written() {
    let cache = cache(0);
    load(&cache, 0);
    dirty(&cache, 0, 77);
    (1..20).for_each(|slice| load(&cache, slice));
    assert_eq!(cache.with(key(0), |slice| slice.entry::<1>(2)), Some([77]));
    let copies = cache.copy_dirty();
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0].words[..4], [word(0, 0), word(0, 1), 77, word(0, 3)]);
    cache.written(&copies);
    (20..40).for_each(|slice| load(&cache, slice));
    assert_eq!(cache.with(key(0), |_| ()), None);
    assert_eq!(cache.modify(key(0), |_| ()), Outcome::Gone);
}

#[test]
fn a_modification_after_the_copy_keeps_the_slice_dirty() {
    let cache = cache(AMPLE);
    load(&cache, 0);
    dirty(&cache, 0, 1);
    let copies = cache.copy_dirty();
    dirty(&cache, 0, 2);
    cache.written(&copies);
    assert_eq!(cache.dirty_slices(), 1);
    let copies = cache.copy_dirty();
    assert_eq!(copies[0].words[2], 2);
    cache.written(&copies);
    assert_eq!(cache.dirty_slices(), 0);
}

#[test]
fn a_copy_says_which_words_the_storage_may_not_have() {
    let cache = cache(AMPLE);
    load(&cache, 0);
    let set = |index| assert_eq!(cache.modify(key(0), |slice| slice.set_word(index, 1)), Outcome::Modified);
    let changed = || cache.copy_dirty()[0].changed.clone();
    set(5);
    assert_eq!(changed(), 5..6);
    let copies = cache.copy_dirty();
    set(3);
    cache.written(&copies);
    assert_eq!(changed(), 3..6, "modified since the copy: all that was is still to be written");
    cache.written(&cache.copy_dirty());
    set(7);
    assert_eq!(changed(), 7..8);
}

#[test]
fn a_slice_is_packed_when_it_is_clean_and_was_left_alone() {
    let cache = cache(AMPLE);
    load(&cache, 0);
    assert_eq!(plain_bytes(&cache), 0);
    dirty(&cache, 0, 1);
    assert!(plain_bytes(&cache) > WORDS * 8);
    assert_eq!((cache.pack_idle(), cache.pack_idle()), (0, 0), "dirty slices stay plain");
    cache.written(&cache.copy_dirty());
    dirty(&cache, 0, 2);
    cache.written(&cache.copy_dirty());
    assert_eq!(cache.pack_idle(), 0, "it was modified since the last call");
    assert_eq!(cache.pack_idle(), 1);
    assert_eq!(plain_bytes(&cache), 0);
    assert_eq!(cache.with(key(0), |slice| slice.entry::<1>(2)), Some([2]));
    assert_eq!(cache.counters().packed_slices, 1);
}

#[test]
fn clean_slices_are_packed_before_any_leaves() {
    let cache = cache(60 << 10);
    for slice in 0..10 {
        load(&cache, slice);
        dirty(&cache, slice, 1);
    }
    cache.written(&cache.copy_dirty());
    (10..25).for_each(|slice| load(&cache, slice));
    assert_eq!(cache.counters().evictions, 0);
    assert!((0..25).all(|slice| cache.with(key(slice), |_| ()).is_some()));
}

#[test]
fn the_cache_keeps_to_its_limit_and_prefers_what_is_used() {
    let cache = cache(64 << 10);
    for newcomer in 1..400 {
        touch(&cache, 0);
        load(&cache, newcomer);
        assert!(cache.counters().resident_bytes <= 64 << 10);
    }
    assert!(cache.counters().misses < 405, "the hot slice left again and again");
}

#[test]
fn a_scan_leaves_the_working_set_of_random_reads_in_memory() {
    let cache = cache(256 << 10);
    let mut random = 1u64;
    let mut read = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        touch(&cache, (random >> 33) as u32 % 100)
    };
    (0..2000).for_each(|_| {
        read();
    });
    let mut hits = 0;
    for slice in 1000..4000 {
        // A sequential reader looks at every cluster of a slice; random reads go on beside it.
        (0..64).for_each(|_| {
            touch(&cache, slice);
        });
        hits += u32::from(read());
    }
    assert!(hits > 2800, "{hits} of 3000 reads still hit while a scan passed");
}

/// All would leave shortly before it is needed: nothing would ever be found.
#[test]
fn a_loop_over_more_than_fits_finds_what_fits() {
    let cache = cache(512 << 10);
    // In an order of its own.
    let round = || (0..797).filter(|step| touch(&cache, step * 37 % 797)).count();
    (0..3).for_each(|_| {
        round();
    });
    let fit = cache.counters().resident_slices as usize;
    assert!((300..600).contains(&fit), "{fit} of 797 slices fit");
    for _ in 0..20 {
        let found = round();
        assert!(found * 10 >= fit * 8, "{found} of {fit} slices that fit are found");
    }
}

#[test]
fn cleaning_drops_what_was_not_used_since_the_last_time() {
    let cache = cache(AMPLE);
    (0..8).for_each(|slice| load(&cache, slice));
    dirty(&cache, 7, 1);
    assert_eq!(cache.clean(), 0);
    cache.with(key(3), |_| ());
    assert_eq!(cache.clean(), 6);
    assert!(cache.with(key(3), |_| ()).is_some());
    assert!(cache.with(key(7), |_| ()).is_some(), "dirty slices stay");
}

#[test]
fn misses_that_more_memory_would_have_avoided_are_counted() {
    let cache = cache(64 << 10);
    for _ in 0..20 {
        (0..60).for_each(|slice| {
            touch(&cache, slice);
        });
    }
    let counters = cache.counters();
    let advice = counters.ghost_hits.advice().expect("a loop larger than the cache misses what just left");
    assert!(advice.avoided_misses * 2 > counters.misses, "{advice:?} of {} misses", counters.misses);
    assert!(advice.more_bytes <= 128 << 10);
    let larger = self::cache((64 << 10) + advice.more_bytes);
    for _ in 0..20 {
        (0..60).for_each(|slice| {
            touch(&larger, slice);
        });
    }
    assert!(larger.counters().misses + advice.avoided_misses <= counters.misses + 60);
}

#[test]
fn a_limit_that_is_lowered_holds_at_once_and_one_that_is_raised_lets_more_in() {
    let cache = cache(256 << 10);
    (0..100).for_each(|slice| load(&cache, slice));
    cache.set_bytes_max(64 << 10);
    assert!(cache.counters().resident_bytes <= 64 << 10);
    cache.set_bytes_max(AMPLE);
    (0..100).for_each(|slice| {
        touch(&cache, slice);
    });
    assert_eq!(cache.counters().resident_slices, 100);
}

#[test]
fn tables_are_cut_anew_only_while_nothing_is_in_memory() {
    let cache = cache(AMPLE);
    load(&cache, 3);
    dirty(&cache, 3, 1);
    cache.clear();
    assert!(!cache.reshape(16), "a dirty slice would be lost");
    cache.written(&cache.copy_dirty());
    cache.clear();
    assert!(cache.reshape(16));
    let last = SliceKey { l1_index: 0, slice: 15 };
    cache.insert(last, [5].into_iter());
    assert_eq!(cache.with(last, |slice| slice.entry(0)), Some([5]));
    cache.clear();
    assert!(cache.reshape(8));
    assert_eq!(cache.with(key(3), |_| ()), None);
}

#[test]
fn images_get_memory_as_they_use_it_and_together_keep_to_the_budget() {
    let budget = Budget::new(1 << 20);
    let idle = cache_in(AMPLE, &budget);
    (0..2000).for_each(|slice| load(&idle, slice));
    let before = idle.counters().resident_slices;
    assert!(before > 500);
    let busy = cache_in(AMPLE, &budget);
    for _ in 0..20 {
        (0..400).for_each(|slice| {
            touch(&busy, slice);
            assert!(budget.used_bytes() <= 1 << 20);
        });
    }
    assert_eq!(busy.counters().resident_slices, 400, "what is used stays");
    assert!(idle.counters().resident_slices < before - 300, "what is idle gives way");
    drop(idle);
    assert_eq!(budget.used_bytes(), busy.counters().resident_bytes);
}

#[test]
fn the_three_hundredth_image_does_not_multiply_memory() {
    let budget = Budget::new(4 << 20);
    let caches: Vec<_> = (0..300).map(|_| cache_in(AMPLE, &budget)).collect();
    for cache in &caches {
        (0..50).for_each(|slice| load(cache, slice));
        assert!(budget.used_bytes() <= 4 << 20, "{} bytes", budget.used_bytes());
    }
    let held: u64 = caches.iter().map(|cache| cache.counters().resident_bytes).sum();
    assert_eq!(budget.used_bytes(), held);
    budget.set_bytes_max(0);
    assert!(caches.iter().all(|cache| cache.counters().resident_slices == 2), "two slices each always fit");
}

#[test]
fn a_budget_full_of_dirty_slices_asks_for_them_to_be_written() {
    let budget = Budget::new(64 << 10);
    let (dirty_one, other) = (cache_in(AMPLE, &budget), cache_in(AMPLE, &budget));
    for slice in 0..30 {
        load(&dirty_one, slice);
        dirty(&dirty_one, slice, 1);
    }
    (0..10).for_each(|slice| load(&other, slice));
    assert!(dirty_one.wants_write_back() && !other.wants_write_back());
    assert_eq!(dirty_one.dirty_slices(), 30);
    dirty_one.written(&dirty_one.copy_dirty());
    assert!(!dirty_one.wants_write_back());
    load(&other, 11);
    assert!(budget.used_bytes() <= 64 << 10);
}

#[test]
fn one_load_a_slice_and_its_failure_reaches_those_who_wait() {
    let cache = cache(AMPLE);
    let Load::Lead(ticket) = cache.load(key(1)) else { panic!("first in line") };
    let Load::Wait(waiting) = cache.load(key(1)) else { panic!("second in line") };
    assert!(matches!(cache.load(key(2)), Load::Lead(_)));
    ticket.fail("disk on fire");
    assert_eq!(futures_executor::block_on(waiting.landed()), Err("disk on fire"));
    assert!(matches!(cache.load(key(1)), Load::Lead(_)), "the next one tries again");
}

#[test]
fn a_dropped_load_lets_the_next_in_line_try() {
    let cache = cache(AMPLE);
    let Load::Lead(ticket) = cache.load(key(1)) else { panic!("first in line") };
    let Load::Wait(waiting) = cache.load(key(1)) else { panic!("second in line") };
    drop(ticket);
    assert_eq!(futures_executor::block_on(waiting.landed()), Ok(()));
    assert!(matches!(cache.load(key(1)), Load::Lead(_)));
}

#[test]
fn only_a_cache_with_no_clean_slice_left_asks_to_be_written() {
    let cache = cache(0);
    for slice in 0..2 {
        load(&cache, slice);
        dirty(&cache, slice, 1);
    }
    assert!(!cache.wants_write_back(), "everything fits");
    load(&cache, 2);
    assert!(cache.wants_write_back());
    cache.written(&cache.copy_dirty());
    assert!(!cache.wants_write_back());
}

#[test]
fn a_model_keeps_what_the_cache_keeps() {
    for bytes_max in [20_000, 100_000, 400_000] {
        let (cache, mut model) = (cache(bytes_max), Model::new(bytes_max, 8));
        let (mut random, mut hits) = (1_u64, 0);
        for at in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // A hot set, the whole table, and a scan.
            let slice = match at % 4 {
                0 | 1 => (random >> 33) % 60,
                2 => (random >> 33) % 800,
                _ => at / 4 % 800,
            } as u32;
            let found = touch(&cache, slice);
            // A request looks a slice up right after it loaded it.
            cache.with(key(slice), |_| ()).unwrap();
            let bytes = cache.slice_bytes(key(slice)).unwrap();
            assert_eq!(
                model.access(key(slice), bytes),
                found,
                "access {at} of slice {slice} in {bytes_max} bytes"
            );
            hits += u32::from(found);
        }
        assert_eq!(model.bytes(), cache.counters().resident_bytes);
        assert!(cache.counters().evictions > 0 && hits > 0);
    }
}

/// A shrink freed a table while it was being read ahead; the read ended, and the next table of that L1 entry began with the
/// entries of the old one: two parts of the disk shared clusters.
#[test]
fn a_load_that_began_before_its_table_was_forgotten_never_lands_after() {
    let cache = cache(AMPLE);
    load(&cache, 9);
    let Load::Lead(before) = cache.load(key(1)) else { panic!("first in line") };
    let Load::Wait(waiting) = cache.load(key(1)) else { panic!("second in line") };
    cache.forget_tables(0..1);
    let Load::Lead(after) = cache.load(key(1)) else { panic!("the table is another one") };
    assert_eq!(cache.land(before, Ok(vec![1; 512])), Ok(()));
    assert_eq!(cache.with(key(1), |_| ()), None);
    assert_eq!(futures_executor::block_on(waiting.landed()), Ok(()), "who waited looks again");
    assert!(matches!(cache.load(key(1)), Load::Wait(_)), "an old load ends no new one");
    assert_eq!(cache.land(after, Ok(vec![2; 512])), Ok(()));
    assert_eq!(cache.with(key(1), |slice| slice.entry(0)), Some([2]));
    assert!(cache.with(key(9), |_| ()).is_some(), "other tables stay");
}

#[test]
fn a_forgotten_table_is_gone_whatever_was_done_to_its_slices() {
    let cache = cache(AMPLE);
    (0..24).for_each(|slice| load(&cache, slice));
    (4..20).for_each(|slice| dirty(&cache, slice, 1));
    let copies = cache.copy_dirty();
    (10..12).for_each(|slice| dirty(&cache, slice, 2));
    cache.forget_tables(1..2);
    let there: Vec<u32> = (0..24).filter(|&slice| cache.with(key(slice), |_| ()).is_some()).collect();
    assert_eq!(there, (0..8).chain(16..24).collect::<Vec<_>>());
    assert_eq!(cache.dirty_slices(), 8);
    assert_eq!(cache.modify(key(10), |_| ()), Outcome::Gone);
    cache.written(&copies);
    assert_eq!((cache.dirty_slices(), cache.counters().resident_slices), (0, 16));
    cache.forget_all();
    let counters = cache.counters();
    assert_eq!((counters.resident_slices, counters.bytes_by_form), (0, [0; 5]));
    load(&cache, 10);
    assert_eq!(cache.with(key(10), |slice| slice.entry(2)), Some([word(10, 2)]));
}

#[test]
fn every_slice_of_the_largest_tables_and_of_the_largest_disk_has_a_place_of_its_own() {
    for slices in [1, 2, 8, 64, 128, 4096] {
        let cache = Cache::new(
            CacheLimits { slices_per_table: slices, bytes_max: AMPLE },
            Packing::one(L2),
            &Budget::unlimited(),
        );
        let last = slices as u32 - 1;
        let tables = [0, 1, 15, 16, 17, 47, 48, (1 << 22) - 1];
        let keys = tables.into_iter().flat_map(|l1_index| {
            [0, last / 2, last].into_iter().map(move |slice| SliceKey { l1_index, slice })
        });
        let keys: Vec<_> = keys.collect();
        (1..).zip(&keys).for_each(|(number, &key)| cache.insert(key, [number].into_iter()));
        for (number, &key) in (1..).zip(&keys) {
            let last_of_key =
                (1..).zip(&keys).filter(|(_, other)| **other == key).map(|(number, _)| number).last();
            assert_eq!(
                cache.with(key, |slice| slice.entry(0)),
                last_of_key.map(|word: u64| [word]),
                "{number}"
            );
        }
        let beyond = SliceKey { l1_index: 3, slice: slices as u32 };
        cache.insert(beyond, [1].into_iter());
        assert_eq!(cache.with(beyond, |_| ()), None, "no table of {slices} slices has one more");
        let distinct = keys.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(cache.counters().resident_slices, distinct as u64);
    }
}
