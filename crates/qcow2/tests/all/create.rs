//! New images: as QEMU's own, clean for its checker, and nothing at all when a crash comes first.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::common;

use common::faulty::Faulty;
use common::{at, qemu_check, qemu_img, qemu_info, run, save};
use qcow2::{CreateError, CreateOptions, Preallocation, create};
use qcow2_layout::{Compression, Header, Version};
use serde_json::Value;
use storage::{Hints, MemoryStorage, Storage};

const PREALLOCATIONS: [Preallocation; 4] =
    [Preallocation::Off, Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full];

fn made(options: &CreateOptions) -> MemoryStorage {
    let file = MemoryStorage::new(0);
    run(create(&file, None, options)).unwrap();
    file
}

#[test]
fn every_geometry_and_preallocation_is_clean_for_qemu() {
    let directory = tempfile::tempdir().unwrap();
    let path = at(&directory, "image.qcow2");
    for cluster_size in [512, 1024, 4096, 65536, 2 << 20] {
        for refcount_bits in [1, 2, 16, 64] {
            for preallocation in PREALLOCATIONS {
                let size = (3 << 20) + 512;
                let options =
                    CreateOptions { size, cluster_size, refcount_bits, preallocation, ..Default::default() };
                save(&made(&options), &path);
                let (code, report) = qemu_check(&path, None);
                assert_eq!(code, 0, "{options:?}: {report}");
                let allocated = report["allocated-clusters"].as_u64().unwrap_or(0);
                let expected =
                    if preallocation == Preallocation::Off { 0 } else { size.div_ceil(cluster_size) };
                assert_eq!(allocated, expected, "{options:?}");
            }
        }
    }
}

/// The fields of `qemu-img info` that do not depend on where or when the image was made.
fn comparable(mut info: Value) -> Value {
    let fields = info.as_object_mut().unwrap();
    for field in ["filename", "actual-size", "full-backing-filename", "children"] {
        fields.remove(field);
    }
    info
}

#[test]
fn images_have_the_info_and_map_of_qemus_own() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, theirs) = (at(&directory, "ours.qcow2"), at(&directory, "theirs.qcow2"));
    qemu_img(directory.path(), &["create", "-q", "-f", "raw", "back.raw", "1M"]);
    let base = CreateOptions { size: 40 << 20, ..CreateOptions::default() };
    let backing = CreateOptions {
        backing_file: Some("back.raw".to_owned()),
        backing_format: Some("raw".to_owned()),
        ..base.clone()
    };
    let cases = [
        ("compat=1.1", base.clone()),
        ("compat=0.10", CreateOptions { version: Version::V2, ..base.clone() }),
        ("lazy_refcounts=on", CreateOptions { lazy_refcounts: true, ..base.clone() }),
        ("compression_type=zstd", CreateOptions { compression: Compression::Zstd, ..base.clone() }),
        (
            "extended_l2=on,preallocation=metadata",
            CreateOptions { extended_l2: true, preallocation: Preallocation::Metadata, ..base.clone() },
        ),
        (
            "preallocation=metadata,compat=0.10",
            CreateOptions { version: Version::V2, preallocation: Preallocation::Metadata, ..base.clone() },
        ),
        ("preallocation=full", CreateOptions { preallocation: Preallocation::Full, ..base.clone() }),
        ("backing_file=back.raw,backing_fmt=raw", backing.clone()),
        (
            "backing_file=back.raw,backing_fmt=raw,cluster_size=512",
            CreateOptions { cluster_size: 512, ..backing.clone() },
        ),
        (
            "backing_file=back.raw,backing_fmt=raw,extended_l2=on,preallocation=metadata",
            CreateOptions { extended_l2: true, preallocation: Preallocation::Metadata, ..backing },
        ),
        ("refcount_bits=1,cluster_size=4k", CreateOptions { refcount_bits: 1, cluster_size: 4096, ..base }),
    ];
    for (theirs_options, options) in cases {
        save(&made(&options), &ours);
        let arguments = ["create", "-q", "-f", "qcow2", "-o", theirs_options, "theirs.qcow2", "40M"];
        qemu_img(directory.path(), &arguments);
        assert_eq!(comparable(qemu_info(&ours)), comparable(qemu_info(&theirs)), "{theirs_options}");
        assert_eq!(qemu_check(&ours, None).0, 0, "{theirs_options}");
        qemu_img(directory.path(), &["compare", "ours.qcow2", "theirs.qcow2"]);
        let map = |name: &str| {
            let said = qemu_img(directory.path(), &["map", "--output=json", name]);
            let mut map: Value = serde_json::from_str(&said).unwrap();
            for extent in map.as_array_mut().unwrap() {
                extent.as_object_mut().unwrap().remove("offset");
            }
            map
        };
        assert_eq!(map("ours.qcow2"), map("theirs.qcow2"), "{theirs_options}");
    }
}

#[test]
fn data_files_get_the_disks_size_and_raw_ones_are_mapped_in_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = at(&directory, "ours.qcow2");
    for raw in [false, true] {
        for extended_l2 in [false, true] {
            for preallocation in PREALLOCATIONS {
                let options = CreateOptions {
                    size: 10 << 20,
                    data_file: Some("data.raw".to_owned()),
                    data_file_raw: raw,
                    extended_l2,
                    preallocation,
                    ..CreateOptions::default()
                };
                let (file, data) = (MemoryStorage::new(5), MemoryStorage::from_bytes(&[7; 70000]));
                run(create(&file, Some(&data), &options)).unwrap();
                assert_eq!(data.length(), 10 << 20);
                assert!(data.to_bytes().iter().all(|&byte| byte == 0));
                save(&file, &path);
                save(&data, &at(&directory, "data.raw"));
                let (code, report) = qemu_check(&path, None);
                assert_eq!(code, 0, "{options:?}: {report}");
                let data = &qemu_info(&path)["format-specific"]["data"];
                assert_eq!((&data["data-file"], &data["data-file-raw"]), (&"data.raw".into(), &raw.into()));
                qemu_img(directory.path(), &["compare", "-F", "raw", "ours.qcow2", "data.raw"]);
                common::qemu_io(directory.path(), "ours.qcow2", &["write -P 5 3M 70k", "read -P 5 3M 70k"]);
                assert_eq!(qemu_check(&path, None).0, 0, "{options:?}");
            }
        }
    }
}

#[test]
fn options_that_contradict_each_other_are_refused_by_both_names() {
    let backing = CreateOptions { backing_file: Some("b".to_owned()), ..CreateOptions::default() };
    let v2 = CreateOptions { version: Version::V2, ..CreateOptions::default() };
    let data = || Some("d".to_owned());
    let cases = [
        (CreateOptions { cluster_size: 1000, ..Default::default() }, "cluster_size is 1000"),
        (CreateOptions { cluster_size: 4 << 20, ..Default::default() }, "cluster_size is 4194304"),
        (CreateOptions { refcount_bits: 0, ..Default::default() }, "refcount_bits is 0"),
        (CreateOptions { refcount_bits: 128, ..Default::default() }, "refcount_bits is 128"),
        (
            CreateOptions { cluster_size: 8192, extended_l2: true, ..Default::default() },
            "cluster_size=8192 cannot be combined with extended_l2=on",
        ),
        (
            CreateOptions { lazy_refcounts: true, ..v2.clone() },
            "lazy_refcounts=on cannot be combined with compat=0.10",
        ),
        (
            CreateOptions { refcount_bits: 8, ..v2.clone() },
            "refcount_bits=8 cannot be combined with compat=0.10",
        ),
        (
            CreateOptions { extended_l2: true, ..v2.clone() },
            "extended_l2=on cannot be combined with compat=0.10",
        ),
        (CreateOptions { data_file: data(), ..v2.clone() }, "data_file cannot be combined with compat=0.10"),
        (
            CreateOptions { compression: Compression::Zstd, ..v2 },
            "compression_type=zstd cannot be combined with compat=0.10",
        ),
        (
            CreateOptions { preallocation: Preallocation::Falloc, ..backing.clone() },
            "preallocation=falloc cannot be combined with backing_file",
        ),
        (CreateOptions { data_file_raw: true, ..Default::default() }, "data_file_raw=on needs data_file"),
        (
            CreateOptions { data_file: data(), data_file_raw: true, ..backing },
            "data_file_raw=on cannot be combined with backing_file",
        ),
        (CreateOptions { backing_format: data(), ..Default::default() }, "backing_fmt needs backing_file"),
        (CreateOptions { data_file: data(), ..Default::default() }, "data_file is named but was not opened"),
        (
            CreateOptions { size: 200 << 40, cluster_size: 512, ..Default::default() },
            "a disk of 219902325555200 bytes is too large for clusters of 512 bytes: the L1 table",
        ),
        (CreateOptions { size: u64::MAX, ..Default::default() }, "size is 18446744073709551615"),
        (
            CreateOptions { backing_file: Some("b".repeat(1024)), ..Default::default() },
            "the backing file name has 1024 bytes",
        ),
    ];
    for (options, said) in cases {
        let file = MemoryStorage::from_bytes(b"precious");
        let error = run(create(&file, None, &options)).unwrap_err();
        assert!(error.to_string().starts_with(said), "{error}");
        assert_eq!(file.to_bytes(), b"precious", "{error}");
    }
}

#[test]
fn the_largest_disk_of_a_cluster_size_is_made_and_one_sector_more_is_refused() {
    for (cluster_size, largest) in [(512, 128u64 << 30), (4096, 8 << 40), (65536, 2 << 50)] {
        let options = CreateOptions { size: largest, cluster_size, ..CreateOptions::default() };
        let file = made(&options);
        let mut first = vec![0; usize::try_from(cluster_size).unwrap()];
        assert!(file.try_read(0, &mut first, Hints::NONE));
        assert_eq!(Header::decode(&first).unwrap().size, largest);
        let more = CreateOptions { size: largest + 1, ..options };
        let refused = run(create(&MemoryStorage::new(0), None, &more));
        assert!(matches!(refused, Err(CreateError::TooLarge { .. })), "{refused:?}");
    }
}

#[test]
fn sizes_are_rounded_up_to_sectors() {
    let file = made(&CreateOptions { size: 513, ..CreateOptions::default() });
    assert_eq!(Header::decode(&file.to_bytes()).unwrap().size, 1024);
}

#[test]
fn a_crash_before_the_last_write_leaves_no_image() {
    let options =
        CreateOptions { size: 1 << 20, preallocation: Preallocation::Metadata, ..CreateOptions::default() };
    let old = made(&CreateOptions { size: 5 << 20, ..CreateOptions::default() }).to_bytes();
    let mut crashes = 0;
    for steps in 1.. {
        let file = Faulty::new(MemoryStorage::from_bytes(&old), steps);
        let done = run(create(&file, None, &options));
        if done.is_ok() {
            break;
        }
        assert!(Header::decode(&file.inner.to_bytes()).is_err(), "after {steps} steps");
        crashes += 1;
    }
    assert!(crashes >= 4, "{crashes}");
}

#[test]
fn what_a_device_held_before_never_shows_through() {
    let directory = tempfile::tempdir().unwrap();
    let path = at(&directory, "device.qcow2");
    qemu_img(directory.path(), &["create", "-q", "-f", "raw", "zero.raw", "2M"]);
    for version in [Version::V2, Version::V3] {
        for (extended_l2, preallocation) in PREALLOCATIONS.into_iter().flat_map(|p| [(false, p), (true, p)]) {
            if extended_l2 && version == Version::V2 {
                continue;
            }
            let options = CreateOptions {
                size: 2 << 20,
                version,
                extended_l2,
                preallocation,
                ..CreateOptions::default()
            };
            let device = Faulty::device(&[0xaa; 3 << 20]);
            run(create(&device, None, &options)).unwrap();
            save(&device.inner, &path);
            assert_eq!(qemu_check(&path, None).0, 0, "{options:?}");
            qemu_img(directory.path(), &["compare", "-f", "qcow2", "-F", "raw", "device.qcow2", "zero.raw"]);
        }
    }
    let small = Faulty::device(&[0xaa; 1 << 16]);
    let refused = run(create(&small, None, &CreateOptions { size: 512, ..CreateOptions::default() }));
    assert!(matches!(refused, Err(CreateError::MediumTooSmall { needed: 262144, .. })), "{refused:?}");
}
