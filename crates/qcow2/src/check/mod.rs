//! Finding and repairing what is wrong with an image.
//!
//! Works on storage and layout alone, not on the live engine. A [`Pass`] reads all metadata once, counts who
//! refers to which cluster, and compares that with the refcounts on disk and the COPIED flags. Every table
//! is read once however often it is referred to, holes are skipped, and counts are kept sparse: time and
//! memory follow the bytes that the file really has, not what the image claims.
//!
//! Order of reading: everything else that is metadata first, then L2 tables, then data, so that an L2 table
//! or a data cluster on top of other metadata is noticed when it is claimed.

pub(crate) mod change;
pub(crate) mod claims;
mod compare;
pub(crate) mod copied;
pub(crate) mod counts;
pub(crate) mod edits;
mod error;
pub(crate) mod leaks;
mod part;
pub(crate) mod pass;
pub(crate) mod reading;
mod rebuild;
pub(crate) mod repair;
mod report;
mod snapshots;
mod summary;
pub(crate) mod tables;

use std::sync::Arc;

use block::BlockFuture;
use storage::Storage;

use crate::host::Host;

pub use error::CheckError;
pub use report::{CheckReport, Finding, Owner, Progress, Repair, Severity, Stage};

use part::Added;
use pass::Pass;
use reading::Reader;

/// Checks all metadata of the image in `file` and repairs what `repair` asks for.
///
/// The image must not be in use. `progress` hears of every finding (of the first pass) as it is made.
/// Guest data is neither read nor written, unless it has to be copied; an external data file is not needed.
///
/// With [`Repair::None`] nothing is written. Otherwise the image is read again after the repair, the
/// report tells what is left, and dirty and corrupt marks are cleared if no corruption is. When there is nothing to
/// repair only the marks of unknown features that a writer has to clear are; nothing is when metadata could not be read.
///
/// # Errors
/// The header is not one, the file fails under a write, or references are spread so thinly that
/// counting them would take memory out of proportion to the file.
///
/// # After a crash during the repair
/// See `repair.rs`: the image is at least as good as before, and version 3 images are marked dirty.
pub fn check<'a>(
    file: &'a dyn Storage,
    repair: Repair,
    progress: &'a mut dyn FnMut(Progress<'_>),
) -> BlockFuture<'a, Result<CheckReport, CheckError>> {
    Box::pin(async move { check_with(Reader::of(file), repair, progress).await })
}

/// As [`check`]; tables that are in memory are read and summed up on other threads of `host`. What is reported does not depend on how
/// many there are.
///
/// # Errors
/// Those of [`check`].
pub fn check_in_parallel<'a>(
    file: &'a Arc<dyn Storage>,
    host: &'a Arc<dyn Host>,
    repair: Repair,
    progress: &'a mut dyn FnMut(Progress<'_>),
) -> BlockFuture<'a, Result<CheckReport, CheckError>> {
    Box::pin(async move { check_with(Reader::with_threads(file, host), repair, progress).await })
}

async fn check_with(
    reader: Reader<'_>,
    repair: Repair,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<CheckReport, CheckError> {
    let file = reader.file;
    if repair != Repair::None && file.capabilities().read_only {
        return Err(CheckError::ReadOnly { name: file.name().to_owned() });
    }
    progress(Progress::Stage(Stage::Check));
    let mut first = Pass::run_before(repair, reader.clone(), progress).await?;
    if repair == Repair::None {
        return Ok(first.report);
    }
    if !first.wants_repair() {
        first.forget_unknown_features().await?;
        return Ok(first.report);
    }
    first.progress(Progress::Stage(Stage::Repair));
    let (before, was_dirty) = (first.report.clone(), first.was_dirty());
    first.mark_dirty().await?;
    let mut added = Added::none(&first);
    if repair == Repair::All && first.part(&mut added).await? {
        drop(first);
        repair_rest(&reader, added, progress).await?;
    } else {
        first.repair(repair).await?;
        drop(first);
    }
    progress(Progress::Stage(Stage::Verify));
    let mut quiet = |seen: Progress<'_>| {
        if let Progress::Scanned { .. } = seen {
            progress(seen);
        }
    };
    let mut second = Pass::run(reader, &mut quiet).await?;
    second.mark_repaired(was_dirty).await?;
    let mut report = second.report;
    report.corruptions_fixed = before.corruptions.saturating_sub(report.corruptions);
    report.leaks_fixed = before.leaks.saturating_sub(report.leaks);
    Ok(report)
}

/// Parts what shares a place until nothing does, then repairs the rest.
async fn repair_rest(
    reader: &Reader<'_>,
    mut added: Added,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(), CheckError> {
    let mut some = |seen: Progress<'_>| match seen {
        Progress::Scanned { .. } | Progress::Copied { .. } | Progress::Found(Finding::NotRepaired { .. }) => {
            progress(seen);
        }
        // Reported by the first pass.
        Progress::Found(_) | Progress::Stage(_) => {}
    };
    loop {
        let mut pass = Pass::run_before(Repair::All, reader.clone(), &mut some).await?;
        if !pass.part(&mut added).await? {
            return pass.repair(Repair::All).await;
        }
    }
}
