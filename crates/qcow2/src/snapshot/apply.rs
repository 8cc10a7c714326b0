//! Going back to a snapshot.

use std::sync::Arc;

use qcow2_layout::SnapshotEntry;

use super::SnapshotName;
use super::shadow::{Change, Shadow};
use crate::Error;
use crate::image::Inner;

impl Inner {
    /// The image switches to a copy of the snapshot's L1 table; what only the old one led to is freed.
    pub(crate) async fn apply_snapshot(self: &Arc<Self>, name: SnapshotName) -> Result<(), Error> {
        self.begin_snapshot_change().await?;
        self.managed(async move |image| {
            let (snapshots, index) = image.snapshot_named(&name).await?;
            let Some(snapshot) = snapshots.get(index).cloned() else { return Ok(()) };
            let size = snapshot.disk_size.unwrap_or(image.size());
            if size != image.size() {
                image.check_size_may_change().await?;
                image.check_covered(size)?;
            }
            let pause = image.pause().await?;
            image.note_everything(&pause).await?;
            let change = async |shadow: &mut Shadow| shadow.go_back(snapshots, &snapshot, size).await;
            image.change_tables(&pause, change).await
        })
        .await
    }
}

impl Shadow {
    async fn go_back(
        &mut self,
        snapshots: Vec<SnapshotEntry>,
        snapshot: &SnapshotEntry,
        size: u64,
    ) -> Result<Change, Error> {
        let image = Arc::clone(&self.image);
        let mut words = image.l1_of_snapshot(snapshot).await?;
        // Raised before anything is lowered: what both lead to never comes near 0.
        image.raise_references(&words).await?;
        let old = image.map.l1.words().map_err(|_| image.medium.blame.no_memory("the L1 table"))?;
        image.lower_references(&old, &mut self.freed).await?;
        // Below 2^22 by the limit on L1 tables.
        let needed = image.medium.geometry.l1_entries_for(size) as usize;
        let more = words.try_reserve_exact(needed.saturating_sub(words.len()));
        more.map_err(|_| image.medium.blame.no_memory("the L1 table"))?;
        words.resize(words.len().max(needed), 0);
        Ok(Change { l1: words, l1_is_taken_over: false, size, snapshots })
    }
}
