//! Internal snapshots: listed, taken, gone back to, deleted.
//!
//! Each operation makes new tables beside the old ones and lets one write of one sector of the header lead to them
//! (`shadow`): a crash leaves all of the operation or nothing of it.

mod create;
mod empty;
mod references;
mod shadow;
mod table;
mod versions;
mod view;

use std::sync::Arc;

use block::BlockFuture;
use qcow2_layout::SnapshotEntry;

use self::shadow::{Change, Shadow};
use crate::Error;
use crate::image::{Inner, Qcow2};

pub use table::list;
pub(crate) use table::{each_entry, read_table};
pub use versions::Visited;

/// What is said of a snapshot when it is taken. No state of a virtual machine goes with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSnapshot {
    /// The user's name for it; several may have the same.
    pub name: String,
    /// Seconds since 1970.
    pub date_sec: u32,
    /// And nanoseconds.
    pub date_nsec: u32,
    /// How long the guest had been running, in nanoseconds; 0 without a guest.
    pub vm_clock_nsec: u64,
    /// Instructions the guest had executed, if that is to be recorded.
    pub icount: Option<u64>,
}

/// How a caller names a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotName {
    /// Its id.
    Id(String),
    /// Its name; the first of several.
    Name(String),
    /// Both.
    IdAndName {
        /// The id.
        id: String,
        /// The name.
        name: String,
    },
    /// An id, or a name that is no snapshot's id.
    IdOrName(String),
}

impl SnapshotName {
    /// Its index in `snapshots`, if it is there.
    pub fn find(&self, snapshots: &[SnapshotEntry]) -> Option<usize> {
        let first = |which: &dyn Fn(&SnapshotEntry) -> bool| snapshots.iter().position(which);
        match self {
            Self::Id(id) => first(&|entry| entry.id == id.as_bytes()),
            Self::Name(name) => first(&|entry| entry.name == name.as_bytes()),
            Self::IdAndName { id, name } => {
                first(&|entry| entry.id == id.as_bytes() && entry.name == name.as_bytes())
            }
            Self::IdOrName(text) => first(&|entry| entry.id == text.as_bytes())
                .or_else(|| first(&|entry| entry.name == text.as_bytes())),
        }
    }
}

impl std::fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => write!(f, "id {id:?}"),
            Self::Name(name) => write!(f, "name {name:?}"),
            Self::IdAndName { id, name } => write!(f, "id {id:?} and name {name:?}"),
            Self::IdOrName(text) => write!(f, "id or name {text:?}"),
        }
    }
}

impl Qcow2 {
    /// The internal snapshots. Reads the table.
    pub fn snapshots(&self) -> BlockFuture<'_, Result<Vec<SnapshotEntry>, Error>> {
        Box::pin(async move { self.inner.snapshots().await })
    }

    /// Takes an internal snapshot of the disk as it is, while it is in use; gives its entry, with a new id. What
    /// completed before is in it. Durable when it returns.
    ///
    /// Requests are held back meanwhile. Costs reading all L2 tables, and writing those that are not shared with
    /// a snapshot yet and the refcounts of all clusters in use: 6 MiB for 40 GiB of data in clusters of 64 KiB.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unsupported`] with an external data file, or when a refcount would be larger than
    /// `refcount_bits` allow; whatever the storage says. Then nothing has changed.
    ///
    /// # Crash
    /// The snapshot, or none; leaks. docs/internals/write-order.md, `snapshot_create`.
    pub fn create_snapshot(&self, new: NewSnapshot) -> BlockFuture<'_, Result<SnapshotEntry, Error>> {
        Box::pin(async move {
            let result = self.inner.create_snapshot(new).await;
            self.inner.reporting(result).await
        })
    }

    /// Goes back to a snapshot, also to the size that the disk had. The snapshot stays. Durable when it
    /// returns. Costs, failures and crashes as for [`Qcow2::create_snapshot`], and
    /// [`crate::ErrorKind::Invalid`] if there is no such snapshot.
    pub fn apply_snapshot(&self, name: SnapshotName) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.apply_snapshot(name).await;
            self.inner.reporting(result).await
        })
    }

    /// Deletes a snapshot, and gives its entry; what only it needed is freed in the background. Durable when it
    /// returns. Costs, failures and crashes as for [`Qcow2::create_snapshot`]: deleting, too, needs
    /// room for the tables that change. [`crate::ErrorKind::Invalid`] if there is no such snapshot.
    pub fn delete_snapshot(&self, name: SnapshotName) -> BlockFuture<'_, Result<SnapshotEntry, Error>> {
        Box::pin(async move {
            let result = self.inner.delete_snapshot(name).await;
            self.inner.reporting(result).await
        })
    }
}

impl Inner {
    /// The snapshots there are.
    pub(crate) async fn snapshots(&self) -> Result<Vec<SnapshotEntry>, Error> {
        // Held while the table is read: it moves whenever it changes.
        let header = self.header.lock().await;
        list(&*self.medium.file, &header).await
    }

    /// Refuses what cannot have snapshots, and says that the image is about to change.
    async fn begin_snapshot_change(self: &Arc<Self>) -> Result<(), Error> {
        self.check_writable()?;
        if self.medium.geometry.external_data {
            return Err(self.medium.blame.unsupported(
                "an image with an external data file has no internal snapshots: its data cannot be shared",
            ));
        }
        self.prepare_header_for_first_change().await
    }

    async fn snapshot_named(&self, name: &SnapshotName) -> Result<(Vec<SnapshotEntry>, usize), Error> {
        let snapshots = self.snapshots().await?;
        match name.find(&snapshots) {
            Some(index) => Ok((snapshots, index)),
            // CloudStack looks for QEMU's words.
            None => Err(self.medium.blame.invalid(format!("no snapshot has {name} (snapshot not found)"))),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshots() -> Vec<SnapshotEntry> {
        [("1", "a"), ("2", "1"), ("3", "a")]
            .map(|(id, name)| SnapshotEntry { id: id.into(), name: name.into(), ..SnapshotEntry::default() })
            .to_vec()
    }

    #[test]
    fn an_id_goes_before_a_name_where_either_is_meant() {
        let find = |name: SnapshotName| name.find(&snapshots());
        assert_eq!(find(SnapshotName::IdOrName("1".into())), Some(0));
        assert_eq!(find(SnapshotName::Name("1".into())), Some(1));
        assert_eq!(find(SnapshotName::IdOrName("a".into())), Some(0));
        assert_eq!(find(SnapshotName::IdAndName { id: "3".into(), name: "a".into() }), Some(2));
        assert_eq!(find(SnapshotName::Id("a".into())), None);
    }
}
