//! `cowhand check` on damaged images.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::peer::Bench;

/// An image with data whose refcounts are gone, and a cluster that nothing uses is counted.
fn damaged(bench: &Bench) {
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "disk.qcow2", "8M"]);
    bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -P 7 0 1M", "disk.qcow2"]);
    let file = fs::File::options().read(true).write(true).open(bench.path("disk.qcow2")).unwrap();
    let mut table = [0; 8];
    file.read_exact_at(&mut table, 0x10000).unwrap();
    let block = u64::from_be_bytes(table);
    file.write_all_at(&[0; 6], block + 2 * 10).unwrap();
    file.write_all_at(&1u16.to_be_bytes(), block + 2 * 40).unwrap();
}

/// A dry run prints what the repair prints then, and leaves the image as it was.
#[test]
fn a_dry_run_says_what_the_repair_does_and_writes_nothing() {
    let bench = Bench::new();
    damaged(&bench);
    let before = fs::read(bench.path("disk.qcow2")).unwrap();
    for what in ["leaks", "all"] {
        fs::write(bench.path("disk.qcow2"), &before).unwrap();
        let dry = bench.cowhand(&["check", "--dry-run", "-r", what, "disk.qcow2"]);
        let dry_json = bench.cowhand(&["check", "--dry-run", "-r", what, "--output", "json", "disk.qcow2"]);
        assert!(fs::read(bench.path("disk.qcow2")).unwrap() == before, "it was written");
        let json = fs::copy(bench.path("disk.qcow2"), bench.path("copy.qcow2"))
            .map(|_| bench.cowhand(&["check", "-r", what, "--output", "json", "copy.qcow2"]).json())
            .unwrap();
        let repaired = bench.cowhand(&["check", "-r", what, "disk.qcow2"]);
        assert_eq!((dry.code, dry_json.code), (repaired.code, repaired.code), "{}", dry.err);
        let said = dry.out.strip_prefix(&*repaired.out).expect("the same verdict first");
        assert!(said.starts_with("Nothing was written; the repair writes "), "{said}");
        assert_eq!(dry.err, repaired.err);
        let mut dry_json = dry_json.json();
        dry_json["filename"] = "copy.qcow2".into();
        assert_eq!(dry_json, json);
    }
    bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
    let alone = bench.cowhand(&["check", "--dry-run", "disk.qcow2"]);
    assert!(alone.code == 1 && alone.err.contains("--repair"), "{}", alone.err);
}

/// Two places of the disk that share a cluster keep what they had, each in a cluster of its own; what will be done is said before.
#[test]
fn data_that_two_places_share_is_copied_and_a_dry_run_says_so() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "disk.qcow2", "8M"]);
    bench.qemu(
        "qemu-io",
        &["-f", "qcow2", "-c", "write -P 7 0 256k", "-c", "write -P 8 64k 64k", "disk.qcow2"],
    );
    let file = fs::File::options().read(true).write(true).open(bench.path("disk.qcow2")).unwrap();
    let (mut l1, mut entry) = ([0; 8], [0; 8]);
    file.read_exact_at(&mut l1, 0x30000).unwrap();
    let table = u64::from_be_bytes(l1) & !(1 << 63);
    file.read_exact_at(&mut entry, table + 8).unwrap();
    file.write_all_at(&entry, table + 16).unwrap();
    bench.qemu("qemu-img", &["convert", "-O", "raw", "disk.qcow2", "before.raw"]);
    let dry = bench.cowhand(&["check", "-r", "all", "--dry-run", "disk.qcow2"]);
    let said = "gets its own: guest data, 1 cluster\n";
    assert!(dry.code == 0 && dry.err.contains(said), "{} {}", dry.out, dry.err);
    let ran = bench.cowhand(&["check", "-p", "-r", "all", "disk.qcow2"]);
    assert!(ran.code == 0 && ran.err.contains(said), "{} {}", ran.out, ran.err);
    bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
    bench.qemu("qemu-img", &["compare", "-q", "disk.qcow2", "before.raw"]);
    bench.qemu(
        "qemu-io",
        &["-f", "qcow2", "-c", "write -P 1 64k 64k", "-c", "read -P 8 128k 64k", "disk.qcow2"],
    );
}

/// A version 3 snapshot without its extra data was repaired to the size 0, and a disk that went back to it was 0 bytes long. QEMU takes the
/// size of the disk as it is.
#[test]
fn a_repaired_snapshot_has_the_size_of_the_disk() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "disk.qcow2", "64M"]);
    bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -P 7 0 1M", "disk.qcow2"]);
    bench.qemu("qemu-img", &["snapshot", "-c", "s", "disk.qcow2"]);
    without_extra_data(&bench);
    let broken = fs::read(bench.path("disk.qcow2")).unwrap();
    let went_back = |bench: &Bench| {
        bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
        bench.qemu("qemu-img", &["snapshot", "-a", "s", "disk.qcow2"]);
        bench.qemu("qemu-img", &["info", "--output", "json", "disk.qcow2"]).json()["virtual-size"].clone()
    };
    let repaired = bench.cowhand(&["check", "-r", "all", "disk.qcow2"]);
    assert_eq!(repaired.code, 0, "{}", repaired.err);
    assert_eq!(went_back(&bench), 64 << 20);
    // Another snapshot writes the table anew, too.
    fs::write(bench.path("disk.qcow2"), broken).unwrap();
    let second = bench.cowhand(&["snapshot", "-c", "t", "disk.qcow2"]);
    assert_eq!(second.code, 0, "{}", second.err);
    assert_eq!(went_back(&bench), 64 << 20);
}

/// Takes the extra data of the first snapshot away, as version 2 allows and version 3 does not.
fn without_extra_data(bench: &Bench) {
    let file = fs::File::options().read(true).write(true).open(bench.path("disk.qcow2")).unwrap();
    let mut place = [0; 8];
    file.read_exact_at(&mut place, 64).unwrap();
    let mut entry = vec![0; 256];
    let table = u64::from_be_bytes(place);
    let got = file.read_at(&mut entry, table).unwrap();
    entry.truncate(got);
    let extra = u32::from_be_bytes(entry[36..40].try_into().unwrap()) as usize;
    assert!(extra >= 16, "{extra} bytes of extra data");
    entry.drain(40..40 + extra);
    entry[36..40].fill(0);
    entry.resize(entry.len() + extra, 0);
    file.write_all_at(&entry, table).unwrap();
}

/// One compressed cluster that does not unpack ended all writes to the disk, for good, while `check` found no error. QEMU fails that read.
#[test]
fn a_compressed_cluster_that_does_not_unpack_fails_its_reads_and_nothing_else() {
    for compression in ["zlib", "zstd"] {
        let bench = Bench::new();
        let option = format!("compression_type={compression}");
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &option, "disk.qcow2", "1M"]);
        bench.qemu(
            "qemu-io",
            &["-f", "qcow2", "-c", "write -c -P 1 0 64k", "-c", "write -P 3 64k 64k", "disk.qcow2"],
        );
        let file = fs::File::options().read(true).write(true).open(bench.path("disk.qcow2")).unwrap();
        let word = |at: u64| {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, at).unwrap();
            u64::from_be_bytes(word)
        };
        let entry = word(word(word(40)) & 0x00ff_ffff_ffff_fe00);
        file.write_all_at(&[0xff; 64], entry & ((1 << 54) - 1)).unwrap();
        let commands =
            ["-c", "read 0 512", "-c", "write -P 5 64k 512", "-c", "read -P 5 64k 512", "disk.qcow2"];
        let ran = bench.cowhand(&[&["io"][..], &commands].concat());
        assert!(ran.code == 1 && ran.out.contains("wrote 512/512"), "{}{}", ran.out, ran.err);
        assert!(ran.out.contains("read 512/512") && !ran.out.contains("verification failed"), "{}", ran.out);
        assert_eq!(bench.cowhand(&["check", "disk.qcow2"]).code, 0);
        // Also in the next process, and over the bad cluster as a whole.
        let ran = bench.cowhand(&["io", "-c", "write -P 6 0 64k", "-c", "read -P 6 0 64k", "disk.qcow2"]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        let info = bench.cowhand(&["info", "--output", "json", "disk.qcow2"]).json();
        assert_eq!(info["format-specific"]["data"]["corrupt"], false, "{info}");
    }
}

/// Numbers of a vdi image's table and header that are wrong, and what QEMU says of each.
#[test]
fn a_vdi_image_is_checked_as_qemu_checks_it() {
    let bench = Bench::new();
    bench.qemu("qemu-img", &["create", "-q", "-f", "vdi", "good.vdi", "5M"]);
    bench.qemu("qemu-io", &["-f", "vdi", "-c", "write -P 1 0 1M", "-c", "write -P 2 3M 1M", "good.vdi"]);
    let good = std::fs::read(bench.path("good.vdi")).unwrap();
    let table = u32::from_le_bytes(good[0x154..0x158].try_into().unwrap()) as usize;
    let changes: [&[(usize, u32)]; 5] = [
        &[],
        &[(table + 12, 0)],
        &[(table + 12, 5)],
        &[(table + 12, u32::MAX - 2)],
        &[(table, 9), (table + 4, 1), (table + 8, 1), (0x184, 7)],
    ];
    for change in changes {
        let mut bytes = good.clone();
        for (at, value) in change {
            bytes[*at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        std::fs::write(bench.path("x.vdi"), bytes).unwrap();
        let words = ["check", "-f", "vdi", "--output=json", "x.vdi"];
        let theirs = bench.run(std::path::Path::new("qemu-img"), &words);
        let ours = bench.cowhand(&words);
        assert_eq!((ours.code, ours.json()), (theirs.code, theirs.json()), "{change:?}: {}", ours.err);
        let ours = bench.cowhand(&["check", "x.vdi"]);
        let count = theirs.json()["corruptions"].as_u64().unwrap_or(0);
        assert_eq!(ours.err.lines().count() as u64, count, "{change:?}: {}", ours.err);
    }
    let repaired = bench.cowhand(&["check", "-r", "all", "x.vdi"]);
    assert_eq!(repaired.code, 63, "{}", repaired.err);
}

/// A snapshot in a table: no state, no L1 table, so much extra data, an id and a name.
fn snapshot(extra: usize, id: &str, name: &str) -> Vec<u8> {
    let mut entry = vec![0; 40 + extra];
    entry[12..14].copy_from_slice(&u16::try_from(id.len()).unwrap().to_be_bytes());
    entry[14..16].copy_from_slice(&u16::try_from(name.len()).unwrap().to_be_bytes());
    entry[36..40].copy_from_slice(&u32::try_from(extra).unwrap().to_be_bytes());
    // Of the disk as it is.
    entry[48..56].copy_from_slice(&(8u64 << 20).to_be_bytes());
    entry.extend(id.as_bytes());
    entry.extend(name.as_bytes());
    entry.resize(entry.len().next_multiple_of(8), 0);
    entry
}

/// Tables with more than a table may have were refused by every tool, the repair as well.
#[test]
fn snapshots_that_are_too_many_or_too_long_are_cut_off_by_a_repair() {
    const TABLE: u64 = 1 << 20;
    let (small, large) = (snapshot(16, "1", "n"), snapshot(1024, "1", &"n".repeat(65_535)));
    let fat = snapshot(200_000, "1", "fat");
    let fits = (64 << 20) / large.len();
    for (entries, kept) in [
        (vec![&small; 65_536 + 9], 65_536),
        (vec![&large; fits + 3], fits),
        (vec![&small, &fat, &small], 3),
        // What goes of the extra data makes room for the entry behind it.
        ([vec![&fat], vec![&large; fits + 2]].concat(), fits + 1),
    ] {
        let bench = Bench::new();
        bench.qemu("qemu-img", &["create", "-q", "-f", "qcow2", "disk.qcow2", "8M"]);
        bench.qemu("qemu-io", &["-f", "qcow2", "-c", "write -P 7 0 256k", "disk.qcow2"]);
        let file = fs::File::options().write(true).open(bench.path("disk.qcow2")).unwrap();
        let count = u32::try_from(entries.len()).unwrap();
        file.write_all_at(&count.to_be_bytes(), 60).unwrap();
        file.write_all_at(&TABLE.to_be_bytes(), 64).unwrap();
        let table: Vec<u8> = entries.into_iter().flatten().copied().collect();
        file.write_all_at(&table, TABLE).unwrap();
        assert_eq!(bench.cowhand(&["check", "disk.qcow2"]).code, 2, "{kept}");
        assert_eq!(bench.cowhand(&["check", "-r", "leaks", "disk.qcow2"]).code, 2, "{kept}");
        let header = fs::read(bench.path("disk.qcow2")).unwrap();
        assert_eq!(header[60..64], count.to_be_bytes(), "{kept}: leaks alone were to be repaired");
        let repaired = bench.cowhand(&["check", "-r", "all", "disk.qcow2"]);
        assert_eq!(repaired.code, 0, "{kept}: {} {}", repaired.out, repaired.err);
        bench.qemu("qemu-img", &["check", "-q", "disk.qcow2"]);
        bench.qemu("qemu-io", &["-f", "qcow2", "-c", "read -P 7 0 256k", "disk.qcow2"]);
        let info = bench.cowhand(&["info", "--output", "json", "disk.qcow2"]).json();
        assert_eq!(info["snapshots"].as_array().unwrap().len(), kept);
    }
}
