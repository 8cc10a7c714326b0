//! What a cache says it takes is what it takes.

use std::alloc::System;
use std::sync::Arc;

use map_cache::{Budget, CacheLimits, ColumnShape, Field, MapCache, Outcome, Packing, SliceKey};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

type Cache = MapCache<()>;

const L2: ColumnShape = ColumnShape { fields: [Field::new(16, 56), Field::new(0, 54)] };
/// Entries of a slice of 4 KiB, and slices of a table of 64 KiB.
const ENTRIES: u32 = 512;
const SLICES: u32 = 16;
/// Clusters of 64 KiB of a disk of 40 GB.
const CLUSTERS: u32 = 655_360;
/// Bytes that QEMU takes for the map of this disk.
const QEMU_BYTES: u64 = CLUSTERS as u64 * 8;

fn key(slice: u32) -> SliceKey {
    SliceKey { l1_index: slice / SLICES, slice: slice % SLICES }
}

fn cache(bytes_max: u64, budget: &Arc<Budget>) -> Cache {
    MapCache::new(CacheLimits { slices_per_table: SLICES as usize, bytes_max }, Packing::one(L2), budget)
}

/// The entry of `cluster` where clusters lie in an order that looks random: no two are the same.
fn scattered(cluster: u32) -> u64 {
    let place = u64::from(cluster) * 400_009 % u64::from(CLUSTERS);
    1 << 63 | (place + 100) << 16
}

fn insert(cache: &Cache, slice: u32, word: impl Fn(u32) -> u64) {
    cache.insert(key(slice), (slice * ENTRIES..(slice + 1) * ENTRIES).map(word));
}

/// Bytes of live allocations, with the 8 that the allocator keeps beside each.
fn allocated(region: &Region<'_, System>) -> u64 {
    let stats = region.change();
    let live = stats.allocations - stats.deallocations;
    (stats.bytes_allocated - stats.bytes_deallocated + 8 * live) as u64
}

/// Fails unless what `cache` says it takes is what was allocated, give or take a tenth.
fn compare(what: &str, region: &Region<'_, System>, cache: &Cache) {
    let (said, real) = (cache.counters().resident_bytes, allocated(region));
    assert!(said.abs_diff(real) * 10 <= real, "{what}: {said} bytes are accounted for, {real} are allocated");
}

/// One test: other threads' allocations would be counted too.
#[test]
fn memory_is_what_the_accounts_say() {
    for bytes_max in [96 << 10, 1 << 20, 64 << 20] {
        let budget = Budget::unlimited();
        let region = Region::new(ALLOCATOR);
        let cache = cache(bytes_max, &budget);
        (0..CLUSTERS / ENTRIES).for_each(|slice| insert(&cache, slice, scattered));
        compare("scattered clusters", &region, &cache);
        assert!(cache.counters().resident_bytes <= bytes_max);

        for slice in (0..CLUSTERS / ENTRIES).rev().take(100) {
            insert(&cache, slice, scattered);
            assert_eq!(cache.modify(key(slice), |slice| slice.set_word(0, 0)), Outcome::Modified);
        }
        compare("with modified slices", &region, &cache);
        cache.written(&cache.copy_dirty());
        cache.set_bytes_max(bytes_max / 2);
        compare("with half the memory", &region, &cache);
        assert!(cache.counters().resident_bytes <= bytes_max / 2);

        cache.clear();
        (0..CLUSTERS / ENTRIES)
            .for_each(|slice| insert(&cache, slice, |cluster| (1 << 63) | u64::from(cluster) << 16));
        compare("clusters in order", &region, &cache);
    }
    a_disk_in_random_order_takes_little_more_than_a_third_of_qemus_memory();
    what_leads_to_slices_leaves_with_them();
}

/// 10 MiB of an image whose every L1 entry led to one table, read in 60,000 places: what led to one slice each stayed for good,
/// 250 MiB under a budget of 1 MiB.
fn what_leads_to_slices_leaves_with_them() {
    const TABLES: u32 = 60_000;
    let budget = Budget::new(1 << 20);
    for slices_per_table in [16, 512] {
        let region = Region::new(ALLOCATOR);
        let limits = CacheLimits { slices_per_table, bytes_max: 1 << 30 };
        let cache = Cache::new(limits, Packing::one(L2), &budget);
        // All over the tables, and some of them twice.
        for step in 0..u64::from(TABLES) * 7 / 6 {
            let l1_index = (step * 40_009 % u64::from(TABLES)) as u32;
            let key = SliceKey { l1_index, slice: l1_index % slices_per_table as u32 };
            cache.insert(key, (0..u64::from(ENTRIES)).map(|_| 0));
        }
        let what = format!("one slice in each of {TABLES} tables of {slices_per_table}");
        compare(&what, &region, &cache);
        let (full, said) = (allocated(&region), cache.counters().resident_bytes);
        cache.clear();
        compare("nothing", &region, &cache);
        println!("{what}: {said} bytes accounted for, {full} allocated, {} when empty", allocated(&region));
        assert!(full <= 1 << 20 && said <= 1 << 20, "{what}: {said} bytes accounted for, {full} allocated");
        // Ghosts, and the places of chunks.
        assert!(allocated(&region) <= 160 << 10, "{what}: {} bytes for nothing", allocated(&region));
    }
    assert_eq!(budget.used_bytes(), 0);
}

fn a_disk_in_random_order_takes_little_more_than_a_third_of_qemus_memory() {
    let budget = Budget::unlimited();
    let region = Region::new(ALLOCATOR);
    let cache = cache(QEMU_BYTES * 36 / 100, &budget);
    (0..CLUSTERS / ENTRIES).for_each(|slice| insert(&cache, slice, scattered));
    let counters = cache.counters();
    assert_eq!((counters.evictions, counters.resident_slices), (0, u64::from(CLUSTERS / ENTRIES)));
    let real = allocated(&region);
    println!("{} bytes accounted for, {real} allocated, {QEMU_BYTES} in QEMU", counters.resident_bytes);
    assert!(real * 100 <= QEMU_BYTES * 36);
}
