//! What becomes of an entry of an L2 table. Pure.

use qcow2_layout::{Cluster, CompressedCluster, Geometry, HostOffset, L2Entry};

/// The entry with its data at `host`; compressed data, of which there are `len` bytes.
pub(super) fn moved(entry: L2Entry, host: u64, len: u64, geometry: &Geometry) -> [u64; 2] {
    let host = HostOffset(host);
    match entry {
        L2Entry::Standard(cluster) => L2Entry::Standard(Cluster { host: Some(host), ..cluster }),
        L2Entry::Compressed(_) => L2Entry::Compressed(CompressedCluster { host, len }),
    }
    .encode(geometry)
}

/// The entry of a cluster that holds nothing but zeroes, without its place. In version 2, which has no entry for zeroes, it says
/// nothing: only for an image with nothing below it.
pub(super) fn zeroed(cluster: Cluster, geometry: &Geometry) -> [u64; 2] {
    let zero = match geometry.version {
        qcow2_layout::Version::V2 => 0,
        qcow2_layout::Version::V3 => cluster.zero | cluster.alloc,
    };
    L2Entry::Standard(Cluster { zero, ..Cluster::UNALLOCATED }).encode(geometry)
}

#[cfg(test)]
mod tests {
    use qcow2_layout::Version;

    use super::*;

    #[test]
    fn only_the_place_changes_when_an_entry_moves() {
        let plain = Geometry::new(Version::V3, 16, 4).unwrap();
        for geometry in [plain, plain.with_extended_l2().unwrap()] {
            let (alloc, zero) = if geometry.extended_l2 { (0xf0, 0x0f) } else { (1, 0) };
            let cluster = Cluster { host: Some(HostOffset(9 << 16)), copied: true, alloc, zero };
            let words = moved(L2Entry::Standard(cluster), 3 << 16, 1 << 16, &geometry);
            let expected = Cluster { host: Some(HostOffset(3 << 16)), ..cluster };
            assert_eq!(L2Entry::decode(words, &geometry), Ok(L2Entry::Standard(expected)));
        }
        let compressed = CompressedCluster { host: HostOffset((9 << 16) + 100), len: 924 };
        let words = moved(L2Entry::Compressed(compressed), (3 << 16) + 500, 700, &plain);
        let expected = CompressedCluster { host: HostOffset((3 << 16) + 500), len: 1036 };
        assert_eq!(L2Entry::decode(words, &plain), Ok(L2Entry::Compressed(expected)));
    }

    #[test]
    fn zeroes_hide_what_lies_below_where_an_entry_can_say_so() {
        let cluster = Cluster { host: Some(HostOffset(9 << 16)), copied: true, alloc: 1, zero: 0 };
        let of = |version| {
            let geometry = Geometry::new(version, 16, 4).unwrap();
            L2Entry::decode(zeroed(cluster, &geometry), &geometry).unwrap()
        };
        assert_eq!(of(Version::V2), L2Entry::UNALLOCATED);
        assert_eq!(of(Version::V3), L2Entry::Standard(Cluster { zero: 1, ..Cluster::UNALLOCATED }));
    }
}
