//! After a copy that succeeded the target reads as the source did, whatever the maps, pieces and options.

use block::Block;
use std::sync::Arc;

use futures_executor::block_on;
use job::{Content, Copy, CopyOptions, Counters, Joined, Order, Scope, Zeroes};
use proptest::prelude::*;

use crate::made_up::{MadeUp, SECTOR, Sector};

pub fn sector() -> impl Strategy<Value = Sector> {
    prop_oneof![Just(Sector::Data), Just(Sector::Zero), Just(Sector::Below), Just(Sector::Absent)]
}

/// Runs of sectors in one state: a map as images have them.
pub fn map() -> impl Strategy<Value = Vec<Sector>> {
    let runs = prop::collection::vec((sector(), 1..200_usize), 1..12);
    runs.prop_map(|runs| runs.into_iter().flat_map(|(sector, len)| vec![sector; len]).collect())
}

fn options() -> impl Strategy<Value = CopyOptions> {
    let zeroes = prop_oneof![
        Just(Zeroes::Detect(4096)),
        Just(Zeroes::ByMap),
        Just(Zeroes::WriteBefore(70_000)),
        Just(Zeroes::Write),
    ];
    let align = prop_oneof![Just(1), Just(4096), Just(65536)];
    let order = prop_oneof![Just(Order::Free), Just(Order::InOrder)];
    (zeroes, align, order, 1..5_usize, 1..400_000_u64).prop_map(
        |(zeroes, align_bytes, order, in_flight, memory_bytes)| CopyOptions {
            zeroes,
            align_bytes,
            order,
            in_flight,
            memory_bytes,
            ..CopyOptions::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_reads_as_the_source_whatever_the_target_held(map in map(), options in options(), blank in any::<bool>()) {
        let source = MadeUp::new("source", &map, 0);
        let (target, content) = match blank {
            true => (MadeUp::blank("target", map.len()), Content::Zeroes),
            false => (MadeUp::used("target", map.len()), Content::Unknown),
        };
        let counters = Counters::default();
        let size = (map.len() * SECTOR) as u64;
        let copy = Copy {
            source: &source, from: 0..size, target: &target, to: 0, scope: Scope::Everything, content, options,
        };
        block_on(copy.run(&counters)).unwrap();
        prop_assert_eq!(target.bytes(), source.bytes());
        prop_assert_eq!(counters.progress().done, size);
        prop_assert_eq!(target.flushes(), 1);
    }

    #[test]
    fn a_part_goes_to_its_place_and_nowhere_else(map in map(), options in options(), cut in 0..100_u64, to in 0..9_u64) {
        let source = MadeUp::new("source", &map, 0);
        let size = (map.len() * SECTOR) as u64;
        let from = cut.min(size)..size;
        let target = MadeUp::used("target", map.len() + 9);
        let old = target.bytes();
        let to = to * 100;
        let copy = Copy {
            source: &source, from: from.clone(), target: &target, to, scope: Scope::Everything,
            content: Content::Unknown, options,
        };
        block_on(copy.run(&Counters::default())).unwrap();
        let (to, len) = (to as usize, (from.end - from.start) as usize);
        let mut expected = old;
        expected[to..to + len].copy_from_slice(&source.bytes()[from.start as usize..from.end as usize]);
        prop_assert_eq!(target.bytes(), expected);
    }

    #[test]
    fn joined_blocks_are_copied_one_after_the_other(maps in prop::collection::vec(map(), 1..4), options in options()) {
        let parts: Vec<_> = maps.iter().map(|map| Arc::new(MadeUp::new("part", map, 3))).collect();
        let expected: Vec<u8> = parts.iter().flat_map(|part| part.bytes()).collect();
        let source = Joined::new(parts.into_iter().map(|part| part as Arc<dyn block::Block>).collect());
        let target = MadeUp::blank("target", expected.len() / SECTOR);
        let copy = Copy {
            source: &source, from: 0..expected.len() as u64, target: &target, to: 0, scope: Scope::Everything,
            content: Content::Zeroes, options,
        };
        block_on(copy.run(&Counters::default())).unwrap();
        prop_assert_eq!(target.bytes(), expected);
    }
}

#[test]
fn a_hole_stays_a_hole_and_zeroes_that_are_read_need_no_write() {
    let map = [[Sector::Data; 128], [Sector::Absent; 128]].concat();
    let mut source = MadeUp::new("source", &map, 0);
    assert!(source.bytes().iter().any(|byte| *byte != 0));
    let target = MadeUp::blank("target", map.len());
    let run = |source: &MadeUp, zeroes| {
        let counters = Counters::default();
        let copy = Copy {
            source,
            from: 0..(map.len() * SECTOR) as u64,
            target: &target,
            to: 0,
            scope: Scope::Everything,
            content: Content::Zeroes,
            options: CopyOptions { zeroes, ..CopyOptions::default() },
        };
        block_on(copy.run(&counters)).unwrap();
        counters.progress()
    };
    // Sector 0 holds bytes of value 0: with seven more it makes a block of 4 KiB that is not all zeroes.
    assert_eq!(run(&source, Zeroes::Detect(512)).written, 127 * 512);
    assert_eq!(run(&source, Zeroes::Detect(4096)).written, 128 * 512);
    assert_eq!(run(&source, Zeroes::ByMap).written, 128 * 512);
    assert_eq!(run(&source, Zeroes::Write).written, 256 * 512);
    source = MadeUp::blank("source", map.len());
    assert_eq!(run(&source, Zeroes::ByMap), job::Progress { done: 256 * 512, ..job::Progress::default() });
}

/// A copy of what is packed must not unpack it for nothing, nor lose what the target refuses.
#[test]
fn what_the_target_takes_over_is_read_only_if_it_refuses() {
    use Sector::{Absent, Data, Zero};
    let map = [&[Data; 8][..], &[Absent; 4], &[Data; 3], &[Zero], &[Data; 4]].concat();
    let source = MadeUp::new("source", &map, 0x55);
    for (refuses, read) in [(false, 4), (true, 16)] {
        for order in [Order::Free, Order::InOrder] {
            let target = MadeUp::blank("target", map.len()).taking(4 * SECTOR as u64, refuses);
            let counters = Counters::default();
            let copy = Copy {
                source: &source,
                from: 0..(map.len() * SECTOR) as u64,
                target: &target,
                to: 0,
                scope: Scope::Everything,
                content: Content::Zeroes,
                options: CopyOptions {
                    order,
                    align_bytes: 4 * SECTOR as u64,
                    zeroes: Zeroes::Detect(512),
                    ..CopyOptions::default()
                },
            };
            block_on(copy.run(&counters)).unwrap();
            assert_eq!(target.bytes(), source.bytes());
            assert_eq!(counters.progress().read, read * SECTOR as u64);
            assert_eq!(counters.progress().done, (map.len() * SECTOR) as u64);
        }
    }
}

#[test]
fn a_target_that_is_too_small_is_reported_before_anything_is_written() {
    let (source, target) = (MadeUp::used("source", 4), MadeUp::blank("target", 3));
    let copy = Copy {
        source: &source,
        from: 0..4 * 512,
        target: &target,
        to: 0,
        scope: Scope::Everything,
        content: Content::Zeroes,
        options: CopyOptions::default(),
    };
    let error = block_on(copy.run(&Counters::default())).unwrap_err();
    assert_eq!(error.to_string(), "target target has 1536 bytes; 2048 are needed");
    assert!(target.bytes().iter().all(|byte| *byte == 0));
}

/// A small container was full of pages that could not be dropped, and its process was killed.
#[test]
fn what_waits_for_the_medium_is_bounded() {
    let map = vec![Sector::Data; 2048];
    for order in [Order::Free, Order::InOrder] {
        let source = MadeUp::new("source", &map, 0);
        let target = MadeUp::used("target", map.len());
        let copy = Copy {
            source: &source,
            from: 0..source.size(),
            target: &target,
            to: 0,
            scope: Scope::Everything,
            content: Content::Unknown,
            options: CopyOptions {
                order,
                memory_bytes: 64 << 10,
                flush_bytes: Some(256 << 10),
                ..CopyOptions::default()
            },
        };
        block_on(copy.run(&Counters::default())).unwrap();
        assert_eq!(target.bytes(), source.bytes());
        // After each quarter of the MiB but the last, and at the end.
        assert_eq!(target.flushes(), 3 + 1);
    }
}
