//! Repairing, in an order in which a crash never makes things worse.
//!
//! 1. Version 3: the dirty bit is set, so that the next open after a crash repairs it again.
//! 2. What shares a place and must not is parted by copying (`part.rs`), and what leads where is read anew. Flushes.
//! 3. Where the snapshot table has too many entries the header counts fewer: one sector. Flush.
//! 4. Refcounts that are too low are raised (or the whole refcount structure is written anew in free
//!    clusters, and one sector of the header then switches to it, see `rebuild.rs`). Flush.
//! 5. COPIED is cleared where more than one reference remains: from here on nothing shared is written in
//!    place. Entries of preallocated or zeroed clusters lose a place that is no start of a cluster. Flush.
//! 6. Refcounts that are too high are lowered, only if every reference was found. Flush.
//! 7. COPIED is set where exactly one reference remains. Flush.
//! 8. All is read again; if no corruption is left, dirty and corrupt bits are cleared. Flush.
//!
//! Each step only brings entries closer to the truth that was read at the start, so a repair cut short is
//! completed by the next one. In a version 2 image a crash between 6 and 7 leaves clusters whose COPIED
//! flag is missing: harmless, they are copied before the next write.

use std::io;

use qcow2_layout::{Autoclear, Compatible, HostOffset, Incompatible, refcount_get, refcount_set};

use super::CheckError;
use super::copied::Flags;
use super::pass::Pass;
use super::report::{Finding, Repair};
use crate::table_io::{read_bytes, write_bytes};

/// Which refcounts are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Raise,
    /// The same, from this cluster on.
    RaiseFrom(u64),
    Lower,
    /// To 0, where nothing refers to a cluster.
    Free,
}

impl Pass<'_> {
    /// Whether the image was marked dirty when the pass began.
    pub(super) fn was_dirty(&self) -> bool {
        self.header.incompatible.contains(Incompatible::DIRTY)
    }

    /// Step 1. Flushes.
    pub(super) async fn mark_dirty(&mut self) -> Result<(), CheckError> {
        if self.header.version == qcow2_layout::Version::V3 {
            let mut marked = self.header.clone();
            marked.incompatible.insert(Incompatible::DIRTY);
            // Features that are unknown here may not survive what follows.
            marked.autoclear.remove(marked.autoclear.unknown());
            // Leaks are a part of what is repaired.
            marked.compatible.remove(Compatible::RESERVE);
            self.write_header(&marked).await?;
        }
        Ok(())
    }

    /// Clears the autoclear bits of features that are unknown here, as every program does that opens the image for writing.
    pub(super) async fn forget_unknown_features(&mut self) -> Result<(), CheckError> {
        let mut marked = self.header.clone();
        marked.autoclear.remove(marked.autoclear.unknown());
        // Without a record the bit is another program's.
        if marked.extensions.record.is_none() {
            marked.autoclear.remove(Autoclear::BITMAP_RECORD);
        }
        match marked == self.header || self.report.check_errors > 0 {
            true => Ok(()),
            false => self.write_header(&marked).await,
        }
    }

    /// Steps 3 to 7.
    pub(super) async fn repair(&mut self, repair: Repair) -> Result<(), CheckError> {
        let rebuild = self.rebuild || self.snapshots.faulty;
        if self.snapshots.cut {
            match repair == Repair::All {
                true => self.cut_snapshots().await?,
                // The table stays as it is: what its last entries refer to is in use.
                false => self.complete = false,
            }
        }
        if repair == Repair::All && rebuild && self.complete {
            if self.rebuild_refcounts(0).await? {
                self.fix_flags(repair).await?;
            }
            return Ok(());
        }
        if repair == Repair::All {
            if rebuild {
                let reason = "the refcount structure or the snapshot table must be written anew, but not every reference could be found";
                self.found(&Finding::NotRepaired { reason });
            }
            self.adjust(Direction::Raise).await?;
        }
        self.walk_flags(Flags::Clear(repair)).await?;
        self.flush().await?;
        if self.complete {
            self.adjust(Direction::Lower).await?;
        } else if self.report.leaks > 0 {
            let reason = "leaks stay, because not every reference could be found";
            self.found(&Finding::NotRepaired { reason });
        }
        self.walk_flags(Flags::Set(repair)).await?;
        self.flush().await
    }

    /// Step 3. What the entries refer to that go is counted too high from here on.
    async fn cut_snapshots(&mut self) -> Result<(), CheckError> {
        (self.snapshots.cut, self.snapshots.beyond) = (false, 0);
        // As many as there can be, at most.
        let snapshots = self.snapshots.entries.len() as u32;
        self.write_header(&qcow2_layout::Header { snapshots, ..self.header.clone() }).await
    }

    async fn fix_flags(&mut self, repair: Repair) -> Result<(), CheckError> {
        self.walk_flags(Flags::Clear(repair)).await?;
        self.flush().await?;
        self.walk_flags(Flags::Set(repair)).await?;
        self.flush().await
    }

    /// The refcount of a cluster after the repair: 0, 1, or 2 and more as 2; nothing when it stays wrong.
    pub(super) fn refcount_after(&self, repair: Repair, cluster: u64) -> Option<u64> {
        let references = self.claims.count(cluster);
        let on_disk = self.refcount_on_disk(cluster);
        let wrong = self.comparison.mismatch(cluster).is_some();
        if !wrong || on_disk > references {
            return Some(if self.complete { references.min(2) } else { on_disk });
        }
        let raised = repair == Repair::All && references <= self.geometry.refcount_max();
        let index = cluster / self.geometry.refcount_block_entries();
        let has_block = !self.rebuild || self.complete || self.comparison.has_block(index);
        (raised && has_block).then_some(references.min(2))
    }

    /// Writes refcounts in place, block by block, in one direction only.
    pub(crate) async fn adjust(&mut self, direction: Direction) -> Result<(), CheckError> {
        let wrong: Vec<_> = self
            .comparison
            .blocks
            .iter()
            .filter(|(index, _)| self.comparison.wrong_blocks.contains(index))
            .copied()
            .collect();
        for (index, block) in wrong {
            self.adjust_block(index, block, direction).await?;
        }
        self.flush().await
    }

    async fn adjust_block(
        &mut self,
        index: u64,
        block: HostOffset,
        direction: Direction,
    ) -> Result<(), CheckError> {
        let cluster_size = self.geometry.cluster_size();
        let read = read_bytes(self.file, block.0, cluster_size).await;
        let mut bytes = read.map_err(self.io("read a refcount block", block.0))?;
        let (order, entries) = (self.geometry.refcount_order, self.geometry.refcount_block_entries());
        let mut changed = false;
        for at in 0..entries {
            let cluster = index * entries + at;
            let references = self.claims.count(cluster);
            if cluster >= self.comparison.end && references == 0 && direction != Direction::Free {
                continue;
            }
            let refcount = refcount_get(&bytes, at, order).unwrap_or(0);
            let raised = references > refcount && references <= self.geometry.refcount_max();
            let wanted = match direction {
                Direction::Raise => raised,
                Direction::RaiseFrom(first) => raised && cluster >= first,
                Direction::Lower => references < refcount,
                Direction::Free => references == 0 && refcount > 0,
            };
            if wanted {
                changed |= refcount_set(&mut bytes, at, order, references).is_ok();
            }
        }
        if changed {
            let written = write_bytes(self.file, block.0, &bytes).await;
            written.map_err(self.io("write a refcount block", block.0))?;
        }
        Ok(())
    }

    /// Step 8: clears the marks, if nothing is left that they warn of.
    pub(super) async fn mark_repaired(&mut self, was_dirty: bool) -> Result<(), CheckError> {
        let mut marked = self.header.clone();
        if self.report.corruptions == 0 && self.report.check_errors == 0 {
            marked.incompatible.remove(Incompatible::DIRTY | Incompatible::CORRUPT);
        } else {
            marked.incompatible.set(Incompatible::DIRTY, was_dirty);
        }
        if marked == self.header {
            return Ok(());
        }
        self.write_header(&marked).await
    }

    /// Writes the header's fixed fields: one sector, all or nothing. Flushes.
    pub(crate) async fn write_header(&mut self, header: &qcow2_layout::Header) -> Result<(), CheckError> {
        let mut sector = read_bytes(self.file, 0, 512).await.map_err(self.io("read the header", 0))?;
        // Snapshots beyond what there can be stay until the table is written anew.
        let snapshots = header.snapshots.saturating_add(self.snapshots.beyond);
        qcow2_layout::Header { snapshots, ..header.clone() }.patch(&mut sector)?;
        write_bytes(self.file, 0, &sector).await.map_err(self.io("write the header", 0))?;
        self.flush().await?;
        self.header = header.clone();
        Ok(())
    }

    pub(crate) async fn flush(&self) -> Result<(), CheckError> {
        self.file.flush().await.map_err(self.io("flush", 0))
    }

    pub(crate) fn io(
        &self,
        doing: &'static str,
        offset: u64,
    ) -> impl FnOnce(io::Error) -> CheckError + use<> {
        let name = self.file.name().to_owned();
        move |source| CheckError::Io { name, doing, offset, source }
    }
}
