//! Chains and tables that are large in memory and nothing in the file.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use black_box::{Outcome, Scratch, cowhand};

/// What every tool may take of such images, in bytes and time.
const MEMORY_MAX: u64 = 256 << 20;
const TIME_MAX: Duration = Duration::from_secs(60);
const CLUSTER: u64 = 64 << 10;
/// The largest table.
const L1_ENTRIES: u32 = 4 << 20;

/// The header of version 3 of an image whose L1 table has `entries` and begins at `l1`, with refcounts for 16 clusters in its second and third cluster.
fn header(backing: Option<&str>, entries: u32, l1: u64) -> Vec<u8> {
    let mut bytes = vec![0; 3 * CLUSTER as usize];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    let name = backing.unwrap_or_default();
    put(0, b"QFI\xfb\0\0\0\x03");
    if !name.is_empty() {
        put(8, &0x400_u64.to_be_bytes());
        put(16, &(name.len() as u32).to_be_bytes());
        put(0x400, name.as_bytes());
        put(104, b"\xe2\x79\x2a\xca\0\0\0\x05qcow2");
    }
    put(20, &16_u32.to_be_bytes());
    put(24, &(u64::from(entries) << 29).to_be_bytes());
    put(36, &entries.to_be_bytes());
    put(40, &l1.to_be_bytes());
    put(48, &CLUSTER.to_be_bytes());
    put(56, &1_u32.to_be_bytes());
    put(96, &4_u32.to_be_bytes());
    put(100, &104_u32.to_be_bytes());
    put(CLUSTER as usize, &(2 * CLUSTER).to_be_bytes());
    for cluster in 0..16 {
        put(2 * CLUSTER as usize + 2 * cluster, &1_u16.to_be_bytes());
    }
    bytes
}

/// A chain of `layers` images, whose L1 tables have `word` at `places` and zeroes elsewhere. Gives the uppermost.
fn chain(scratch: &Scratch, layers: u32, places: &[u64], word: u64) -> String {
    for layer in 0..layers {
        let below = (layer + 1 < layers).then(|| format!("c{}", layer + 1));
        let image = header(below.as_deref(), L1_ENTRIES, 3 * CLUSTER);
        let file = scratch.write(&format!("c{layer}"), &image);
        let file = std::fs::File::options().write(true).open(file).expect("a file");
        file.set_len(3 * CLUSTER + u64::from(L1_ENTRIES) * 8).expect("a sparse file");
        for place in places {
            file.write_all_at(&word.to_be_bytes(), 3 * CLUSTER + place * 8).expect("an entry");
        }
    }
    scratch.name("c0")
}

fn bounded(words: &[&str], image: &str) -> Outcome {
    let outcome = cowhand(words).arg(image).limit(TIME_MAX).outcome();
    assert!(!outcome.panicked(), "{words:?}: {outcome}");
    assert!(outcome.peak_rss_bytes < MEMORY_MAX, "{words:?}: {} MiB", outcome.peak_rss_bytes >> 20);
    outcome
}

/// Each image of the chain took 32 MiB for an L1 table of which its file had nothing: 1.3 GiB here, 32 GiB for 1,000 images of 12 KiB.
#[test]
fn a_chain_of_empty_images_with_the_largest_tables_takes_bounded_memory() {
    let scratch = Scratch::new();
    let top = chain(&scratch, 40, &[], 0);
    let read = cowhand(["io", "-r", "-f", "qcow2", "-c", "read 0 64k"]).arg(&top).limit(TIME_MAX).outcome();
    assert!(read.peak_rss_bytes < MEMORY_MAX, "{} MiB", read.peak_rss_bytes >> 20);
    assert!(read.status.success(), "{read}");
    for words in
        [&["info", "--backing-chain"][..], &["show"], &["measure", "-O", "qcow2"], &["map"], &["check"]]
    {
        let outcome = bounded(words, &top);
        assert!(outcome.status.code().is_some(), "{words:?}: {outcome}");
    }
}

/// One entry in each part of the tables, so that all of them must be in memory: a limit ends it.
#[test]
fn a_chain_whose_tables_have_something_everywhere_is_refused_at_a_limit_of_memory() {
    let scratch = Scratch::new();
    // Entries whose tables lie beyond the file: no read asks for them.
    let places: Vec<u64> = (0..u64::from(L1_ENTRIES)).step_by(1 << 14).collect();
    let top = chain(&scratch, 8, &places, 1 << 40);
    let outcome = bounded(&["io", "-r", "-f", "qcow2", "-c", "read 64M 64k"], &top);
    let limit = "the L1 tables and bitmap directories of the disk's images take more than";
    assert!(outcome.stderr.contains(limit) && outcome.stderr.contains("--map-memory"), "{outcome}");
}

/// One table that is named 65,536 times describes half a milliard pieces: measuring it took hours.
#[test]
fn an_image_that_names_one_table_many_times_is_measured_in_bounded_time() {
    let scratch = Scratch::new();
    let mut image = header(None, 65536, 5 * CLUSTER);
    // A table in which every second cluster is one of zeroes, and the others are one cluster of data.
    let data = (4 * CLUSTER) | (1 << 63);
    image.extend((0..CLUSTER / 8).flat_map(|entry| if entry % 2 == 0 { 1 } else { data }.to_be_bytes()));
    image.extend(vec![b'x'; CLUSTER as usize]);
    image.extend((0..65536_u32).flat_map(|_| ((3 * CLUSTER) | (1 << 63)).to_be_bytes()));
    let image = scratch.write("same", &image);
    let outcome = bounded(&["measure", "-O", "qcow2", "-f", "qcow2"], &image.display().to_string());
    assert!(outcome.stderr.contains("its files have no room for"), "{outcome}");
}

/// A snapshot table of 60 MiB was in memory three times while the image was shown.
#[test]
fn a_table_of_long_snapshot_names_takes_bounded_memory_in_every_tool() {
    const SNAPSHOTS: u32 = 65536;
    const NAME: usize = 900;
    let scratch = Scratch::new();
    let at = 1 << 24;
    let mut image = header(None, 1, 3 * CLUSTER);
    image[24..32].copy_from_slice(&(1_u64 << 20).to_be_bytes());
    image[60..64].copy_from_slice(&SNAPSHOTS.to_be_bytes());
    image[64..72].copy_from_slice(&(at as u64).to_be_bytes());
    image.resize(at, 0);
    for number in 0..SNAPSHOTS {
        let start = image.len();
        image.extend((3 * CLUSTER).to_be_bytes());
        image.extend(1_u32.to_be_bytes());
        image.extend([5_u16.to_be_bytes(), (NAME as u16).to_be_bytes()].concat());
        image.extend([0; 20]);
        image.extend(16_u32.to_be_bytes());
        image.extend([0; 16]);
        image.extend(format!("{number:05}").into_bytes());
        image.extend(format!("{number:n>NAME$}").into_bytes());
        image.resize(start + (image.len() - start).next_multiple_of(8), 0);
    }
    let image = scratch.write("snapshots", &image).display().to_string();
    for words in [&["info"][..], &["check"], &["map"], &["show"], &["io", "-r", "-c", "length"]] {
        bounded(words, &image);
    }
}

/// Writes the image `name` with the most bitmaps, whose names are `bytes` long, over the image `below`.
fn with_bitmaps(scratch: &Scratch, name: &str, below: Option<&str>, bytes: usize) -> String {
    const BITMAPS: u32 = 65535;
    let at = 1_usize << 24;
    let mut image = header(below, 1, 3 * CLUSTER);
    image[24..32].copy_from_slice(&(1_u64 << 20).to_be_bytes());
    image.resize(at, 0);
    for number in 0..BITMAPS {
        let start = image.len();
        image.extend((4 * CLUSTER).to_be_bytes());
        image.extend([1_u32, 0].map(u32::to_be_bytes).concat());
        image.extend([1, 16]);
        image.extend((bytes as u16).to_be_bytes());
        image.extend([0; 4]);
        image.extend(format!("{number:b>bytes$}").into_bytes());
        image.resize(start + (image.len() - start).next_multiple_of(8), 0);
    }
    let len = (image.len() - at) as u64;
    // The extension follows that of the backing format, which has 16 bytes.
    let place = 104 + if below.is_some() { 16 } else { 0 };
    let words = [&b"\x23\x85\x28\x75\0\0\0\x18"[..], &BITMAPS.to_be_bytes(), &[0; 4], &len.to_be_bytes()];
    let extension = [&words.concat()[..], &(at as u64).to_be_bytes()].concat();
    image[place..place + extension.len()].copy_from_slice(&extension);
    image[95] |= 1;
    scratch.write(name, &image).display().to_string()
}

/// Each image of a chain took 145 MiB for the names of its bitmaps: 1.2 GiB here.
#[test]
fn a_chain_of_directories_of_long_bitmap_names_takes_bounded_memory_in_every_tool() {
    let scratch = Scratch::new();
    let names: Vec<String> = (0..8).map(|layer| format!("b{layer}")).collect();
    for (layer, name) in names.iter().enumerate() {
        with_bitmaps(&scratch, name, names.get(layer + 1).map(String::as_str), 1000);
    }
    let (top, alone) = (scratch.name("b0"), scratch.name("b7"));
    let read = bounded(&["io", "-r", "-f", "qcow2", "-c", "read 0 64k"], &top);
    assert!(read.stderr.contains("bitmap directories of the disk's images take more than"), "{read}");
    let read = bounded(&["io", "-r", "-f", "qcow2", "-c", "read 0 64k"], &alone);
    assert!(read.status.success(), "{read}");
    for words in [
        &["info"][..],
        &["info", "--backing-chain"],
        &["show"],
        &["measure", "-O", "qcow2"],
        &["map"],
        &["check"],
    ] {
        for image in [&top, &alone] {
            bounded(words, image);
        }
    }
}
