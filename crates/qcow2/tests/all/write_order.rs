//! docs/internals/write-order.md, row by row: what is written in which order, and what every crash leaves.

use crate::harness;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use harness::compacting::{compact, contents};
use harness::judge::{self, Piece};
use harness::{Qcow2Target, config};
use qcow2::bitmap::{Bitmap, BitmapChange, NewBitmap};
use qcow2::snapshot::NewSnapshot;
use qcow2::{
    Amendment, CompactOptions, ErrorKind, Options, Progress, Qcow2, Repair, ResizeOptions, ZeroOptions, amend,
};
use qcow2_layout::{
    BitmapTableEntry, Compatible, Incompatible, Version, decode_bitmap_directory, decode_snapshots,
    encode_snapshots,
};
use sim::campaign::{CrashPlan, Setup, crash_everywhere, run_workload};
use sim::{
    Content, CrashOptions, CrashStates, Durability, IoKind, Management, Op, Order, Recording, Request,
    SimStorage, Step, Target, Workload, World,
};
use storage::{Hints, IoBuf, IoBytes, IoVec, Zeroing};

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
    reported(&recording, target.config().cluster())
}

fn reported(recording: &Recording, cluster: u64) -> String {
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
        Some(Piece::Record) => "record",
        None => "freed",
    };
    let mut reported: Vec<String> = Vec::new();
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
        if reported.last() != Some(&event) {
            reported.push(event);
        }
    }
    reported.join(" ")
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

/// The death of the process leaves it, and no barrier is spent on it. The entry that takes a reused cluster, or needs a table of its own
/// there, would wait: then it is a commit like any other.
#[test]
fn handed_to_the_kernel() {
    let hand = Op::Tidy { how: 3 };
    assert_eq!(
        second_write("c4k_reserve", &[write(200 * K, 9000), hand, write(5 * M, 4096), hand]),
        "| length data header length refcount-block | L2 | data L2 room L2 data L2 L1 refcount-block | length header |"
    );
    assert_eq!(
        row("c4k", &[write(64 * K, 9000), hand, write(64 * K, 4096), hand]),
        "| length data refcount-block | L2 | data | length"
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
        "| length room L2 data refcount-block refcount-table \
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
fn bitmaps_before_the_first_change() {
    // The record is freed in the end, and the old directory's place is the data's. The close puts back the names of features.
    assert_eq!(
        row("c4k_bitmap", &[write(64 * K, 4096), Op::Flush]),
        "| length freed refcount-block | header | punch data freed | data refcount-block | L2 | \
         bitmap-directory refcount-block | header | punch freed refcount-block | length header | header |"
    );
}

#[test]
fn bitmap_record_of_another_region() {
    assert_eq!(
        row("c4k_bitmap", &[write(0, 4096), write(4096, 4096), write(64 * K, 4096), Op::Flush]),
        "| length freed refcount-block | header | punch data freed | data freed | data refcount-block | L2 | \
         bitmap-directory refcount-block | header | punch freed refcount-block | length header | header |"
    );
}

#[test]
fn bitmaps_stored_when_the_record_is_full() {
    let writes: Vec<Op> = (0..6).map(|at| write(at * 256 * K, 4096)).chain([Op::Flush]).collect();
    // The directory and the record that were made first are where data is in the end.
    assert_eq!(
        row("c4k_bitmap", &writes),
        "| length data bitmap-directory refcount-block | header | punch data data | data | data | data | data refcount-block | \
         L2 | freed refcount-block | header | punch data freed | data freed | data refcount-block | L2 | \
         bitmap-directory length bitmap-directory refcount-block | header | punch freed refcount-block | length header | header |"
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
    order_with(&Qcow2Target::new(config(name)), work)
}

fn order_with(target: &Qcow2Target, work: impl AsyncFnOnce(&Qcow2)) -> (String, Recording) {
    order_beside(target, work, async |_| {})
}

/// The same with what is done to the closed image in a file.
fn order_beside(
    target: &Qcow2Target,
    work: impl AsyncFnOnce(&Qcow2),
    then: impl AsyncFnOnce(&SimStorage),
) -> (String, Recording) {
    let world = target.world(1);
    world.start_recording();
    sim::run(&world, 1, |_| async {
        let image = target.open_with(&world, target.config().options(0)).await.expect("it is sound");
        work(&image).await;
        image.close().await.expect("nothing fails");
        then(&world.open(0)).await;
    })
    .expect("nobody waits for ever");
    let recording = world.recording();
    (reported(&recording, target.config().cluster()), recording)
}

/// What `look` says of each crash of a recording: each must be a sound image.
fn after_crashes(
    target: &Qcow2Target,
    recording: &Recording,
    look: impl AsyncFn(&World, &Qcow2) -> String,
) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for state in CrashStates::new(recording, &[], CrashOptions::default()) {
        judge::check(&state.disks[0], &[]).unwrap_or_else(|error| panic!("{error} in {state}"));
        let (world, _disks) = state.boot(1);
        let said = sim::run(&world, 1, async |_| {
            let options = Options { writable: false, ..target.config().options(0) };
            let image = target.open_with(&world, options).await.expect("it can be opened");
            look(&world, &image).await
        });
        seen.insert(said.expect("nobody waits for ever"));
    }
    seen
}

/// Size, and of each bitmap its name, granularity, whether it records, and how much is dirty from the start on and altogether.
async fn bitmaps_of(image: &Qcow2) -> String {
    let mut said = format!("{}K", image.size() / K);
    for bitmap in image.bitmaps() {
        let (mut at, mut dirty) = (0, 0);
        while at < image.size() {
            let range = bitmap.status(at, image.size() - at).await.expect("the bits are there");
            dirty += if range.dirty { range.len } else { 0 };
            at += range.len;
        }
        let recording = if bitmap.is_recording() { "+" } else { "-" };
        said += &format!(" {}{recording}{}:{}K", bitmap.name(), bitmap.granularity_bytes(), dirty / K);
    }
    said
}

/// An image whose one bitmap, which records, has all of the disk as dirty.
fn all_dirty() -> Qcow2Target {
    Qcow2Target::patched(config("c4k_bitmap"), |image| {
        let header = judge::header(image).expect("it is sound");
        let geometry = header.geometry().expect("it is sound");
        let place = header.extensions.bitmaps.expect("there is one");
        let mut directory = vec![0; place.directory_size as usize];
        image.read(place.directory_offset.0, &mut directory);
        let entries = decode_bitmap_directory(&directory, 1, &geometry).expect("it is sound");
        image.write(entries[0].table_offset.0, &BitmapTableEntry::Ones.encode().to_be_bytes());
    })
}

/// A bitmap that claims too little loses changes of the next backup.
#[test]
fn bitmap_change() {
    let target = all_dirty();
    let (order, recording) = order_with(&target, async |image| {
        let new = NewBitmap { granularity_bytes: Some(512), recording: false, persistent: true };
        let add = BitmapChange::Add(new);
        image.change_bitmap("new", add).await.unwrap();
        let source = image.bitmaps().remove(0);
        image.change_bitmap("new", BitmapChange::Merge(source)).await.unwrap();
        image.change_bitmap("persistent", BitmapChange::Record(false)).await.unwrap();
        let half = Bitmap::of_ranges(image.size(), 4096, std::iter::once(0..M)).unwrap();
        image.change_bitmap("persistent", BitmapChange::Become(half)).await.unwrap();
        image.change_bitmap("persistent", BitmapChange::Clear).await.unwrap();
        image.change_bitmap("persistent", BitmapChange::Remove).await.unwrap();
        image.change_bitmap("new", BitmapChange::Remove).await.unwrap();
    });
    // All but the last step leave nothing behind that could be distinguished from free clusters.
    assert!(order.starts_with("| length freed refcount-block | header | "), "{order}");
    let seen = after_crashes(&target, &recording, async |_, image| bitmaps_of(image).await);
    let expected = [
        "2048K persistent+4096:2048K",
        "2048K persistent+4096:2048K new-512:0K",
        "2048K persistent+4096:2048K new-512:2048K",
        "2048K persistent-4096:2048K new-512:2048K",
        "2048K persistent-4096:1024K new-512:2048K",
        "2048K persistent-4096:0K new-512:2048K",
        "2048K new-512:2048K",
        "2048K",
    ];
    assert_eq!(seen, expected.map(str::to_owned).into());
}

/// Bitmaps of another length than the disk are refused by QEMU, and the image with them.
#[test]
fn resize_with_bitmaps() {
    let target = all_dirty();
    let (order, recording) = order_with(&target, async |image| {
        let options = ResizeOptions { shrink: true, bitmaps: true, ..ResizeOptions::default() };
        image.resize(600 * M, options).await.unwrap();
        image.resize(M + 5 * K, options).await.unwrap();
        image.resize(3 * M, options).await.unwrap();
    });
    assert!(order.starts_with("| "), "{order}");
    let seen = after_crashes(&target, &recording, async |_, image| bitmaps_of(image).await);
    let expected = [
        "2048K persistent+4096:2048K",
        "614400K persistent+4096:2048K",
        "1029K persistent+4096:1029K",
        "3072K persistent+4096:1032K",
    ];
    assert_eq!(seen, expected.map(str::to_owned).into());
}

/// What an image is, and a sum of what is read of its disk.
async fn reported_of_header(image: &Qcow2) -> String {
    let header = image.header().await;
    let (read, bytes) = image.read(0, IoBuf::uninit(image.size() as usize), Hints::NONE).await;
    let kind = read.expect("it can be read");
    let zeroes = kind == qcow2::ReadKind::Zeroes;
    let sum = bytes.iter().fold(0u64, |sum, &byte| {
        sum.wrapping_mul(0x100_0000_01b3).wrapping_add(if zeroes { 0 } else { u64::from(byte) })
    });
    let lazy = header.compatible.contains(Compatible::LAZY_REFCOUNTS);
    let sizes: Vec<_> = image
        .snapshots()
        .await
        .expect("they are sound")
        .into_iter()
        .map(|snapshot| snapshot.disk_size)
        .collect();
    format!("{:?} {} bits, lazy: {lazy}, {sizes:?}, {sum:x}", header.version, 1 << header.refcount_order)
}

/// Changes a closed image in several steps: the order of the first, and what a crash leaves.
fn amended(
    target: &Qcow2Target,
    work: impl AsyncFnOnce(&Qcow2),
    steps: &[Amendment],
) -> (String, BTreeSet<String>) {
    let (order, recording) = order_beside(target, work, async |file| {
        for step in steps {
            amend(file, step, &mut |_, _| ControlFlow::Continue(())).await.expect("nothing fails");
        }
    });
    let seen = after_crashes(target, &recording, async |_, image| reported_of_header(image).await);
    let parts = seen.iter().filter_map(|said| said.rsplit_once(", "));
    let (seen, sums): (BTreeSet<String>, BTreeSet<&str>) =
        parts.map(|(said, sum)| (said.to_owned(), sum)).unzip();
    assert_eq!(sums.len(), 1, "the disk reads as before");
    (order, seen)
}

fn lazy(on: bool) -> Amendment {
    Amendment { lazy_refcounts: Some(on), ..Amendment::default() }
}

fn width(bits: u32) -> Amendment {
    Amendment { refcount_bits: Some(bits), ..Amendment::default() }
}

#[test]
fn amend_header() {
    let target = Qcow2Target::new(config("c4k"));
    let (order, seen) = amended(&target, async |_| {}, &[lazy(true), lazy(false)]);
    assert_eq!(order, "| header | header |");
    let expected = ["V3 16 bits, lazy: false, []", "V3 16 bits, lazy: true, []"];
    assert_eq!(seen, expected.map(str::to_owned).into());
}

/// Refcounts of another width than the header says are all wrong: every cluster would be taken for free or shared.
#[test]
fn amend_refcount_bits() {
    for (name, other) in [("c4k", 1), ("c512_r64_tiny", 16), ("c4k_device", 8)] {
        let target = Qcow2Target::new(config(name));
        let before = if name == "c4k" { 16 } else { 64 };
        let (order, seen) = amended(&target, async |_| {}, &[width(other), width(32), width(before)]);
        assert!(order.starts_with("| freed | header | "), "{order}");
        let expected = [before, other, 32].map(|bits| format!("V3 {bits} bits, lazy: false, []"));
        assert_eq!(seen, expected.into(), "{name}");
    }
}

/// An image with clusters that are marked as zeroes: some have a place, some have none, some are a snapshot's too.
fn with_zeroes(name: &str) -> Qcow2Target {
    let target = Qcow2Target::new(config(name));
    let world = target.world(1);
    sim::run(&world, 1, |_| async {
        let image = target.open_with(&world, target.config().options(0)).await.expect("it is sound");
        let zero = async |at, unmap| {
            image.zero(at, 16 * K, ZeroOptions { unmap, fast_only: false }).await.expect("nothing fails");
        };
        let write = async |at| {
            let data = IoVec::from(IoBytes::copy_from(&[0x5a; 20 * K as usize]));
            image.write(at, data, Hints::NONE).await.expect("nothing fails");
        };
        write(M).await;
        zero(M, false).await;
        zero(8 * K, true).await;
        image.create_snapshot(NewSnapshot::default()).await.expect("nothing fails");
        write(M + 8 * K).await;
        zero(64 * K, false).await;
        image.close().await.expect("nothing fails");
    })
    .expect("nobody waits for ever");
    Qcow2Target::patched(config(name), |base| *base = world.current(0))
}

/// Version 2 has no mark for zeroes: the same bit means damage there.
#[test]
fn amend_to_version_2() {
    for (name, bits) in [("c4k_snapshots", 4), ("c4k_on_qcow2", 8)] {
        let target = with_zeroes(name);
        let to_version_2 =
            Amendment { version: Some(Version::V2), refcount_bits: Some(16), ..Amendment::default() };
        let prepare = async |image: &Qcow2| {
            let (last, total) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let seen = [&last, &total].map(Arc::clone);
            let visited = move |done, of| {
                let [last, total] = &seen;
                assert_eq!(last.swap(done, Ordering::Relaxed) + 1, done, "each entry is counted once");
                total.store(of, Ordering::Relaxed);
            };
            let removed = image.prepare_for_version_2(Arc::new(visited)).await;
            assert!(removed.expect("nothing fails").is_empty());
            assert_eq!(
                last.load(Ordering::Relaxed),
                total.load(Ordering::Relaxed),
                "all entries are counted"
            );
            assert_ne!(total.load(Ordering::Relaxed), 0);
        };
        let (order, seen) = amended(&target, prepare, &[to_version_2]);
        assert!(order.starts_with("| "), "{order}");
        let versions: BTreeSet<_> =
            seen.iter().map(|said| said.split(", ").next().unwrap().to_owned()).collect();
        assert_eq!(versions, [format!("V3 {bits} bits"), "V2 16 bits".to_owned()].into(), "{name}");
    }
}

#[test]
fn amend_to_version_3() {
    let name = "c1k_v2_snapshotted_on_raw";
    let target = Qcow2Target::patched(config(name), |image| {
        let header = judge::header(image).unwrap();
        let mut table = vec![0; 4096];
        image.read(header.snapshots_offset.0, &mut table);
        let mut entries: Vec<_> = decode_snapshots(&table, header.snapshots)
            .unwrap()
            .into_iter()
            .map(|found| found.entry)
            .collect();
        entries.iter_mut().for_each(|entry| (entry.disk_size, entry.icount) = (None, None));
        image.write(header.snapshots_offset.0, &encode_snapshots(&entries, Version::V2).unwrap());
    });
    let to_version_3 = Amendment { version: Some(Version::V3), ..Amendment::default() };
    let prepare = async |image: &Qcow2| image.prepare_for_version_3().await.expect("nothing fails");
    let (order, seen) = amended(&target, prepare, &[to_version_3]);
    assert!(order.ends_with("| header |"), "{order}");
    let expected = [
        "V2 16 bits, lazy: false, [None]",
        "V2 16 bits, lazy: false, [Some(307200)]",
        "V3 16 bits, lazy: false, [Some(307200)]",
    ];
    assert_eq!(seen, expected.map(str::to_owned).into());
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
    // The name in a free place, then the sector that leads to it. The close puts back the names of features, in the same order.
    assert_eq!(order, "| header | header | header | header |");
    let header = judge::header(&recording.durable_at(recording.end)[0]).unwrap();
    assert_eq!(header.backing, Some("n".repeat(900)));
    assert!(!header.extensions.features.is_empty());
}

const ZEROES: CompactOptions = CompactOptions { detect_zeroes: true, defragment: false, dry_run: false };

/// An image with free clusters before others.
fn with_free_clusters(name: &str, ops: &[Op]) -> Qcow2Target {
    let made = Qcow2Target::new(config(name));
    let setup = Setup { order: Order::Immediate, ..setup(1) };
    let ran = run_workload(&made, &workload(ops), &setup).unwrap_or_else(|failure| panic!("{failure}"));
    let image = ran.world.current(0);
    Qcow2Target::patched(config(name), |base| *base = image)
}

/// Every crash of a compaction leaves leaks at most, and the disk and its snapshots as they were; another run frees the leaks.
fn compact_row(name: &str, ops: &[Op], options: CompactOptions) -> String {
    let target = with_free_clusters(name, ops);
    let world = target.world(1);
    let before = contents(&target, &world);
    world.start_recording();
    let report = compact(&world, options);
    assert!(report.moved_bytes > 0 && report.length_after <= report.length_before, "{report:?}");
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
            assert!(options.defragment || again.length_after <= report.length_before, "{again:?}");
        }
    }
    println!("looked at in {name}: {looked_at} crash states");
    assert!(looked_at > 20, "{looked_at} crash states are too few to mean anything");
    reported(&recording, target.config().cluster())
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
        compact_row("c4k", &ops, ZEROES),
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
        compact_row("c512_snapshotted", &ops, ZEROES),
        "| refcount-table refcount-block | header | refcount-block | data refcount-block | L2 | refcount-block | length |"
    );
}

#[test]
fn compact_puts_data_in_order() {
    // One table leads to all of it.
    let ops = [write(1536 * K, 12 * K), Op::Flush, write(M, 12 * K), Op::Flush, write(0, 12 * K), Op::Flush];
    let ordered = CompactOptions { defragment: true, ..ZEROES };
    assert_eq!(
        compact_row("c4k", &ops, ordered),
        "| freed refcount-block | L2 | refcount-block | data refcount-block | L2 | refcount-block | length |"
    );
}

#[test]
fn compact_puts_tables_in_order() {
    // A table leads to 2 MiB.
    let ops = [write(4 * M, 4 * K), Op::Flush, write(2 * M, 4 * K), Op::Flush];
    let ordered = CompactOptions { defragment: true, ..ZEROES };
    assert_eq!(
        compact_row("c4k", &ops, ordered),
        "| freed refcount-block | L2 | refcount-block | data refcount-block | L2 | refcount-block | freed refcount-block | L1 | refcount-block | L2 refcount-block | L1 | refcount-block | length |"
    );
}

/// A repair of an image in which `patch` broke something, so that the disk has at `there` what it has from its beginning, `len` bytes of
/// it: that stays in each crash state, and the next repair finishes.
fn repair_row(there: u64, len: u64, patch: impl FnOnce(&mut Content)) -> String {
    let ops = [write(0, 16 * K), write(2 * M, 8 * K), Op::Flush];
    let sound = with_free_clusters("c4k", &ops);
    let mut before = contents(&sound, &sound.world(1));
    before[0].copy_within(..len as usize, there as usize);
    let mut broken = sound.world(1).current(0);
    patch(&mut broken);
    let target = Qcow2Target::patched(config("c4k"), |base| *base = broken);
    let world = target.world(1);
    let repair = |world: &World| {
        let done = sim::run(world, 1, async |_| {
            qcow2::check(&world.open(0), Repair::All, &mut |_: Progress<'_>| {}).await
        });
        done.expect("nobody waits for ever").expect("nothing fails")
    };
    world.start_recording();
    let report = repair(&world);
    assert!(report.is_clean() && report.corruptions_fixed > 0, "{report:?}");
    let recording = world.recording();
    let states = CrashOptions { tears: 4, share: (1, 3), ..CrashOptions::default() };
    let mut looked_at = 0;
    for state in CrashStates::new(&recording, &[], states) {
        looked_at += 1;
        let (world, _disks) = state.boot(1);
        let report = repair(&world);
        assert!(report.is_clean(), "{report:?}\n{state}");
        judge::check(&world.current(0), &[]).unwrap_or_else(|error| panic!("{error}\n{state}"));
        assert!(contents(&target, &world) == before, "the disk changed\n{state}");
    }
    assert!(looked_at > 10, "{looked_at} crash states are too few to mean anything");
    reported(&recording, target.config().cluster())
}

fn l1_table(image: &Content) -> u64 {
    judge::header(image).expect("it is sound but for what was broken").l1_table_offset.0
}

/// The offset of the L2 table of the disk's first clusters.
fn first_l2_table(image: &Content) -> u64 {
    let mut entry = [0; 8];
    image.read(l1_table(image), &mut entry);
    u64::from_be_bytes(entry) & !(1 << 63)
}

#[test]
fn repair_parts_shared_data() {
    let order = repair_row(4 * K, 4 * K, |image| {
        let (table, mut entry) = (first_l2_table(image), [0; 8]);
        image.read(table, &mut entry);
        image.write(table + 8, &entry);
    });
    assert_eq!(order, "header | data refcount-block | L2 | refcount-block | L2 | header |");
}

#[test]
fn repair_parts_shared_tables() {
    let order = repair_row(4 * M, 2 * M, |image| {
        let (l1, mut entry) = (l1_table(image), [0; 8]);
        image.read(l1, &mut entry);
        image.write(l1 + 16, &entry);
    });
    assert_eq!(order, "header | L2 refcount-block | L1 | data refcount-block | L2 | L2 L1 | header |");
}

#[test]
fn autoclear() {
    let unknown = 1u64 << 62;
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
        assert_eq!(image.write(0, data(), Hints::NONE).await.unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(image.write(M, data(), Hints::NONE).await.unwrap_err().kind(), ErrorKind::Refused);
        let (read, _) = image.read(8 * K, IoBuf::uninit(512), Hints::NONE).await;
        read.unwrap();
        assert_eq!(image.close().await.unwrap_err().kind(), ErrorKind::Corrupt);
        let again = target.open_with(&world, target.config().options(0)).await;
        assert_eq!(again.unwrap_err().kind(), ErrorKind::Refused);
    })
    .unwrap();
    let recording = world.recording();
    assert_eq!(reported(&recording, 4 * K), "| header |");
    let durable = judge::header(&recording.durable_at(recording.end)[0]).unwrap();
    assert!(durable.incompatible.contains(Incompatible::CORRUPT));
}
