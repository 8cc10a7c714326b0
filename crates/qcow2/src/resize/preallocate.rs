//! Clusters for a part of the disk that was not written yet.

use std::sync::Arc;

use qcow2_layout::{Cluster, HostOffset, L2Entry};
use storage::{Allocation, Hints, IoBytes, Zeroing};

use crate::allocator::Run;
use crate::image::Inner;
use crate::write::Payload;
use crate::{Error, Preallocation};

/// Clusters that get their place at a time: bounds what is held in memory.
const AT_ONCE: u64 = 8192;

impl Inner {
    /// Gives every cluster between `old`, the end of the disk, and `size` a place that reads as zeroes.
    pub(super) async fn preallocate(
        self: &Arc<Self>,
        old: u64,
        size: u64,
        how: Preallocation,
    ) -> Result<(), Error> {
        let cluster = self.medium.geometry.cluster_size();
        let table = self.medium.geometry.bytes_per_l2_table();
        let end = size.next_multiple_of(cluster);
        let mut guest = old.next_multiple_of(cluster);
        if matches!(how, Preallocation::Falloc | Preallocation::Full) && guest > old {
            self.preallocate_rest(old, guest.min(size)).await?;
        }
        while guest < end {
            let table_end = (guest / table + 1).saturating_mul(table);
            let upto = end.min(table_end).min(guest + AT_ONCE * cluster);
            let _pass = self.enter().await?;
            guest += self.preallocate_some(guest, (upto - guest) / cluster, how).await?;
            if self.wants_commit() {
                self.commit().await?;
            }
        }
        Ok(())
    }

    /// The cluster that the disk ended in: its first bytes are the guest's, so the rest is written as any request is.
    async fn preallocate_rest(self: &Arc<Self>, old: u64, end: u64) -> Result<(), Error> {
        // Less than a cluster.
        let zeroes = IoBytes::zeroed((end - old) as usize);
        let _pass = self.enter().await?;
        self.write_anywhere(old, Payload::new(zeroes.into(), Hints::NONE)).await
    }

    /// Up to `wanted` clusters in one run; says how many bytes of the disk they are. No other request reaches
    /// there, so no other request can own them.
    async fn preallocate_some(
        self: &Arc<Self>,
        guest: u64,
        wanted: u64,
        how: Preallocation,
    ) -> Result<u64, Error> {
        self.table_for_writing(guest).await?;
        let bits = self.medium.geometry.cluster_bits;
        let run = match self.medium.geometry.external_data {
            true => Run { start: guest >> bits, len: wanted, fresh: true, settled: false },
            false => {
                let run = self.space.allocate(&self.medium, wanted).await?;
                if let Err(error) = self.prepare_run(run, how).await {
                    self.space.give_back(&self.medium, run).await;
                    return Err(error);
                }
                run
            }
        };
        let entry = |index: u64| {
            let host = Some(HostOffset((run.start + index) << bits));
            let alloc = self.medium.geometry.subcluster_mask();
            L2Entry::Standard(Cluster { host, copied: true, alloc, zero: 0 })
        };
        let entries: Vec<_> = (0..run.len).map(entry).collect();
        self.set_entries(guest, &entries).await?;
        Ok(run.len << bits)
    }

    /// The clusters read as zeroes, lie inside the file, and have the space that was asked for.
    pub(crate) async fn prepare_run(&self, run: Run, how: Preallocation) -> Result<(), Error> {
        let bits = self.medium.geometry.cluster_bits;
        let (start, len) = (run.start << bits, run.len << bits);
        self.medium.check_data(HostOffset(start), len)?;
        let done = match how {
            Preallocation::Full => self.medium.data.allocate(start, len, Allocation::Write).await,
            _ if !run.fresh => self.medium.data.zero(start, len, Zeroing::Keep).await,
            Preallocation::Falloc if self.medium.data.capabilities().resizable => {
                self.medium.data.allocate(start, len, Allocation::Reserve).await
            }
            // The file ends behind the run, and what lies before its end is a hole.
            Preallocation::Off | Preallocation::Metadata | Preallocation::Falloc => {
                self.medium.data.zero(start + len - 1, 1, Zeroing::Keep).await
            }
        };
        done.map_err(self.medium.blame.io("preallocating"))
    }
}
