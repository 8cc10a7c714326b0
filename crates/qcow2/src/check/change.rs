//! Steps of which every change of an image at rest is made: copies beside what is there, refcounts that rise, refcounts that fall.
//! The caller decides the order (docs/internals/write-order.md).

use std::collections::BTreeMap;

use futures_util::stream::{self, Stream, StreamExt};
use qcow2_layout::{Cluster, CompressedCluster, Geometry, HostOffset, L2Entry};
use storage::{Hints, IoBuf, Storage, Zeroing};

use super::CheckError;
use super::pass::Pass;
use super::repair::Direction;

/// Bytes that one request copies, but for what shares a sector.
pub(crate) const COPY_BYTES_MAX: u64 = 1 << 20;
/// Copies under way at a time: with the largest clusters 16 MiB.
const COPIES_AT_ONCE: usize = 8;

/// Bytes that get another place. The ranges do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) len: u64,
    /// Guest data that is not compressed: of an encrypted image it is ciphered for its place.
    pub(crate) data: bool,
}

/// What a change does to places and refcounts.
#[derive(Debug, Default)]
pub(crate) struct Change {
    pub(crate) copies: Vec<Copy>,
    /// Clusters that are referred to more often afterwards, and how much.
    gained: BTreeMap<u64, u32>,
    /// Clusters that are referred to less often.
    lost: BTreeMap<u64, u32>,
}

impl Change {
    /// A copy.
    pub(crate) fn copy(&mut self, copy: Copy) {
        self.copies.push(copy);
    }

    /// More references to a cluster.
    pub(crate) fn gain(&mut self, cluster: u64, times: u32) {
        *self.gained.entry(cluster).or_default() += times;
    }

    /// Fewer references to a cluster.
    pub(crate) fn lose(&mut self, cluster: u64, times: u32) {
        *self.lost.entry(cluster).or_default() += times;
    }
}

/// Copies everything, and gives the bytes of each copy when it is made; not durable yet. What lies side by side in the new places is
/// one write: no two writes share a sector. `plain` is where guest data reads as plain text, if it is ciphered in the file.
pub(crate) fn copying<'p, 'a>(
    pass: &'p Pass<'a>,
    plain: Option<&'p dyn Storage>,
    copies: &[Copy],
) -> impl Stream<Item = Result<u64, CheckError>> + use<'p, 'a> {
    let mut copies = copies.to_vec();
    copies.sort_unstable_by_key(|copy| copy.to);
    let mut groups: Vec<Group> = Vec::new();
    for copy in copies {
        match groups.last_mut() {
            Some(group) if group.takes(&copy) => group.add(copy),
            _ => groups.push(Group { to: copy.to, len: copy.len, data: copy.data, copies: vec![copy] }),
        }
    }
    stream::iter(groups).map(move |group| copy_group(pass, plain, group)).buffer_unordered(COPIES_AT_ONCE)
}

/// Copies to places that follow each other.
struct Group {
    to: u64,
    len: u64,
    data: bool,
    copies: Vec<Copy>,
}

impl Group {
    fn takes(&self, copy: &Copy) -> bool {
        let follows = self.to + self.len == copy.to;
        let shares_a_sector = !copy.to.is_multiple_of(block::SECTOR_BYTES);
        follows && self.data == copy.data && (shares_a_sector || self.len + copy.len <= COPY_BYTES_MAX)
    }

    fn add(&mut self, copy: Copy) {
        self.len += copy.len;
        match self.copies.last_mut() {
            Some(last) if last.from + last.len == copy.from => last.len += copy.len,
            _ => self.copies.push(copy),
        }
    }
}

async fn copy_group(pass: &Pass<'_>, plain: Option<&dyn Storage>, group: Group) -> Result<u64, CheckError> {
    let ciphered = plain.filter(|_| group.data);
    let file = ciphered.unwrap_or(pass.file);
    let no_memory = || CheckError::NoMemory { what: "copying clusters" };
    // A request's size, and the compressed clusters that lie across its end.
    let mut whole = IoBuf::try_uninit(group.len as usize).ok_or_else(no_memory)?;
    let mut at = 0;
    for copy in &group.copies {
        let part = IoBuf::try_uninit(copy.len as usize).ok_or_else(no_memory)?;
        let (read, part) = file.read(copy.from, part, Hints::NONE).await;
        read.map_err(pass.io("read a cluster", copy.from))?;
        if let Some(place) = whole.get_mut(at..at + part.len()) {
            place.copy_from_slice(&part);
        }
        at += part.len();
    }
    let (bytes, to) = (whole.freeze(), group.to);
    let written = match bytes.is_zero() && ciphered.is_none() {
        true => file.zero(to, group.len, Zeroing::Unmap).await,
        false => file.write(to, bytes.into(), Hints::NONE).await,
    };
    written.map_err(pass.io("write a cluster", to))?;
    Ok(group.len)
}

/// Counts the new places in memory.
pub(crate) fn count_gained(pass: &mut Pass<'_>, change: &Change) -> Result<(), CheckError> {
    let full = pass.full(pass.claims.bytes_max());
    for (&cluster, &times) in &change.gained {
        pass.claims.gain(cluster, times).map_err(&full)?;
        mark(pass, cluster);
    }
    Ok(())
}

/// Counts the new places, on disk when this returns, with all that was written before.
pub(crate) async fn raise(pass: &mut Pass<'_>, change: &Change) -> Result<(), CheckError> {
    count_gained(pass, change)?;
    pass.adjust(Direction::Raise).await
}

/// The same, of places from `first` on, and of no others.
pub(crate) async fn raise_from(pass: &mut Pass<'_>, change: &Change, first: u64) -> Result<(), CheckError> {
    count_gained(pass, change)?;
    pass.adjust(Direction::RaiseFrom(first)).await
}

/// Counts the old places no more. Nothing on disk may lead there.
pub(crate) async fn lower(pass: &mut Pass<'_>, change: &Change) -> Result<(), CheckError> {
    let full = pass.full(pass.claims.bytes_max());
    for (&cluster, &times) in &change.lost {
        pass.claims.lose(cluster, times).map_err(&full)?;
        mark(pass, cluster);
    }
    pass.adjust(Direction::Lower).await
}

/// The refcount block of a cluster is to be written.
fn mark(pass: &mut Pass<'_>, cluster: u64) {
    pass.comparison.wrong_blocks.insert(cluster / pass.geometry.refcount_block_entries());
}

/// The entry with its data at `host`; compressed data, of which there are `len` bytes.
pub(crate) fn moved(entry: L2Entry, host: u64, len: u64, geometry: &Geometry) -> [u64; 2] {
    let host = HostOffset(host);
    match entry {
        L2Entry::Standard(cluster) => L2Entry::Standard(Cluster { host: Some(host), ..cluster }),
        L2Entry::Compressed(_) => L2Entry::Compressed(CompressedCluster { host, len }),
    }
    .encode(geometry)
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
}
