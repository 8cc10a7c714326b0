//! What becomes of an entry of an L2 table. Pure.

use qcow2_layout::{Cluster, Geometry, L2Entry};

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
    use qcow2_layout::{HostOffset, Version};

    use super::*;

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
