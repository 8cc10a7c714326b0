use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn map_of(check: OverlapCheck, pieces: &[(u64, u64, Section)]) -> MetadataMap {
    let mut places = Places::new(10);
    pieces.iter().for_each(|&(start, end, section)| places.push(start, end - start, section).unwrap());
    MetadataMap::new(check, places)
}

#[test]
fn a_range_touches_what_it_overlaps_and_nothing_else() {
    let pieces = [(0, 512, Section::MainHeader), (1024, 2048, Section::ActiveL2)];
    let map = map_of(OverlapCheck::CACHED, &pieces);
    assert_eq!(map.touched(512, 512, None), None);
    assert_eq!(map.touched(511, 1, None), Some((0, Section::MainHeader)));
    assert_eq!(map.touched(512, 513, None), Some((1024, Section::ActiveL2)));
    assert_eq!(map.touched(1500, 10, None), Some((1024, Section::ActiveL2)));
    assert_eq!(map.touched(1500, 10, Some(Section::ActiveL2)), None);
    assert_eq!(map.touched(2048, 1 << 40, None), None);
    map.remove(1024, Section::ActiveL1);
    assert!(map.touched(1500, 10, None).is_some());
    map.remove(1024, Section::ActiveL2);
    assert_eq!(map.touched(1500, 10, None), None);
}

/// What a snapshot still used could be given to a guest once the active image had a table of its own.
#[test]
fn a_table_that_is_left_to_a_snapshot_is_metadata_as_before() {
    for check in [OverlapCheck::CACHED, OverlapCheck::ALL] {
        let both = [Section::InactiveL2, Section::ActiveL2].map(|section| (1024, 2048, section));
        let map = map_of(check, &both);
        assert_eq!(map.touched(1024, 512, None), Some((1024, Section::ActiveL2)));
        map.leave_to_snapshot(1024);
        assert_eq!(map.touched(1024, 512, None), Some((1024, Section::InactiveL2)));
        assert_eq!(map.inactive_l2(), [1024]);
        map.replace(&[Section::InactiveL2], std::iter::empty());
        assert_eq!(map.touched(1024, 512, None), None);
        map.leave_to_snapshot(1024);
        assert_eq!(map.inactive_l2(), Vec::<u64>::new(), "nobody looked at it before");
    }
}

#[test]
fn templates_hold_what_their_names_promise() {
    assert!(!OverlapCheck::CONSTANT.checks(Section::ActiveL2));
    assert!(OverlapCheck::CACHED.checks(Section::ActiveL2));
    assert!(!OverlapCheck::CACHED.checks(Section::InactiveL2));
    assert!(Section::ALL.iter().all(|&section| OverlapCheck::ALL.checks(section)));
    assert!(!OverlapCheck::ALL.with(Section::ActiveL1, false).checks(Section::ActiveL1));
}

/// A piece took 48 bytes and more, so that 5 million tables in an image of 40 MiB took a quarter of a GiB.
#[test]
fn a_table_takes_nine_bytes_at_most_however_many_come_and_go() {
    const TABLES: u64 = 100_000;
    let bound = |tables: u64| tables * 9 + 4096;
    let map = map_of(OverlapCheck::CACHED, &[]);
    let table = |index: u64| 1024 + index * 7919 % TABLES * 2048;
    (0..TABLES).for_each(|index| map.add(table(index), 1024, Section::ActiveL2));
    assert!(map.footprint() <= bound(TABLES) + TABLES / 16 * 24, "{}", map.footprint());
    (1000..TABLES).for_each(|index| map.remove(table(index), Section::ActiveL2));
    assert!(map.footprint() <= bound(4000), "{}", map.footprint());
    let found = (0..TABLES).filter(|&index| map.touched(table(index), 1, None).is_some()).count();
    assert_eq!(found, 1000);
    let mut places = Places::new(10);
    (0..TABLES).for_each(|index| places.push(table(index), 1024, Section::ActiveL2).unwrap());
    let footprint = MetadataMap::new(OverlapCheck::CACHED, places).footprint();
    assert!(footprint <= TABLES * 8 + 64, "{footprint}");
}

/// Thousands of snapshots have the same million tables.
#[test]
fn tables_that_snapshots_share_are_listed_once() {
    let mut places = Places::new(9);
    for _ in 0..10 {
        (1..100_000).for_each(|index| places.push_shared(index * 512).unwrap());
    }
    assert!(places.clusters.len() < 300_000, "{}", places.clusters.len());
    assert_eq!(MetadataMap::new(OverlapCheck::ALL, places).inactive_l2().len(), 99_999);
}

#[test]
fn two_pieces_that_overlap_are_found_whatever_their_shape() {
    let l2 = |start: u64| (start, start + 1024, Section::ActiveL2);
    let l1 = |start: u64, end: u64| (start, end, Section::ActiveL1);
    let overlap = |pieces: &[(u64, u64, Section)]| {
        let mut places = Places::new(10);
        pieces.iter().for_each(|&(start, end, section)| places.push(start, end - start, section).unwrap());
        places.overlap()
    };
    assert_eq!(
        overlap(&[l2(3072), l2(1024), l1(4096, 9000), l1(2048, 2048), l2(9216), l1(2048, 3000)]),
        None
    );
    let twice = Some([(1024, Section::ActiveL2), (1024, Section::ActiveL2)]);
    assert_eq!(overlap(&[l2(1024), l2(9216), l2(1024)]), twice);
    assert_eq!(
        overlap(&[l2(4096), l1(1024, 4097)]),
        Some([(1024, Section::ActiveL1), (4096, Section::ActiveL2)])
    );
    assert_eq!(
        overlap(&[l2(1024), l1(2047, 4096)]),
        Some([(1024, Section::ActiveL2), (2047, Section::ActiveL1)])
    );
    assert_eq!(
        overlap(&[l1(512, 2048), l1(1536, 4096)]),
        Some([(512, Section::ActiveL1), (1536, Section::ActiveL1)])
    );
}

/// Bits of a cluster in the property below.
const BITS: u32 = 9;
const CLUSTER: u64 = 1 << BITS;
/// L2 tables and blocks lie in the first half of the file, other metadata behind, two clusters apart.
const SINGLES: u64 = 300;
const OTHERS: u64 = 20;

/// A piece: section, start, length.
type Piece = (Section, u64, u64);

#[derive(Clone, Debug)]
enum Step {
    Add(Piece),
    Remove(Piece),
    /// Pieces one behind the other, as when a guest fills or empties a disk.
    AddMany(u64, u64),
    RemoveMany(u64, u64),
    LeaveToSnapshot(u64),
    AddToSnapshot(u64),
    Replace(Vec<Section>, Vec<Piece>),
}

/// The same with every piece on its own.
struct Plain {
    check: OverlapCheck,
    pieces: BTreeSet<(u64, u64, Section)>,
}

impl Plain {
    fn add(&mut self, (section, start, len): Piece) {
        if self.check.checks(section) {
            self.pieces.insert((start, start + len, section));
        }
    }

    fn remove(&mut self, start: u64, section: Section) -> bool {
        let there = self.pieces.range((start, 0, Section::ALL[0])..(start + 1, 0, Section::ALL[0]));
        let there: Vec<_> = there.copied().filter(|piece| piece.2 == section).collect();
        there.iter().for_each(|piece| assert!(self.pieces.remove(piece)));
        !there.is_empty()
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Add(piece) => self.add(*piece),
            Step::Remove((section, start, _)) => _ = self.remove(*start, *section),
            Step::AddMany(from, to) => {
                (*from..*to).for_each(|at| self.add((Section::ActiveL2, at * CLUSTER, CLUSTER)))
            }
            Step::RemoveMany(from, to) => {
                (*from..*to).for_each(|at| _ = self.remove(at * CLUSTER, Section::ActiveL2));
            }
            Step::LeaveToSnapshot(at) => {
                if self.remove(at * CLUSTER, Section::ActiveL2) {
                    self.take(&Step::AddToSnapshot(*at));
                }
            }
            Step::AddToSnapshot(at) => {
                self.pieces.insert((at * CLUSTER, (at + 1) * CLUSTER, Section::InactiveL2));
            }
            Step::Replace(sections, pieces) => {
                self.pieces.retain(|piece| !sections.contains(&piece.2));
                pieces.iter().for_each(|piece| self.add(*piece));
            }
        }
    }

    fn touched(&self, start: u64, len: u64, except: Option<Section>) -> Option<(u64, Section)> {
        let there = |piece: &&(u64, u64, Section)| piece.0 < start + len && piece.1 > start;
        let there = self.pieces.iter().filter(there).filter(|piece| Some(piece.2) != except);
        let last = there.clone().map(|piece| piece.0).max()?;
        Some((last, there.filter(|piece| piece.0 == last).map(|piece| piece.2).min()?))
    }
}

fn take(map: &MetadataMap, step: &Step) {
    match step {
        Step::Add((section, start, len)) => map.add(*start, *len, *section),
        Step::Remove((section, start, _)) => map.remove(*start, *section),
        Step::AddMany(from, to) => {
            (*from..*to).for_each(|at| map.add(at * CLUSTER, CLUSTER, Section::ActiveL2));
        }
        Step::RemoveMany(from, to) => {
            (*from..*to).for_each(|at| map.remove(at * CLUSTER, Section::ActiveL2));
        }
        Step::LeaveToSnapshot(at) => map.leave_to_snapshot(at * CLUSTER),
        Step::AddToSnapshot(at) => map.add_to_snapshot(at * CLUSTER),
        Step::Replace(sections, pieces) => map.replace(sections, pieces.iter().copied()),
    }
}

fn piece() -> impl Strategy<Value = Piece> {
    let tables = prop::sample::select(vec![Section::ActiveL2, Section::RefcountBlock, Section::InactiveL2]);
    let single = (tables, 0..SINGLES).prop_map(|(section, at)| (section, at * CLUSTER, CLUSTER));
    let others = vec![Section::ActiveL1, Section::InactiveL1, Section::SnapshotTable];
    // The length goes with the place: what begins at one place ends at one.
    let other = (prop::sample::select(others), 0..OTHERS).prop_map(|(section, at)| {
        (section, (SINGLES + 2 * at) * CLUSTER + at % 3 * 8, [CLUSTER, 100, CLUSTER + 100][at as usize % 3])
    });
    prop_oneof![4 => single, 1 => other]
}

fn step() -> impl Strategy<Value = Step> {
    let sections = prop::collection::vec(prop::sample::select(Section::ALL.to_vec()), 0..4);
    prop_oneof![
        6 => piece().prop_map(Step::Add),
        6 => piece().prop_map(Step::Remove),
        1 => (0..SINGLES, 0..SINGLES).prop_map(|(from, to)| Step::AddMany(from, to)),
        1 => (0..SINGLES, 0..SINGLES).prop_map(|(from, to)| Step::RemoveMany(from, to)),
        2 => (0..SINGLES).prop_map(Step::LeaveToSnapshot),
        2 => (0..SINGLES).prop_map(Step::AddToSnapshot),
        1 => (sections, prop::collection::vec(piece(), 0..200)).prop_map(|(sections, pieces)| {
            Step::Replace(sections, pieces)
        }),
    ]
}

fn check() -> impl Strategy<Value = OverlapCheck> {
    prop::sample::select(OverlapCheck::NAMED.map(|(_, check)| check).to_vec())
}

proptest! {
    /// Some L2 tables of snapshots are known without being checked, see `leave_to_snapshot`.
    #[test]
    fn the_compact_map_answers_as_a_list_of_pieces_does(
        check in check(),
        first in prop::collection::vec(piece(), 0..400),
        steps in prop::collection::vec(step(), 0..60),
        asked in prop::collection::vec(
            (0..(SINGLES + 2 * OTHERS) * CLUSTER, 0..4 * CLUSTER, prop::option::of(Just(Section::ActiveL2))), 8,
        ),
    ) {
        let mut plain = Plain { check, pieces: BTreeSet::new() };
        let mut places = Places::new(BITS);
        for &(section, start, len) in &first {
            plain.add((section, start, len));
            places.push(start, len, section).unwrap();
        }
        let map = MetadataMap::new(check, places);
        for step in &steps {
            plain.take(step);
            take(&map, step);
            for &(start, len, except) in &asked {
                prop_assert_eq!(map.touched(start, len, except), plain.touched(start, len, except));
            }
        }
        for at in 0..SINGLES + 2 * OTHERS {
            let at = at * CLUSTER;
            prop_assert_eq!(map.touched(at, CLUSTER, None), plain.touched(at, CLUSTER, None));
        }
        let mut inactive = map.inactive_l2();
        inactive.sort_unstable();
        let of_snapshots = plain.pieces.iter().filter(|piece| piece.2 == Section::InactiveL2);
        prop_assert_eq!(inactive, of_snapshots.map(|piece| piece.0).collect::<Vec<_>>());
    }
}

/// A request that looked while a table was entered, or left to a snapshot, could take another table's place for its data: so the
/// rest of the map is as it was at every moment.
#[test]
#[cfg(not(feature = "shuttle"))]
fn who_asks_while_others_change_the_map_finds_every_piece_that_stays() {
    use std::sync::atomic::{AtomicBool, Ordering};
    const TABLES: u64 = 5000;
    let map = map_of(OverlapCheck::ALL, &[]);
    // Even clusters stay, odd ones come and go; of those that stay some are left to a snapshot.
    (0..TABLES).for_each(|at| map.add(2 * at * 1024, 1024, Section::ActiveL2));
    let (ended, asked) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                for at in 0..TABLES {
                    let found = map.touched(2 * at * 1024, 1024, None).map(|(start, _)| start);
                    assert_eq!(found, Some(2 * at * 1024));
                }
                asked.store(true, Ordering::Release);
            }
        });
        let mut rounds = 0;
        while rounds < 2 || !asked.load(Ordering::Acquire) && !asking.is_finished() {
            for at in 0..TABLES {
                map.add((2 * at + 1) * 1024, 1024, Section::RefcountBlock);
                map.leave_to_snapshot(2 * (at / 2) * 1024);
            }
            (0..TABLES).for_each(|at| map.remove((2 * at + 1) * 1024, Section::RefcountBlock));
            rounds += 1;
        }
        ended.store(true, Ordering::Release);
    });
}
