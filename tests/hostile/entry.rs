//! Lies in the L1 table, the L2 tables and the refcounts.

use super::trial::Expect::{Bounded, Data, ErrorOrData};
use super::victim::*;
use super::{Row, run, run_one};

const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;

/// Changes the L2 entry of the disk's third cluster.
fn entry(victim: &mut Victim, change: impl Fn(u64) -> u64) {
    let at = victim.l2(2);
    let entry = victim.entry(at);
    assert_ne!(entry & OFFSET_MASK, 0, "the set-up maps the third cluster");
    victim.set_entry(at, change(entry));
}

/// Points the L2 entry of the third cluster somewhere.
fn point(victim: &mut Victim, to: u64) {
    entry(victim, |_| COPIED | to);
}

#[test]
fn an_l2_entry_never_makes_metadata_readable_or_writable() {
    const ROWS: &[Row] = &[
        ("L2 entry to the header", ErrorOrData, "", |v| point(v, 0)),
        ("L2 entry to L1", ErrorOrData, "", |v| point(v, v.get(L1_OFFSET))),
        ("L2 entry to the refcount table", ErrorOrData, "", |v| point(v, v.refcount_table())),
        ("L2 entry to a refcount block", ErrorOrData, "", |v| point(v, v.refcount_block())),
        ("L2 entry to its own table", ErrorOrData, "", |v| point(v, v.l2_table())),
    ];
    // An entry of 0 with COPIED is an unallocated cluster: what was there reads as zeroes.
    let mut original = Victim::new(Kind::Plain);
    let cluster = usize::try_from(original.cluster()).expect("small");
    original.disk[2 * cluster..3 * cluster].fill(0);
    point(&mut original, 0);
    run_one("COPIED without an offset", ErrorOrData, "", &original);
    run(Kind::Plain, &ROWS[1..]);
    run(Kind::Extended, &ROWS[1..]);
}

#[test]
fn l2_entries_that_cannot_be_are_errors() {
    const ROWS: &[Row] = &[
        ("reserved bit 1", ErrorOrData, "", |v| entry(v, |e| e | 1 << 1)),
        ("reserved bit 8", ErrorOrData, "", |v| entry(v, |e| e | 1 << 8)),
        ("reserved bit 56", ErrorOrData, "", |v| entry(v, |e| e | 1 << 56)),
        ("reserved bit 61", ErrorOrData, "", |v| entry(v, |e| e | 1 << 61)),
        ("unaligned", ErrorOrData, "", |v| entry(v, |e| e + 512)),
        ("past the end", Bounded, "", |v| point(v, 1 << 40)),
        ("at the last offset", Bounded, "", |v| point(v, 0x00ff_ffff_ffff_0000)),
        ("all ones", Bounded, "", |v| entry(v, |_| u64::MAX)),
        ("two entries on one cluster", Bounded, "", |v| point(v, v.entry(v.l2(3)) & OFFSET_MASK)),
        ("COPIED missing", Data, "", |v| entry(v, |e| e & !COPIED)),
    ];
    run(Kind::Plain, ROWS);
}

#[test]
fn copied_with_another_refcount_than_one_loses_nothing_on_reading() {
    const ROWS: &[Row] = &[
        ("refcount 0 under COPIED", ErrorOrData, "", |v| refcount(v, 2, 0)),
        ("refcount 2 under COPIED", ErrorOrData, "", |v| refcount(v, 2, 2)),
        ("refcount 65535 under COPIED", ErrorOrData, "", |v| refcount(v, 2, 0xffff)),
    ];
    run(Kind::Plain, ROWS);
}

/// Changes the refcount of the cluster that the disk's cluster `index` is in.
fn refcount(victim: &mut Victim, index: u64, count: u16) {
    let host = (victim.entry(victim.l2(index)) & OFFSET_MASK) / victim.cluster();
    let at = usize::try_from(victim.refcount_block() + 2 * host).expect("inside");
    victim.bytes[at..at + 2].copy_from_slice(&count.to_be_bytes());
}

#[test]
fn l1_entries_that_cannot_be_are_errors() {
    const ROWS: &[Row] = &[
        ("L1 entry with reserved bits", ErrorOrData, "", |v| l1(v, |e| e | 1)),
        ("L1 entry with reserved bit 56", ErrorOrData, "", |v| l1(v, |e| e | 1 << 56)),
        ("L1 entry unaligned", ErrorOrData, "", |v| l1(v, |e| e + 512)),
        ("L1 entry to the header", ErrorOrData, "", |v| {
            l1(v, |_| COPIED | 512);
        }),
        ("L1 entry to L1", Bounded, "", |v| {
            let table = v.get(L1_OFFSET);
            l1(v, |_| COPIED | table);
        }),
        ("L1 entry to a refcount block", Bounded, "", |v| {
            let block = v.refcount_block();
            l1(v, |_| COPIED | block);
        }),
        ("L1 entry past the end", Bounded, "", |v| l1(v, |_| COPIED | 1 << 40)),
        ("L1 entry all ones", ErrorOrData, "", |v| l1(v, |_| u64::MAX)),
        ("L1 entry without COPIED", Data, "", |v| l1(v, |e| e & !COPIED)),
    ];
    run(Kind::Plain, ROWS);
}

fn l1(victim: &mut Victim, change: impl Fn(u64) -> u64) {
    let at = victim.l1(0);
    let entry = change(victim.entry(at));
    victim.set_entry(at, entry);
}

#[test]
fn tables_that_are_used_twice_do_no_harm() {
    const ROWS: &[Row] = &[
        ("one L2 table in two L1 slots", Bounded, "", |v| {
            let entry = v.entry(v.l1(0));
            v.set_entry(v.l1(1), entry);
        }),
        ("every L1 slot on one L2 table", Bounded, "", |v| {
            let entry = v.entry(v.l1(0));
            (0..v.get(L1_SIZE)).for_each(|slot| v.set_entry(v.l1(slot), entry));
        }),
        ("every L1 slot on L1", Bounded, "", |v| {
            let table = v.get(L1_OFFSET);
            (0..v.get(L1_SIZE)).for_each(|slot| v.set_entry(v.l1(slot), COPIED | table));
        }),
    ];
    run(Kind::Small, ROWS);
}

/// Changes the L2 entry of the first compressed cluster.
fn compressed(victim: &mut Victim, change: impl Fn(u64) -> u64) {
    let at = victim.l2(16);
    let entry = victim.entry(at);
    assert_ne!(entry & COMPRESSED, 0, "the set-up compresses the cluster");
    victim.set_entry(at, change(entry));
}

/// Bits of a compressed entry that hold the offset, with clusters of 64 KiB.
const COMPRESSED_OFFSET: u64 = (1 << 54) - 1;

#[test]
fn compressed_clusters_that_lie_are_errors() {
    const ROWS: &[Row] = &[
        ("compressed, at the end of the file", ErrorOrData, "", |v| {
            let end = v.bytes.len() as u64;
            compressed(v, |e| e & !COMPRESSED_OFFSET | (end - 1));
        }),
        ("compressed, past the end of the file", ErrorOrData, "", |v| {
            compressed(v, |e| e & !COMPRESSED_OFFSET | 1 << 40);
        }),
        ("compressed, at the last offset", ErrorOrData, "", |v| compressed(v, |e| e | COMPRESSED_OFFSET)),
        ("compressed, in the header", ErrorOrData, "", |v| compressed(v, |e| e & !COMPRESSED_OFFSET)),
        ("compressed, most sectors", ErrorOrData, "", |v| compressed(v, |e| e | 0xff << 54)),
        ("compressed, spanning two clusters", ErrorOrData, "", |v| {
            compressed(v, |e| ((e & !COMPRESSED_OFFSET) + (1 << 54)) | (e & COMPRESSED_OFFSET) | 0xffff);
        }),
        ("compressed, starting in the middle of a stream", ErrorOrData, "", |v| compressed(v, |e| e + 3)),
        ("compressed and COPIED", ErrorOrData, "", |v| compressed(v, |e| e | COPIED)),
        ("compressed, garbled", ErrorOrData, "", |v| {
            let at = usize::try_from(v.entry(v.l2(16)) & COMPRESSED_OFFSET).expect("inside");
            v.bytes[at..at + 16].fill(0xff);
        }),
        ("compressed, all zero bytes", ErrorOrData, "", |v| {
            let at = usize::try_from(v.entry(v.l2(16)) & COMPRESSED_OFFSET).expect("inside");
            v.bytes[at..at + 64].fill(0);
        }),
    ];
    run(Kind::Plain, ROWS);
    run(
        Kind::Small,
        &[("small, compressed, most sectors", ErrorOrData, "", |v| compressed(v, |e| e | 1 << 61))],
    );
}

#[test]
fn a_compressed_cluster_cut_off_by_the_end_of_the_file_is_an_error() {
    let mut victim = Victim::new(Kind::Plain);
    let start = victim.entry(victim.l2(16)) & COMPRESSED_OFFSET;
    victim.bytes.truncate(usize::try_from(start + 5).expect("inside"));
    // Everything behind it is gone as well, and reads as zeroes or as an error.
    run_one("cut in a compressed cluster", Bounded, "", &victim);
}

#[test]
fn a_bomb_fills_one_cluster_and_no_more() {
    let bomb = {
        let scratch = black_box::Scratch::new();
        let path = scratch.name("bomb.qcow2");
        let options = ["create", "-q", "-f", "qcow2", "-o", "cluster_size=2M", &path, "2M"];
        black_box::peer::qemu_img(options).ok();
        black_box::peer::qemu_io_ok(&["-f", "qcow2"], &path, &["write -c -P 16 0 2M"]);
        std::fs::read(&path).expect("an image")
    };
    // With clusters of 2 MiB an entry has 49 bits of offset.
    let table = u64::from_be_bytes(bomb[40..48].try_into().expect("eight bytes"));
    let number = |at: u64| {
        let at = usize::try_from(at).expect("inside");
        u64::from_be_bytes(bomb[at..at + 8].try_into().expect("eight bytes"))
    };
    let entry = number(number(table) & OFFSET_MASK);
    let stream = usize::try_from(entry & ((1 << 49) - 1)).expect("inside");
    let stream = &bomb[stream..(stream + 4096).min(bomb.len())];

    let mut victim = Victim::new(Kind::Plain);
    let at = usize::try_from(victim.entry(victim.l2(16)) & COMPRESSED_OFFSET).expect("inside");
    victim.bytes.resize(at + stream.len(), 0);
    victim.bytes[at..at + stream.len()].copy_from_slice(stream);
    compressed(&mut victim, |entry| entry | 0xff << 54);
    // The second compressed cluster lay behind the first and is overwritten.
    run_one("a bomb", Bounded, "", &victim);
}

/// Changes the subcluster bitmap of the disk's cluster `index`.
fn bitmap(victim: &mut Victim, index: u64, bitmap: u64) {
    victim.set_entry(victim.l2(index) + 8, bitmap);
}

#[test]
fn subclusters_that_cannot_be_are_errors() {
    const ROWS: &[Row] = &[
        ("allocated and zero at once", ErrorOrData, "", |v| bitmap(v, 2, u64::MAX)),
        ("one subcluster allocated and zero at once", ErrorOrData, "", |v| {
            bitmap(v, 2, 1 << 32 | 0xffff_ffff)
        }),
        ("allocated without an offset", ErrorOrData, "", |v| {
            v.set_entry(v.l2(30), 0);
            bitmap(v, 30, 1);
        }),
        ("compressed with a bitmap", ErrorOrData, "", |v| bitmap(v, 16, 0xffff_ffff)),
        ("compressed with zero subclusters", ErrorOrData, "", |v| bitmap(v, 16, 0xffff_ffff << 32)),
        ("zero flag of the standard form", ErrorOrData, "", |v| entry(v, |e| e | 1)),
    ];
    run(Kind::Extended, ROWS);
}

#[test]
fn refcounts_that_lie_lose_nothing_that_is_mapped() {
    const ROWS: &[Row] = &[
        ("all refcounts 0", ErrorOrData, "", |v| refcounts(v, 0)),
        ("all refcounts saturated", ErrorOrData, "", |v| refcounts(v, 0xff)),
        ("refcount table empty", ErrorOrData, "", |v| v.set_entry(v.refcount_table(), 0)),
        ("refcount block is the refcount table", ErrorOrData, "", |v| {
            let table = v.refcount_table();
            v.set_entry(table, table);
        }),
        ("refcount block is the header", ErrorOrData, "", |v| v.set_entry(v.refcount_table(), 0x200)),
        ("refcount block is L1", ErrorOrData, "", |v| v.set_entry(v.refcount_table(), v.get(L1_OFFSET))),
        ("refcount block is an L2 table", ErrorOrData, "", |v| v.set_entry(v.refcount_table(), v.l2_table())),
        ("refcount block unaligned", ErrorOrData, "", |v| {
            let block = v.refcount_block();
            v.set_entry(v.refcount_table(), block + 512);
        }),
        ("refcount block with reserved bits", ErrorOrData, "", |v| {
            let block = v.refcount_block();
            v.set_entry(v.refcount_table(), block | 1);
        }),
        ("refcount block past the end", ErrorOrData, "", |v| v.set_entry(v.refcount_table(), 1 << 40)),
        ("refcount block beyond 2^56", ErrorOrData, "", |v| v.set_entry(v.refcount_table(), 1 << 60)),
        ("every refcount block is the first one", ErrorOrData, "", |v| {
            let block = v.refcount_block();
            (0..8192).for_each(|index| v.set_entry(v.refcount_table() + 8 * index, block));
        }),
    ];
    run(Kind::Plain, ROWS);
}

fn refcounts(victim: &mut Victim, byte: u8) {
    let start = usize::try_from(victim.refcount_block()).expect("inside");
    let end = start + usize::try_from(victim.cluster()).expect("small");
    victim.bytes[start..end].fill(byte);
}
