//! Headers: round trips, limits, hostile bytes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::collection::vec;
use proptest::prelude::*;
use qcow2_layout::{
    Autoclear, BitmapsExtension, Compatible, Compression, CryptMethod, CryptoExtension, Extensions,
    FeatureName, Header, HeaderError, HostOffset, Incompatible, Version,
};

fn plain() -> Header {
    Header {
        version: Version::V3,
        cluster_bits: 16,
        refcount_order: 4,
        size: 1 << 30,
        backing: None,
        crypt: CryptMethod::None,
        l1_size: 2,
        l1_table_offset: HostOffset(0x3_0000),
        refcount_table_offset: HostOffset(0x1_0000),
        refcount_table_clusters: 1,
        snapshots: 0,
        snapshots_offset: HostOffset(0),
        incompatible: Incompatible::default(),
        compatible: Compatible::default(),
        autoclear: Autoclear::default(),
        compression: Compression::Deflate,
        extra: Vec::new(),
        extensions: Extensions { features: FeatureName::defaults(), ..Extensions::default() },
    }
}

fn with(at: usize, bytes: &[u8]) -> Result<Header, HeaderError> {
    let mut first = plain().encode().unwrap();
    first.resize(65536, 0);
    first[at..at + bytes.len()].copy_from_slice(bytes);
    Header::decode(&first)
}

#[test]
fn every_hostile_field_is_refused_by_name() {
    let be32 = u32::to_be_bytes;
    let be64 = u64::to_be_bytes;
    assert!(with(0, &[]).is_ok());
    assert!(matches!(with(0, b"qfi"), Err(HeaderError::Magic { .. })));
    for version in [0, 1, 4] {
        assert!(matches!(with(4, &be32(version)), Err(HeaderError::Version { .. })));
    }
    for offset in [1, 71, 111, 65537, u64::MAX] {
        let found = with(8, &[&be64(offset)[..], &be32(4)].concat());
        assert!(matches!(found, Err(HeaderError::BackingName { .. })), "{offset}");
    }
    let too_long = with(8, &[&be64(30000)[..], &be32(1024)].concat());
    assert!(matches!(too_long, Err(HeaderError::BackingName { .. })));
    let zeroes = with(8, &[&be64(30000)[..], &be32(5)].concat());
    assert!(matches!(zeroes, Err(HeaderError::BadName { .. })));
    for bits in [0, 8, 22, 63] {
        assert!(matches!(with(20, &be32(bits)), Err(HeaderError::ClusterBits { .. })));
    }
    for size in [(1 << 30) + 512, 1 << 63, u64::MAX] {
        assert!(matches!(with(24, &be64(size)), Err(HeaderError::L1TooSmall { .. })));
    }
    assert!(matches!(with(32, &be32(3)), Err(HeaderError::CryptMethod { found: 3 })));
    assert!(matches!(with(32, &be32(2)), Err(HeaderError::CryptoExtension { present: false, .. })));
    assert_eq!(with(32, &be32(1)).unwrap().crypt, CryptMethod::Aes);
    assert!(matches!(with(36, &be32(u32::MAX)), Err(HeaderError::L1TooLarge { .. })));
    for field in [40, 48] {
        for offset in [0, 1, 0x8000, i64::MAX as u64, 1 << 63, !0xffff] {
            assert!(matches!(with(field, &be64(offset)), Err(HeaderError::TableOffset { .. })));
        }
    }
    assert!(matches!(with(56, &be32(0)), Err(HeaderError::RefcountTableMissing)));
    assert!(matches!(with(56, &be32(u32::MAX)), Err(HeaderError::RefcountTableTooLarge { .. })));
    assert!(matches!(with(60, &be32(65537)), Err(HeaderError::TooManySnapshots { .. })));
    assert!(matches!(with(60, &be32(1)), Err(HeaderError::TableOffset { .. })));
    assert!(matches!(with(64, &be64(0x8000)), Err(HeaderError::TableOffset { .. })));
    for order in [7, 63, 255] {
        assert!(matches!(with(96, &be32(order)), Err(HeaderError::Geometry(_))));
    }
    for length in [0, 71, 73, 103, 113, 65544, u32::MAX] {
        assert!(matches!(with(100, &be32(length)), Err(HeaderError::HeaderLength { .. })), "{length}");
    }
    for kind in [1, 2, 255] {
        assert!(matches!(with(104, &[kind]), Err(HeaderError::CompressionBit { bit: false, .. })));
    }
    assert!(matches!(with(79, &[8]), Err(HeaderError::CompressionBit { found: 0, bit: true })));
    assert!(matches!(with(116, &be32(u32::MAX)), Err(HeaderError::ExtensionLength { .. })));
}

#[test]
fn a_header_cut_anywhere_is_an_error_that_says_how_much_is_missing() {
    let first = plain().encode().unwrap();
    for len in 0..112 {
        let Err(HeaderError::Truncated { len: found, needed }) = Header::decode(&first[..len]) else {
            panic!("{len} bytes were enough");
        };
        assert!(found == len && needed > len && needed <= 112);
    }
}

#[test]
fn unknown_features_are_named_by_the_image() {
    let mut header = plain();
    header.extensions.features[0].bit = 41;
    header.extensions.features[0].name = "time travel".to_owned();
    let mut first = header.encode().unwrap();
    first[72..80].copy_from_slice(&(1u64 << 41 | 1 << 63).to_be_bytes());
    let error = Header::decode(&first).unwrap_err();
    assert_eq!(error.to_string(), "the image needs unknown features: \"time travel\" (bit 41), bit 63");
}

#[test]
fn an_outdated_bitmaps_extension_is_dropped() {
    let mut header = plain();
    let bitmaps = BitmapsExtension { count: 1, directory_size: 32, directory_offset: HostOffset(0x5_0000) };
    header.extensions.bitmaps = Some(bitmaps);
    let first = header.encode().unwrap();
    assert_eq!(Header::decode(&first).unwrap().extensions.bitmaps, None);
    header.autoclear.insert(Autoclear::BITMAPS);
    let first = header.encode().unwrap();
    assert_eq!(Header::decode(&first).unwrap().extensions.bitmaps, Some(bitmaps));
}

#[test]
fn an_extension_that_leads_to_something_may_come_once() {
    let mut header = plain();
    header.extensions.unknown = vec![(0x4441_5441, b"a".to_vec()), (0x4441_5441, b"b".to_vec())];
    let found = Header::decode(&header.encode().unwrap());
    assert_eq!(found, Err(HeaderError::DuplicateExtension { kind: 0x4441_5441 }));
    // Of the format of a backing file QEMU takes the last one.
    header.extensions.unknown = vec![(0xe279_2aca, b"raw".to_vec()), (0xe279_2aca, b"foo".to_vec())];
    let found = Header::decode(&header.encode().unwrap()).unwrap();
    assert_eq!(found.extensions.backing_format.as_deref(), Some("foo"));
}

#[test]
fn a_header_that_does_not_fit_gives_up_the_feature_names_first() {
    let mut header = Header { cluster_bits: 9, l1_size: 1, size: 512, ..plain() };
    header.l1_table_offset = HostOffset(0x600);
    header.refcount_table_offset = HostOffset(0x200);
    assert_eq!(header.encode().unwrap().len(), 512);
    header.backing = Some("b".repeat(380));
    let first = header.encode().unwrap();
    let decoded = Header::decode(&first).unwrap();
    assert_eq!((decoded.backing, decoded.extensions.features.len()), (header.backing.clone(), 0));
    header.backing = Some("b".repeat(400));
    assert!(matches!(header.encode(), Err(HeaderError::TooLarge { cluster_size: 512, .. })));
}

#[test]
fn a_patched_header_changes_tables_and_features_and_no_name() {
    let old = Header { backing: Some("back".to_owned()), extra: vec![9; 8], ..plain() };
    let mut first = old.encode().unwrap();
    let mut new = Header { l1_table_offset: HostOffset(0x9_0000), snapshots: 3, ..old };
    new.snapshots_offset = HostOffset(0x7_0000);
    new.incompatible.insert(Incompatible::DIRTY);
    new.patch(&mut first).unwrap();
    assert_eq!(Header::decode(&first), Ok(new.clone()));
    assert!(matches!(new.patch(&mut first[..95]), Err(HeaderError::Truncated { .. })));
}

prop_compose! {
    fn headers()(
        v3: bool, cluster_bits in 14u32..=21, order in 0u32..=6, size in 0u64..1 << 40,
        backing in proptest::option::of("[^\0]{1,300}"), format in proptest::option::of("[a-z0-9]{1,15}"),
        data_file in proptest::option::of("[^\0]{1,300}"), flags in 0u64..32, snapshots in 0u32..100,
        extra in vec(any::<[u8; 8]>(), 0..4), unknown in vec((1u32..1000, vec(any::<u8>(), 0..50)), 0..3),
        (bitmaps, luks) in any::<(bool, bool)>(),
    ) -> Header {
        let version = if v3 { Version::V3 } else { Version::V2 };
        let only_v3 = |value: u64| if v3 { value } else { 0 };
        let zstd = v3 && flags & 8 != 0;
        let mut header = Header {
            version, cluster_bits, size, snapshots,
            refcount_order: if v3 { order } else { 4 },
            snapshots_offset: HostOffset(7 << cluster_bits),
            incompatible: Incompatible(only_v3(flags)),
            compatible: Compatible(only_v3(flags << 33 | flags & 1)),
            autoclear: Autoclear(only_v3(flags << 40 | u64::from(bitmaps))),
            compression: if zstd { Compression::Zstd } else { Compression::Deflate },
            backing,
            extra: if v3 { extra.concat() } else { Vec::new() },
            crypt: if luks { CryptMethod::Luks } else { CryptMethod::None },
            l1_table_offset: HostOffset(3 << cluster_bits),
            refcount_table_offset: HostOffset(1 << cluster_bits),
            ..plain()
        };
        header.l1_size = header.geometry().unwrap().l1_entries_for(size) as u32;
        header.extensions = Extensions {
            backing_format: format, data_file,
            crypto: luks.then_some(CryptoExtension { offset: HostOffset(11 << cluster_bits), len: 7 }),
            features: if v3 { FeatureName::defaults() } else { Vec::new() },
            bitmaps: (v3 && bitmaps).then_some(BitmapsExtension {
                count: 3, directory_size: 96, directory_offset: HostOffset(9 << cluster_bits),
            }),
            record: None,
            unknown,
        };
        header
    }
}

proptest! {
    #[test]
    fn a_written_header_reads_back_as_it_was(header in headers()) {
        prop_assume!(u64::from(header.l1_size) * 8 <= qcow2_layout::L1_BYTES_MAX);
        let first = header.encode().unwrap();
        prop_assert_eq!(Header::decode(&first), Ok(header.clone()));
        let mut cluster = first;
        cluster.resize(1 << header.cluster_bits, 0);
        prop_assert_eq!(Header::decode(&cluster), Ok(header));
    }

    #[test]
    fn a_damaged_header_never_panics(
        header in headers(), damage in vec((0usize..700, any::<u8>()), 1..20), cut in 0usize..2000,
    ) {
        let Ok(mut first) = header.encode() else { return Ok(()) };
        for (at, byte) in damage {
            if let Some(place) = first.get_mut(at) { *place = byte }
        }
        first.truncate(cut);
        if let Ok(found) = Header::decode_for_check(&first) {
            prop_assert!(found.geometry().is_ok());
            let _ = found.encode();
        }
    }
}
