//! Options that change while the disk is open.

use qcow2::Qcow2;

use crate::disk::Disk;
use crate::runtime::{ReopenError, RuntimeOptions};

impl Disk {
    /// The options in force.
    pub fn runtime_options(&self) -> RuntimeOptions {
        self.runtime.get()
    }

    /// Records `options` of the disk's new root. The image gets the discard options, which it may not have
    /// yet.
    pub(crate) fn note_options(&self, options: RuntimeOptions) {
        if let Some(Err(error)) = self.image().map(|image| image.set_discards(options.discards())) {
            tracing::warn!("what becomes of unused space stays as the image was opened: {error}");
        }
        self.runtime.set(options);
    }

    /// Applies `options` between two requests: running requests finish with the old options, new ones wait. A
    /// disk that becomes read-only is flushed first.
    ///
    /// # Errors
    /// When writes are to be allowed on an image that was opened for reading, when the flush fails, or
    /// when the image does not take the options; then the old ones stay in force.
    pub async fn set_runtime_options(&self, options: RuntimeOptions) -> Result<(), ReopenError> {
        if !options.read_only && !self.is_writable() {
            return Err(ReopenError::OpenedReadOnly);
        }
        let _drained = self.drain().await;
        if options.read_only && !self.read_only() {
            self.flush_inside().await.map_err(ReopenError::Flush)?;
        }
        if let Some(image) = &self.image() {
            let before = self.runtime.get();
            if let Err(error) = change(image, &before, &options).await {
                if let Err(again) = change(image, &options, &before).await {
                    tracing::warn!("not all options could be put back: {again}");
                }
                return Err(ReopenError::Image(error));
            }
        }
        self.runtime.set(options);
        Ok(())
    }
}

/// Sets those options of the image that differ.
async fn change(image: &Qcow2, from: &RuntimeOptions, to: &RuntimeOptions) -> Result<(), qcow2::Error> {
    image.set_discards(to.discards())?;
    if to.qcow2.caches != from.qcow2.caches {
        image.set_caches(to.qcow2.caches).await?;
    }
    if to.qcow2.overlap_check != from.qcow2.overlap_check {
        image.set_overlap_check(to.qcow2.overlap_check).await?;
    }
    if to.qcow2.lazy_refcounts != from.qcow2.lazy_refcounts {
        image.set_lazy_refcounts(to.qcow2.lazy_refcounts).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use qcow2::cache_sizes::CacheRequest;

    use crate::options::Discard;
    use crate::options::DiskOptions;
    use crate::{OpenRules, open};

    #[test]
    fn cache_sizes_change_on_an_open_disk_and_a_refused_size_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk.qcow2");
        let reactor = reactor::Reactor::new(reactor::Backend::Ring).unwrap();
        reactor.run(async {
            let created = qcow2::CreateOptions { size: 1 << 30, ..qcow2::CreateOptions::default() };
            std::fs::File::create(&path).unwrap();
            let file = storage::FileStorage::open(&path, &storage::FileOptions::default()).unwrap();
            qcow2::create(&file, None, &created).await.unwrap();
            drop(file);
            let disk = open(&DiskOptions::of_path(&path), &OpenRules::default()).await.unwrap();
            let sizes = || disk.status().unwrap().cache_sizes;
            assert_eq!(sizes().l2_entry_bytes, 64 << 10);
            let mut options = disk.runtime_options();
            options.qcow2.caches = CacheRequest {
                l2_bytes: Some(16 << 10),
                l2_entry_bytes: Some(2048),
                ..CacheRequest::default()
            };
            disk.set_runtime_options(options).await.unwrap();
            let used = sizes();
            assert_eq!((used.l2_bytes, used.l2_entry_bytes), (16 << 10, 2048));
            let mut refused = options;
            refused.discard = Discard::Unmap;
            refused.qcow2.caches.l2_entry_bytes = Some(100);
            disk.set_runtime_options(refused).await.unwrap_err();
            assert_eq!(sizes(), used);
            assert_eq!(disk.runtime_options(), options);
            disk.close().await.unwrap();
        });
    }
}
