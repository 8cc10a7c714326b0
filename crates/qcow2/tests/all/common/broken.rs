//! Images made by QEMU, and ways to break them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use qcow2_layout::{Geometry, Header, L1Entry};

use super::{qemu_img, qemu_io};

/// A kind of image: creation options and what is done to it.
pub struct Kind {
    pub name: &'static str,
    pub options: &'static str,
    pub size: &'static str,
    pub steps: &'static [&'static [&'static str]],
}

const WRITES: &[&str] = &[
    "io",
    "write -P 1 0 200k",
    "write -P 2 700k 70k",
    "write -z 1M 128k",
    "write -P 3 1500k 1k",
    "discard 64k 64k",
];
const SNAPSHOT: &[&str] = &["img", "snapshot", "-c", "first"];
const MORE: &[&str] = &["io", "write -P 4 100k 300k", "write -P 5 3M 64k"];

/// Images with everything that a checker has to understand.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "default",
        options: "compat=1.1",
        size: "8M",
        steps: &[
            WRITES,
            SNAPSHOT,
            MORE,
            &["io", "write -c -P 6 4M 64k", "write -c -P 7 4224k 64k", "write -c -P 8 4352k 64k"],
            &["img", "bitmap", "--add", "-g", "64k", "BITMAP"],
            &["img", "snapshot", "-c", "second"],
        ],
    },
    Kind {
        name: "small-clusters",
        options: "cluster_size=512",
        size: "8M",
        steps: &[WRITES, SNAPSHOT, MORE, &["io", "write -c -P 6 4M 512", "write -c -P 6 4195328 512"]],
    },
    Kind {
        name: "one-bit-refcounts",
        options: "cluster_size=4k,refcount_bits=1",
        size: "8M",
        steps: &[WRITES, MORE],
    },
    Kind {
        name: "wide-refcounts",
        options: "cluster_size=4k,refcount_bits=64,preallocation=metadata",
        size: "8M",
        steps: &[WRITES, SNAPSHOT, MORE],
    },
    Kind {
        name: "subclusters",
        options: "extended_l2=on,cluster_size=32k,compression_type=zstd",
        size: "8M",
        steps: &[WRITES, SNAPSHOT, MORE, &["io", "write -c -P 6 4M 32k", "write -z 2M 2k"]],
    },
    Kind { name: "version-2", options: "compat=0.10", size: "8M", steps: &[&WRITES_V2, SNAPSHOT, MORE] },
    Kind {
        name: "data-file",
        options: "data_file=data.raw,cluster_size=4k",
        size: "8M",
        steps: &[WRITES, MORE],
    },
    Kind { name: "empty", options: "cluster_size=2M", size: "8M", steps: &[] },
];

const WRITES_V2: [&str; 4] = ["io", "write -P 1 0 200k", "write -P 2 700k 70k", "write -P 3 1500k 1k"];

impl Kind {
    /// Makes the image `name` in `directory`.
    pub fn make(&self, directory: &Path, name: &str) -> Vec<u8> {
        qemu_img(directory, &["create", "-q", "-f", "qcow2", "-o", self.options, name, self.size]);
        for step in self.steps {
            match step {
                ["io", commands @ ..] => qemu_io(directory, name, commands),
                ["img", arguments @ ..] => {
                    let bitmap = arguments.last() == Some(&"BITMAP");
                    let mut all: Vec<_> =
                        arguments.iter().copied().filter(|word| *word != "BITMAP").collect();
                    all.push(name);
                    all.extend(bitmap.then_some("dirty"));
                    qemu_img(directory, &all);
                }
                other => panic!("{other:?}"),
            }
        }
        std::fs::read(directory.join(name)).unwrap()
    }
}

/// Places in an image that can be broken.
pub struct Places {
    pub header: Header,
    pub geometry: Geometry,
    pub l1: usize,
    /// The first L2 table.
    pub l2: usize,
    /// The first refcount block.
    pub block: usize,
    pub table: usize,
}

pub fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

pub fn set_word(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_be_bytes());
}

impl Places {
    pub fn of(bytes: &[u8]) -> Self {
        let header = Header::decode(bytes).unwrap();
        let geometry = header.geometry().unwrap();
        let l1 = usize::try_from(header.l1_table_offset.0).unwrap();
        let table = usize::try_from(header.refcount_table_offset.0).unwrap();
        let entries = usize::try_from(header.l1_size).unwrap();
        let tables = (0..entries)
            .filter_map(|index| L1Entry::decode(word(bytes, l1 + index * 8), &geometry).unwrap().table);
        let l2 = tables.map(|table| usize::try_from(table.0).unwrap()).next().unwrap_or(0);
        let block = usize::try_from(word(bytes, table)).unwrap();
        Self { header, geometry, l1, l2, block, table }
    }

    /// Bytes of an L2 entry.
    pub fn step(&self) -> usize {
        usize::try_from(self.geometry.l2_entry_bytes()).unwrap()
    }

    /// Sets a refcount of the first block, if it is in there.
    pub fn set_refcount(&self, bytes: &mut [u8], cluster: u64, value: u64) -> bool {
        let end = self.block + usize::try_from(self.geometry.cluster_size()).unwrap();
        let value = value.min(self.geometry.refcount_max());
        let block = &mut bytes[self.block..end];
        qcow2_layout::refcount_set(block, cluster, self.geometry.refcount_order, value).is_ok()
    }

    pub fn refcount(&self, bytes: &[u8], cluster: u64) -> u64 {
        qcow2_layout::refcount_get(&bytes[self.block..], cluster, self.geometry.refcount_order).unwrap_or(0)
    }
}
