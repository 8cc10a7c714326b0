//! One change of an image: copied, counted, led to, let go. The only place that says in which order.

use std::collections::BTreeMap;
use std::future::ready;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use storage::{IoBuf, Zeroing};

use super::{CompactError, Compaction, Meter, require_sound};
use crate::check::CheckError;
use crate::check::pass::Pass;
use crate::check::repair::Direction;

/// Bytes that one request copies, but for what shares a sector.
pub(super) const COPY_BYTES_MAX: u64 = 1 << 20;
/// Copies under way at a time: with the largest clusters 16 MiB.
const COPIES_AT_ONCE: usize = 8;

/// Bytes that get another place. The ranges do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) len: u64,
}

/// What a change does to places and refcounts.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub(super) copies: Vec<Copy>,
    /// Clusters that are referred to more often afterwards, and how much.
    gained: BTreeMap<u64, u32>,
    /// Clusters that are referred to less often.
    lost: BTreeMap<u64, u32>,
}

impl Change {
    /// A copy of `len` bytes.
    pub(super) fn copy(&mut self, from: u64, to: u64, len: u64) {
        self.copies.push(Copy { from, to, len });
    }

    /// More references to a cluster.
    pub(super) fn gain(&mut self, cluster: u64, times: u32) {
        *self.gained.entry(cluster).or_default() += times;
    }

    /// Fewer references to a cluster.
    pub(super) fn lose(&mut self, cluster: u64, times: u32) {
        *self.lost.entry(cluster).or_default() += times;
    }
}

impl Compaction<'_> {
    /// Makes a change; `lead` writes what leads to the new places. The steps are those of docs/write-order.md, `compact`:
    ///
    /// copies, higher refcounts ->| what leads there ->| lower refcounts ->|
    ///
    /// A failure before the first barrier leaves bytes in free clusters, one after it clusters that are counted too often.
    pub(super) async fn make<'p>(
        &mut self,
        pass: &mut Pass<'p>,
        change: &Change,
        lead: impl AsyncFnOnce(&mut Pass<'p>) -> Result<(), CheckError>,
    ) -> Result<(), CompactError> {
        copy_all(pass, &change.copies, &mut self.meter).await?;
        raise(pass, change).await?;
        pass.forget_extent();
        lead(pass).await?;
        // What could not be read may still lead to an old place.
        require_sound(pass)?;
        pass.flush().await?;
        lower(pass, change).await?;
        self.report.moved_bytes += change.copies.iter().map(|copy| copy.len).sum::<u64>();
        Ok(())
    }
}

/// Copies everything; not durable yet. What lies side by side in the new places is one write: no two writes share a sector.
pub(super) async fn copy_all(
    pass: &Pass<'_>,
    copies: &[Copy],
    meter: &mut Meter<'_>,
) -> Result<(), CompactError> {
    let mut copies = copies.to_vec();
    copies.sort_unstable_by_key(|copy| copy.to);
    let mut groups: Vec<Group> = Vec::new();
    for copy in copies {
        match groups.last_mut() {
            Some(group) if group.takes(&copy) => group.add(copy),
            _ => groups.push(Group { to: copy.to, len: copy.len, copies: vec![copy] }),
        }
    }
    let copied = stream::iter(groups).map(|group| copy_group(pass, group)).buffer_unordered(COPIES_AT_ONCE);
    copied.map_err(CompactError::from).try_for_each(|bytes| ready(meter.add(bytes))).await
}

/// Copies to places that follow each other.
struct Group {
    to: u64,
    len: u64,
    copies: Vec<Copy>,
}

impl Group {
    fn takes(&self, copy: &Copy) -> bool {
        let follows = self.to + self.len == copy.to;
        let shares_a_sector = !copy.to.is_multiple_of(block::SECTOR_BYTES);
        follows && (shares_a_sector || self.len + copy.len <= COPY_BYTES_MAX)
    }

    fn add(&mut self, copy: Copy) {
        self.len += copy.len;
        match self.copies.last_mut() {
            Some(last) if last.from + last.len == copy.from => last.len += copy.len,
            _ => self.copies.push(copy),
        }
    }
}

async fn copy_group(pass: &Pass<'_>, group: Group) -> Result<u64, CheckError> {
    let no_memory = || CheckError::NoMemory { what: "copying clusters" };
    // A request's size, and the compressed clusters that lie across its end.
    let mut whole = IoBuf::try_uninit(group.len as usize).ok_or_else(no_memory)?;
    let mut at = 0;
    for copy in &group.copies {
        let part = IoBuf::try_uninit(copy.len as usize).ok_or_else(no_memory)?;
        let (read, part) = pass.file.read(copy.from, part).await;
        read.map_err(pass.io("read a cluster", copy.from))?;
        if let Some(place) = whole.get_mut(at..at + part.len()) {
            place.copy_from_slice(&part);
        }
        at += part.len();
    }
    let (bytes, to) = (whole.freeze(), group.to);
    let written = match bytes.is_zero() {
        true => pass.file.zero(to, group.len, Zeroing::Unmap).await,
        false => pass.file.write(to, bytes.into()).await,
    };
    written.map_err(pass.io("write a cluster", to))?;
    Ok(group.len)
}

/// Counts the new places, on the medium when this returns, with all that was written before.
pub(super) async fn raise(pass: &mut Pass<'_>, change: &Change) -> Result<(), CheckError> {
    let full = pass.full(pass.claims.bytes_max());
    for (&cluster, &times) in &change.gained {
        pass.claims.gain(cluster, times).map_err(&full)?;
        mark(pass, cluster);
    }
    pass.adjust(Direction::Raise).await
}

/// Counts the old places no more. Nothing on the medium may lead there.
pub(super) async fn lower(pass: &mut Pass<'_>, change: &Change) -> Result<(), CheckError> {
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
