//! Lies in the header, its extensions and its feature bits.

use super::trial::Expect::{Bounded, Data, Error, ErrorOrData};
use super::victim::*;
use super::{Row, run, run_one};

/// The feature name table's type, and the length of an entry in it.
const FEATURE_NAMES: u32 = 0x6803_f857;

#[test]
fn an_undamaged_image_passes_every_trial() {
    for kind in [Kind::Plain, Kind::Snapshot, Kind::Small, Kind::Extended, Kind::Old] {
        run_one(&format!("{kind:?}, undamaged"), Data, "", &Victim::new(kind));
    }
}

#[test]
fn a_header_that_is_cut_off_is_refused() {
    let original = Victim::new(Kind::Plain);
    for bytes in [0, 4, 49, 50, 71, 72, 103, 104] {
        let mut victim = original.clone();
        victim.bytes.truncate(bytes);
        run_one(&format!("header cut at {bytes}"), Error, "", &victim);
    }
}

#[test]
fn header_numbers_out_of_range_are_refused() {
    const ROWS: &[Row] = &[
        ("version 0", Error, "qcow2", |v| v.set(VERSION, 0)),
        ("version 1", Error, "qcow2", |v| v.set(VERSION, 1)),
        ("version 4", Error, "qcow2", |v| v.set(VERSION, 4)),
        ("cluster_bits 0", Error, "cluster", |v| v.set(CLUSTER_BITS, 0)),
        ("cluster_bits 8", Error, "cluster", |v| v.set(CLUSTER_BITS, 8)),
        ("cluster_bits 22", Error, "cluster", |v| v.set(CLUSTER_BITS, 22)),
        ("cluster_bits 63", Error, "cluster", |v| v.set(CLUSTER_BITS, 63)),
        ("cluster_bits 2^32-1", Error, "cluster", |v| v.set(CLUSTER_BITS, 0xffff_ffff)),
        ("header_length 0", Error, "header", |v| v.set(HEADER_LENGTH, 0)),
        ("header_length 71", Error, "header", |v| v.set(HEADER_LENGTH, 71)),
        ("header_length 73", Error, "header", |v| v.set(HEADER_LENGTH, 73)),
        ("header_length 108", ErrorOrData, "header", |v| v.set(HEADER_LENGTH, 108)),
        ("header_length past the cluster", Error, "header", |v| v.set(HEADER_LENGTH, 65544)),
        ("header_length 2^32-8", Error, "header", |v| v.set(HEADER_LENGTH, 0xffff_fff8)),
        ("refcount_order 7", Error, "refcount", |v| v.set(REFCOUNT_ORDER, 7)),
        ("refcount_order 63", Error, "refcount", |v| v.set(REFCOUNT_ORDER, 63)),
        ("refcount_order 255", Error, "refcount", |v| v.set(REFCOUNT_ORDER, 255)),
        ("refcount_order 2^32-1", Error, "refcount", |v| v.set(REFCOUNT_ORDER, 0xffff_ffff)),
    ];
    run(Kind::Plain, ROWS);
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    const ROWS: &[Row] = &[
        ("size 0", Bounded, "", |v| v.set(SIZE, 0)),
        ("size odd", ErrorOrData, "size", |v| v.set(SIZE, (4 << 20) + 1)),
        ("size beyond L1", Error, "l1", |v| v.set(SIZE, 1 << 40)),
        ("size 2^63", Error, "", |v| v.set(SIZE, 1 << 63)),
        ("size 2^64-1", Error, "", |v| v.set(SIZE, u64::MAX)),
        ("size 2^64-512", Error, "", |v| v.set(SIZE, u64::MAX - 511)),
        ("l1_size 0", Error, "l1", |v| v.set(L1_SIZE, 0)),
        ("l1_size 2^32-1", Error, "l1", |v| v.set(L1_SIZE, 0xffff_ffff)),
        ("l1_size 32 MiB of entries and one", Error, "l1", |v| v.set(L1_SIZE, (4 << 20) + 1)),
    ];
    run(Kind::Plain, ROWS);
}

#[test]
fn encrypted_images_are_refused_by_name() {
    const ROWS: &[Row] = &[
        ("crypt_method 1", Error, "aes", |v| v.set(CRYPT_METHOD, 1)),
        ("crypt_method 2", Error, "luks", |v| v.set(CRYPT_METHOD, 2)),
        ("crypt_method 3", Error, "crypt", |v| v.set(CRYPT_METHOD, 3)),
    ];
    run(Kind::Plain, ROWS);
}

#[test]
fn tables_that_lie_nowhere_are_refused() {
    const ROWS: &[Row] = &[
        ("L1 at 0", ErrorOrData, "", |v| v.set(L1_OFFSET, 0)),
        ("L1 unaligned", Error, "l1", |v| v.set(L1_OFFSET, 0x3_0008)),
        ("L1 past the end", Error, "l1", |v| v.set(L1_OFFSET, 1 << 40)),
        ("L1 wraps", Error, "l1", |v| v.set(L1_OFFSET, 0xffff_ffff_ffff_0000)),
        ("refcount table at 0", ErrorOrData, "", |v| v.set(REFCOUNT_TABLE_OFFSET, 0)),
        ("refcount table unaligned", Error, "refcount", |v| v.set(REFCOUNT_TABLE_OFFSET, 0x1_0200)),
        ("refcount table past the end", ErrorOrData, "refcount", |v| v.set(REFCOUNT_TABLE_OFFSET, 1 << 40)),
        ("refcount table wraps", Error, "refcount", |v| v.set(REFCOUNT_TABLE_OFFSET, 0xffff_ffff_ffff_0000)),
        ("refcount table of no clusters", Error, "refcount", |v| v.set(REFCOUNT_TABLE_CLUSTERS, 0)),
        ("refcount table of 2^32-1 clusters", Error, "refcount", |v| {
            v.set(REFCOUNT_TABLE_CLUSTERS, 0xffff_ffff);
        }),
        ("refcount table of 2^16 clusters", Error, "refcount", |v| v.set(REFCOUNT_TABLE_CLUSTERS, 1 << 16)),
    ];
    run(Kind::Plain, ROWS);
}

#[test]
fn snapshot_tables_that_cannot_be_are_refused() {
    const ROWS: &[Row] = &[
        ("65537 snapshots", Error, "snapshot", |v| v.set(SNAPSHOTS, 65537)),
        ("2^32-1 snapshots", Error, "snapshot", |v| v.set(SNAPSHOTS, 0xffff_ffff)),
        ("65536 snapshots in a table of one", ErrorOrData, "", |v| v.set(SNAPSHOTS, 65536)),
        ("snapshot table at 0", ErrorOrData, "", |v| v.set(SNAPSHOTS_OFFSET, 0)),
        ("snapshot table unaligned", Error, "snapshot", |v| v.set(SNAPSHOTS_OFFSET, 0x8_0008)),
        ("snapshot table past the end", Error, "snapshot", |v| v.set(SNAPSHOTS_OFFSET, 1 << 40)),
        ("snapshot table wraps", Error, "snapshot", |v| v.set(SNAPSHOTS_OFFSET, 0xffff_ffff_ffff_0000)),
        ("snapshot L1 unaligned", ErrorOrData, "", |v| snapshot(v, 0, &0x3_0008_u64.to_be_bytes())),
        ("snapshot L1 past the end", ErrorOrData, "", |v| snapshot(v, 0, &(1_u64 << 40).to_be_bytes())),
        ("snapshot L1 of 2^32-1 entries", ErrorOrData, "", |v| snapshot(v, 8, &[0xff; 4])),
        ("snapshot id of 65535 bytes", ErrorOrData, "", |v| snapshot(v, 12, &[0xff; 2])),
        ("snapshot name of 65535 bytes", ErrorOrData, "", |v| snapshot(v, 14, &[0xff; 2])),
        ("snapshot with 8 bytes of extra data", ErrorOrData, "", |v| snapshot(v, 36, &8_u32.to_be_bytes())),
        ("snapshot with 1025 bytes of extra data", ErrorOrData, "", |v| {
            snapshot(v, 36, &1025_u32.to_be_bytes());
        }),
        ("snapshot with 2^32-1 bytes of extra data", ErrorOrData, "", |v| snapshot(v, 36, &[0xff; 4])),
    ];
    run(Kind::Snapshot, ROWS);
}

/// Changes bytes of the first snapshot's entry.
fn snapshot(victim: &mut Victim, at: usize, bytes: &[u8]) {
    let table = usize::try_from(victim.get(SNAPSHOTS_OFFSET)).expect("inside");
    victim.bytes[table + at..table + at + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn unknown_features_are_refused_by_the_name_that_the_image_gives_them() {
    const ROWS: &[Row] = &[
        ("a named unknown feature", Error, "frobnication", |v| {
            let mut name = [0; 48];
            name[1] = 60;
            name[2..14].copy_from_slice(b"frobnication");
            v.replace_extensions(&[(FEATURE_NAMES, 48, &name), (0, 0, &[])]);
            v.set(INCOMPATIBLE, 1 << 60);
        }),
        ("an unknown feature without a name", Error, "60", |v| {
            v.replace_extensions(&[(0, 0, &[])]);
            v.set(INCOMPATIBLE, 1 << 60);
        }),
        ("every feature", Error, "", |v| v.set(INCOMPATIBLE, u64::MAX)),
        ("feature names that are no text", Error, "", |v| {
            v.replace_extensions(&[(FEATURE_NAMES, 48, &[0xff; 48]), (0, 0, &[])]);
            v.set(INCOMPATIBLE, 1 << 60);
        }),
        ("a feature name table of 47 bytes", ErrorOrData, "", |v| {
            v.replace_extensions(&[(FEATURE_NAMES, 47, &[1; 47]), (0, 0, &[])]);
        }),
        ("unknown compatible features", Data, "", |v| v.set(Field(80, 8), 0xffff_ffff_ffff_fffe)),
        ("unknown autoclear features", Data, "", |v| v.set(AUTOCLEAR, 0xffff_ffff_ffff_fffc)),
        ("an external data file without its name", Error, "data", |v| v.set(INCOMPATIBLE, 1 << 2)),
        ("extended L2 that is not", Bounded, "", |v| v.set(INCOMPATIBLE, 1 << 4)),
        ("dirty", ErrorOrData, "", |v| v.set(INCOMPATIBLE, 1)),
        ("corrupt", ErrorOrData, "", |v| v.set(INCOMPATIBLE, 2)),
    ];
    run(Kind::Plain, ROWS);
}

#[test]
fn compression_types_that_contradict_themselves_are_refused() {
    const ROWS: &[Row] = &[
        ("compression type 2", Error, "compression", |v| compression(v, 2, true)),
        ("compression type 255", Error, "compression", |v| compression(v, 255, true)),
        ("bit without type", Error, "compression", |v| compression(v, 0, true)),
        ("type without bit", Error, "compression", |v| compression(v, 1, false)),
        ("zstd over deflate streams", ErrorOrData, "", |v| compression(v, 1, true)),
    ];
    run(Kind::Plain, ROWS);
}

fn compression(victim: &mut Victim, kind: u64, bit: bool) {
    victim.set(COMPRESSION_TYPE, kind);
    victim.set(INCOMPATIBLE, u64::from(bit) << 3);
}

#[test]
fn extensions_that_lie_about_themselves_do_no_harm() {
    const BITMAPS: u32 = 0x2385_2875;
    const BACKING_FORMAT: u32 = 0xe279_2aca;
    const ROWS: &[Row] = &[
        ("extension of 2^32-1 bytes", Error, "extension", |v| {
            v.replace_extensions(&[(FEATURE_NAMES, 0xffff_ffff, &[])]);
        }),
        ("extension past the cluster", Error, "extension", |v| {
            v.replace_extensions(&[(0x1234_5678, 65536, &[])]);
        }),
        ("extension without padding", ErrorOrData, "", |v| {
            v.replace_extensions(&[(0x1234_5678, 3, &[0x41, 0x42, 0x43, 0, 0, 0, 0, 1])]);
        }),
        ("extensions without an end", ErrorOrData, "", |v| {
            v.replace_extensions(&vec![(0x1234_5678, 0, &[][..]); (65536 - 112) / 8]);
        }),
        ("backing format given twice", ErrorOrData, "", |v| {
            v.replace_extensions(&[(BACKING_FORMAT, 3, b"raw"), (BACKING_FORMAT, 5, b"qcow2"), (0, 0, &[])]);
        }),
        ("backing format of 2000 bytes", ErrorOrData, "", |v| {
            v.replace_extensions(&[(BACKING_FORMAT, 2000, &[0x41; 2000]), (0, 0, &[])]);
        }),
        ("bitmaps bit without extension", ErrorOrData, "", |v| v.set(AUTOCLEAR, 1)),
        ("bitmaps extension of 23 bytes", ErrorOrData, "", |v| {
            v.replace_extensions(&[(BITMAPS, 23, &[1; 23]), (0, 0, &[])]);
            v.set(AUTOCLEAR, 1);
        }),
        ("bitmaps extension with a directory nowhere", ErrorOrData, "", |v| {
            v.replace_extensions(&[(BITMAPS, 24, &bitmaps(1, 32, 1 << 40)), (0, 0, &[])]);
            v.set(AUTOCLEAR, 1);
        }),
        ("bitmaps extension with 2^32-1 bitmaps", ErrorOrData, "", |v| {
            v.replace_extensions(&[(BITMAPS, 24, &bitmaps(u32::MAX, u64::MAX, 0x3_0000)), (0, 0, &[])]);
            v.set(AUTOCLEAR, 1);
        }),
        ("bitmaps extension with its directory in the header", ErrorOrData, "", |v| {
            v.replace_extensions(&[(BITMAPS, 24, &bitmaps(1, 64, 0)), (0, 0, &[])]);
            v.set(AUTOCLEAR, 1);
        }),
    ];
    run(Kind::Plain, ROWS);
}

fn bitmaps(count: u32, directory_bytes: u64, directory: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&count.to_be_bytes());
    bytes[8..16].copy_from_slice(&directory_bytes.to_be_bytes());
    bytes[16..].copy_from_slice(&directory.to_be_bytes());
    bytes
}
