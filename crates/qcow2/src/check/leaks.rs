//! What a crash left counted and unused, given back when the image is opened for writing again.
//!
//! The header says that there may be such clusters ([`Compatible::RESERVE`]). Nothing else is believed: a cluster is given back
//! only if all metadata was read and none of it leads there, also if other programs had the image in between. So this reads what a
//! check reads, without the COPIED flags, and stops where that is more than [`READ_BYTES_MAX`]. No cluster with a
//! reference is touched, and what is damaged stays as it is for a check to find.

use qcow2_layout::{Compatible, Header, Incompatible};
use storage::Storage;

use super::CheckError;
use super::pass::Pass;
use super::reading::Reader;
use super::repair::Direction;
use super::report::Progress;

/// Metadata that may be read for this: tables and refcounts of 8 TiB of data in clusters of 64 KiB, 4 s from a fast medium.
const READ_BYTES_MAX: u64 = 1280 << 20;

/// Refcounts that may be compared: a file of 16 TiB in such clusters.
const REFCOUNTS_MAX: u64 = 256 << 20;

/// Memory for counting references: a bit a cluster, as long as no snapshot shares it. More is not needed for as many tables as
/// may be read, unless they refer to clusters that are spread thinly, which an honest image does not.
const REFERENCE_BYTES_MAX: u64 = 32 << 20;

/// What became of the clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenBack {
    /// So many are free again, on disk.
    Clusters(u64),
    /// There is more metadata than may be read here.
    TooMuchToRead,
    /// Something is wrong with the image.
    Damaged,
}

/// Whether `header` says that clusters may be counted and unused. Where it says that refcounts are wrong altogether, or has
/// features that are unknown here, which may own clusters, nothing is done.
pub(crate) fn may_have_leaks(header: &Header) -> bool {
    let was_not_closed =
        header.compatible.contains(Compatible::RESERVE) || header.extensions.record.is_some();
    was_not_closed
        && header.autoclear.unknown().is_empty()
        && !header.incompatible.contains(Incompatible::DIRTY)
        && !header.incompatible.contains(Incompatible::CORRUPT)
}

/// Sets the refcounts of clusters to 0 to which nothing leads. The image must not be in use. Durable when this returns; a crash
/// in between leaves some of them counted.
pub(crate) async fn give_back(file: &dyn Storage) -> Result<GivenBack, CheckError> {
    let mut quiet = |_: Progress<'_>| {};
    let mut pass = Pass::new(Reader::of(file), &mut quiet, REFERENCE_BYTES_MAX).await?;
    pass.read_bytes_left = READ_BYTES_MAX;
    pass.count_references().await?;
    let refcounts = pass.comparison.blocks.len() as u64 * pass.geometry.refcount_block_entries();
    if pass.read_bytes_left == 0 || refcounts > REFCOUNTS_MAX {
        return Ok(GivenBack::TooMuchToRead);
    }
    pass.compare().await?;
    if pass.read_bytes_left == 0 {
        return Ok(GivenBack::TooMuchToRead);
    }
    let report = &pass.report;
    if !pass.complete || pass.rebuild || report.corruptions > 0 || report.check_errors > 0 {
        return Ok(GivenBack::Damaged);
    }
    let leaks = report.leaks;
    if leaks > 0 {
        // What was read may be in the page cache only: the file may still lead to what nothing leads to there.
        pass.flush().await?;
        pass.adjust(Direction::Free).await?;
    }
    Ok(GivenBack::Clusters(leaks))
}
