//! The checker on images that are made to hurt it: an answer, in bounded time and memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::common;

use std::time::Duration;

use common::broken::{KINDS, set_word, word};
use common::faulty::Faulty;
use common::{at, load, qemu_check, qemu_img, qemu_io, run, save};
use proptest::prelude::*;
use qcow2::{CheckError, CheckReport, CreateOptions, Repair, check, create};
use rustix::time::{ClockId, clock_gettime};
use storage::{Hints, IoBytes, MemoryStorage, Storage};

/// Generous for a debug build on a slow machine; the work itself takes a fraction.
const PATIENCE: Duration = Duration::from_secs(20);

/// What this thread has had of a processor: the time others had one does not count.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

#[track_caller]
fn assert_worked_less_than(most: Duration, since: Duration) {
    let worked = processor_time() - since;
    assert!(worked < most, "{worked:?}");
}

fn quietly(file: &dyn Storage, repair: Repair) -> Result<CheckReport, CheckError> {
    run(check(file, repair, &mut |_| {}))
}

fn made(options: &CreateOptions) -> MemoryStorage {
    let file = MemoryStorage::new(0);
    run(create(&file, None, options)).unwrap();
    file
}

fn write(file: &MemoryStorage, offset: u64, bytes: &[u8]) {
    run(file.write(offset, IoBytes::copy_from(bytes).into(), Hints::NONE)).unwrap();
}

fn words(count: usize, word: impl Fn(u64) -> u64) -> Vec<u8> {
    (0..count as u64).flat_map(|index| word(index).to_be_bytes()).collect()
}

/// The largest L1 table there may be, filled with `word`, in a file of `length` bytes.
fn with_l1(cluster_size: u64, length: u64, word: impl Fn(u64) -> u64) -> MemoryStorage {
    const ENTRIES: usize = (32 << 20) / 8;
    let file = made(&CreateOptions { size: 1 << 20, cluster_size, ..CreateOptions::default() });
    let l1 = length / 2 / cluster_size * cluster_size;
    run(file.grow_to(length)).unwrap();
    write(&file, l1, &words(ENTRIES, word));
    write(&file, 36, &u32::try_from(ENTRIES).unwrap().to_be_bytes());
    write(&file, 40, &l1.to_be_bytes());
    file
}

#[test]
fn one_l2_table_in_every_l1_entry_is_read_once() {
    let file = with_l1(2 << 20, 1 << 30, |_| 1 << 63 | 64 << 20);
    write(&file, 64 << 20, &words(1 << 18, |index| 1 << 63 | (index % 256) << 21));
    let start = processor_time();
    let report = quietly(&file, Repair::None).unwrap();
    assert!(report.corruptions > 0);
    assert_worked_less_than(PATIENCE, start);
}

#[test]
fn millions_of_l2_tables_in_holes_cost_no_reading() {
    let file = with_l1(2 << 20, 1 << 50, |index| 1 << 63 | (index + 100) << 21);
    let start = processor_time();
    let report = quietly(&file, Repair::None);
    // Each is counted, or counting them was found to be out of proportion; both are answers.
    assert!(report.is_ok_and(|report| report.corruptions > 0));
    assert_worked_less_than(PATIENCE, start);
}

#[test]
fn references_spread_over_a_huge_sparse_file_are_refused_not_stored() {
    // Each reference has a page of counters to itself.
    let file = with_l1(512, 1 << 55, |index| 1 << 63 | (index + 1) << 30);
    let start = processor_time();
    let error = quietly(&file, Repair::None).unwrap_err();
    assert!(matches!(error, CheckError::TooManyReferences { .. }), "{error}");
    assert_worked_less_than(PATIENCE, start);
}

#[test]
fn overlapping_snapshot_tables_are_read_once() {
    const SNAPSHOTS: u32 = 65536;
    let file = made(&CreateOptions { size: 1 << 20, cluster_size: 512, ..CreateOptions::default() });
    run(file.grow_to(1 << 30)).unwrap();
    let mut table = Vec::new();
    for index in 0..u64::from(SNAPSHOTS) {
        let mut entry = vec![0; 40];
        set_word(&mut entry, 0, (64 << 20) + index * 512);
        entry[8..12].copy_from_slice(&(4u32 << 20).to_be_bytes());
        table.extend(entry);
    }
    write(&file, 512 << 20, &table);
    write(&file, 60, &SNAPSHOTS.to_be_bytes());
    write(&file, 64, &(512u64 << 20).to_be_bytes());
    let start = processor_time();
    let report = quietly(&file, Repair::None).unwrap();
    assert!(report.corruptions > u64::from(SNAPSHOTS));
    assert_worked_less_than(PATIENCE, start);
}

#[test]
fn one_refcount_block_in_every_table_entry_is_compared_once() {
    let file = made(&CreateOptions { size: 1 << 20, cluster_size: 2 << 20, ..CreateOptions::default() });
    run(file.grow_to(1 << 45)).unwrap();
    write(&file, 32 << 20, &words(1 << 20, |_| 64 << 20));
    write(&file, 48, &(32u64 << 20).to_be_bytes());
    write(&file, 56, &4u32.to_be_bytes());
    write(&file, 64 << 20, &[0xff; 2 << 20]);
    let start = processor_time();
    let report = quietly(&file, Repair::None).unwrap();
    assert!(report.corruptions > 0);
    assert_worked_less_than(PATIENCE, start);
}

#[test]
fn an_image_cut_anywhere_gives_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let healthy = KINDS[1].make(directory.path(), "image.qcow2");
    for len in (0..healthy.len()).step_by(healthy.len() / 300) {
        let file = MemoryStorage::from_bytes(&healthy[..len]);
        if quietly(&file, Repair::None).is_ok() {
            quietly(&file, Repair::All).unwrap();
            quietly(&file, Repair::None).unwrap();
        }
    }
}

#[test]
fn unreadable_metadata_is_counted_and_stops_every_repair() {
    let directory = tempfile::tempdir().unwrap();
    let healthy = KINDS[0].make(directory.path(), "image.qcow2");
    let memory = MemoryStorage::from_bytes(&healthy);
    let file = Faulty::new(memory, u64::MAX).with_unreadable(0x20000, 0x10000);
    let report = quietly(&file, Repair::All).unwrap();
    assert!(report.check_errors > 0, "{report:?}");
    assert!(file.inner.to_bytes() == healthy);
}

#[test]
fn a_table_that_passes_for_a_refcount_block_is_not_owned_by_one_alone() {
    let directory = tempfile::tempdir().unwrap();
    let kind = KINDS.iter().find(|kind| kind.name == "data-file").unwrap();
    let mut bytes = kind.make(directory.path(), kind.name);
    // An entry of the refcount table, at 0x1000, leads to the L2 table at 0x4000.
    bytes[0x1b1e] = 0x40;
    let file = MemoryStorage::from_bytes(&bytes);
    let before = quietly(&file, Repair::None).unwrap();
    let after = quietly(&file, Repair::All).unwrap();
    // Two refer to it; its refcount says so afterwards, and COPIED must not say that L1 is alone.
    assert_eq!((before.corruptions, after.corruptions), (1, 1));
}

/// An image of 64 KiB clusters with 64 KiB written, as QEMU makes it: header, refcount table, block, L1, L2, data.
fn with_data() -> (tempfile::TempDir, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    qemu_img(directory.path(), &["create", "-q", "-f", "qcow2", "image.qcow2", "1M"]);
    qemu_io(directory.path(), "image.qcow2", &["write -q 0 64k"]);
    let bytes = load(&at(&directory, "image.qcow2")).to_bytes();
    (directory, bytes)
}

/// The image is corrupt, and these repairs of it do not write to the guest's data, from `data` on.
fn assert_repair_spares(bytes: &[u8], data: usize, repairs: &[Repair]) {
    for &repair in repairs {
        let file = MemoryStorage::from_bytes(bytes);
        let report = quietly(&file, repair).unwrap();
        assert!(report.corruptions > 0, "{report:?}");
        assert!(file.to_bytes()[data..] == bytes[data..], "{repair:?} wrote to the guest's data");
    }
}

#[test]
fn no_flag_is_written_behind_what_is_surely_the_l1_table() {
    let (_directory, mut bytes) = with_data();
    // The L1 table goes beyond the end of the file; the data that lies behind it looks like an entry.
    bytes[36..40].copy_from_slice(&100_000u32.to_be_bytes());
    set_word(&mut bytes, 0x50000, 0x10000);
    assert_repair_spares(&bytes, 0x50000, &[Repair::Leaks, Repair::All]);
}

/// A flag in that table is a bit of the guest's data: it is written only when the data is elsewhere.
#[test]
fn no_flag_is_written_to_an_l2_table_that_is_data_too() {
    let (directory, mut bytes) = with_data();
    // The second entry leads to the table itself, the first is right but for its flag.
    set_word(&mut bytes, 0x40008, 0x40000);
    set_word(&mut bytes, 0x40000, 0x50000);
    assert_repair_spares(&bytes, 0x40000, &[Repair::Leaks]);
    let file = MemoryStorage::from_bytes(&bytes);
    let report = quietly(&file, Repair::All).unwrap();
    assert!(report.is_clean() && report.corruptions_fixed > 0, "{report:?}");
    std::fs::write(at(&directory, "before.qcow2"), &bytes).unwrap();
    save(&file, &at(&directory, "after.qcow2"));
    qemu_img(directory.path(), &["compare", "-f", "qcow2", "-F", "qcow2", "before.qcow2", "after.qcow2"]);
    assert_eq!(qemu_check(&at(&directory, "after.qcow2"), None).0, 0);
}

#[test]
fn a_cluster_of_a_data_file_that_is_not_where_the_guest_has_it_is_corruption() {
    let directory = tempfile::tempdir().unwrap();
    let kind = KINDS.iter().find(|kind| kind.name == "data-file").unwrap();
    let mut bytes = kind.make(directory.path(), kind.name);
    let at = usize::try_from(word(&bytes, usize::try_from(word(&bytes, 40)).unwrap()) & !(1 << 63)).unwrap();
    let (first, second) = (word(&bytes, at), word(&bytes, at + 8));
    assert_eq!((first, second), (1 << 63, 1 << 63 | 0x1000));
    // Two guest clusters would be one.
    set_word(&mut bytes, at + 8, first);
    let file = MemoryStorage::from_bytes(&bytes);
    let mut reported = Vec::new();
    let report =
        run(check(&file, Repair::None, &mut |progress| reported.push(format!("{progress:?}")))).unwrap();
    assert_eq!((report.corruptions, report.leaks), (1, 0), "{reported:?}");
    assert!(reported.iter().any(|reported| reported.contains("NotAtGuestOffset")), "{reported:?}");
}

#[test]
fn a_read_only_file_is_checked_but_not_repaired() {
    let file = Faulty::new(made(&CreateOptions { size: 512, ..CreateOptions::default() }), 0).read_only();
    assert!(quietly(&file, Repair::None).unwrap().is_clean());
    assert!(matches!(quietly(&file, Repair::All), Err(CheckError::ReadOnly { .. })));
}

#[test]
fn random_damage_is_answered_and_what_is_repaired_satisfies_qemu() {
    let directory = tempfile::tempdir().unwrap();
    let images: Vec<_> =
        KINDS.iter().map(|kind| (kind.name, kind.make(directory.path(), kind.name))).collect();
    let damage = proptest::collection::vec((0usize..1 << 30, any::<u8>()), 1..6);
    let asked = std::cell::Cell::new(0);
    let config = ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(which in 0..images.len(), damage in damage, deep: bool)| {
        let (name, healthy) = &images[which];
        let mut bytes = healthy.clone();
        for (place, byte) in damage {
            // Metadata lies at the start of these images. The header's cluster is fuzzed elsewhere: without
            // the name of its data file, for one, an image is clean and yet nothing that QEMU opens.
            let header = 1 << healthy[23];
            let within = if deep { bytes.len() } else { bytes.len().min(header + bytes.len() / 4) };
            bytes[header + place % (within - header)] = byte;
        }
        let file = MemoryStorage::from_bytes(&bytes);
        let Ok(before) = quietly(&file, Repair::None) else { return Ok(()) };
        prop_assert!(file.to_bytes() == bytes);
        let after = quietly(&file, Repair::All).unwrap();
        let again = quietly(&file, Repair::None).unwrap();
        prop_assert_eq!((after.corruptions, after.leaks), (again.corruptions, again.leaks));
        prop_assert!(after.corruptions <= before.corruptions, "{}: {:?} {:?}", name, before, after);
        if !before.is_clean() && after.is_clean() && asked.get() < 60 {
            asked.set(asked.get() + 1);
            let path = at(&directory, "repaired.qcow2");
            save(&file, &path);
            let (code, report) = qemu_check(&path, None);
            prop_assert!(code == 0, "{}: {}", name, report);
            prop_assert_eq!(load(&path).length(), file.length());
        }
    });
}
