//! Entries of all tables: what is accepted encodes to the same word.

use qcow2_layout::{
    BitmapTableEntry, Geometry, L1Entry, L2Entry, RefcountTableEntry, Version, refcount_get, refcount_set,
};

use crate::input::Input;

pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let version = if input.flag() { Version::V3 } else { Version::V2 };
    let (bits, order, features) = (u32::from(input.byte()), u32::from(input.byte()), input.byte());
    let Ok(mut geometry) = Geometry::new(version, bits, order) else { return };
    if features & 1 == 1 {
        let Ok(extended) = geometry.with_extended_l2() else { return };
        geometry = extended;
    }
    if features & 2 == 2 {
        let Ok(external) = geometry.with_external_data() else { return };
        geometry = external;
    }
    while !input.is_empty() {
        let words = [input.number(8), input.number(8)];
        one(words, &geometry);
        refcounts(words, geometry.refcount_order);
    }
}

fn one(words: [u64; 2], geometry: &Geometry) {
    let [word, _] = words;
    if let Ok(entry) = L1Entry::decode(word, geometry) {
        assert_eq!(L1Entry::decode(entry.encode(), geometry), Ok(entry));
    }
    if let Ok(entry) = RefcountTableEntry::decode(word, geometry) {
        assert_eq!(RefcountTableEntry::decode(entry.encode(), geometry), Ok(entry));
    }
    if let Ok(entry) = BitmapTableEntry::decode(word, geometry) {
        assert_eq!(entry.encode(), word);
    }
    let _ = L2Entry::host_claim(words, geometry);
    let Ok(entry) = L2Entry::decode(words, geometry) else { return };
    assert_eq!(L2Entry::decode(entry.encode(geometry), geometry), Ok(entry));
    if let L2Entry::Compressed(cluster) = entry {
        assert!(cluster.len >= 1 && cluster.len <= 2 * geometry.cluster_size());
        assert!(cluster.host.0.checked_add(cluster.len).is_some() && cluster.sectors() >= 1);
    }
    if let L2Entry::Standard(cluster) = entry {
        let mut index = 0;
        while index < geometry.subclusters() {
            let (_, run) = cluster.run(index, geometry);
            assert!(run >= 1 && index + run <= geometry.subclusters());
            index += run;
        }
    }
}

fn refcounts([index, value]: [u64; 2], order: u32) {
    let mut block = [0x5a; 64];
    let _ = refcount_get(&block, index, order);
    if refcount_set(&mut block, index, order, value).is_ok() {
        assert_eq!(refcount_get(&block, index, order), Some(value));
    }
    let near = index % 512;
    if refcount_set(&mut block, near, order, value).is_ok() {
        assert_eq!(refcount_get(&block, near, order), Some(value));
    }
}
