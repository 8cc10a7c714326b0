//! Images that are made from the first byte to the last: clean for QEMU's checker, and with the disk that was put in.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::common::{at, qemu_check, qemu_img};
use qcow2::{CreateOptions, InOrder, InOrderCluster, Preallocation};
use qcow2_layout::{Compression, Version};

/// Cluster `index` of the disk: noise, text or nothing.
fn cluster(index: u64, bytes: u64) -> Option<Vec<u8>> {
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    match index % 5 {
        0 => None,
        1 => Some((0..bytes).map(|_| noise()).collect()),
        _ => Some((0..bytes).map(|at| (index as u8) ^ ((at / 64) as u8)).collect()),
    }
}

/// Makes the image, and the disk that it is to have, as files.
fn make(options: &CreateOptions, packs: bool, directory: &tempfile::TempDir) {
    let mut image = InOrder::new(options).unwrap();
    let (bytes, packer) = (image.cluster_bytes(), image.packer());
    let (mut file, mut disk) = (Vec::new(), Vec::new());
    for index in 0..options.size.div_ceil(bytes) {
        let len = bytes.min(options.size - index * bytes);
        let data = cluster(index, len);
        disk.extend(data.clone().unwrap_or_else(|| vec![0; len as usize]));
        let Some(data) = data else {
            image.add(index, InOrderCluster::Zeroes).unwrap();
            continue;
        };
        match packer.pack(&data).unwrap().filter(|_| packs) {
            Some(packed) => image.add(index, InOrderCluster::Packed(&packed)).unwrap(),
            None => image.add(index, InOrderCluster::Data(&data)).unwrap(),
        }
        file.extend(image.take());
    }
    let header = image.finish().unwrap();
    file.extend(image.take());
    assert_eq!(file.len() as u64 % bytes, 0);
    file[..header.len()].copy_from_slice(&header);
    std::fs::write(at(directory, "image.qcow2"), file).unwrap();
    std::fs::write(at(directory, "disk.raw"), disk).unwrap();
}

#[test]
fn every_geometry_is_clean_for_qemu_and_has_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let mut compressed = 0;
    for (cluster_size, size) in
        [(512, (1 << 20) + 512), (4096, 6 << 20), (65536, 5 << 20), (2 << 20, 9 << 20)]
    {
        for refcount_bits in [1, 2, 16, 64] {
            for compression in [None, Some(Compression::Deflate), Some(Compression::Zstd)] {
                let options = CreateOptions {
                    size,
                    cluster_size,
                    refcount_bits,
                    compression: compression.unwrap_or(Compression::Deflate),
                    ..CreateOptions::default()
                };
                make(&options, compression.is_some(), &directory);
                let (code, report) = qemu_check(&at(&directory, "image.qcow2"), None);
                assert_eq!(code, 0, "{options:?}: {report}");
                compressed += report["compressed-clusters"].as_u64().unwrap_or(0);
                let same = ["compare", "-f", "qcow2", "-F", "raw", "image.qcow2", "disk.raw"];
                qemu_img(directory.path(), &same);
            }
        }
    }
    assert!(compressed > 100, "{compressed}");
}

#[test]
fn zeroes_over_a_backing_file_hide_what_it_has() {
    for version in [Version::V2, Version::V3] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(at(&directory, "base.raw"), vec![7; 1 << 20]).unwrap();
        let options = CreateOptions {
            size: 1 << 20,
            version,
            backing_file: Some("base.raw".into()),
            backing_format: Some("raw".into()),
            ..CreateOptions::default()
        };
        make(&options, false, &directory);
        assert_eq!(qemu_check(&at(&directory, "image.qcow2"), None).0, 0, "{version:?}");
        qemu_img(directory.path(), &["compare", "-f", "qcow2", "-F", "raw", "image.qcow2", "disk.raw"]);
    }
}

#[test]
fn options_that_need_known_places_are_refused() {
    for options in [
        CreateOptions { preallocation: Preallocation::Metadata, ..CreateOptions::default() },
        CreateOptions { extended_l2: true, ..CreateOptions::default() },
    ] {
        let error = InOrder::new(&options).unwrap_err().to_string();
        assert!(error.contains("is written from its first byte to its last"), "{error}");
    }
}
