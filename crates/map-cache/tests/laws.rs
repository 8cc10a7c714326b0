//! Laws of the slice cache.

use map_cache::{CacheLimits, Load, MapCache, Outcome, SliceKey};

fn cache(slices_max: usize) -> MapCache<&'static str> {
    MapCache::new(CacheLimits { slices_per_table: 8, slices_max })
}

fn key(slice: u32) -> SliceKey {
    SliceKey { l1_index: slice / 8, slice: slice % 8 }
}

fn load(cache: &MapCache<&'static str>, slice: u32) {
    let Load::Lead(ticket) = cache.load(key(slice)) else { panic!("slice {slice} is not to be loaded") };
    cache.insert(key(slice), (0..4).map(|word| u64::from(slice) * 10 + word));
    drop(ticket);
}

#[test]
fn a_loaded_slice_is_found_and_holds_its_words() {
    let cache = cache(2);
    assert_eq!(cache.with(key(9), |slice| slice.entry::<1>(1)), None);
    load(&cache, 9);
    assert_eq!(cache.with(key(9), |slice| slice.entry::<1>(1)), Some([91]));
    assert_eq!(cache.with(key(9), |slice| slice.entry::<2>(1)), Some([92, 93]));
}

#[test]
fn keys_outside_the_table_are_misses_and_insert_nothing() {
    let cache = cache(2);
    for outside in [SliceKey { l1_index: 1 << 22, slice: 0 }, SliceKey { l1_index: 0, slice: 8 }] {
        cache.insert(outside, [1].into_iter());
        assert_eq!(cache.with(outside, |_| ()), None);
    }
}

#[test]
fn dirty_slices_stay_until_they_are_written() {
    let cache = cache(2);
    load(&cache, 0);
    assert_eq!(cache.modify(key(0), |slice| slice.set_word(2, 77)), Outcome::Modified);
    (1..20).for_each(|slice| load(&cache, slice));
    assert_eq!(cache.with(key(0), |slice| slice.entry::<1>(2)), Some([77]));
    let copies = cache.copy_dirty();
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0].words, [0, 1, 77, 3]);
    cache.written(&copies);
    (20..40).for_each(|slice| load(&cache, slice));
    assert_eq!(cache.with(key(0), |_| ()), None);
    assert_eq!(cache.modify(key(0), |_| ()), Outcome::Gone);
}

#[test]
fn a_modification_after_the_copy_keeps_the_slice_dirty() {
    let cache = cache(2);
    load(&cache, 0);
    assert_eq!(cache.modify(key(0), |slice| slice.set_word(0, 1)), Outcome::Modified);
    let copies = cache.copy_dirty();
    assert_eq!(cache.modify(key(0), |slice| slice.set_word(0, 2)), Outcome::Modified);
    cache.written(&copies);
    assert_eq!(cache.dirty_slices(), 1);
    let copies = cache.copy_dirty();
    assert_eq!(copies[0].words[0], 2);
    cache.written(&copies);
    assert_eq!(cache.dirty_slices(), 0);
}

#[test]
fn the_cache_keeps_to_its_limit_and_prefers_what_is_used() {
    let cache = cache(4);
    (0..4).for_each(|slice| load(&cache, slice));
    for newcomer in 4..40 {
        cache.with(key(0), |_| ());
        load(&cache, newcomer);
        assert!(cache.with(key(0), |_| ()).is_some(), "the hot slice left for {newcomer}");
    }
    assert_eq!(cache.counters().resident_slices, 4);
}

#[test]
fn cleaning_drops_what_was_not_used_since_the_last_time() {
    let cache = cache(8);
    (0..8).for_each(|slice| load(&cache, slice));
    assert_eq!(cache.clean(), 0);
    cache.with(key(3), |_| ());
    assert_eq!(cache.clean(), 7);
    assert!(cache.with(key(3), |_| ()).is_some());
}

#[test]
fn one_load_a_slice_and_its_failure_reaches_those_who_wait() {
    let cache = cache(8);
    let Load::Lead(ticket) = cache.load(key(1)) else { panic!("first in line") };
    let Load::Wait(waiting) = cache.load(key(1)) else { panic!("second in line") };
    assert!(matches!(cache.load(key(2)), Load::Lead(_)));
    ticket.fail("disk on fire");
    assert_eq!(futures_executor::block_on(waiting.landed()), Err("disk on fire"));
    assert!(matches!(cache.load(key(1)), Load::Lead(_)), "the next one tries again");
}

#[test]
fn a_dropped_load_lets_the_next_in_line_try() {
    let cache = cache(8);
    let Load::Lead(ticket) = cache.load(key(1)) else { panic!("first in line") };
    let Load::Wait(waiting) = cache.load(key(1)) else { panic!("second in line") };
    drop(ticket);
    assert_eq!(futures_executor::block_on(waiting.landed()), Ok(()));
    assert!(matches!(cache.load(key(1)), Load::Lead(_)));
}

#[test]
fn only_a_cache_with_no_clean_slice_left_asks_to_be_written() {
    let cache = cache(2);
    for slice in 0..2 {
        load(&cache, slice);
        assert_eq!(cache.modify(key(slice), |slice| slice.set_word(0, 1)), Outcome::Modified);
    }
    assert!(!cache.wants_write_back(), "everything fits");
    load(&cache, 2);
    assert!(cache.wants_write_back());
    cache.written(&cache.copy_dirty());
    assert!(!cache.wants_write_back());
}
