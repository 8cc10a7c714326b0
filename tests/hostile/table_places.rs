//! As many tables as an image can name, each in a place of its own.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};

use black_box::{Scratch, Server};

/// Entries of the largest L1 table, 32 MiB.
const L1_ENTRIES: u64 = 4 << 20;
/// Blocks that the largest refcount table names, 8 MiB.
const BLOCKS: u64 = 1 << 20;
/// Where the L1 table is, and the refcount table behind it.
const L1_AT: u64 = 1 << 20;
const REFCOUNTS_AT: u64 = L1_AT + L1_ENTRIES * 8;
/// Memory of the server, whatever the image says.
const PEAK_BYTES_MAX: u64 = 128 << 20;

/// The refcount of the cluster is one.
const COPIED: u64 = 1 << 63;

/// A sparse image of 41 MiB in which all of 5 million tables, none of them written, are where tables may be.
fn five_million_tables(scratch: &Scratch, cluster_bits: u32) -> std::io::Result<String> {
    let path = scratch.name("tables.qcow2");
    let cluster = 1u64 << cluster_bits;
    let size = L1_ENTRIES * (cluster / 8) * cluster;
    let first = (REFCOUNTS_AT + BLOCKS * 8).next_multiple_of(cluster);
    let file = File::create(&path)?;
    file.set_len(first + (L1_ENTRIES + BLOCKS) * cluster)?;
    let mut out = BufWriter::new(file);
    let long = |high: u64, low: u64| [high, low].map(u64::to_be_bytes).concat();
    out.write_all(b"QFI\xfb\0\0\0\x03")?;
    // No backing file; cluster bits share a word with its length.
    out.write_all(&long(0, u64::from(cluster_bits)))?;
    // Not encrypted; the number of L1 entries in the lower half.
    out.write_all(&long(size, L1_ENTRIES))?;
    out.write_all(&long(L1_AT, REFCOUNTS_AT))?;
    // The refcount table's clusters in the upper half, no snapshots.
    out.write_all(&long((BLOCKS * 8 / cluster) << 32, 0))?;
    out.write_all(&long(0, 0))?;
    // Refcounts of 16 bits, and the header's length.
    out.write_all(&long(0, 4 << 32 | 104))?;
    out.seek(SeekFrom::Start(L1_AT))?;
    for index in 0..L1_ENTRIES {
        out.write_all(&(COPIED | (first + index * cluster)).to_be_bytes())?;
    }
    for index in L1_ENTRIES..L1_ENTRIES + BLOCKS {
        out.write_all(&(first + index * cluster).to_be_bytes())?;
    }
    out.flush()?;
    Ok(path)
}

/// Opening it took 233 MiB for reading and 297 MiB for writing: 48 bytes for the place of each table, and lists of them.
#[test]
fn as_many_tables_as_an_image_can_name_take_bounded_memory() {
    for cluster_bits in [9, 12] {
        let scratch = Scratch::new();
        let path = five_million_tables(&scratch, cluster_bits).expect("room for an image");
        for options in ["read-only=on", "read-only=off", "overlap-check=all"] {
            let server = Server::start([format!("file={path},{options}")]);
            let mut client = server.client("");
            // The first table and the last one are zeroes.
            let size = L1_ENTRIES << (2 * cluster_bits - 3);
            for offset in [0, size - 4096] {
                assert_eq!(client.read(offset, 4096).expect("read"), [0; 4096], "{offset}");
            }
            client.disconnect();
            let peak = server.peak_rss_bytes();
            println!("clusters of {} bytes, {options}: {} MiB", 1 << cluster_bits, peak >> 20);
            assert!(peak <= PEAK_BYTES_MAX, "{options}: {peak} bytes");
            server.stop();
        }
    }
}
