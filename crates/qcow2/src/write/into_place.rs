//! Writes into clusters that have their places, but not all of their subclusters in use.

use std::sync::Arc;

use qcow2_layout::{Cluster, HostOffset, L2Entry, Subcluster};

use super::{Payload, Placement, mask};
use crate::Error;
use crate::below::BelowHeld;
use crate::deliberate::{self, Bug};
use crate::guest_range::GuestRange;
use crate::image::Inner;

/// A cluster that is written into, in whole or in part.
#[derive(Debug)]
struct Part {
    cluster: Cluster,
    /// What of it is written.
    guest: GuestRange,
    /// The subclusters which that touches.
    touched: std::ops::Range<u32>,
}

impl Part {
    fn in_use(&self, subcluster: u32) -> bool {
        self.cluster.state(subcluster) == Subcluster::Normal
    }
}

impl Inner {
    /// Writes the front of `data` into the place that the entry `first` has, and into the places behind it of the clusters that follow. The
    /// caller owns the subclusters that are written; those around them may change meanwhile.
    pub(super) async fn write_into_place(
        self: &Arc<Self>,
        guest: u64,
        data: Payload,
        first: Cluster,
    ) -> Result<u64, Error> {
        let host = first.host.unwrap_or_default();
        let range = GuestRange::at(guest, data.len());
        let parts = self.parts_with_places(range, (first, host)).await?;
        let (Some(front), Some(back)) = (parts.first(), parts.last()) else { return Ok(0) };
        let end = back.guest.end;
        // Subclusters at the edges that hold nothing yet are filled up; those in use are left alone.
        let sub = self.medium.geometry.subcluster_size();
        let start = if front.in_use(front.touched.start) { guest } else { guest / sub * sub };
        let fill_end = if back.in_use(back.touched.end - 1) { end } else { end.next_multiple_of(sub) };
        let written = GuestRange { start, end: fill_end };
        let held = BelowHeld::default();
        let place = Placement {
            guest: self.medium.geometry.cluster_start(guest),
            host,
            clusters: parts.len() as u64,
            written,
            fresh: parts.iter().all(|part| self.never_held(part)),
            before: self.before(&held, written).await?,
        };
        let done = async {
            self.write_placed(&place, guest, data.slice(0..end - guest)).await?;
            let needs = self.needs(place.fresh, place.before.blank);
            for part in parts.iter().filter(|part| !part.touched.clone().all(|at| part.in_use(at))) {
                let (cluster, guest) = (part.cluster, part.guest.start);
                let mask = mask(part.touched.clone());
                if deliberate::has(Bug::EntryNotMerged) {
                    let (alloc, zero) = (cluster.alloc | mask, cluster.zero & !mask);
                    let entry = L2Entry::Standard(Cluster { alloc, zero, ..cluster });
                    let start = self.medium.geometry.cluster_start(guest);
                    self.set_entries_that_need(start, &[entry], needs).await?;
                } else {
                    self.set_in_use(guest, mask, needs).await?;
                }
            }
            Ok(end - guest)
        };
        let done = done.await;
        if done.is_err() {
            // There may be bytes where nothing should be: the next write here cannot rely on zeroes.
            let at = host.0 >> self.medium.geometry.cluster_bits;
            self.space.allocator.lock().taint(at..at + place.clusters);
        }
        done
    }

    /// The clusters that `range` touches, from the one with the entry `first` on, up to one that does not lie behind the one before.
    async fn parts_with_places(
        &self,
        range: GuestRange,
        (first, host): (Cluster, HostOffset),
    ) -> Result<Vec<Part>, Error> {
        let size = self.medium.geometry.cluster_size();
        let start = self.medium.geometry.cluster_start(range.start);
        let part = |at: u64, cluster: Cluster| {
            let guest = GuestRange { start: range.start.max(at), end: range.end.min(at + size) };
            Part { cluster, guest, touched: self.subclusters(guest) }
        };
        let mut parts = vec![part(start, first)];
        loop {
            let behind = parts.len() as u64 * size;
            if start + behind >= range.end {
                return Ok(parts);
            }
            let entry = self.map.entry(&self.medium, start + behind).await?;
            match self.reusable_host(&entry).filter(|cluster| cluster.host == Some(host + behind)) {
                Some(cluster) => parts.push(part(start + behind, cluster)),
                None => return Ok(parts),
            }
        }
    }

    /// Whether those of the subclusters that are not in use never held anything: they read as zeroes at
    /// their place. One with the zero flag may have held something before.
    fn never_held(&self, part: &Part) -> bool {
        let Some(host) = part.cluster.host.filter(|_| !self.medium.geometry.external_data) else {
            return false;
        };
        part.touched
            .clone()
            .all(|at| matches!(part.cluster.state(at), Subcluster::Normal | Subcluster::UnallocatedAlloc))
            && self.space.allocator.lock().is_pristine(host.0 >> self.medium.geometry.cluster_bits)
    }
}
