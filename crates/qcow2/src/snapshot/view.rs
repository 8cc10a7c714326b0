//! The disk as it was at a snapshot, to be read.

use std::sync::Arc;

use block::BlockFuture;
use qcow2_layout::{Header, SnapshotEntry};

use super::SnapshotName;
use crate::encryption::GuestData;
use crate::image::{Inner, Qcow2};
use crate::open::{Files, open_with};
use crate::{Error, Options};

impl Qcow2 {
    /// The disk as it was when a snapshot was taken: another image in memory, over the same files and the same layers below. It can be read,
    /// and outlives this one only as long as the files' locks do. Costs what opening costs.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] if there is no such snapshot; [`crate::ErrorKind::Refused`] if this image is open for writing: a
    /// snapshot that is deleted would be read on; what opening fails with.
    pub fn at_snapshot<'a>(&'a self, name: &'a SnapshotName) -> BlockFuture<'a, Result<Qcow2, Error>> {
        Box::pin(async move {
            let inner = &self.inner;
            if inner.options.writable {
                return Err(inner
                    .medium
                    .blame
                    .refused("snapshots are read of images that are open for reading"));
            }
            let (snapshots, index) = inner.snapshot_named(name).await?;
            let header = inner.header.lock().await.clone();
            let header = match snapshots.get(index) {
                Some(snapshot) => inner.header_at(header, snapshot)?,
                None => header,
            };
            let medium = &inner.medium;
            let files = Files {
                file: Arc::clone(&medium.file),
                data: medium.geometry.external_data.then(|| Arc::clone(&medium.data)),
                backing: self.inner.below.load().as_ref().map(|lower| Arc::clone(lower.block())),
            };
            let options = Options { writable: false, ..inner.options };
            let data = GuestData {
                storage: Arc::clone(&medium.data),
                plain: medium.plain.clone(),
                by_guest: medium.by_guest.clone(),
            };
            open_with(files, data, header, options, Arc::clone(&medium.host)).await
        })
    }
}

impl Inner {
    /// The header that the image had if the snapshot were its disk.
    fn header_at(&self, header: Header, snapshot: &SnapshotEntry) -> Result<Header, Error> {
        let blame = &self.medium.blame;
        snapshot.check(&self.medium.geometry).map_err(|error| blame.corrupt(error.to_string()))?;
        let size = snapshot.disk_size.unwrap_or(header.size);
        let needed = size.div_ceil(self.medium.geometry.bytes_per_l2_table());
        if u64::from(snapshot.l1_size) < needed {
            let (name, found) = (snapshot.name_text(), snapshot.l1_size);
            let what = format!("snapshot {name:?} has {found} L1 entries; its {size} bytes need {needed}");
            return Err(blame.corrupt(what));
        }
        let (l1_table_offset, l1_size) = (snapshot.l1_table_offset, snapshot.l1_size);
        Ok(Header { size, l1_table_offset, l1_size, ..header })
    }
}
