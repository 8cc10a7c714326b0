//! What one version of the format can say and the other cannot, out of the way before the version changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use block::BlockFuture;
use qcow2_layout::{Cluster, HostOffset, L1Entry, L2Entry, SnapshotEntry};

use super::shadow::{Change, Shadow};
use crate::image::Inner;
use crate::overlap::Section;
use crate::table_io::encode_words;
use crate::{Error, Preallocation, Qcow2};

/// Is called with how many entries of L1 tables, the disk's and those of snapshots, were looked at, and how many there are.
pub type Visited = Arc<dyn Fn(u64, u64) + Send + Sync>;

impl Qcow2 {
    /// Makes the image say nothing that version 2 cannot: clusters that are marked as zeroes become unallocated, or, over a backing
    /// file, clusters of zeroes; in snapshots too. Persistent bitmaps are removed; gives their names. The disk reads as before.
    /// Durable when it returns. Costs reading all L2 tables, and a place for each cluster of zeroes over a backing file. `visited` is
    /// called after each entry of an L1 table.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unsupported`] for snapshots of a disk of another size, or with a state of 4 GiB and more; whatever the
    /// storage says. Then nothing has changed, but that bitmaps may be gone.
    ///
    /// # Crash
    /// The image as it was, without bitmaps, or also without marks; leaks. docs/internals/write-order.md, `amend_to_version_2`.
    pub fn prepare_for_version_2(&self, visited: Visited) -> BlockFuture<'_, Result<Vec<String>, Error>> {
        Box::pin(async move {
            let result = self.inner.prepare_for_version_2(visited).await;
            self.inner.reporting(result).await
        })
    }

    /// Makes every snapshot say how large its disk is, as version 3 wants it. Durable when it returns.
    ///
    /// # Errors
    /// Whatever the storage says. Then nothing has changed.
    ///
    /// # Crash
    /// The old table of snapshots or the new one; leaks. docs/internals/write-order.md, `amend_to_version_3`.
    pub fn prepare_for_version_3(&self) -> BlockFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let result = self.inner.prepare_for_version_3().await;
            self.inner.reporting(result).await
        })
    }
}

impl Inner {
    async fn prepare_for_version_2(self: &Arc<Self>, visited: Visited) -> Result<Vec<String>, Error> {
        self.check_writable()?;
        self.managed(async move |image| {
            let snapshots = image.snapshots().await?;
            image.check_snapshots_of_version_2(&snapshots)?;
            image.header.prepare_for_metadata(&image.medium).await?;
            let pause = image.pause().await?;
            let names = image.remove_bitmaps(&pause).await?;
            if image.any_zero_flag(&snapshots).await? {
                let change = async |shadow: &mut Shadow| shadow.without_zero_flags(snapshots, &visited).await;
                image.change_tables(&pause, change).await?;
            } else {
                // Nothing is left to be looked at.
                visited(1, 1);
            }
            Ok(names)
        })
        .await
    }

    async fn prepare_for_version_3(self: &Arc<Self>) -> Result<(), Error> {
        self.check_writable()?;
        self.managed(async move |image| {
            let mut snapshots = image.snapshots().await?;
            if snapshots.iter().all(|snapshot| snapshot.disk_size.is_some()) {
                return Ok(());
            }
            let size = image.size();
            snapshots.iter_mut().for_each(|snapshot| snapshot.disk_size = snapshot.disk_size.or(Some(size)));
            image.header.prepare_for_metadata(&image.medium).await?;
            let pause = image.pause().await?;
            let l1 = image.map.l1.words().map_err(|_| image.medium.blame.no_memory("the L1 table"))?;
            let change = async |_: &mut Shadow| Ok(Change { l1, l1_is_taken_over: false, size, snapshots });
            image.change_tables(&pause, change).await
        })
        .await
    }

    fn check_snapshots_of_version_2(&self, snapshots: &[SnapshotEntry]) -> Result<(), Error> {
        for snapshot in snapshots {
            let other = snapshot.disk_size.is_some_and(|size| size != self.size());
            if other || u32::try_from(snapshot.vm_state_size).is_err() {
                let what =
                    if other { "is of a disk of another size" } else { "has a state of 4 GiB or more" };
                return Err(self.medium.blame.unsupported(format!(
                    "snapshot {:?} {what}, which compat=0.10 cannot say; delete it first",
                    snapshot.name_text()
                )));
            }
        }
        Ok(())
    }

    /// Whether any entry of the disk, or of a snapshot, is marked as zeroes.
    async fn any_zero_flag(&self, snapshots: &[SnapshotEntry]) -> Result<bool, Error> {
        let l1 = self.map.l1.words().map_err(|_| self.medium.blame.no_memory("the L1 table"))?;
        if self.any_zero_flag_below(&l1).await? {
            return Ok(true);
        }
        for snapshot in snapshots {
            if self.any_zero_flag_below(&self.l1_of_snapshot(snapshot).await?).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn any_zero_flag_below(&self, l1: &[u64]) -> Result<bool, Error> {
        for &word in l1 {
            let Some(table) = self.l1_entry_of(word)?.table else { continue };
            if self.map.read_table(&self.medium, table).await?.iter().any(is_marked) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_marked(entry: &L2Entry) -> bool {
    matches!(entry, L2Entry::Standard(cluster) if cluster.zero != 0)
}

/// The cluster of an entry.
fn host_of(entry: &L2Entry) -> Option<HostOffset> {
    match entry {
        L2Entry::Standard(cluster) => cluster.host,
        L2Entry::Compressed(_) => None,
    }
}

impl Shadow {
    async fn without_zero_flags(
        &mut self,
        mut snapshots: Vec<SnapshotEntry>,
        visited: &Visited,
    ) -> Result<Change, Error> {
        let image = Arc::clone(&self.image);
        let has_backing = image.header.lock().await.backing.is_some();
        // Tables that several L1 tables lead to are still one table afterwards.
        let mut made = BTreeMap::new();
        let mut l1 = image.map.l1.words().map_err(|_| image.medium.blame.no_memory("the L1 table"))?;
        let of_snapshots: u64 = snapshots.iter().map(|snapshot| u64::from(snapshot.l1_size)).sum();
        let (mut done, total) = (0, l1.len() as u64 + of_snapshots);
        let mut next = || {
            done += 1;
            visited(done, total);
        };
        self.unmark_below(&mut l1, has_backing, &mut made, &mut next).await?;
        for snapshot in &mut snapshots {
            let mut words = image.l1_of_snapshot(snapshot).await?;
            if self.unmark_below(&mut words, has_backing, &mut made, &mut next).await? {
                self.move_l1_of_snapshot(snapshot, &words).await?;
            }
        }
        Ok(Change { l1, l1_is_taken_over: false, size: image.size(), snapshots })
    }

    /// Gives each table with marks that an L1 table leads to a copy without, and says whether there was one. Calls `next` after each
    /// entry of the L1 table.
    async fn unmark_below(
        &mut self,
        l1: &mut [u64],
        has_backing: bool,
        made: &mut BTreeMap<u64, u64>,
        next: &mut impl FnMut(),
    ) -> Result<bool, Error> {
        let mut any = false;
        for word in l1 {
            if let Some(table) = self.image.l1_entry_of(*word)?.table
                && let Some(offset) = self.unmarked_copy(table, has_backing, made).await?
            {
                any = true;
                *word = L1Entry { table: Some(HostOffset(offset)), copied: true }.encode();
            }
            next();
        }
        Ok(any)
    }

    /// The place of the copy without marks that stands for `table` in one L1 table; `None` if the table has no marks.
    async fn unmarked_copy(
        &mut self,
        table: HostOffset,
        has_backing: bool,
        made: &mut BTreeMap<u64, u64>,
    ) -> Result<Option<u64>, Error> {
        let image = Arc::clone(&self.image);
        let bits = image.medium.geometry.cluster_bits;
        let old = image.map.read_table(&image.medium, table).await?;
        if !old.iter().any(is_marked) {
            return Ok(None);
        }
        let offset = match made.get(&table.0) {
            Some(&offset) => {
                self.share(HostOffset(offset), &old).await?;
                offset
            }
            None => {
                let offset = self.unmarked(&old, has_backing).await?;
                made.insert(table.0, offset);
                offset
            }
        };
        // One L1 table less leads to the old table, and to what only it has.
        let one = |at: HostOffset| at.0 >> bits..(at.0 >> bits) + 1;
        for host in old.iter().filter(|entry| is_marked(entry)).filter_map(host_of) {
            image.lower_or_free(one(host), &mut self.freed).await?;
        }
        image.lower_or_free(one(table), &mut self.freed).await?;
        Ok(Some(offset))
    }

    /// One L1 table more leads to the table at `at`, and to what it has in the place of marks in `old`.
    async fn share(&mut self, at: HostOffset, old: &[L2Entry]) -> Result<(), Error> {
        let image = Arc::clone(&self.image);
        let bits = image.medium.geometry.cluster_bits;
        let one = |at: HostOffset| at.0 >> bits..(at.0 >> bits) + 1;
        image.space.refcounts.raise(one(at)).await?;
        let new = image.map.read_table(&image.medium, at).await?;
        for (_, entry) in old.iter().zip(&new).filter(|(old, _)| is_marked(old)) {
            if let Some(host) = host_of(entry) {
                image.space.refcounts.raise(one(host)).await?;
            }
        }
        Ok(())
    }

    /// Writes a table with the entries of `old` but without marks; gives its place.
    async fn unmarked(&mut self, old: &[L2Entry], has_backing: bool) -> Result<u64, Error> {
        let image = Arc::clone(&self.image);
        let mut entries = old.to_vec();
        let mut at = 0;
        while let Some(first) = entries.iter().skip(at).position(is_marked).map(|found| at + found) {
            let len = entries.iter().skip(first).take_while(|entry| is_marked(entry)).count();
            let host = match has_backing {
                true => Some(self.place_of_zeroes(len as u64).await?),
                false => None,
            };
            for (index, entry) in (0u64..).zip(entries.iter_mut().skip(first).take(len)) {
                *entry = match host {
                    Some(host) => L2Entry::Standard(Cluster {
                        host: Some(HostOffset(host + (index << image.medium.geometry.cluster_bits))),
                        copied: true,
                        alloc: image.medium.geometry.subcluster_mask(),
                        zero: 0,
                    }),
                    None => L2Entry::UNALLOCATED,
                };
            }
            at = first + len;
        }
        let offset = self.place(1).await?;
        self.write_l2(offset, &entries).await?;
        Ok(offset)
    }

    /// Consecutive clusters that hold zeroes.
    async fn place_of_zeroes(&mut self, clusters: u64) -> Result<u64, Error> {
        let offset = self.place(clusters).await?;
        if let Some(&run) = self.taken.last() {
            self.image.prepare_run(run, Preallocation::Metadata).await?;
        }
        Ok(offset)
    }

    async fn move_l1_of_snapshot(
        &mut self,
        snapshot: &mut SnapshotEntry,
        words: &[u64],
    ) -> Result<(), Error> {
        let image = Arc::clone(&self.image);
        let geometry = &image.medium.geometry;
        let clusters = geometry.clusters_for(words.len() as u64 * 8);
        let bytes = encode_words(words.iter().copied(), (clusters << geometry.cluster_bits) as usize);
        let bytes = bytes.map_err(|_| image.medium.blame.no_memory("the L1 table of a snapshot"))?;
        let offset = self.place(clusters).await?;
        image.medium.write_table(offset, &bytes, Section::InactiveL1).await?;
        let old = snapshot.l1_table_offset.0 >> geometry.cluster_bits;
        image.lower_or_free(old..old + clusters, &mut self.freed).await?;
        snapshot.l1_table_offset = HostOffset(offset);
        Ok(())
    }
}
