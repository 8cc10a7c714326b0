//! Writes that allocate: consecutive guest clusters get a run of new clusters, written as one.

use std::sync::Arc;

use qcow2_layout::{Cluster, HostOffset, L2Entry};

use super::{Payload, Placement, mask};
use crate::Error;
use crate::allocator::Run;
use crate::below::BelowHeld;
use crate::deliberate::{self, Bug};
use crate::guest_range::GuestRange;
use crate::image::Inner;
use crate::waiting::Needs;

impl Inner {
    /// Allocates clusters for the front of `data` and writes them. What was in the old ones around
    /// the data is copied.
    pub(super) async fn write_to_new_clusters(
        self: &Arc<Self>,
        guest: u64,
        data: Payload,
        first: L2Entry,
    ) -> Result<u64, Error> {
        let first_cluster = self.medium.geometry.cluster_start(guest);
        let old = self
            .clusters_to_replace(GuestRange { start: first_cluster, end: guest + data.len() }, first)
            .await?;
        // Before anything is written: a table that cannot be had must fail the request early.
        self.table_for_writing(first_cluster).await?;
        let run = match self.medium.geometry.external_data {
            // The place of a guest cluster in a data file is its own offset.
            true => Run::used(guest >> self.medium.geometry.cluster_bits, old.len() as u64),
            false => {
                self.space
                    .allocate_for(&self.medium, guest >> self.medium.geometry.cluster_bits, old.len() as u64)
                    .await?
            }
        };
        let old = &old[..run.len as usize];
        match self.write_run(guest, data, old, run).await {
            // If this fails, some entries may lead to the run by now: better leaked than freed.
            Ok((written, entries, needs)) => {
                self.set_entries_that_need(first_cluster, &entries, needs).await?;
                for entry in old {
                    match entry {
                        L2Entry::Compressed(cluster) if deliberate::has(Bug::PackedFreedEarly) => {
                            self.space.lower_and_give(&self.medium, self.touched_by(cluster)).await;
                        }
                        L2Entry::Compressed(_) | L2Entry::Standard(_) => {
                            self.space.free_entry(&self.medium, entry, self.discards().pass_discard_other);
                        }
                    }
                }
                Ok(written)
            }
            Err(error) => {
                if !self.medium.geometry.external_data {
                    self.space.give_back(&self.medium, run).await;
                }
                Err(error)
            }
        }
    }

    /// The entries of `range`, which begins with a cluster, that need a new host cluster, up to the end of the L2 table.
    async fn clusters_to_replace(&self, range: GuestRange, first: L2Entry) -> Result<Vec<L2Entry>, Error> {
        let table = self.medium.geometry.bytes_per_l2_table();
        let end = range.end.min((range.start / table + 1).saturating_mul(table));
        let mut old = vec![first];
        loop {
            let next = range.start + old.len() as u64 * self.medium.geometry.cluster_size();
            if next >= end {
                return Ok(old);
            }
            let entry = self.map.entry(&self.medium, next).await?;
            if self.reusable_host(&entry).is_some() {
                return Ok(old);
            }
            old.push(entry);
        }
    }

    /// Writes the part of `data` that `run` has room for. Gives its length, the entries that lead to it,
    /// and what those wait for.
    async fn write_run(
        self: &Arc<Self>,
        guest: u64,
        data: Payload,
        old: &[L2Entry],
        run: Run,
    ) -> Result<(u64, Vec<L2Entry>, Needs), Error> {
        let size = self.medium.geometry.cluster_size();
        let first_cluster = self.medium.geometry.cluster_start(guest);
        let host = HostOffset(run.start << self.medium.geometry.cluster_bits);
        let run_end = first_cluster + run.len * size;
        let end = (guest + data.len()).min(run_end);
        let asked = GuestRange { start: guest, end };
        let (Some(first), Some(last)) = (old.first(), old.last()) else {
            return Ok((0, Vec::new(), Needs::Nothing));
        };
        let start = self.needed(first, first_cluster, asked).start;
        let fill_end = self.needed(last, run_end - size, asked).end;
        let written = GuestRange { start, end: fill_end };
        let held = BelowHeld::default();
        let place = Placement {
            guest: first_cluster,
            host,
            clusters: run.len,
            written,
            fresh: run.fresh,
            before: self.before(&held, written).await?,
        };
        let settled = run.settled || deliberate::has(Bug::RefcountNotAwaited);
        let needs = if settled { self.needs(place.fresh, place.before.blank) } else { Needs::Barrier };
        let entries = (0..run.len).zip(old).map(|(index, old)| {
            let at = first_cluster + index * size;
            let alloc =
                mask(self.subclusters(GuestRange { start: start.max(at), end: fill_end.min(at + size) }));
            let zero = match old {
                L2Entry::Standard(cluster) => cluster.zero & !alloc,
                L2Entry::Compressed(_) => 0,
            };
            let host = Some(host + index * size);
            L2Entry::Standard(Cluster { host, copied: true, alloc, zero })
        });
        let entries: Vec<_> = entries.collect();
        if deliberate::has(Bug::WriteOrderSwapped) {
            self.set_entries_that_need(first_cluster, &entries, needs).await?;
        }
        self.write_placed(&place, guest, data.slice(0..end - guest)).await?;
        Ok((end - guest, entries, needs))
    }

    /// The guest range of the cluster at `cluster` that its new place must hold: the request's part
    /// in whole subclusters, and what the old place held.
    fn needed(&self, old: &L2Entry, cluster: u64, asked: GuestRange) -> GuestRange {
        let size = self.medium.geometry.cluster_size();
        let sub = self.medium.geometry.subcluster_size();
        let start = asked.start.max(cluster) / sub * sub;
        let end = asked.end.min(cluster + size).next_multiple_of(sub);
        match old {
            L2Entry::Compressed(_) => GuestRange::at(cluster, size),
            L2Entry::Standard(old) if old.alloc != 0 => {
                let first = cluster + u64::from(old.alloc.trailing_zeros()) * sub;
                let last = cluster + u64::from(u32::BITS - old.alloc.leading_zeros()) * sub;
                GuestRange { start: start.min(first), end: end.max(last) }
            }
            L2Entry::Standard(_) => GuestRange { start, end },
        }
    }
}
