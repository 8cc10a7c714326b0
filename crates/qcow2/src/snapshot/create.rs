//! Taking a snapshot.

use std::sync::Arc;

use qcow2_layout::{HostOffset, SNAPSHOTS_MAX, SnapshotEntry};

use super::NewSnapshot;
use super::shadow::{Change, Shadow};
use crate::image::Inner;
use crate::{Error, lists};

impl Inner {
    /// The snapshot takes over the tables as they are; the image switches to a copy of its L1 table, and of
    /// every L2 table whose entries may no longer be written in place.
    pub(crate) async fn create_snapshot(self: &Arc<Self>, new: NewSnapshot) -> Result<SnapshotEntry, Error> {
        self.begin_snapshot_change().await?;
        self.managed(async move |image| {
            let snapshots = image.snapshots().await?;
            if snapshots.len() >= SNAPSHOTS_MAX as usize {
                return Err(image
                    .medium
                    .blame
                    .invalid(format!("the image has {SNAPSHOTS_MAX} snapshots, the most there can be")));
            }
            let pause = image.pause().await?;
            let entry = image.new_entry(&snapshots, new);
            let change = async |shadow: &mut Shadow| shadow.take_snapshot(snapshots, &entry).await;
            image.change_tables(&pause, change).await?;
            Ok(entry)
        })
        .await
    }

    fn new_entry(&self, snapshots: &[SnapshotEntry], new: NewSnapshot) -> SnapshotEntry {
        SnapshotEntry {
            l1_table_offset: HostOffset(self.map.l1.offset()),
            // Below 2^22 by the limit on L1 tables.
            l1_size: self.map.l1.len() as u32,
            id: free_id(snapshots).to_string().into_bytes(),
            name: new.name.into_bytes(),
            date_sec: new.date_sec,
            date_nsec: new.date_nsec,
            vm_clock_nsec: new.vm_clock_nsec,
            vm_state_size: 0,
            disk_size: Some(self.size()),
            icount: new.icount,
            unknown_extra: Vec::new(),
        }
    }
}

impl Shadow {
    async fn take_snapshot(
        &mut self,
        mut snapshots: Vec<SnapshotEntry>,
        entry: &SnapshotEntry,
    ) -> Result<Change, Error> {
        let words =
            self.image.map.l1.words().map_err(|_| self.image.medium.blame.no_memory("the L1 table"))?;
        self.image.raise_references(&words).await?;
        lists::push(&mut snapshots, entry.clone())
            .map_err(|_| self.image.medium.blame.no_memory("the snapshot table"))?;
        Ok(Change { l1: words, l1_is_taken_over: true, size: self.image.size(), snapshots })
    }
}

/// One more than the largest id that is a number.
fn free_id(snapshots: &[SnapshotEntry]) -> u64 {
    let number = |snapshot: &SnapshotEntry| str::from_utf8(&snapshot.id).ok()?.parse::<u64>().ok();
    snapshots.iter().filter_map(number).max().unwrap_or(0).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_up_from_the_largest_number_there_is() {
        let with = |ids: &[&str]| {
            let entry = |id: &&str| SnapshotEntry { id: id.as_bytes().to_vec(), ..SnapshotEntry::default() };
            free_id(&ids.iter().map(entry).collect::<Vec<_>>())
        };
        assert_eq!(with(&[]), 1);
        assert_eq!(with(&["7", "x", "3"]), 8);
    }
}
