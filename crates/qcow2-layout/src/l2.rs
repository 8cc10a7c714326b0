//! Entries of an L2 table, standard and extended in one shape: what a guest cluster is made of.
//!
//! A standard image is treated as having exactly one subcluster per cluster, bit 0 of the masks.

use crate::offset::check_cluster;
use crate::{EntryError, Geometry, HOST_OFFSET_LIMIT, HostOffset, Version};

const COMPRESSED: u64 = 1 << 62;
const COPIED: u64 = 1 << 63;
const ZERO: u64 = 1;
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const RESERVED_MASK: u64 = 0x3f00_0000_0000_01fe;

/// One L2 entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L2Entry {
    /// Data, zeroes, nothing, or with extended entries a mixture.
    Standard(Cluster),
    /// A compressed cluster.
    Compressed(CompressedCluster),
}

/// A cluster that is not compressed.
///
/// Standard entries: data has a host, `alloc` 1, `zero` 0; zeroes have `alloc` 0, `zero` 1 and a
/// host if preallocated; unallocated has none of them. `alloc` and `zero` never share a bit, and
/// `alloc` is empty without a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Where the cluster is in the file.
    pub host: Option<HostOffset>,
    /// The host cluster's refcount is exactly one: it may be written in place. Never without a host.
    pub copied: bool,
    /// Subclusters whose data is at the host offset.
    pub alloc: u32,
    /// Subclusters that read as zeroes.
    pub zero: u32,
}

/// Where a compressed cluster's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedCluster {
    /// First byte, of any alignment.
    pub host: HostOffset,
    /// Bytes up to the end of the last 512-byte sector that the entry names: at least 1, at most twice the
    /// cluster size. The stream may end earlier.
    pub len: u64,
}

/// What a subcluster of a [`Cluster`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subcluster {
    /// Nothing here: the backing file shows through. No place in the file.
    UnallocatedPlain,
    /// The backing file shows through, but the cluster has a place in the file.
    UnallocatedAlloc,
    /// Zeroes, without a place in the file.
    ZeroPlain,
    /// Zeroes, with a place in the file.
    ZeroAlloc,
    /// Data at the cluster's place in the file.
    Normal,
}

impl Cluster {
    /// A cluster of which nothing is known here.
    pub const UNALLOCATED: Self = Self { host: None, copied: false, alloc: 0, zero: 0 };

    /// What subcluster `index` (0 to 31; 0 in a standard image) is.
    #[inline]
    pub fn state(&self, index: u32) -> Subcluster {
        let bit = 1u32.checked_shl(index).unwrap_or(0);
        match (self.alloc & bit != 0, self.zero & bit != 0, self.host.is_some()) {
            (true, ..) => Subcluster::Normal,
            (false, true, true) => Subcluster::ZeroAlloc,
            (false, true, false) => Subcluster::ZeroPlain,
            (false, false, true) => Subcluster::UnallocatedAlloc,
            (false, false, false) => Subcluster::UnallocatedPlain,
        }
    }

    /// What subcluster `index` is, and how many from it on (inside this cluster) are the same.
    #[inline]
    pub fn run(&self, index: u32, geometry: &Geometry) -> (Subcluster, u32) {
        let state = self.state(index);
        let same = match state {
            Subcluster::Normal => self.alloc,
            Subcluster::ZeroAlloc | Subcluster::ZeroPlain => self.zero,
            Subcluster::UnallocatedAlloc | Subcluster::UnallocatedPlain => !(self.alloc | self.zero),
        };
        let run = same.checked_shr(index).unwrap_or(0).trailing_ones();
        (state, run.min(geometry.subclusters().saturating_sub(index)).max(1))
    }
}

impl CompressedCluster {
    /// Bytes from the start of the first 512-byte sector to the end of the last.
    #[inline]
    pub fn sectors(&self) -> u64 {
        (self.host.0 % 512 + self.len).div_ceil(512)
    }
}

impl L2Entry {
    /// An entry of which nothing is known here.
    pub const UNALLOCATED: Self = L2Entry::Standard(Cluster::UNALLOCATED);

    /// Checks the words of an entry (host byte order; the second is ignored for standard entries).
    ///
    /// Refused: reserved bits, a host offset that is no start of a cluster, and what [`EntryError`]
    /// names. With an external data file, offset 0 with COPIED is a place: the file's first cluster.
    #[inline]
    pub fn decode(words: [u64; 2], geometry: &Geometry) -> Result<L2Entry, EntryError> {
        let [entry, bitmap] = words;
        if entry & COMPRESSED != 0 {
            return decode_compressed(entry, bitmap, geometry).map(L2Entry::Compressed);
        }
        let reserved = entry & (RESERVED_MASK | if geometry.extended_l2 { ZERO } else { 0 });
        if reserved != 0 {
            return Err(EntryError::Reserved { table: "L2", entry, bits: reserved });
        }
        let host = match entry & OFFSET_MASK {
            0 if geometry.external_data && entry & COPIED != 0 => Some(HostOffset(0)),
            0 => None,
            offset => Some(check_cluster("L2", entry, offset, geometry)?),
        };
        let (alloc, zero) = if geometry.extended_l2 {
            decode_bitmap(entry, bitmap, host)?
        } else {
            decode_zero_flag(entry, host, geometry)?
        };
        Ok(L2Entry::Standard(Cluster { host, copied: host.is_some() && entry & COPIED != 0, alloc, zero }))
    }

    /// The same for the entry of the guest cluster that `guest` lies in. With an external data file its place can only
    /// be at the guest's own offset: with another one, two guest clusters might share it.
    #[inline]
    pub fn decode_at(words: [u64; 2], guest: u64, geometry: &Geometry) -> Result<L2Entry, EntryError> {
        let decoded = Self::decode(words, geometry)?;
        if geometry.external_data {
            decoded.check_place(words[0], geometry.cluster_start(guest), geometry)?;
        }
        Ok(decoded)
    }

    fn check_place(&self, entry: u64, guest: u64, geometry: &Geometry) -> Result<(), EntryError> {
        let L2Entry::Standard(Cluster { host: Some(host), zero, .. }) = *self else { return Ok(()) };
        // A standard zero entry at 0 has no place.
        let nowhere = host.0 == 0 && zero != 0 && !geometry.extended_l2;
        if host.0 == guest || nowhere {
            return Ok(());
        }
        Err(EntryError::NotAtGuestOffset { entry, host, guest })
    }

    /// The words (host byte order) on disk; the second is 0 for standard entries.
    ///
    /// A compressed length is rounded up to whole sectors. Bits that the geometry has no place for
    /// are a bug of the caller.
    #[inline]
    pub fn encode(&self, geometry: &Geometry) -> [u64; 2] {
        match self {
            L2Entry::Standard(cluster) => encode_standard(cluster, geometry),
            L2Entry::Compressed(compressed) => [encode_compressed(compressed, geometry), 0],
        }
    }

    /// What an entry that [`L2Entry::decode`] refused may still refer to: a checker must not take it for free.
    /// The host offset may be unaligned, flags and bitmaps are empty; nothing when no place can be named.
    pub fn host_claim(words: [u64; 2], geometry: &Geometry) -> Option<L2Entry> {
        let [entry, _] = words;
        if entry & COMPRESSED != 0 {
            let cleared = [entry & !COPIED, 0];
            return decode_compressed(cleared[0], 0, geometry).ok().map(L2Entry::Compressed);
        }
        let offset = entry & OFFSET_MASK;
        let at_start = geometry.external_data && entry & COPIED != 0;
        let host = (offset != 0 || at_start).then_some(HostOffset(offset))?;
        Some(L2Entry::Standard(Cluster { host: Some(host), ..Cluster::UNALLOCATED }))
    }

    /// The words of an entry whose place is no start of a cluster, without that place. Only where nothing is read there: the cluster was
    /// preallocated or made zeroes.
    pub fn without_unaligned_place(words: [u64; 2], geometry: &Geometry) -> Option<[u64; 2]> {
        let [entry, bitmap] = words;
        let Err(EntryError::Unaligned { .. }) = Self::decode(words, geometry) else { return None };
        // The error comes before the flags are looked at: of the same entry with a place that is one they are.
        let aligned = entry & !(geometry.cluster_size() - 1) | entry & ZERO;
        let reads_nothing = match Self::decode([aligned, bitmap], geometry) {
            Ok(L2Entry::Standard(cluster)) => {
                cluster.alloc == 0 && (geometry.extended_l2 || entry & ZERO != 0)
            }
            Ok(L2Entry::Compressed(_)) | Err(_) => false,
        };
        reads_nothing.then_some([entry & ZERO, bitmap])
    }

    /// The words of an entry with only its COPIED bit changed.
    #[inline]
    pub fn with_copied(words: [u64; 2], copied: bool) -> [u64; 2] {
        let [entry, bitmap] = words;
        [if copied { entry | COPIED } else { entry & !COPIED }, bitmap]
    }
}

#[inline]
fn decode_zero_flag(
    entry: u64,
    host: Option<HostOffset>,
    geometry: &Geometry,
) -> Result<(u32, u32), EntryError> {
    if entry & ZERO == 0 {
        return Ok((u32::from(host.is_some()), 0));
    }
    match geometry.version {
        Version::V2 => Err(EntryError::ZeroInVersion2 { entry }),
        Version::V3 => Ok((0, 1)),
    }
}

#[inline]
fn decode_bitmap(entry: u64, bitmap: u64, host: Option<HostOffset>) -> Result<(u32, u32), EntryError> {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of the word")]
    let (alloc, zero) = (bitmap as u32, (bitmap >> 32) as u32);
    if alloc & zero != 0 {
        return Err(EntryError::AllocatedAndZero { entry, both: alloc & zero });
    }
    if alloc != 0 && host.is_none() {
        return Err(EntryError::AllocatedNowhere { entry, alloc });
    }
    Ok((alloc, zero))
}

/// The first byte of the file behind those that compressed clusters can take: their descriptors have less room for an offset, the larger
/// clusters are (specification, "Compressed clusters descriptor").
pub fn compressed_end_max(geometry: &Geometry) -> u64 {
    (1 << compressed_offset_bits(geometry)).min(HOST_OFFSET_LIMIT)
}

/// Bits of a compressed entry that hold the host offset; the sector count follows, up to bit 61.
#[inline]
fn compressed_offset_bits(geometry: &Geometry) -> u32 {
    62 - (geometry.cluster_bits - 8)
}

fn decode_compressed(entry: u64, bitmap: u64, geometry: &Geometry) -> Result<CompressedCluster, EntryError> {
    if geometry.external_data {
        return Err(EntryError::CompressedInDataFile { entry });
    }
    if geometry.extended_l2 && bitmap != 0 {
        return Err(EntryError::CompressedWithBitmap { entry, bitmap });
    }
    if entry & COPIED != 0 {
        return Err(EntryError::Reserved { table: "L2", entry, bits: COPIED });
    }
    let offset_bits = compressed_offset_bits(geometry);
    let host = entry & ((1 << offset_bits) - 1);
    let sectors = ((entry & !(COMPRESSED | COPIED)) >> offset_bits) + 1;
    let len = sectors * 512 - host % 512;
    if host >= HOST_OFFSET_LIMIT || host + len > HOST_OFFSET_LIMIT {
        return Err(EntryError::BeyondLimit { table: "L2", entry, offset: HostOffset(host) });
    }
    Ok(CompressedCluster { host: HostOffset(host), len })
}

#[inline]
fn encode_standard(cluster: &Cluster, geometry: &Geometry) -> [u64; 2] {
    debug_assert!(cluster.alloc & cluster.zero == 0 && (cluster.alloc == 0 || cluster.host.is_some()));
    debug_assert!((cluster.alloc | cluster.zero) & !geometry.subcluster_mask() == 0);
    let host = cluster.host.map_or(0, |host| host.0);
    debug_assert!(geometry.in_cluster(host) == 0 && host < HOST_OFFSET_LIMIT);
    let entry = host | if cluster.copied && cluster.host.is_some() { COPIED } else { 0 };
    if geometry.extended_l2 {
        return [entry, u64::from(cluster.zero) << 32 | u64::from(cluster.alloc)];
    }
    debug_assert!(cluster.host.is_none() || cluster.alloc | cluster.zero == 1);
    [entry | u64::from(cluster.zero & 1), 0]
}

fn encode_compressed(compressed: &CompressedCluster, geometry: &Geometry) -> u64 {
    let offset_bits = compressed_offset_bits(geometry);
    debug_assert!(compressed.host.0 >> offset_bits == 0 && compressed.len > 0);
    debug_assert!(compressed.sectors() <= 1 << (geometry.cluster_bits - 8));
    COMPRESSED | (compressed.sectors().saturating_sub(1) << offset_bits) | compressed.host.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn geometry(extended: bool, external: bool, version: Version) -> Geometry {
        let mut geometry = Geometry::new(version, 16, 4).unwrap();
        if extended {
            geometry = geometry.with_extended_l2().unwrap();
        }
        if external {
            geometry = geometry.with_external_data().unwrap();
        }
        geometry
    }

    fn standard(words: [u64; 2], geometry: &Geometry) -> Cluster {
        match L2Entry::decode(words, geometry) {
            Ok(L2Entry::Standard(cluster)) => cluster,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn standard_entries_have_four_states_in_one_subcluster() {
        let geometry = geometry(false, false, Version::V3);
        let state = |word| standard([word, 0], &geometry).run(0, &geometry);
        assert_eq!(state(0), (Subcluster::UnallocatedPlain, 1));
        assert_eq!(state(1), (Subcluster::ZeroPlain, 1));
        assert_eq!(state(0x5_0001), (Subcluster::ZeroAlloc, 1));
        assert_eq!(state(COPIED | 0x5_0000), (Subcluster::Normal, 1));
    }

    #[test]
    fn offset_0_is_a_place_only_in_an_external_data_file() {
        let inside = standard([COPIED, 0], &geometry(false, false, Version::V3));
        assert_eq!(inside, Cluster::UNALLOCATED);
        let external = geometry(false, true, Version::V3);
        let outside = standard([COPIED, 0], &external);
        assert_eq!(outside, Cluster { host: Some(HostOffset(0)), copied: true, alloc: 1, zero: 0 });
        assert_eq!(L2Entry::Standard(outside).encode(&external), [COPIED, 0]);
    }

    #[test]
    fn a_cluster_of_an_external_data_file_is_where_the_guest_has_it() {
        let (external, inside) = (geometry(false, true, Version::V3), geometry(false, false, Version::V3));
        let place = |words, guest| L2Entry::decode_at([words, 0], guest, &external).map(drop);
        let elsewhere =
            |entry, host, guest| Err(EntryError::NotAtGuestOffset { entry, host: HostOffset(host), guest });
        assert_eq!(place(COPIED | 0x5_0000, 0x5_1234), Ok(()));
        assert_eq!(place(0x5_0000, 0x6_0000), elsewhere(0x5_0000, 0x5_0000, 0x6_0000));
        assert_eq!(place(0x5_0001, 0x6_0200), elsewhere(0x5_0001, 0x5_0000, 0x6_0000));
        assert_eq!(place(COPIED, 0), Ok(()));
        assert_eq!(place(COPIED, 0x1_0000), elsewhere(COPIED, 0, 0x1_0000));
        for nowhere in [0, 1, COPIED | 1] {
            assert_eq!(place(nowhere, 0x1_0000), Ok(()));
        }
        assert!(L2Entry::decode_at([0x5_0000, 0], 0x6_0000, &inside).is_ok());
    }

    #[test]
    fn a_zero_cluster_in_version_2_is_refused() {
        let geometry = geometry(false, false, Version::V2);
        assert_eq!(L2Entry::decode([1, 0], &geometry), Err(EntryError::ZeroInVersion2 { entry: 1 }));
    }

    #[test]
    fn runs_of_subclusters_end_where_the_state_changes() {
        let geometry = geometry(true, false, Version::V3);
        let cluster = standard([0x5_0000, 0xff00_0000_0000_00ff], &geometry);
        assert_eq!(cluster.run(0, &geometry), (Subcluster::Normal, 8));
        assert_eq!(cluster.run(3, &geometry), (Subcluster::Normal, 5));
        assert_eq!(cluster.run(8, &geometry), (Subcluster::UnallocatedAlloc, 16));
        assert_eq!(cluster.run(24, &geometry), (Subcluster::ZeroAlloc, 8));
    }

    #[test]
    fn contradictory_subclusters_are_refused() {
        let geometry = geometry(true, false, Version::V3);
        let decode = |words| L2Entry::decode(words, &geometry);
        assert!(matches!(decode([0x5_0000, 1 << 32 | 1]), Err(EntryError::AllocatedAndZero { both: 1, .. })));
        assert!(matches!(decode([0, 2]), Err(EntryError::AllocatedNowhere { alloc: 2, .. })));
        assert!(matches!(decode([COMPRESSED | 5, 1]), Err(EntryError::CompressedWithBitmap { .. })));
        assert!(matches!(decode([0x5_0001, 0]), Err(EntryError::Reserved { bits: 1, .. })));
    }

    #[test]
    fn an_unaligned_place_is_given_up_where_nothing_is_read_there() {
        let without = |words, extended, version| {
            L2Entry::without_unaligned_place(words, &geometry(extended, false, version))
        };
        let standard = |entry| without([entry, 0], false, Version::V3);
        assert_eq!(standard(COPIED | 0x5_0201), Some([ZERO, 0]));
        assert_eq!(standard(COPIED | 0x5_0200), None);
        assert_eq!(standard(0x200), None);
        assert_eq!(standard(0x5_0001), None);
        assert_eq!(without([0x5_0201, 0], false, Version::V2), None);
        let extended = |bitmap| without([COPIED | 0x5_0200, bitmap], true, Version::V3);
        assert_eq!(extended(0), Some([0, 0]));
        assert_eq!(extended(4 << 32), Some([0, 4 << 32]));
        assert_eq!(extended(4 << 32 | 1), None);
    }

    #[test]
    fn a_compressed_entry_names_whole_sectors_from_an_unaligned_start() {
        let geometry = geometry(false, false, Version::V3);
        let entry = COMPRESSED | 3 << 54 | 0x5_0123;
        let L2Entry::Compressed(found) = L2Entry::decode([entry, 0], &geometry).unwrap() else { panic!() };
        assert_eq!(found, CompressedCluster { host: HostOffset(0x5_0123), len: 4 * 512 - 0x123 });
        assert_eq!(L2Entry::Compressed(found).encode(&geometry), [entry, 0]);
    }

    proptest! {
        #[test]
        fn every_entry_is_refused_or_survives_a_round_trip(
            entry: u64, alloc: u32, zero: u32, bits in 9u32..=21, extended: bool, external: bool, v3: bool,
        ) {
            let version = if v3 { Version::V3 } else { Version::V2 };
            let mut geometry = Geometry::new(version, bits, 4).unwrap();
            if extended { geometry = geometry.with_extended_l2().unwrap_or(geometry); }
            if external { geometry = geometry.with_external_data().unwrap_or(geometry); }
            let bitmap = u64::from(zero & !alloc) << 32 | u64::from(alloc);
            let aligned = entry & !(geometry.cluster_size() - 1) & !RESERVED_MASK & !COMPRESSED;
            for words in [
                [entry, u64::from(zero) << 32 | u64::from(alloc)],
                [aligned | entry & ZERO, bitmap],
                [aligned, bitmap],
                [(entry | COMPRESSED) & !COPIED, 0],
            ] {
                if let Ok(found) = L2Entry::decode(words, &geometry) {
                    prop_assert_eq!(L2Entry::decode(found.encode(&geometry), &geometry), Ok(found));
                }
            }
        }
    }
}
