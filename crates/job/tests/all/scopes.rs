//! Commit and rebase are copies of a part of the layers.

use futures_executor::block_on;
use job::{Content, Copy, CopyOptions, Counters, Scope, Zeroes};
use proptest::prelude::*;
use storage::Hints;

use crate::copies::map;
use crate::made_up::{MadeUp, SECTOR, Sector};

/// The bytes of `new` where `takes` says so of the sector's state, of `old` elsewhere.
fn mixed(map: &[Sector], new: &[u8], old: &[u8], takes: impl Fn(Sector) -> bool) -> Vec<u8> {
    let pick = |index: usize| if takes(map[index / SECTOR]) { new[index] } else { old[index] };
    (0..new.len()).map(pick).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// A commit that also brought down what the overlay does not know would undo what the base got meanwhile.
    #[test]
    fn a_commit_writes_what_the_upper_layer_knows_and_nothing_else(map in map(), memory_bytes in 1..300_000_u64) {
        let source = MadeUp::new("source", &map, 0);
        let target = MadeUp::used("target", map.len());
        let old = target.bytes();
        let copy = Copy {
            source: &source, from: 0..old.len() as u64, target: &target, to: 0, scope: Scope::Layers(1),
            content: Content::Unknown, options: CopyOptions { memory_bytes, ..CopyOptions::default() },
        };
        let counters = Counters::default();
        block_on(copy.run(&counters)).unwrap();
        let own = |sector| matches!(sector, Sector::Data | Sector::Zero);
        prop_assert_eq!(target.bytes(), mixed(&map, &source.bytes(), &old, own));
        prop_assert_eq!(counters.progress().done, old.len() as u64);
    }

    /// Rebasing: what the overlay showed of its old backing must show through the new one, or be in the overlay.
    #[test]
    fn what_reads_the_same_below_is_not_written_and_everything_else_is(
        map in map(), below in map(), align in prop_oneof![Just(4096_u64), Just(65536)], memory_bytes in 1..300_000_u64,
        zeroes in prop_oneof![
            Just(Zeroes::ByMap), Just(Zeroes::WriteBefore(70_000)), Just(Zeroes::Write), Just(Zeroes::Detect(4096)),
        ],
    ) {
        let source = MadeUp::new("source", &map, 0);
        let new = MadeUp::new("new", &below, 0);
        // What the overlay would read as over the new backing file alone.
        let mut through = new.bytes();
        through.resize(map.len() * SECTOR, 0);
        let through = mixed(&map, &source.bytes(), &through, |sector| matches!(sector, Sector::Data | Sector::Zero));
        let target = MadeUp::blank("target", map.len());
        block_on(async {
            let whole = block::Block::write(&target, 0, memory::IoVec::from(memory::IoBytes::copy_from(&through)), Hints::NONE);
            whole.await.unwrap();
            let copy = Copy {
                source: &source, from: 0..through.len() as u64, target: &target, to: 0, scope: Scope::BelowTop,
                content: Content::As(&new),
                options: CopyOptions { memory_bytes, align_bytes: align, zeroes, ..CopyOptions::default() },
            };
            copy.run(&Counters::default()).await.unwrap();
        });
        prop_assert_eq!(target.bytes(), source.bytes());
    }
}

/// Flattening down to a layer that stays: what only that one and those below it have shows through as before, and what is unknown must
/// not begin to show what it has there.
#[test]
fn a_flatten_leaves_alone_what_the_layer_that_stays_shows() {
    use Sector::{Absent, Below, Data, Zero};
    let map: Vec<Sector> = [Data, Zero, Below, Absent].into_iter().flat_map(|sector| [sector; 128]).collect();
    // The layer that stays is the one that `source` calls its layer below, or one below that.
    for (layers, copied) in [(1, 0), (2, 128 * SECTOR as u64)] {
        let (source, stays) = (MadeUp::new("source", &map, 0), MadeUp::new("stays", &[Data; 512], 3));
        let target = MadeUp::used("target", map.len());
        let old = target.bytes();
        let copy = Copy {
            source: &source,
            from: 0..old.len() as u64,
            target: &target,
            to: 0,
            scope: Scope::BelowTopWithin(layers),
            content: Content::As(&stays),
            options: CopyOptions::default(),
        };
        let counters = Counters::default();
        block_on(copy.run(&counters)).unwrap();
        let takes = |sector| sector == Absent || (layers == 2 && sector == Below);
        assert_eq!(target.bytes(), mixed(&map, &source.bytes(), &old, takes));
        let progress = counters.progress();
        assert_eq!((progress.written, progress.zeroed), (copied, 128 * SECTOR as u64), "{layers}");
    }
}

/// qemu-img writes the zeroes of the old backing file as data, and marks as zeroes what lies behind its end.
#[test]
fn zeroes_that_hide_the_new_backing_file_are_data_up_to_where_that_is_wanted() {
    let (map, data) = ([Sector::Absent; 512], [Sector::Data; 512]);
    for (end, written) in [(0, 0), (100_000, 100_000), (512 * 512, 512 * 512), (u64::MAX, 512 * 512)] {
        let (source, new) = (MadeUp::new("source", &map, 0), MadeUp::new("new", &data, 1));
        let target = MadeUp::used("target", map.len());
        let copy = Copy {
            source: &source,
            from: 0..512 * 512,
            target: &target,
            to: 0,
            scope: Scope::BelowTop,
            content: Content::As(&new),
            options: CopyOptions { zeroes: Zeroes::WriteBefore(end), ..CopyOptions::default() },
        };
        let counters = Counters::default();
        block_on(copy.run(&counters)).unwrap();
        let progress = counters.progress();
        assert_eq!((progress.written, progress.zeroed), (written, 512 * 512 - written), "{end}");
        assert!(target.bytes().iter().all(|&byte| byte == 0), "{end}");
    }
}

#[test]
fn nothing_is_written_where_both_backing_files_read_the_same() {
    let map = [Sector::Below; 512];
    let (source, new) = (MadeUp::new("source", &map, 1), MadeUp::new("new", &[Sector::Data; 512], 1));
    let target = MadeUp::new("target", &map, 1);
    let counters = Counters::default();
    let copy = Copy {
        source: &source,
        from: 0..512 * 512,
        target: &target,
        to: 0,
        scope: Scope::BelowTop,
        content: Content::As(&new),
        options: CopyOptions::default(),
    };
    block_on(copy.run(&counters)).unwrap();
    let progress = counters.progress();
    assert_eq!((progress.written, progress.zeroed, progress.done), (0, 0, 512 * 512));
}
