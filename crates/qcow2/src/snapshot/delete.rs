//! Deleting a snapshot.

use std::sync::Arc;

use qcow2_layout::SnapshotEntry;

use super::SnapshotName;
use super::shadow::{Change, Shadow};
use crate::Error;
use crate::image::Inner;

impl Inner {
    /// What only the snapshot led to is freed, and what the image now has for itself may be written in place.
    pub(crate) async fn delete_snapshot(
        self: &Arc<Self>,
        name: SnapshotName,
    ) -> Result<SnapshotEntry, Error> {
        self.begin_snapshot_change().await?;
        self.managed(async move |image| {
            let (mut snapshots, index) = image.snapshot_named(&name).await?;
            let pause = image.pause().await?;
            let deleted = snapshots.remove(index);
            let change = async |shadow: &mut Shadow| shadow.drop_snapshot(snapshots, &deleted).await;
            image.change_tables(&pause, change).await?;
            Ok(deleted)
        })
        .await
    }
}

impl Shadow {
    async fn drop_snapshot(
        &mut self,
        snapshots: Vec<SnapshotEntry>,
        deleted: &SnapshotEntry,
    ) -> Result<Change, Error> {
        let image = Arc::clone(&self.image);
        let words = image.l1_of_snapshot(deleted).await?;
        image.lower_references(&words, &mut self.freed).await?;
        let bits = image.medium.geometry.cluster_bits;
        let clusters = image.medium.geometry.clusters_for(u64::from(deleted.l1_size) * 8);
        let first = deleted.l1_table_offset.0 >> bits;
        image.lower_or_free(first..first + clusters, &mut self.freed).await?;
        let l1 = image.map.l1.words().map_err(|_| image.medium.blame.no_memory("the L1 table"))?;
        Ok(Change { l1, l1_is_taken_over: false, size: image.size(), snapshots })
    }
}
