//! Headers that `qemu-img` wrote: decoded, and written back byte for byte.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;

use qcow2_layout::{
    Autoclear, Compatible, Compression, Header, Incompatible, L1Entry, Version, decode_bitmap_directory,
    decode_snapshots,
};

fn qemu_img(directory: &Path, arguments: &[&str]) {
    let output = Command::new("qemu-img").args(arguments).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "qemu-img {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn image(directory: &Path, options: &str, more: &[&str]) -> Vec<u8> {
    let path = "image.qcow2";
    let mut arguments = vec!["create", "-q", "-f", "qcow2", "-o", options];
    arguments.extend(more);
    arguments.extend([path, "40M"]);
    qemu_img(directory, &arguments);
    std::fs::read(directory.join(path)).unwrap()
}

/// The header must come back as QEMU wrote it: same bytes up to the first cluster's end.
fn assert_same_bytes(image: &[u8]) -> Header {
    let header = Header::decode(image).unwrap();
    let mut written = header.encode().unwrap();
    written.resize(1 << header.cluster_bits, 0);
    let first = image.get(..written.len()).unwrap_or(image);
    assert!(written.starts_with(first), "{header:#?}");
    header
}

#[test]
fn headers_of_qemu_survive_a_round_trip_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    qemu_img(at, &["create", "-q", "-f", "raw", "back.raw", "1M"]);
    let backing: &[&str] = &["-b", "back.raw", "-F", "raw"];
    for options in [
        "compat=1.1",
        "compat=0.10",
        "cluster_size=512",
        "cluster_size=2M,refcount_bits=1",
        "cluster_size=16k,extended_l2=on,refcount_bits=64",
        "lazy_refcounts=on,compression_type=zstd",
    ] {
        for more in [&[][..], backing] {
            let header = assert_same_bytes(&image(at, options, more));
            assert_eq!(header.size, 40 << 20, "{options}");
            assert_eq!(header.backing.is_some(), !more.is_empty(), "{options}");
        }
    }
    let header = assert_same_bytes(&image(at, "data_file=data.raw,data_file_raw=on", &[]));
    assert_eq!(header.extensions.data_file.as_deref(), Some("data.raw"));
    assert!(header.autoclear.contains(Autoclear::RAW_EXTERNAL_DATA));
}

#[test]
fn options_given_to_qemu_are_found_in_the_header() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let header = Header::decode(&image(at, "compression_type=zstd,lazy_refcounts=on", &[])).unwrap();
    assert_eq!((header.version, header.compression), (Version::V3, Compression::Zstd));
    assert!(header.incompatible.contains(Incompatible::COMPRESSION));
    assert!(header.compatible.contains(Compatible::LAZY_REFCOUNTS));
    let header = Header::decode(&image(at, "extended_l2=on,refcount_bits=2", &[])).unwrap();
    let geometry = header.geometry().unwrap();
    assert_eq!((geometry.subclusters(), geometry.refcount_bits()), (32, 2));
    let header = Header::decode(&image(at, "compat=0.10", &[])).unwrap();
    assert_eq!((header.version, header.geometry().unwrap().refcount_bits()), (Version::V2, 16));
}

#[test]
fn snapshots_and_bitmaps_of_qemu_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    image(at, "compat=1.1", &[]);
    qemu_img(at, &["snapshot", "-c", "first", "image.qcow2"]);
    qemu_img(at, &["snapshot", "-c", "second", "image.qcow2"]);
    qemu_img(at, &["bitmap", "--add", "-g", "128k", "image.qcow2", "dirty"]);
    let bytes = std::fs::read(at.join("image.qcow2")).unwrap();
    let header = assert_same_bytes(&bytes);
    let geometry = header.geometry().unwrap();
    let table = &bytes[usize::try_from(header.snapshots_offset.0).unwrap()..];
    let snapshots = decode_snapshots(table, header.snapshots).unwrap();
    let names: Vec<_> = snapshots.iter().map(|one| one.entry.name_text().into_owned()).collect();
    assert_eq!(names, ["first", "second"]);
    for snapshot in &snapshots {
        snapshot.entry.check(&geometry).unwrap();
        assert_eq!(snapshot.entry.disk_size, Some(40 << 20));
    }
    let extension = header.extensions.bitmaps.unwrap();
    let start = usize::try_from(extension.directory_offset.0).unwrap();
    let directory = &bytes[start..start + usize::try_from(extension.directory_size).unwrap()];
    let bitmaps = decode_bitmap_directory(directory, extension.count, &geometry).unwrap();
    assert_eq!((bitmaps[0].name.as_str(), bitmaps[0].granularity_bits), ("dirty", 17));
    let l1 = usize::try_from(header.l1_table_offset.0).unwrap();
    let word = u64::from_be_bytes(bytes[l1..l1 + 8].try_into().unwrap());
    L1Entry::decode(word, &geometry).unwrap();
}
