//! docs/write-order.md, row by row: what is written in which order, and what every crash leaves.

use crate::harness;

use harness::compacting::{compact, contents};
use harness::judge::{self, Piece};
use harness::{Qcow2Target, config};
use qcow2::{CompactOptions, ErrorKind};
use qcow2_layout::Incompatible;
use sim::campaign::{CrashPlan, Setup, crash_everywhere, run_workload};
use sim::{
    CrashOptions, CrashStates, Durability, IoKind, Management, Op, Order, Recording, Request, Step, Target,
    Workload,
};
use storage::{IoBuf, IoBytes, IoVec, Zeroing};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

fn write(at: u64, len: u64) -> Op {
    Op::Write { at, len, durability: Durability::AtFlush }
}

/// What reached the image file, in order, as the pieces of the final image; runs of one kind once.
fn trace(target: &Qcow2Target, ops: &[Op]) -> String {
    let ran =
        run_workload(target, &workload(ops), &Setup { order: Order::Immediate, record: true, ..setup(1) });
    let ran = ran.unwrap_or_else(|failure| panic!("{failure}"));
    let recording = ran.recording.expect("it was asked for");
    told(&recording, target.config().cluster())
}

fn told(recording: &Recording, cluster: u64) -> String {
    let pieces = judge::pieces(&recording.current_at(recording.end)[0]);
    let name = |offset: u64| match pieces.get(&(offset / cluster * cluster)) {
        Some(Piece::Header) => "header",
        Some(Piece::RefcountTable) => "refcount-table",
        Some(Piece::RefcountBlock) => "refcount-block",
        Some(Piece::L1) => "L1",
        Some(Piece::L2) => "L2",
        Some(Piece::Data) => "data",
        Some(Piece::Snapshot) => "snapshot",
        Some(Piece::Bitmap) => "bitmap-directory",
        None => "freed",
    };
    let mut told: Vec<String> = Vec::new();
    for record in &recording.records {
        let event = match &record.request {
            Request::Write { .. } | Request::Zero { .. } if record.disk == 1 => "data-file".to_owned(),
            Request::Flush if record.disk == 1 => "flush-data-file".into(),
            Request::Write { offset, .. } => name(*offset).into(),
            Request::Zero { offset, .. } => format!("zero {}", name(*offset)),
            Request::Discard { offset, .. } => format!("punch {}", name(*offset)),
            Request::Flush => "|".into(),
            Request::SetLength { .. } => "length".into(),
            Request::Allocate { offset, .. } => format!("room {}", name(*offset)),
            other => other.to_string(),
        };
        if told.last() != Some(&event) {
            told.push(event);
        }
    }
    told.join(" ")
}

fn workload(ops: &[Op]) -> Workload {
    Workload { steps: ops.iter().copied().map(Step::of).collect() }
}

fn setup(seed: u64) -> Setup {
    Setup::shuffled(seed)
}

/// Every crash of these operations, with requests ending in order and in several others: nothing
/// worse than leaks, nothing lost, and the image can be used further. Gives the order of writes.
fn row(name: &str, ops: &[Op]) -> String {
    row_of(&Qcow2Target::new(config(name)), ops)
}

fn row_of(target: &Qcow2Target, ops: &[Op]) -> String {
    crash_in_several_orders(target, &workload(ops));
    trace(target, ops)
}

fn crash_in_several_orders(target: &Qcow2Target, workload: &Workload) {
    let mut states = 0;
    for seed in 0..6 {
        let order = if seed == 0 { Order::Immediate } else { Order::Shuffled };
        let plan = CrashPlan {
            states: CrashOptions { seed, tears: 4, ..CrashOptions::default() },
            go_on_in_one_of: 8,
            go_on_steps: 40,
        };
        let setup = Setup { order, ..setup(seed) };
        let crashed = crash_everywhere(target, workload, &setup, &plan, &mut |_| Ok(()));
        states += crashed.unwrap_or_else(|failure| panic!("{failure}")).states;
    }
    println!("looked at in {}: {states} crash states", target.name());
    assert!(states > 2, "{states} crash states are too few to mean anything");
}

/// What was read when the image was opened may be in the page cache only: a barrier comes before the first change, and
/// before that one alone.
#[test]
fn first_change() {
    assert_eq!(row("c4k", &[write(4 * K, 512), write(8 * K, 512), Op::Flush]), "| data |");
}

#[test]
fn in_place_write() {
    assert_eq!(row("c4k", &[write(4 * K, 3000), Op::Flush]), "| data |");
}

#[test]
fn allocating_write() {
    assert_eq!(row("c4k", &[write(64 * K, 9000), Op::Flush]), "| length data refcount-block | L2 | length");
}

/// The second cluster lies behind the first one in the same cluster of the file. Behind the last flush the reference of
/// who would have gone on there is given back.
#[test]
fn compressed_write() {
    assert_eq!(
        row("c4k_packs", &[write(64 * K, 8 * K), Op::Flush]),
        "| room L1 length room L2 data refcount-block | L2 L1 | refcount-block | length"
    );
}

/// The first write fills the reserve, the second one takes from it.
fn second_write(config: &str, ops: &[Op]) -> String {
    let first = [write(64 * K, 4 * K), Op::Flush];
    let all: Vec<Op> = first.into_iter().chain(ops.iter().copied()).collect();
    row(config, &all)
}

#[test]
fn allocating_write_from_the_reserve() {
    assert_eq!(
        second_write("c4k_reserve", &[write(200 * K, 9000), Op::Flush]),
        "| length data header length refcount-block | L2 | data refcount-block L2 | refcount-block | length header |"
    );
}

#[test]
fn new_l2_table_from_the_reserve() {
    assert_eq!(
        second_write("c4k_reserve", &[write(5 * M, 4096), Op::Flush]),
        "| length data header length refcount-block | L2 | room L2 data refcount-block L2 L1 | refcount-block | length header |"
    );
}

#[test]
fn subcluster_write_to_a_cluster_that_never_held_anything() {
    let ops = [write(M, 600), Op::Flush, write(M + 4 * K, 512), Op::Flush];
    assert_eq!(
        second_write("c16k_subclusters_reserve", &ops),
        "| data | room L2 room refcount-block length data header refcount-block | L2 | data L2 | refcount-block | length header |"
    );
}

#[test]
fn subcluster_writes_side_by_side() {
    let target = Qcow2Target::new(config("c16k_subclusters_reserve"));
    let ops =
        [write(M, 600), Op::Flush, write(M + 4 * K, 512), write(M + 8 * K, 700), write(M + 12 * K, 4096)];
    let step = |(queue, op): (u8, &Op)| Step { queue, ..Step::of(*op) };
    // The first two are queue 0's, the others are each in one of their own, and a flush meets them.
    let queues = [0, 0, 1, 2, 3].into_iter().zip(&ops).map(step);
    let steps = queues.chain([Step::of(Op::Flush), Step { queue: 2, ..Step::of(Op::Flush) }]).collect();
    crash_in_several_orders(&target, &Workload { steps });
}

#[test]
fn subcluster_write_where_zeroes_hide_old_data() {
    let zero = Op::Zero { at: M, len: 4 * K, how: Zeroing::Keep, durability: Durability::AtFlush };
    let ops = [write(M, 4 * K), zero, Op::Flush, write(M, 4 * K), Op::Flush];
    assert_eq!(
        second_write("c16k_subclusters_reserve", &ops),
        "| data | room L2 room refcount-block length data header refcount-block | L2 | data | L2 | refcount-block | length header |"
    );
}

#[test]
fn allocating_write_from_the_reserve_over_data_of_a_backing_file() {
    assert_eq!(
        second_write(
            "c4k_on_qcow2_reserve",
            &[write(200 * K, 4 * K), Op::Flush, write(40_000, 500), Op::Flush]
        ),
        "| data | length data header length refcount-block | L2 | data refcount-block | L2 | refcount-block | length header |"
    );
}

#[test]
fn allocating_write_from_the_reserve_on_a_device() {
    assert_eq!(
        second_write("c4k_device_reserve", &[write(200 * K, 500), Op::Flush]),
        "| data header refcount-block | L2 | data refcount-block | L2 | refcount-block | header |"
    );
}

#[test]
fn allocating_write_from_the_reserve_to_a_reused_cluster() {
    let reuse = [Op::Discard { at: 0, len: 8 * K }, Op::Flush, Op::Flush, write(200 * K, 4 * K), Op::Flush];
    assert_eq!(
        row("c4k_reserve", &reuse),
        "| L2 | punch data refcount-block | data header length refcount-block | L2 | refcount-block | length header |"
    );
}

#[test]
fn copy_on_write_from_a_backing_file() {
    assert_eq!(
        row("c4k_on_qcow2", &[write(40_000, 500), Op::Flush]),
        "| length data refcount-block | L2 | length"
    );
}

#[test]
fn copy_on_write_of_a_cluster_shared_with_a_snapshot() {
    assert_eq!(
        row("c4k_snapshots", &[write(9 * K, 500), Op::Flush, Op::Flush]),
        "| L2 length data refcount-block | L2 L1 | refcount-block | length"
    );
}

#[test]
fn copy_on_write_of_a_compressed_cluster() {
    assert_eq!(
        row("c4k_compressed", &[write(9 * K, 500), Op::Flush, Op::Flush]),
        "| length data refcount-block | L2 | refcount-block | length"
    );
}

#[test]
fn subcluster_write() {
    assert_eq!(
        row("c16k_subclusters_on_qcow2", &[write(70 * K, 600), write(100 * K, 600), Op::Flush]),
        "| data room L2 room refcount-block length data refcount-block | L2 | length"
    );
}

#[test]
fn new_l2_table() {
    assert_eq!(
        row("c4k", &[write(5 * M, 4096), Op::Flush]),
        "| length room L2 data refcount-block | L2 L1 | length"
    );
}

#[test]
fn new_refcount_block() {
    assert_eq!(
        row("c512_r64_tiny", &[write(64 * K, 30 * K), Op::Flush]),
        "| length room L2 length room refcount-block data refcount-block | refcount-table | L2 L1 | length"
    );
}

#[test]
fn refcount_table_move() {
    assert_eq!(
        row("c512_table_grows", &[write(2 * M, 120 * K), Op::Flush, Op::Flush]),
        "| length room L2 room refcount-block room refcount-table data room L2 room refcount-block data \
         room L2 room refcount-block data room L2 room refcount-block data refcount-block refcount-table \
         | header | L2 L1 | punch freed refcount-block | length"
    );
}

#[test]
fn write_zeroes() {
    let zero = Op::Zero { at: 0, len: 8 * K, how: Zeroing::Keep, durability: Durability::AtFlush };
    assert_eq!(row("c4k", &[zero, Op::Flush]), "| L2 |");
}

#[test]
fn discard() {
    assert_eq!(
        row("c4k", &[Op::Discard { at: 0, len: 8 * K }, Op::Flush, Op::Flush]),
        "| L2 | punch freed refcount-block |"
    );
}

#[test]
fn discard_without_unreferencing() {
    assert_eq!(
        row("c4k_no_unref", &[write(0, 8 * K), Op::Discard { at: 0, len: 8 * K }, Op::Flush]),
        "| room L1 length room L2 data punch data refcount-block | L2 L1 | length"
    );
}

#[test]
fn free_and_use_again() {
    let ops = [Op::Discard { at: 0, len: 8 * K }, Op::Flush, Op::Flush, write(64 * K, 8 * K), Op::Flush];
    assert_eq!(row("c4k", &ops), "| L2 | punch data refcount-block | data refcount-block | L2 |");
}

#[test]
fn lazy_refcounts_dirty_bit() {
    assert_eq!(
        row("c4k_lazy", &[write(64 * K, 4096), Op::Flush]),
        "header | length data | L2 | refcount-block | length header |"
    );
}

fn change(variant: u32) -> Op {
    Op::Manage(Management::Change(variant))
}

#[test]
fn lazy_refcounts_turned_off() {
    // Variant 2 turns lazy refcounts around.
    assert_eq!(
        row(
            "c4k_lazy_changed",
            &[write(64 * K, 4096), Op::Flush, change(2), write(128 * K, 4096), Op::Flush]
        ),
        "header | length data | L2 | refcount-block | header | data refcount-block | L2 | length"
    );
}

#[test]
fn lazy_refcounts_turned_on() {
    let ops = [change(2), write(64 * K, 4096), Op::Flush, change(0), write(128 * K, 4096), Op::Flush];
    assert_eq!(
        row("c4k_lazy_changed", &ops),
        "| length data refcount-block | L2 | header | data | L2 | refcount-block | length header |"
    );
}

#[test]
fn bitmap_in_use_mark() {
    assert_eq!(
        row("c4k_bitmap", &[write(64 * K, 4096), Op::Flush]),
        "bitmap-directory | length data refcount-block | L2 | length"
    );
}

#[test]
fn external_data_file() {
    assert_eq!(
        row("c4k_data_file", &[write(64 * K, 4096), Op::Flush]),
        "| data-file flush-data-file | L2 flush-data-file | flush-data-file |"
    );
}

/// The image of a crash that leaked a reserve, and holds what a new one does: no entry leads to what was written.
fn crashed_with_a_reserve(name: &str) -> Qcow2Target {
    let target = Qcow2Target::new(config(name));
    let setup = Setup { order: Order::Immediate, record: true, ..setup(1) };
    let ran = run_workload(&target, &workload(&[write(64 * K, 4 * K), Op::Flush]), &setup);
    let ran = ran.unwrap_or_else(|failure| panic!("{failure}"));
    let recording = ran.recording.expect("it was asked for");
    let flushes = recording.records.iter().filter(|record| record.request.kind() == IoKind::Flush);
    let mut images = flushes.filter_map(|flush| Some(recording.durable_at(flush.completed?)[0].clone()));
    let image = images.find(judge::tells_of_a_reserve).expect("a reserve was counted");
    Qcow2Target::patched(config(name), |base| *base = image)
}

#[test]
fn reserve_given_back_at_the_next_open() {
    assert_eq!(row_of(&crashed_with_a_reserve("c4k_reserve"), &[Op::Flush]), "| refcount-block | header |");
}

#[test]
fn clean_close() {
    assert_eq!(row("c4k", &[write(5 * M, 4096)]), "| length room L2 data refcount-block | L2 L1 | length");
}

fn resize(size: u64) -> Op {
    Op::Manage(Management::Resize(size))
}

#[test]
fn grow() {
    assert_eq!(row("c1k_v2_resized", &[resize(500 * K)]), "| header |");
}

#[test]
fn grow_over_a_longer_backing_file() {
    assert_eq!(
        row("c4k_resized_under_longer", &[resize(5 * M)]),
        "| length L1 refcount-block | header | room L2 refcount-block L2 | L1 | punch freed header | refcount-block | length"
    );
}

#[test]
fn grow_moves_the_l1_table() {
    assert_eq!(
        row("c512_resized", &[resize(3 * M), write(3 * M - 4 * K, 3000), Op::Flush]),
        "| length L1 refcount-block | header | punch L2 header | L2 data refcount-block | L2 L1 | length"
    );
}

#[test]
fn shrink() {
    assert_eq!(
        row("c512_resized", &[resize(M + 7 * K), resize(2 * M)]),
        "| header | L2 | punch freed refcount-block L1 | punch freed refcount-block freed | refcount-table | length | header |"
    );
}

#[test]
fn snapshot_create() {
    assert_eq!(
        row("c512_snapshotted", &[Op::Manage(Management::SnapshotCreate(1)), write(0, 3000), Op::Flush]),
        "| length L2 L1 snapshot refcount-block refcount-table | header | data refcount-block | L2 | punch freed refcount-block | length"
    );
}

#[test]
fn snapshot_apply() {
    let ops = [
        Op::Manage(Management::SnapshotCreate(1)),
        write(0, 9000),
        Op::Flush,
        Op::Manage(Management::SnapshotApply(1)),
    ];
    assert_eq!(
        row("c512_snapshotted", &ops),
        "| length freed | header | length freed | freed | punch L2 freed | L2 L1 snapshot refcount-block refcount-table | header | punch freed refcount-block | length"
    );
}

#[test]
fn snapshot_delete() {
    let ops = [
        Op::Manage(Management::SnapshotCreate(1)),
        write(0, 9000),
        Op::Flush,
        Op::Manage(Management::SnapshotDelete(1)),
        Op::Flush,
    ];
    assert_eq!(
        row("c512_snapshotted", &ops),
        "| length L2 freed | header | length data freed | L2 | punch L2 freed | L2 L1 refcount-block refcount-table | header | punch freed refcount-block | length"
    );
}

/// The order of what `work` writes to an image that is opened for it and closed behind it.
fn order_of(name: &str, work: impl AsyncFnOnce(&qcow2::Qcow2) + 'static) -> (String, Recording) {
    let target = Qcow2Target::new(config(name));
    let world = target.world(1);
    world.start_recording();
    sim::run(&world, 1, |_| async {
        let image = target.open_with(&world, target.config().options(0)).await.expect("it is sound");
        work(&image).await;
        image.close().await.expect("nothing fails");
    })
    .expect("nobody waits for ever");
    let recording = world.recording();
    (told(&recording, target.config().cluster()), recording)
}

#[test]
fn make_empty() {
    let (order, recording) = order_of("c4k", async |image| image.make_empty().await.unwrap());
    assert_eq!(
        order,
        "| length L1 refcount-block refcount-table | header | punch freed refcount-block | length"
    );
    // Before the header nothing that it leads to has changed: up to the barrier in front of it the image is the old one.
    let left = judge::pieces(&recording.durable_at(recording.end)[0]);
    assert!(!left.values().any(|piece| matches!(piece, Piece::Data | Piece::L2)), "{left:?}");
}

#[test]
fn backing_name() {
    let (order, recording) = order_of("c4k_on_qcow2", async |image| {
        image.set_backing_name(Some("n".repeat(900)), Some("raw".to_owned())).await.unwrap();
    });
    // The name in a free place, then the sector that leads to it.
    assert_eq!(order, "| header | header |");
    let header = judge::header(&recording.durable_at(recording.end)[0]).unwrap();
    assert_eq!(header.backing, Some("n".repeat(900)));
}

/// An image with free clusters before others.
fn with_free_clusters(name: &str, ops: &[Op]) -> Qcow2Target {
    let made = Qcow2Target::new(config(name));
    let setup = Setup { order: Order::Immediate, ..setup(1) };
    let ran = run_workload(&made, &workload(ops), &setup).unwrap_or_else(|failure| panic!("{failure}"));
    let image = ran.world.current(0);
    Qcow2Target::patched(config(name), |base| *base = image)
}

/// Every crash of a compaction leaves leaks at most, and the disk and its snapshots as they were; another run frees the leaks.
fn compact_row(name: &str, ops: &[Op]) -> String {
    let target = with_free_clusters(name, ops);
    let world = target.world(1);
    let before = contents(&target, &world);
    world.start_recording();
    let options = CompactOptions { detect_zeroes: true, dry_run: false };
    let report = compact(&world, options);
    assert!(report.length_after < report.length_before, "{report:?}");
    let recording = world.recording();
    let states = CrashOptions { tears: 4, share: (1, 3), ..CrashOptions::default() };
    let mut looked_at = 0;
    for state in CrashStates::new(&recording, &[], states) {
        looked_at += 1;
        let checked = judge::check(&state.disks[0], &[]);
        checked.unwrap_or_else(|error| panic!("{error}\n{state}"));
        let (world, _disks) = state.boot(1);
        assert!(contents(&target, &world) == before, "the disk changed\n{state}");
        if looked_at % 16 == 0 {
            let (world, _disks) = state.boot(1);
            compact(&world, options);
            judge::check(&world.current(0), &[]).unwrap_or_else(|error| panic!("{error}\n{state}"));
            assert!(contents(&target, &world) == before, "the disk changed in the next run\n{state}");
            let again = compact(&state.boot(1).0, CompactOptions { dry_run: true, ..options });
            assert!(again.length_after <= report.length_before, "{again:?}");
        }
    }
    println!("looked at in {name}: {looked_at} crash states");
    assert!(looked_at > 20, "{looked_at} crash states are too few to mean anything");
    told(&recording, target.config().cluster())
}

#[test]
fn compact_moves_data_and_tables() {
    let ops = [
        write(0, 64 * K),
        write(2 * M, 40 * K),
        write(5 * M, 20 * K),
        Op::Flush,
        Op::Discard { at: 0, len: 64 * K },
        Op::Flush,
    ];
    assert_eq!(
        compact_row("c4k", &ops),
        "| L2 refcount-block | L1 | refcount-block | data refcount-block | L2 | refcount-block | length |"
    );
}

#[test]
fn compact_with_snapshots() {
    let ops = [
        write(0, 16 * K),
        Op::Flush,
        Op::Manage(Management::SnapshotCreate(1)),
        write(32 * K, 16 * K),
        write(4 * K, 2 * K),
        Op::Manage(Management::SnapshotCreate(2)),
        Op::Flush,
        Op::Manage(Management::SnapshotDelete(1)),
        Op::Flush,
    ];
    assert_eq!(
        compact_row("c512_snapshotted", &ops),
        "| refcount-table refcount-block | header | refcount-block | data refcount-block | L2 | refcount-block | length |"
    );
}

#[test]
fn autoclear() {
    let unknown = 1u64 << 63;
    let target = Qcow2Target::patched(config("c4k"), |image| image.write(88, &unknown.to_be_bytes()));
    assert_eq!(row_of(&target, &[Op::Read { at: 0, len: 512 }]), "header |");
}

#[test]
fn corrupt_bit() {
    // The entry of guest cluster 0 leads to the refcount block.
    let target = Qcow2Target::patched(config("c4k"), |image| {
        let pieces = judge::pieces(image);
        let first =
            |piece| pieces.iter().find(|(_, found)| **found == piece).map_or(0, |(offset, _)| *offset);
        let entry = first(Piece::RefcountBlock) | 1 << 63;
        image.write(first(Piece::L2), &entry.to_be_bytes());
    });
    let world = target.world(1);
    world.start_recording();
    sim::run(&world, 1, |_| async {
        let image = target.open_with(&world, target.config().options(0)).await.unwrap();
        let data = || IoVec::from(IoBytes::zeroed(512));
        assert_eq!(image.write(0, data()).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(image.write(M, data()).await.unwrap_err().kind(), ErrorKind::Refused);
        let (read, _) = image.read(8 * K, IoBuf::uninit(512)).await;
        read.unwrap();
        assert_eq!(image.close().await.unwrap_err().kind(), ErrorKind::Corrupt);
        let again = target.open_with(&world, target.config().options(0)).await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Refused);
    })
    .unwrap();
    let recording = world.recording();
    assert_eq!(told(&recording, 4 * K), "| header |");
    let durable = judge::header(&recording.durable_at(recording.end)[0]).unwrap();
    assert!(durable.incompatible.contains(Incompatible::CORRUPT));
}
