//! A smaller file for the same image, in place.
//!
//! Works on storage and layout alone, as a check does, while the image is not in use. A *round* reads all metadata ([`Pass`]), finds
//! the place where the file could end if no cluster before it were free, and moves one kind of clusters from behind that place to
//! free ones before it (`layout`). Rounds go on until nothing moves; each move lowers an address, so they end. Then the file is cut.
//!
//! A table that lies in several clusters finds its room by moving what is in the way (`room`). Defragmenting (`order`) puts data in
//! order before all that, and L2 tables afterwards.
//!
//! Each change is one step of `change.rs`: what moves is copied and counted twice before anything leads to the copy, and the old
//! place is free only when the file leads there no more. A crash leaves clusters counted too often, which the next run frees.

mod change;
mod error;
mod layout;
mod moves;
mod order;
mod room;
mod units;
mod zeroes;

use std::ops::ControlFlow;

use block::BlockFuture;
use qcow2_layout::{CryptMethod, Incompatible, RefcountTableEntry};
use storage::Storage;

pub use error::CompactError;

use crate::check::change::{Change, lower};
use crate::check::pass::Pass;
use crate::check::reading::Reader;
use crate::check::repair::Direction;
use crate::check::{CheckError, Progress, Repair, check};
use crate::table_io::write_bytes;
use layout::Layout;
use moves::{Leaving, Plan};

/// What is done beside moving clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactOptions {
    /// Clusters that hold nothing but zeroes lose their place: all data is read for that.
    pub detect_zeroes: bool,
    /// Data is put in the guest's order, from the front of the file on, and L2 tables in that order too.
    pub defragment: bool,
    /// Nothing is written: the report says what would be.
    pub dry_run: bool,
}

/// What became of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactReport {
    /// Bytes of the file before ...
    pub length_before: u64,
    /// ... and afterwards; of a dry run, what is expected.
    pub length_after: u64,
    /// Bytes of the file that the file took before, where that is known ...
    pub allocated_before: Option<u64>,
    /// ... and afterwards; not known of a dry run.
    pub allocated_after: Option<u64>,
    /// Clusters of the disk that did not follow the one before them in the file, before ...
    pub fragmented_before: u64,
    /// ... and afterwards; of a dry run, as before.
    pub fragmented_after: u64,
    /// Clusters of the disk that are in the image, before.
    pub allocated_clusters: u64,
    /// Clusters that nothing used, freed.
    pub leaks_freed: u64,
    /// Clusters of zeroes that lost their place.
    pub zeroes_freed: u64,
    /// Bytes that were given another place.
    pub moved_bytes: u64,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactProgress {
    /// Bytes looked at and moved.
    pub done_bytes: u64,
    /// Of so many, as far as is known.
    pub total_bytes: u64,
}

/// Who is notified how far it is, and may end it between two steps.
type Watcher<'a> = &'a mut dyn FnMut(CompactProgress) -> ControlFlow<()>;

/// Makes the file of the image in `file` as short as its content allows, and gives back the space of what is free in it.
///
/// What the disk, its snapshots and its bitmaps hold stays; what moves is moved in the guest's order. `watcher` hears how far it is;
/// [`ControlFlow::Break`] ends it, with all that was done until then. Memory: what a check takes, and about 32 MiB. Data of an
/// encrypted image is ciphered for its place: it is read and written in `plain` (see [`crate::plain_text`]).
///
/// # Errors
/// When the image is encrypted and `plain` is not given, or is not sound, the file fails, or the watcher ended it. Nothing is lost then: what was moved has
/// moved, the rest has not.
///
/// # After a crash
/// Clusters counted too often at most, which the next run frees (docs/internals/write-order.md, `compact`).
pub fn compact<'a>(
    file: &'a dyn Storage,
    plain: Option<&'a dyn Storage>,
    options: CompactOptions,
    watcher: Watcher<'a>,
) -> BlockFuture<'a, Result<CompactReport, CompactError>> {
    Box::pin(async move {
        if !options.dry_run && file.capabilities().read_only {
            return Err(CheckError::ReadOnly { name: file.name().to_owned() }.into());
        }
        let meter = Meter { watcher, progress: CompactProgress { done_bytes: 0, total_bytes: 0 } };
        Compaction { file, plain, meter, rooms: 0, report: CompactReport::default() }.run(options).await
    })
}

/// Counts what is done.
struct Meter<'a> {
    watcher: Watcher<'a>,
    progress: CompactProgress,
}

impl Meter<'_> {
    /// So many bytes more are done.
    fn add(&mut self, bytes: u64) -> Result<(), CompactError> {
        let CompactProgress { done_bytes, total_bytes } = self.progress;
        self.progress.done_bytes = done_bytes.saturating_add(bytes);
        self.progress.total_bytes = total_bytes.max(self.progress.done_bytes);
        match (self.watcher)(self.progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CompactError::Interrupted),
        }
    }
}

/// The work on one image.
struct Compaction<'a> {
    file: &'a dyn Storage,
    /// Where guest data reads as plain text, if it is ciphered in the file.
    plain: Option<&'a dyn Storage>,
    meter: Meter<'a>,
    /// How often something was moved out of the way of tables.
    rooms: u32,
    report: CompactReport,
}

impl Compaction<'_> {
    async fn run(mut self, options: CompactOptions) -> Result<CompactReport, CompactError> {
        self.look(options).await?;
        if !options.dry_run {
            self.make_sound().await?;
        }
        if options.detect_zeroes {
            self.free_zeroes(options.dry_run).await?;
        }
        if options.dry_run {
            self.foretell(options).await?;
            return Ok(self.report);
        }
        if options.defragment {
            self.order_data().await?;
        }
        while self.round().await? {}
        if options.defragment {
            self.order_tables().await?;
            // Refcounts may have been given room for that, behind everything.
            while self.round().await? {}
        }
        self.cut().await?;
        Ok(self.report)
    }

    /// What the image is like before.
    async fn look(&mut self, options: CompactOptions) -> Result<(), CompactError> {
        let mut quiet = quiet;
        let mut pass = Pass::run(Reader::of(self.file), &mut quiet).await?;
        if pass.header.crypt != CryptMethod::None && self.plain.is_none() {
            return Err(CompactError::Encrypted);
        }
        self.report.length_before = self.file.length();
        self.report.allocated_before = self.file.allocated_bytes();
        self.report.fragmented_before = pass.report.fragmented_clusters;
        self.report.allocated_clusters = pass.report.allocated_clusters;
        let layout = Layout::of(&pass);
        let mut moving = layout.clusters_behind_end(&pass);
        if options.defragment && pass.report.check_errors == 0 {
            moving = moving.max(self.count_misplaced(&mut pass).await.unwrap_or(0));
        }
        let read = if options.detect_zeroes { pass.report.allocated_clusters } else { 0 };
        self.meter.progress.total_bytes = (moving + read).saturating_mul(pass.geometry.cluster_size());
        Ok(())
    }

    /// Frees what nothing uses, and does what opening the image for writing would do first.
    async fn make_sound(&mut self) -> Result<(), CompactError> {
        let mut quiet = quiet;
        let mut pass = Pass::run(Reader::of(self.file), &mut quiet).await?;
        if pass.header.incompatible.contains(Incompatible::DIRTY) {
            // Refcounts were left behind, and nothing else: that is what the mark says.
            drop(pass);
            self.report.leaks_freed += check(self.file, Repair::All, &mut quiet).await?.leaks_fixed;
            return Ok(());
        }
        require_sound(&pass)?;
        // What was read may be in the page cache only.
        pass.flush().await?;
        let unknown = pass.header.autoclear.unknown();
        if !unknown.is_empty() {
            let mut header = pass.header.clone();
            header.autoclear.remove(unknown);
            pass.write_header(&header).await?;
        }
        if pass.report.leaks == 0 {
            return Ok(());
        }
        self.report.leaks_freed += pass.report.leaks;
        pass.adjust(Direction::Free).await?;
        drop(pass);
        // References that an interrupted run left counted twice, where snapshots share clusters.
        check(self.file, Repair::Leaks, &mut quiet).await?;
        Ok(())
    }

    /// Moves something; false if there is nothing left to be moved.
    async fn round(&mut self) -> Result<bool, CompactError> {
        let mut quiet = quiet;
        let mut pass = Pass::run(Reader::of(self.file), &mut quiet).await?;
        require_sound(&pass)?;
        let layout = Layout::of(&pass);
        if self.drop_needless_blocks(&mut pass, &layout).await? {
            return Ok(true);
        }
        if layout.clusters_behind_end(&pass) == 0 {
            return Ok(false);
        }
        if self.move_units(&mut pass, &layout).await? || self.make_room(&mut pass, &layout).await? {
            return Ok(true);
        }
        let leaving = Leaving::Behind(pass.offset_of(layout.end).0);
        let tables = Plan::new(&pass, leaving.clone(), layout.room(), false);
        if self.move_tables(&mut pass, tables).await? {
            return Ok(true);
        }
        let data = Plan::new(&pass, leaving, layout.room(), true);
        self.move_data(&mut pass, data).await
    }

    /// Cuts the file behind its last cluster, and gives back what is free before it.
    async fn cut(&mut self) -> Result<(), CompactError> {
        let mut quiet = quiet;
        let pass = Pass::run(Reader::of(self.file), &mut quiet).await?;
        let end = pass.comparison.used_end << pass.geometry.cluster_bits;
        if self.file.capabilities().resizable && end < self.file.length() {
            self.file.shorten_to(end).await.map_err(pass.io("shorten the file", end))?;
        }
        for free in layout::free_runs(&pass, pass.comparison.used_end) {
            let (start, len) = (pass.offset_of(free.start).0, pass.offset_of(free.end - free.start).0);
            // A favour: the clusters are free with or without their space.
            let _ = self.file.discard(start, len).await;
        }
        pass.flush().await?;
        self.report.length_after = self.file.length();
        self.report.allocated_after = self.file.allocated_bytes();
        self.report.fragmented_after = pass.report.fragmented_clusters;
        Ok(())
    }

    /// What a dry run says.
    async fn foretell(&mut self, options: CompactOptions) -> Result<(), CompactError> {
        let mut quiet = quiet;
        let mut pass = Pass::run(Reader::of(self.file), &mut quiet).await?;
        require_sound(&pass)?;
        let layout = Layout::of(&pass);
        let used = layout.end.saturating_sub(self.report.zeroes_freed);
        self.report.length_after = (used << pass.geometry.cluster_bits).min(self.report.length_before);
        let mut moving = layout.clusters_behind_end(&pass);
        if options.defragment {
            moving = moving.max(self.count_misplaced(&mut pass).await?);
        }
        self.report.moved_bytes = moving << pass.geometry.cluster_bits;
        self.report.leaks_freed = pass.report.leaks;
        self.report.fragmented_after = self.report.fragmented_before;
        Ok(())
    }
}

fn quiet(_: Progress<'_>) {}

/// Fails unless all references are known and counted, so that what moves can be distinguished from what does not.
fn require_sound(pass: &Pass<'_>) -> Result<(), CompactError> {
    if pass.header.incompatible.contains(Incompatible::CORRUPT) {
        return Err(CompactError::MarkedCorrupt);
    }
    let report = &pass.report;
    if report.corruptions > 0 || report.check_errors > 0 || !pass.complete || pass.rebuild {
        return Err(CompactError::NotSound {
            corruptions: report.corruptions,
            check_errors: report.check_errors,
        });
    }
    Ok(())
}

impl Compaction<'_> {
    /// Drops the blocks behind the end that count nothing but their own place; false if there are none. Those before it count the
    /// free clusters that others move to. What only dropped blocks keep in use goes in the next round.
    ///
    /// Refcount table ->| lower refcounts of the places that other blocks count ->|
    async fn drop_needless_blocks(
        &mut self,
        pass: &mut Pass<'_>,
        layout: &Layout,
    ) -> Result<bool, CompactError> {
        let entries = pass.geometry.refcount_block_entries();
        let mut needless = Vec::new();
        for &(index, at) in pass.comparison.blocks.iter().filter(|(index, _)| index * entries >= layout.end) {
            let own = pass.cluster_of(at.0);
            let mut counted = pass.claims.next(index * entries);
            if counted == Some(own) {
                counted = pass.claims.next(own + 1);
            }
            if counted.is_none_or(|cluster| cluster >= (index + 1) * entries) {
                needless.push((index, own));
            }
        }
        if needless.is_empty() {
            return Ok(false);
        }
        let mut change = Change::default();
        for &(index, own) in &needless {
            let at = pass.header.refcount_table_offset.0 + index * 8;
            let none = RefcountTableEntry { block: None }.encode().to_be_bytes();
            write_bytes(pass.file, at, &none).await.map_err(pass.io("write the refcount table", at))?;
            change.lose(own, 1);
        }
        pass.flush().await?;
        pass.comparison.blocks.retain(|(index, _)| !needless.iter().any(|(other, _)| index == other));
        lower(pass, &change).await?;
        Ok(true)
    }
}
