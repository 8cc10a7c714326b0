//! The checker against `qemu-img check`: same verdict, same numbers, and after a repair both are content.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::common;
use crate::on_reactor::reactor_run;

use std::path::Path;
use std::sync::Arc;

use common::broken::{KINDS, Kind, Places, set_word, word};
use common::faulty::Faulty;
use common::recorder::{Recorder, crash_states};
use common::{at, load, qemu_check, qemu_img, run, save};
use qcow2::{Calculation, CheckReport, Finding, Host, Progress, Repair, Work, check, check_in_parallel};
use qcow2_layout::{Header, Incompatible, Version};
use serde_json::Value;
use storage::{MemoryStorage, Storage};

const COPIED: u64 = 1 << 63;

fn checked(file: &MemoryStorage, repair: Repair) -> (CheckReport, Vec<Finding>) {
    let mut findings = Vec::new();
    let report = run(check(file, repair, &mut |progress| {
        if let Progress::Found(finding) = progress {
            findings.push(finding.clone());
        }
    }));
    (report.unwrap(), findings)
}

/// The first findings: enough to see what went wrong.
fn few(findings: &[Finding]) -> &[Finding] {
    findings.get(..5).unwrap_or(findings)
}

fn exit_code(report: &CheckReport) -> i32 {
    match report {
        CheckReport { check_errors: 1.., .. } => 1,
        CheckReport { corruptions: 1.., .. } => 2,
        CheckReport { leaks: 1.., .. } => 3,
        CheckReport { .. } => 0,
    }
}

fn numbers(report: &CheckReport) -> Vec<(&'static str, u64)> {
    vec![
        ("corruptions", report.corruptions),
        ("leaks", report.leaks),
        ("check-errors", report.check_errors),
        ("total-clusters", report.total_clusters),
        ("allocated-clusters", report.allocated_clusters),
        ("fragmented-clusters", report.fragmented_clusters),
        ("compressed-clusters", report.compressed_clusters),
        ("image-end-offset", report.image_end_offset),
    ]
}

fn qemu_numbers(report: &Value) -> Vec<(&'static str, u64)> {
    let names = numbers(&CheckReport::default());
    names.into_iter().map(|(name, _)| (name, report[name].as_u64().unwrap_or(0))).collect()
}

#[test]
fn healthy_images_have_qemus_numbers() {
    let directory = tempfile::tempdir().unwrap();
    for kind in KINDS {
        kind.make(directory.path(), kind.name);
        let path = at(&directory, kind.name);
        let (code, theirs) = qemu_check(&path, None);
        let (ours, findings) = checked(&load(&path), Repair::None);
        assert_eq!((code, &findings), (0, &Vec::new()), "{}", kind.name);
        assert_eq!(numbers(&ours), qemu_numbers(&theirs), "{}", kind.name);
    }
}

/// What a damage means.
#[derive(Clone, Copy, PartialEq)]
enum Expect {
    /// Same numbers as QEMU, and clean after `-r all`.
    Same,
    /// Same exit code as QEMU, and clean after `-r all`.
    Verdict,
    /// The same, and the guest reads what it read of the broken image.
    Parted,
    /// Same exit code as QEMU; a repair ends with QEMU's numbers, among them a cluster that nothing leads to any more.
    Released,
    /// Same exit code as QEMU; some of it stays.
    Stays,
    /// Ours is stricter than QEMU.
    OursOnly,
    /// QEMU gives up; ours repairs it.
    TheirsFails,
}

impl Expect {
    /// Nothing of it stays.
    fn is_repaired(self) -> bool {
        !matches!(self, Expect::Stays | Expect::OursOnly)
    }
}

struct Damage {
    name: &'static str,
    expect: Expect,
    /// Leaves the guest's data as it was.
    harmless: bool,
    /// Breaks the image; false if it cannot be broken in this way.
    apply: fn(&mut Vec<u8>, &Places) -> bool,
}

/// The first data entry of the first L2 table that is not shared with a snapshot.
fn own_data(bytes: &[u8], places: &Places) -> Option<(usize, u64)> {
    let cluster = usize::try_from(places.geometry.cluster_size()).unwrap();
    let external = places.geometry.external_data;
    (places.l2..places.l2 + cluster)
        .step_by(places.step())
        .map(|at| (at, word(bytes, at)))
        .find(|(_, entry)| places.l2 != 0 && entry & COPIED != 0 && (entry & !COPIED & !511 != 0 || external))
}

const DAMAGES: &[Damage] = &[
    Damage {
        name: "leaked cluster at the end",
        expect: Expect::Same,
        harmless: true,
        apply: |bytes, places| {
            let cluster_size = usize::try_from(places.geometry.cluster_size()).unwrap();
            let clusters = bytes.len().div_ceil(cluster_size);
            if clusters as u64 >= places.geometry.refcount_block_entries() {
                return false;
            }
            bytes.resize((clusters + 1) * cluster_size, 0);
            places.set_refcount(bytes, clusters as u64, 1)
        },
    },
    Damage {
        name: "refcount too high",
        expect: Expect::Same,
        harmless: true,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((_, entry)) if !places.geometry.external_data && places.geometry.refcount_order > 0 => {
                let cluster = (entry & 0x00ff_ffff_ffff_fe00) >> places.geometry.cluster_bits;
                places.set_refcount(bytes, cluster, 3) && places.refcount(bytes, cluster) == 3
            }
            _ => false,
        },
    },
    Damage {
        name: "refcount zero",
        expect: Expect::Same,
        harmless: true,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((_, entry)) if !places.geometry.external_data => {
                let cluster = (entry & 0x00ff_ffff_ffff_fe00) >> places.geometry.cluster_bits;
                places.set_refcount(bytes, cluster, 0)
            }
            _ => false,
        },
    },
    Damage {
        name: "all refcounts of the first block zero",
        expect: Expect::Verdict,
        harmless: true,
        apply: |bytes, places| {
            let cluster_size = usize::try_from(places.geometry.cluster_size()).unwrap();
            bytes[places.block..places.block + cluster_size].fill(0);
            true
        },
    },
    Damage {
        name: "copied missing in L1",
        expect: Expect::Same,
        harmless: true,
        apply: |bytes, places| {
            let entry = word(bytes, places.l1);
            set_word(bytes, places.l1, entry & !COPIED);
            entry & COPIED != 0
        },
    },
    Damage {
        name: "copied missing in L2",
        expect: Expect::Same,
        harmless: true,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, entry)) if !(places.geometry.external_data && entry & !COPIED == 0) => {
                set_word(bytes, at, entry & !COPIED);
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "copied on everything",
        expect: Expect::Same,
        harmless: true,
        apply: |bytes, places| {
            let cluster_size = usize::try_from(places.geometry.cluster_size()).unwrap();
            let mut changed = false;
            for at in (places.l2..places.l2 + cluster_size).step_by(places.step()) {
                let entry = word(bytes, at);
                if places.l2 != 0 && entry & (COPIED | 1 << 62) == 0 && entry & !511 != 0 {
                    set_word(bytes, at, entry | COPIED);
                    changed = true;
                }
            }
            changed
        },
    },
    Damage {
        name: "copied on a compressed cluster",
        expect: Expect::Verdict,
        harmless: true,
        apply: |bytes, places| {
            let cluster_size = usize::try_from(places.geometry.cluster_size()).unwrap();
            let mut entries = (0..bytes.len() / cluster_size * cluster_size).step_by(places.step());
            let inside = |at: &usize| (places.l2..places.l2 + cluster_size).contains(at) && places.l2 != 0;
            let found = entries.find(|at| inside(at) && word(bytes, *at) >> 62 == 1);
            found.is_some_and(|at| {
                let entry = word(bytes, at);
                set_word(bytes, at, entry | COPIED);
                true
            })
        },
    },
    Damage {
        name: "two entries on one cluster",
        expect: Expect::Parted,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, entry)) if !places.geometry.external_data => {
                let step = places.step();
                if word(bytes, at + step) & !511 == 0 {
                    return false;
                }
                set_word(bytes, at + step, entry);
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "two entries on one table",
        expect: Expect::Parted,
        harmless: false,
        apply: |bytes, places| {
            let entry = word(bytes, places.l1);
            let apart = places.header.l1_size > 2 && !places.geometry.external_data;
            if apart && entry != 0 {
                set_word(bytes, places.l1 + 16, entry);
            }
            apart && entry != 0
        },
    },
    Damage {
        name: "data on its own L2 table",
        expect: Expect::Parted,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, _)) if !places.geometry.external_data => {
                set_word(bytes, at, COPIED | places.l2 as u64);
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "compressed data on the L1 table",
        expect: Expect::Verdict,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, _)) if !places.geometry.external_data => {
                set_word(bytes, at, 1 << 62 | places.l1 as u64);
                if places.geometry.extended_l2 {
                    set_word(bytes, at + 8, 0);
                }
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "data beyond the end",
        expect: Expect::Stays,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, _)) if !places.geometry.external_data => {
                set_word(bytes, at, COPIED | 1 << 40);
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "unaligned data",
        expect: Expect::Stays,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, entry)) if places.geometry.cluster_bits > 9 => {
                set_word(bytes, at, entry | 512);
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "unaligned place of zeroes",
        expect: Expect::Released,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, entry)) if places.geometry.cluster_bits > 9 && !places.geometry.external_data => {
                let is_new = places.geometry.version == Version::V3;
                let extended = places.geometry.extended_l2;
                set_word(bytes, at, entry | 512 | u64::from(!extended));
                if extended {
                    // One subcluster of zeroes, and what is below for the rest.
                    set_word(bytes, at + 8, 4 << 32);
                }
                is_new
            }
            _ => false,
        },
    },
    Damage {
        name: "reserved bit in L2",
        expect: Expect::Stays,
        harmless: true,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, entry)) => {
                set_word(bytes, at, entry | 1 << 57);
                true
            }
            None => false,
        },
    },
    Damage {
        name: "reserved bit in L1",
        expect: Expect::Stays,
        harmless: true,
        apply: |bytes, places| {
            let entry = word(bytes, places.l1);
            set_word(bytes, places.l1, entry | 1 << 58);
            entry != 0
        },
    },
    Damage {
        name: "L2 table beyond the end",
        expect: Expect::Stays,
        harmless: false,
        apply: |bytes, places| {
            set_word(bytes, places.l1, COPIED | 1 << 40);
            true
        },
    },
    Damage {
        name: "data on the refcount table",
        expect: Expect::Verdict,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, _)) if !places.geometry.external_data => {
                set_word(bytes, at, COPIED | places.table as u64);
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "data on the L1 table",
        expect: Expect::Parted,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, _)) if !places.geometry.external_data => {
                set_word(bytes, at, COPIED | places.l1 as u64);
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "snapshot with too much extra data",
        expect: Expect::TheirsFails,
        harmless: true,
        apply: |bytes, places| {
            // The table moves to the end of the file, where one long entry fits.
            let at = usize::try_from(places.header.snapshots_offset.0).unwrap();
            let cluster_size = usize::try_from(places.geometry.cluster_size()).unwrap();
            let clusters = bytes.len().div_ceil(cluster_size);
            if places.header.snapshots != 1 {
                return false;
            }
            let mut entry = bytes[at..at + 40].to_vec();
            entry[36..40].copy_from_slice(&2048u32.to_be_bytes());
            entry.extend(&bytes[at + 40..at + 64]);
            entry.resize(40 + 2048, 9);
            entry.extend(b"1first");
            bytes.resize(clusters * cluster_size, 0);
            bytes.extend(entry);
            let needed = bytes.len().div_ceil(cluster_size);
            bytes.resize(needed * cluster_size, 0);
            set_word(bytes, 64, (clusters * cluster_size) as u64);
            (clusters..needed).all(|cluster| places.set_refcount(bytes, cluster as u64, 1))
        },
    },
    Damage {
        name: "refcount block unaligned",
        expect: Expect::TheirsFails,
        harmless: true,
        apply: |bytes, places| {
            set_word(bytes, places.table, places.block as u64 | 512);
            places.geometry.cluster_bits > 9
        },
    },
    Damage {
        name: "refcount block beyond the end",
        expect: Expect::TheirsFails,
        harmless: true,
        apply: |bytes, places| {
            set_word(bytes, places.table, 1 << 40);
            true
        },
    },
    Damage {
        name: "refcount block missing",
        expect: Expect::Verdict,
        harmless: true,
        apply: |bytes, places| {
            set_word(bytes, places.table, 0);
            true
        },
    },
    Damage {
        name: "refcount block on the L1 table",
        expect: Expect::TheirsFails,
        harmless: true,
        apply: |bytes, places| {
            set_word(bytes, places.table, places.l1 as u64);
            true
        },
    },
    Damage {
        name: "no refcount table",
        expect: Expect::Verdict,
        harmless: true,
        apply: |bytes, _| {
            bytes[56..60].fill(0);
            true
        },
    },
    Damage {
        name: "refcount table beyond the end",
        expect: Expect::TheirsFails,
        harmless: true,
        apply: |bytes, _| {
            set_word(bytes, 48, 1 << 40);
            true
        },
    },
    Damage {
        name: "dirty bit and leaks",
        expect: Expect::Verdict,
        harmless: true,
        apply: |bytes, places| {
            bytes[79] |= 1;
            let cluster = bytes.len() as u64 >> places.geometry.cluster_bits;
            let version_3 = places.header.version == qcow2_layout::Version::V3;
            if !version_3 || cluster >= places.geometry.refcount_block_entries() {
                return false;
            }
            bytes.resize(bytes.len() + usize::try_from(places.geometry.cluster_size()).unwrap(), 0);
            places.set_refcount(bytes, cluster, 1)
        },
    },
    Damage {
        name: "corrupt bit without corruption",
        expect: Expect::Same,
        harmless: true,
        apply: |bytes, places| {
            bytes[79] |= 2;
            places.header.version == qcow2_layout::Version::V3
        },
    },
    Damage {
        name: "both bits of a subcluster",
        expect: Expect::Stays,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, _)) if places.geometry.extended_l2 => {
                set_word(bytes, at + 8, 1 | 1 << 32);
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "zero cluster in version 2",
        expect: Expect::OursOnly,
        harmless: false,
        apply: |bytes, places| match own_data(bytes, places) {
            Some((at, entry)) if places.header.version == qcow2_layout::Version::V2 => {
                set_word(bytes, at, entry | 1);
                true
            }
            _ => false,
        },
    },
    Damage {
        name: "snapshot with an unaligned L1 table",
        expect: Expect::Stays,
        harmless: true,
        apply: |bytes, places| {
            let at = usize::try_from(places.header.snapshots_offset.0).unwrap();
            let aligned = places.header.snapshots > 0 && places.geometry.cluster_bits > 9;
            if aligned {
                let l1 = word(bytes, at);
                set_word(bytes, at, l1 | 512);
            }
            aligned
        },
    },
    Damage {
        name: "bitmap directory damaged",
        expect: Expect::Stays,
        harmless: false,
        apply: |bytes, places| match places.header.extensions.bitmaps {
            Some(bitmaps) => {
                let at = usize::try_from(bitmaps.directory_offset.0).unwrap();
                bytes[at + 17] = 77;
                true
            }
            None => false,
        },
    },
];

struct Case {
    label: String,
    healthy: Vec<u8>,
    broken: Vec<u8>,
}

fn broken(kind: &Kind, damage: &Damage, healthy: &[u8]) -> Option<Case> {
    let mut bytes = healthy.to_vec();
    let applied = (damage.apply)(&mut bytes, &Places::of(healthy));
    let label = format!("{} in {}", damage.name, kind.name);
    applied.then(|| Case { label, healthy: healthy.to_vec(), broken: bytes })
}

fn assert_verdict(case: &Case, damage: &Damage, path: &Path) {
    std::fs::write(path, &case.broken).unwrap();
    let (code, theirs) = qemu_check(path, None);
    let memory = MemoryStorage::from_bytes(&case.broken);
    let (ours, findings) = checked(&memory, Repair::None);
    let said = format!("{}: ours {ours:?}, {:?}, theirs {code} {theirs}", case.label, few(&findings));
    assert!(memory.to_bytes() == case.broken, "a check without repair wrote something: {said}");
    assert_eq!(ours.is_clean(), findings.is_empty(), "{said}");
    match damage.expect {
        Expect::Same => {
            assert_eq!(exit_code(&ours), code, "{said}");
            assert_eq!(numbers(&ours), qemu_numbers(&theirs), "{said}");
        }
        Expect::Verdict | Expect::Parted | Expect::Released => assert_eq!(exit_code(&ours), code, "{said}"),
        Expect::Stays => {
            assert!(ours.corruptions > 0, "{said}");
            assert!(code == 2 || code == 1, "{said}");
        }
        Expect::OursOnly => assert_eq!((exit_code(&ours), code), (2, 0), "{said}"),
        Expect::TheirsFails => assert!(exit_code(&ours) == 2 && code != 0, "{said}"),
    }
}

fn assert_repaired(case: &Case, damage: &Damage, path: &Path) {
    let memory = MemoryStorage::from_bytes(&case.broken);
    let (before, _) = checked(&memory, Repair::None);
    let (after, findings) = checked(&memory, Repair::All);
    let said = format!("{}: {after:?} {:?}", case.label, few(&findings));
    save(&memory, path);
    let (code, theirs) = qemu_check(path, None);
    if damage.expect.is_repaired() {
        assert!(after.is_clean(), "{said}");
        assert_eq!(code, 0, "{said} {theirs}");
        let mut fixed = (before.corruptions, before.leaks);
        if damage.expect == Expect::Released {
            let other = path.with_extension("theirs");
            std::fs::write(&other, &case.broken).unwrap();
            let theirs = qemu_check(&other, Some("all")).1;
            let number = |name: &str| theirs[name].as_u64().unwrap_or(0);
            fixed = (number("corruptions-fixed"), number("leaks-fixed"));
            assert_same_content(path, &std::fs::read(&other).unwrap());
        }
        assert_eq!((after.corruptions_fixed, after.leaks_fixed), fixed, "{said}");
        let header = Header::decode(&memory.to_bytes()).unwrap();
        assert!(!header.incompatible.contains(Incompatible::DIRTY), "{said}");
        assert!(!header.incompatible.contains(Incompatible::CORRUPT), "{said}");
    }
    if damage.expect == Expect::Parted {
        assert_same_content(path, &case.broken);
    }
    if damage.harmless && !damage.name.contains("reserved") {
        assert_same_content(path, &case.healthy);
    }
}

/// QEMU reads the same from the image at `path` as from `before`.
fn assert_same_content(path: &Path, before: &[u8]) {
    let other = path.with_extension("before");
    std::fs::write(&other, before).unwrap();
    let names = [path.to_str().unwrap(), other.to_str().unwrap()];
    qemu_img(path.parent().unwrap(), &["compare", "-f", "qcow2", "-F", "qcow2", names[0], names[1]]);
}

fn for_each_case(mut each: impl FnMut(&Case, &Damage, &Path)) {
    let directory = tempfile::tempdir().unwrap();
    let mut applied = std::collections::BTreeMap::new();
    for kind in KINDS {
        let healthy = kind.make(directory.path(), kind.name);
        for damage in DAMAGES {
            let count = applied.entry(damage.name).or_insert(0);
            if let Some(case) = broken(kind, damage, &healthy) {
                *count += 1;
                each(&case, damage, &at(&directory, "broken.qcow2"));
            }
        }
    }
    let never: Vec<_> = applied.iter().filter(|(_, count)| **count == 0).collect();
    assert!(never.is_empty(), "never applied: {never:?}");
}

#[test]
fn broken_images_get_qemus_verdict() {
    for_each_case(assert_verdict);
}

/// A thread for each calculation.
#[derive(Debug)]
struct Threads;

impl Host for Threads {
    fn spawn(&self, work: Work) {
        reactor::spawn(work).detach();
    }

    fn calculate(&self, calculation: Calculation) -> Work {
        Box::pin(reactor::blocking(calculation))
    }
}

#[test]
fn the_same_is_reported_on_one_thread_and_on_several() {
    let host: Arc<dyn Host> = Arc::new(Threads);
    for_each_case(|case, _, _| {
        let memory = MemoryStorage::from_bytes(&case.broken);
        let (report, findings) = checked(&memory, Repair::None);
        let file: Arc<dyn Storage> = Arc::new(memory);
        let mut reported = Vec::new();
        let mut hear = |progress: Progress<'_>| {
            if let Progress::Found(finding) = progress {
                reported.push(finding.clone());
            }
        };
        let parallel = reactor_run(check_in_parallel(&file, &host, Repair::None, &mut hear)).unwrap();
        assert_eq!((parallel, few(&reported)), (report, few(&findings)), "{}", case.label);
        assert_eq!(reported, findings, "{}", case.label);
    });
}

#[test]
fn what_was_repaired_is_clean_for_qemu_and_holds_the_same_data() {
    for_each_case(assert_repaired);
}

#[test]
fn repairing_leaks_leaves_corruption_alone() {
    for_each_case(|case, damage, path| {
        let memory = MemoryStorage::from_bytes(&case.broken);
        let (before, _) = checked(&memory, Repair::None);
        let (after, findings) = checked(&memory, Repair::Leaks);
        save(&memory, path);
        let said = format!("{}: {before:?} {after:?} {:?}", case.label, few(&findings));
        assert!(after.corruptions <= before.corruptions, "{said}");
        if damage.expect == Expect::Same && before.leaks > 0 {
            assert_eq!((after.leaks, qemu_check(path, None).0), (0, 0), "{said}");
        }
    });
}

#[test]
fn a_repair_cut_short_is_completed_by_the_next_one() {
    for_each_case(|case, damage, path| {
        if !damage.expect.is_repaired() {
            return;
        }
        for steps in 0.. {
            let file = Faulty::new(MemoryStorage::from_bytes(&case.broken), steps);
            let done = run(check(&file, Repair::All, &mut |_| {}));
            let (after, findings) = checked(&file.inner, Repair::All);
            assert!(after.is_clean(), "{} after {steps}: {after:?} {:?}", case.label, few(&findings));
            if done.is_ok() {
                save(&file.inner, path);
                assert_eq!(qemu_check(path, None).0, 0, "{}", case.label);
                break;
            }
        }
    });
}

#[test]
fn a_crash_that_keeps_any_part_of_a_repair_leaves_nothing_worse_than_before() {
    const SECTORS_OF_AN_EPOCH: usize = 6;
    let mut asked = 0u32;
    for_each_case(|case, damage, path| {
        if !damage.expect.is_repaired() {
            return;
        }
        let file = Recorder::new(&case.broken);
        run(check(&file, Repair::All, &mut |_| {})).unwrap();
        for state in crash_states(&case.broken, &file.epochs(), SECTORS_OF_AN_EPOCH) {
            let bytes = state.to_bytes();
            let dirty = Header::decode_for_check(&bytes).unwrap().incompatible.contains(Incompatible::DIRTY);
            let (now, _) = checked(&state, Repair::None);
            let finished = now.is_clean();
            let untouched = bytes == case.broken;
            let version_2 = case.label.ends_with("version-2");
            assert!(dirty || finished || untouched || version_2, "{}: {now:?}", case.label);
            let (after, findings) = checked(&state, Repair::All);
            assert!(after.is_clean(), "{}: {after:?} {:?}", case.label, few(&findings));
            asked += 1;
            if asked.is_multiple_of(40) {
                save(&state, path);
                assert_eq!(qemu_check(path, None).0, 0, "{}", case.label);
                if damage.harmless || damage.expect == Expect::Parted {
                    assert_same_content(path, if damage.harmless { &case.healthy } else { &case.broken });
                }
            }
        }
    });
    assert!(asked > 500, "{asked}");
}
