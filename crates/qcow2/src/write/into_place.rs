//! Writes into a cluster that has its place, but not all of its subclusters in use.

use std::sync::Arc;

use qcow2_layout::{Cluster, L2Entry, Subcluster};

use super::{Payload, Placement, mask};
use crate::Error;
use crate::below::BelowHeld;
use crate::deliberate::{self, Bug};
use crate::guest_range::GuestRange;
use crate::image::Inner;

impl Inner {
    /// Writes into the place that the entry `cluster` has. The caller owns the subclusters that are written;
    /// those around them may change meanwhile.
    pub(super) async fn write_into_place(
        self: &Arc<Self>,
        guest: u64,
        data: Payload,
        cluster: Cluster,
    ) -> Result<u64, Error> {
        let start_of_cluster = self.medium.geometry.cluster_start(guest);
        let end = (guest + data.len()).min(start_of_cluster + self.medium.geometry.cluster_size());
        let touched = self.subclusters(GuestRange { start: guest, end });
        // Subclusters at the edges that hold nothing yet are filled up; those in use are left alone.
        let in_use = |at: u32| cluster.state(at) == Subcluster::Normal;
        let sub = self.medium.geometry.subcluster_size();
        let start = if in_use(touched.start) { guest } else { guest / sub * sub };
        let fill_end = if in_use(touched.end - 1) { end } else { end.next_multiple_of(sub) };
        let host = cluster.host.unwrap_or_default();
        let written = GuestRange { start, end: fill_end };
        let held = BelowHeld::default();
        let place = Placement {
            guest: start_of_cluster,
            host,
            clusters: 1,
            written,
            fresh: self.never_held(&cluster, touched.clone()),
            before: self.before(&held, written).await?,
        };
        let done = async {
            self.write_placed(&place, guest, data.slice(0..end - guest)).await?;
            let needs = self.needs(place.fresh, place.before.blank);
            if deliberate::has(Bug::EntryNotMerged) {
                let (alloc, zero) = (cluster.alloc | mask(touched.clone()), cluster.zero & !mask(touched));
                let entry = L2Entry::Standard(Cluster { alloc, zero, ..cluster });
                return self.set_entries_that_need(start_of_cluster, &[entry], needs).await;
            }
            self.set_in_use(guest, mask(touched), needs).await
        };
        match done.await {
            Ok(()) => Ok(end - guest),
            Err(error) => {
                // There may be bytes where nothing should be: the next write here cannot rely on zeroes.
                let at = host.0 >> self.medium.geometry.cluster_bits;
                self.space.allocator.lock().taint(at..at + 1);
                Err(error)
            }
        }
    }

    /// Whether those of the subclusters that are not in use never held anything: they read as zeroes at
    /// their place. One with the zero flag may have held something before.
    fn never_held(&self, cluster: &Cluster, mut subclusters: std::ops::Range<u32>) -> bool {
        let Some(host) = cluster.host.filter(|_| !self.medium.geometry.external_data) else { return false };
        subclusters.all(|at| matches!(cluster.state(at), Subcluster::Normal | Subcluster::UnallocatedAlloc))
            && self.space.allocator.lock().is_pristine(host.0 >> self.medium.geometry.cluster_bits)
    }
}
