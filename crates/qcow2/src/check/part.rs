//! Parting what shares a place and must not, by copying. Three things are parted: data that lies on metadata; an L2 table that two L1
//! entries of different index lead to; a data cluster that two guest clusters lead to. Each keeps the bytes it had.
//!
//! Sharing between snapshots is not touched: there the same guest cluster leads to one data cluster. Sharing that the refcount covers is
//! not touched either: COPIED is not set, so the next write copies.
//!
//! A round is one change as in compacting. Its copies lie behind everything that the file has, so nothing is overwritten:
//!
//! copies, refcounts of the new places ->| entries, without COPIED, that lead there ->|
//!
//! If the refcount blocks do not reach behind the end, the refcount structure is written anew with room for the copies. It then counts
//! every reference, shared clusters too, and those are sound without a copy.
//!
//! A crash leaves the old state, or some entries that lead to their copies, which are counted. Refcounts of the old places are too high
//! then; the rest of the repair lowers them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use futures_util::stream::TryStreamExt;
use qcow2_layout::{Cluster, CryptMethod, Geometry, HostOffset, L1Entry, L2Entry};

use super::CheckError;
use super::change::{Change, Copy, copying, count_gained, moved, raise_from};
use super::edits::{each_l1_entry, edit_l1_tables, edit_l2_tables, placed_l2_tables};
use super::pass::Pass;
use super::report::{Finding, Owner, Progress};
use super::tables::l2_words;

/// Copies of one round at most: with what leads to them some 32 MiB of memory.
const COPIES_MAX: usize = 1 << 17;
/// Clusters that all rounds together may add to those in use, besides as many as those: a table that many entries name
/// leads to more data than any medium has.
const ADDED_BASE: u64 = 1 << 10;

/// Something that shares a place with something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shared {
    /// Data lies on metadata.
    OnMetadata,
    /// An L2 table leads from two places of the disk.
    Table,
    /// Data is at two places of the disk.
    Data,
}

/// In this order: while data lies on a table, changing the table changes the data; and what two tables share is known when each place
/// of the disk has one.
const KINDS: [Shared; 3] = [Shared::OnMetadata, Shared::Table, Shared::Data];

/// What is at one place of the disk: the offset of a table's or of data's bytes, and where on the disk it is, counted in tables or in
/// clusters.
type Use = (u64, u64);

/// Its new place.
#[derive(Clone, Copy, Debug, Default)]
struct Target {
    to: u64,
    len: u64,
    times: u32,
}

/// What a round copies.
#[derive(Default)]
struct Plan {
    targets: BTreeMap<Use, Target>,
    /// By offset: the use that keeps the place, how many references it has, and how long it is.
    keepers: BTreeMap<u64, (Use, Target)>,
    /// Clusters that compressed clusters use too, which stay.
    packed: BTreeSet<u64>,
    /// L2 tables with uses, and the place of each on the disk, in tables.
    tables: BTreeMap<u64, u64>,
    /// There are more uses than a round may have.
    cut: bool,
}

impl Plan {
    /// A use of something of which one may keep the place.
    fn shared(&mut self, used: Use, target: Target) {
        let keeper = self.keepers.entry(used.0).or_insert((used, Target { times: 0, ..target }));
        match keeper.0 == used {
            true => keeper.1.times = keeper.1.times.saturating_add(target.times),
            false => self.copied(used, target),
        }
    }

    /// A use of something that gets a place of its own.
    fn copied(&mut self, used: Use, target: Target) {
        self.cut |= self.targets.len() >= COPIES_MAX;
        if let Some(known) = self.targets.get_mut(&used) {
            known.times = known.times.saturating_add(target.times);
        } else if !self.cut {
            self.targets.insert(used, target);
        }
    }

    /// Where compressed clusters stay, no other may.
    fn part_from_packed(&mut self, geometry: &Geometry) {
        for (used, target) in std::mem::take(&mut self.keepers).into_values() {
            if self.packed.contains(&(used.0 >> geometry.cluster_bits)) {
                self.copied(used, target);
            }
        }
    }
}

/// What rounds have added so far, and may.
pub(super) struct Added {
    clusters: u64,
    clusters_max: u64,
}

impl Added {
    pub(super) fn none(pass: &Pass<'_>) -> Self {
        Self { clusters: 0, clusters_max: pass.comparison.used_end.saturating_add(ADDED_BASE) }
    }
}

impl Pass<'_> {
    /// One round; false when there is nothing to be parted, or nothing that can be: that is reported then.
    pub(super) async fn part(&mut self, added: &mut Added) -> Result<bool, CheckError> {
        for kind in KINDS {
            if !self.is_any_shared(kind) {
                continue;
            }
            if let Some(reason) = self.why_not_parted(kind) {
                self.found(&Finding::NotRepaired { reason });
                return Ok(false);
            }
            let mut plan = Plan::default();
            match kind {
                Shared::Table => self.plan_tables(&mut plan).await?,
                Shared::OnMetadata | Shared::Data => self.plan_data(kind, &mut plan).await?,
            }
            if self.report.check_errors > 0 {
                return Ok(false);
            }
            if kind == Shared::OnMetadata && plan.cut {
                let reason = "more data lies on metadata than is copied";
                self.found(&Finding::NotRepaired { reason });
                return Ok(false);
            }
            if !plan.targets.is_empty() {
                return self.copy_shared(kind, plan, added).await;
            }
        }
        Ok(false)
    }

    fn is_any_shared(&self, kind: Shared) -> bool {
        let mut from = 0;
        loop {
            let next = match kind {
                Shared::OnMetadata => self.claims.overlaps.next(from),
                Shared::Table | Shared::Data => self.comparison.next_mismatch(from),
            };
            match next {
                None => return false,
                Some(cluster) if self.is_shared(kind, cluster) => return true,
                Some(cluster) => from = cluster + 1,
            }
        }
    }

    /// Whether a cluster may be one that is to be parted.
    fn is_shared(&self, kind: Shared, cluster: u64) -> bool {
        let twice = |owner| {
            self.comparison.is_too_low(cluster)
                && self.claims.count(cluster) > 1
                && self.claims.owner(cluster) == owner
                && self.claims.overlaps.get(cluster) == 0
        };
        match kind {
            // The refcount structure goes elsewhere as a whole.
            Shared::OnMetadata => {
                let owner = self.claims.owner(cluster);
                self.claims.overlaps.get(cluster) != 0
                    && !matches!(owner, Owner::RefcountTable | Owner::RefcountBlock)
            }
            // Entries for a data file are right at one place of the disk only.
            Shared::Table => !self.geometry.external_data && twice(Owner::L2),
            Shared::Data => twice(Owner::Data),
        }
    }

    fn why_not_parted(&self, kind: Shared) -> Option<&'static str> {
        if !self.complete {
            return Some("what shares a place stays, because not every reference could be found");
        }
        if self.claims.any_outside {
            return Some(
                "what shares a place stays, because something leads beyond the end of the file: copies there would be taken for it",
            );
        }
        // As it was before LUKS, data is encrypted for its place on the disk.
        let ciphered = kind != Shared::Table && self.header.crypt == CryptMethod::Luks;
        ciphered.then_some("data that shares a place stays, because it is encrypted for that place")
    }

    /// Tables that L1 entries of different places lead to.
    async fn plan_tables(&mut self, plan: &mut Plan) -> Result<(), CheckError> {
        let mut found: BTreeMap<Use, u32> = BTreeMap::new();
        let shared: BTreeSet<u64> = self.shared_tables();
        each_l1_entry(self, |index, table| {
            if shared.contains(&table) {
                *found.entry((table, index)).or_default() += 1;
            }
            Ok(())
        })
        .await?;
        let len = self.geometry.cluster_size();
        for ((table, index), times) in found {
            plan.shared((self.offset_of(table).0, index), Target { to: 0, len, times });
        }
        Ok(())
    }

    fn shared_tables(&self) -> BTreeSet<u64> {
        let mut tables = BTreeSet::new();
        let mut from = 0;
        while let Some(cluster) = self.comparison.next_mismatch(from).filter(|_| tables.len() < COPIES_MAX) {
            if self.is_shared(Shared::Table, cluster) {
                tables.insert(cluster);
            }
            from = cluster + 1;
        }
        tables
    }

    /// Data that lies on metadata, or that entries of different places lead to.
    async fn plan_data(&mut self, kind: Shared, plan: &mut Plan) -> Result<(), CheckError> {
        for (table, place) in placed_l2_tables(self).await? {
            let times = u32::try_from(self.claims.count(table)).unwrap_or(u32::MAX);
            let offset = self.offset_of(table).0;
            let Some(bytes) = self.read_piece(Owner::L2, offset, self.geometry.cluster_size()).await else {
                continue;
            };
            for (at, words) in l2_words(&bytes, self.geometry.extended_l2) {
                let Ok(entry) = L2Entry::decode(words, &self.geometry) else { continue };
                let Some((host, len)) = self.data_of(entry) else { continue };
                let mut clusters = self.touched(host, len);
                if !clusters.any(|cluster| self.is_shared(kind, cluster)) {
                    continue;
                }
                let used = (host, guest_cluster(&self.geometry, place, at));
                let target = Target { to: 0, len, times };
                match (kind, entry) {
                    (Shared::Data, L2Entry::Compressed(_)) => plan.packed.extend(self.touched(host, len)),
                    (Shared::Data, L2Entry::Standard(_)) => plan.shared(used, target),
                    (Shared::OnMetadata | Shared::Table, _) => plan.copied(used, target),
                }
                plan.tables.insert(table, place);
            }
        }
        plan.part_from_packed(&self.geometry);
        Ok(())
    }

    /// Where the data of an entry is, and how long it is.
    fn data_of(&self, entry: L2Entry) -> Option<(u64, u64)> {
        match entry {
            L2Entry::Standard(Cluster { host: Some(host), .. }) if !self.geometry.external_data => {
                Some((host.0, self.geometry.cluster_size()))
            }
            L2Entry::Standard(_) => None,
            L2Entry::Compressed(compressed) => Some((compressed.host.0, compressed.len)),
        }
    }

    fn touched(&self, offset: u64, len: u64) -> Range<u64> {
        self.cluster_of(offset)..self.cluster_of(offset.saturating_add(len - 1)) + 1
    }

    /// Copies and leads to the copies. False, with nothing changed, when there is no place for them.
    async fn copy_shared(
        &mut self,
        kind: Shared,
        mut plan: Plan,
        added: &mut Added,
    ) -> Result<bool, CheckError> {
        let clusters =
            plan.targets.values().map(|target| self.geometry.clusters_for(target.len)).sum::<u64>();
        added.clusters = added.clusters.saturating_add(clusters);
        if added.clusters > added.clusters_max {
            let reason = "what shares a place stays, because the image would be more than twice as large with copies of all of it";
            self.found(&Finding::NotRepaired { reason });
            return Ok(false);
        }
        let resizable = self.file.capabilities().resizable;
        let first = if resizable { self.comparison.end } else { 0 }.max(self.comparison.used_end);
        let mut next = first;
        let mut change = Change::default();
        for ((from, _), target) in &mut plan.targets {
            target.to = self.offset_of(next).0;
            change.copy(Copy { from: *from, to: target.to, len: target.len, data: kind != Shared::Table });
            for _ in 0..self.geometry.clusters_for(target.len) {
                change.gain(next, target.times);
                next += 1;
            }
        }
        if !resizable && next > self.comparison.end {
            return Ok(self.no_room());
        }
        let copied = copying(self, None, &change.copies).try_for_each(|_| std::future::ready(Ok(())));
        match copied.await {
            Err(CheckError::Io { source, .. }) if is_full(&source) => return Ok(self.no_room()),
            copied => copied?,
        }
        if !self.count_copies(&change, first..next).await? {
            return Ok(false);
        }
        let owner = if kind == Shared::Table { Owner::L2 } else { Owner::Data };
        self.progress(Progress::Copied { owner, clusters });
        self.forget_extent();
        self.lead_to_copies(kind, &plan).await?;
        self.flush().await?;
        Ok(true)
    }

    /// There is no room for copies: what is shared stays, and nothing leads to those that were made.
    fn no_room(&mut self) -> bool {
        let reason = "what shares a place stays, because there is no room for copies behind the image";
        self.found(&Finding::NotRepaired { reason });
        false
    }

    /// Counts the places of copies: in the blocks that are there, or where these do not reach that far in new ones. On disk, with
    /// the copies, when this returns; false if it cannot be done.
    async fn count_copies(&mut self, change: &Change, places: Range<u64>) -> Result<bool, CheckError> {
        let entries = self.geometry.refcount_block_entries();
        let mut blocks = places.start / entries..=(places.end - 1) / entries;
        if !self.rebuild && blocks.all(|index| self.comparison.has_block(index)) {
            raise_from(self, change, places.start).await?;
            return Ok(true);
        }
        count_gained(self, change)?;
        self.comparison.used_end = places.end;
        self.rebuild_refcounts(0).await
    }

    async fn lead_to_copies(&mut self, kind: Shared, plan: &Plan) -> Result<(), CheckError> {
        let geometry = self.geometry;
        if kind == Shared::Table {
            let new = |index, entry: L1Entry| {
                let target = plan.targets.get(&(entry.table?.0, index))?;
                Some(L1Entry { table: Some(HostOffset(target.to)), copied: false })
            };
            return edit_l1_tables(self, new).await;
        }
        let tables: Vec<u64> = plan.tables.keys().copied().collect();
        let new = |table, at, words| {
            let place = plan.tables.get(&table)?;
            let entry = L2Entry::decode(words, &geometry).ok()?;
            let host = match entry {
                L2Entry::Standard(cluster) => cluster.host?,
                L2Entry::Compressed(compressed) => compressed.host,
            };
            let target = plan.targets.get(&(host.0, guest_cluster(&geometry, *place, at)))?;
            let words = moved(entry, target.to, target.len, &geometry);
            Some(L2Entry::with_copied(words, false))
        };
        edit_l2_tables(self, &tables, new).await
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// The cluster of the disk of which an entry speaks: `at` bytes inside the table at `place`.
fn guest_cluster(geometry: &Geometry, place: u64, at: u64) -> u64 {
    (place << geometry.l2_bits()) + at / geometry.l2_entry_bytes()
}
