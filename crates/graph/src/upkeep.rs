//! What runs beside the requests of an open disk.

use std::sync::Arc;
use std::time::Duration;

use qcow2::{Prefetch, Qcow2};

use crate::child::Child;
use crate::disk::Disk;
use crate::drivers::remotes;

/// How often metadata is written without a flush: bounds what a guest that never
/// flushes keeps in memory, and how long discarded space stays with the file.
const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(5);

impl Disk {
    /// Starts what runs beside the requests on the loop of this thread, until the disk goes: with
    /// `prefetch=all` the map is read, unused map slices are dropped after each `cache-clean-interval`,
    /// what `prefetch-trace` says is fetched into caches of remote files, and metadata is written now and then.
    pub fn start_upkeep(self: &Arc<Self>) {
        if let (Prefetch::All, Some(image)) = (self.prefetch, self.image()) {
            reactor::spawn(read_ahead(image)).detach();
        }
        self.start_reading_ahead();
        self.own_below().for_each(|below| below.start_upkeep());
        let (disk, runtime) = (Arc::downgrade(self), Arc::clone(&self.runtime));
        reactor::spawn(async move {
            loop {
                let changed = runtime.changed();
                let interval = u64::from(runtime.get().qcow2.cache_clean_interval_s);
                if disk.strong_count() == 0 {
                    return;
                }
                if interval == 0 {
                    changed.await;
                } else if reactor::within(Duration::from_secs(interval), changed).await.is_none() {
                    let Some(disk) = disk.upgrade() else { return };
                    disk.clean_caches();
                }
            }
        })
        .detach();
        let disk = Arc::downgrade(self);
        reactor::spawn(async move {
            loop {
                reactor::sleep(WRITE_BACK_INTERVAL).await;
                let Some(disk) = disk.upgrade() else { return };
                if let Some(image) = disk.image()
                    && let Err(error) = image.write_back().await
                {
                    tracing::warn!("{}: writing metadata in the background: {error}", image.file().name());
                }
            }
        })
        .detach();
    }

    /// A guest is going to use the disk, and no tool that reads all of it: of chunked images what a start reads is fetched ahead of it.
    pub fn expect_guest(&self) {
        for files in self.layers().list.iter().filter_map(|layer| layer.files.as_ref()) {
            (remotes().expect_guest)(&*files.written.file);
        }
        self.own_below().for_each(|below| below.expect_guest());
    }

    /// The disks that layers of this one are over, and that are part of it.
    fn own_below(&self) -> impl Iterator<Item = Arc<Self>> {
        block::layers(self.root()).filter_map(|layer| layer.downcast_ref::<Child>()?.owned())
    }

    fn clean_caches(&self) {
        for layer in block::layers(self.root()) {
            layer.clean_cache();
        }
    }
}

async fn read_ahead(image: Qcow2) {
    if let Err(error) = image.prefetch().await {
        tracing::warn!("{}: reading the map ahead: {error}", image.file().name());
    }
}
