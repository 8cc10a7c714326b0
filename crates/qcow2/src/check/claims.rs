//! Who refers to which cluster.

use std::ops::Range;

use super::counts::{Counts, Full, GROUP};
use super::pass::Pass;
use super::report::{Finding, Owner};
use super::{CheckError, report};

/// A LUKS header with its key slots takes 2 MiB; more than this is not one.
const LUKS_BYTES_MAX: u64 = 64 << 20;

/// References to clusters.
pub(crate) struct Claims {
    /// References from everything but the refcount structure.
    pub(crate) references: Counts,
    /// References from the refcount table (to blocks) and the header (to the table).
    pub(crate) structure: Counts,
    /// The first metadata that claimed a cluster, as a code.
    owners: Counts,
    /// Clusters with contradicting claims.
    pub(crate) overlaps: Counts,
    /// Something refers to what something else refers to.
    pub(crate) any_shared: bool,
    /// An entry of the disk's tables leads somewhere without the COPIED flag.
    pub(crate) any_uncopied: bool,
    /// Something leads beyond the end of the file: what is written there would be taken for it.
    pub(crate) any_outside: bool,
}

/// How a claim went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nothing speaks against it.
    Good,
    /// Part of it is something else too.
    Overlapping,
    /// It lies beyond the end of the file; not counted.
    Outside,
}

impl Claims {
    pub(crate) fn new(reference_bytes_max: u64, bytes_max: u64) -> Self {
        Self {
            references: Counts::new(reference_bytes_max),
            structure: Counts::new(bytes_max),
            owners: Counts::new(bytes_max),
            overlaps: Counts::new(bytes_max),
            any_shared: false,
            any_uncopied: false,
            any_outside: false,
        }
    }

    /// All references to a cluster.
    pub(crate) fn count(&self, cluster: u64) -> u64 {
        u64::from(self.references.get(cluster)) + u64::from(self.structure.get(cluster))
    }

    /// The first cluster from `from` on that anything refers to.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        match (self.references.next(from), self.structure.next(from)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Who claimed a cluster first; data if no metadata did.
    pub(crate) fn owner(&self, cluster: u64) -> Owner {
        owner_of(self.owners.get(cluster))
    }

    /// Whether the cluster is what `owner` says and nothing else, so that it may be changed as such.
    pub(crate) fn is_only(&self, owner: Owner, cluster: u64) -> bool {
        self.owner(cluster) == owner && self.overlaps.get(cluster) == 0
    }

    /// Memory that references may take.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.references.bytes_max()
    }

    /// So many references more to a cluster whose owner stays as it was.
    pub(crate) fn gain(&mut self, cluster: u64, times: u32) -> Result<(), Full> {
        self.references.add(cluster, times).map(drop)
    }

    /// Fewer references to a cluster, of any kind.
    pub(crate) fn lose(&mut self, cluster: u64, times: u32) -> Result<(), Full> {
        let references = self.references.get(cluster);
        self.references.set(cluster, references.saturating_sub(times))?;
        let rest = times.saturating_sub(references);
        if rest > 0 {
            self.structure.set(cluster, self.structure.get(cluster).saturating_sub(rest))?;
        }
        Ok(())
    }

    /// Counts a claim on one cluster and says whether it contradicts an earlier one. Data may be shared by
    /// data, an L2 table by L1 tables, and one whole L1 table by snapshots (`times`): none of them changes it. Nothing else may be shared.
    fn claim(&mut self, owner: Owner, cluster: u64, times: u32) -> Result<bool, Full> {
        let sharable = matches!(owner, Owner::Data | Owner::L2);
        let before = self.count(cluster);
        let is_of_many = times > 1 && !sharable && owner != Owner::L1;
        let overlap = (before > 0 && !(sharable && self.owner(cluster) == owner)) || is_of_many;
        self.any_shared |= before > 0 || times > 1;
        if overlap {
            self.overlaps.set(cluster, 1)?;
        }
        if owner != Owner::Data && self.owners.get(cluster) == 0 {
            self.owners.set(cluster, code_of(owner))?;
        }
        let counts = match owner {
            Owner::RefcountTable | Owner::RefcountBlock => &mut self.structure,
            Owner::Data
            | Owner::Header
            | Owner::L1
            | Owner::L2
            | Owner::SnapshotTable
            | Owner::Luks
            | Owner::BitmapDirectory
            | Owner::BitmapTable
            | Owner::BitmapData
            | Owner::ChangeRecord => &mut self.references,
        };
        counts.add(cluster, times)?;
        Ok(overlap)
    }

    /// Counts a reference from data to each of some clusters of a group, at once, if nothing refers to them yet. False, and
    /// nothing counted, if it has to be done one by one.
    fn claim_fresh_data(&mut self, clusters: Range<u64>) -> bool {
        !self.structure.has_page(clusters.start) && self.references.add_fresh(clusters)
    }

    /// Whether exactly one thing refers to each cluster of a group.
    pub(crate) fn is_one_each(&self, first: u64) -> bool {
        !self.structure.has_page(first) && self.references.is_one_each(first)
    }
}

impl Pass<'_> {
    /// Counts `times` references from `owner` to every cluster that the range touches.
    ///
    /// The last cluster of a file may be cut short, so a claim may end less than a cluster behind the end.
    pub(crate) fn claim(
        &mut self,
        owner: Owner,
        offset: u64,
        len: u64,
        times: u32,
    ) -> Result<Claim, CheckError> {
        if len == 0 {
            return Ok(Claim::Good);
        }
        let end = offset.saturating_add(len);
        let outside = end.saturating_sub(self.file_length) >= self.geometry.cluster_size();
        if outside || (owner == Owner::Luks && len > LUKS_BYTES_MAX) {
            let file_length = self.file_length;
            self.claims.any_outside = true;
            self.found(&report::Finding::BeyondEnd { owner, offset, len, file_length });
            return Ok(Claim::Outside);
        }
        let mut claim = Claim::Good;
        let clusters = self.cluster_of(offset)..self.cluster_of(end - 1) + 1;
        for group in groups(&clusters) {
            if owner == Owner::Data && times == 1 && self.claims.claim_fresh_data(group.clone()) {
                continue;
            }
            for cluster in group {
                let overlap = self.claims.claim(owner, cluster, times);
                if overlap.map_err(self.full(self.claims.bytes_max()))? {
                    claim = Claim::Overlapping;
                }
            }
        }
        Ok(claim)
    }

    /// Tells of overlaps whose refcounts agree with the references: nothing else would show them.
    pub(crate) fn report_overlaps(&mut self) {
        let mut from = 0;
        while let Some(cluster) = self.claims.overlaps.next(from) {
            if self.comparison.mismatch(cluster).is_none() {
                let (offset, owner) = (self.offset_of(cluster), self.claims.owner(cluster));
                self.found(&Finding::Overlap { offset, owner });
            }
            from = cluster + 1;
        }
    }
}

/// The range, cut where groups begin.
fn groups(clusters: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let Range { start, end } = *clusters;
    (start / GROUP..end.div_ceil(GROUP))
        .map(move |group| (group * GROUP).max(start)..((group + 1) * GROUP).min(end))
}

/// Code 0 means that no metadata claimed the cluster.
const OWNERS: [Owner; 12] = [
    Owner::Data,
    Owner::Header,
    Owner::L1,
    Owner::L2,
    Owner::SnapshotTable,
    Owner::Luks,
    Owner::BitmapDirectory,
    Owner::BitmapTable,
    Owner::BitmapData,
    Owner::ChangeRecord,
    Owner::RefcountTable,
    Owner::RefcountBlock,
];

fn code_of(owner: Owner) -> u32 {
    (0u32..).zip(OWNERS).find(|(_, other)| *other == owner).map_or(0, |(code, _)| code)
}

fn owner_of(code: u32) -> Owner {
    OWNERS.get(code as usize).copied().unwrap_or(Owner::Data)
}
