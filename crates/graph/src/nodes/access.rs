//! Opens a layer of a disk for writing while the disk is in use, and for reading again: a commit into a
//! backing file needs both.
//!
//! The file is opened once more in the other mode, an image is made of that, and it replaces the present one
//! between two requests. The lock of the file stays on the descriptor that took it first, and only its kind
//! changes: there is no moment without a lock, and nothing is opened for writing before the lock excludes all
//! other users.

use std::sync::Arc;
use std::time::Duration;

use super::replace::{Edge, ReplaceError, Replacement, Written};
use super::{Change, DiskNode, Graph};
use crate::layers::{Layer, LayerFiles, Layers};

/// What a layer is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerAccess {
    /// It is read.
    Read,
    /// It is read and written.
    Write,
}

/// Locks for writing, which are locks for reading again when this is dropped.
struct Raised<'a>(Option<&'a LayerFiles>);

impl Graph {
    /// Opens layer `at` of the disk that `name` leads to (0 is the uppermost one) for writing, or for reading again. Nothing happens if
    /// it is open so. Gives for how long requests were kept out; what opening the image costs, they do not wait for.
    ///
    /// For writing: the caller writes to the layer as the disk has it now ([`crate::Disk::root`], [`block::layers`]), and only what the
    /// layers above hide: they go on being read through it. The disk itself takes writes when its option `read-only` says so.
    /// For reading: the caller has written for the last time. What it wrote is durable when this returns, the image closed and the
    /// file free for other readers.
    ///
    /// # Errors
    /// [`ReplaceError::Open`] when another process, or another disk of this one, uses the file, or the image does not open. Then,
    /// when the exchange fails, and when the future is dropped before it, lock and layer are as they were. With [`ReplaceError::Close`] the layer is
    /// open for reading, and its file as after a crash.
    ///
    /// # Crash
    /// That of a writer of the image: docs/internals/write-order.md. Opening it for writing changes no more than that does elsewhere.
    pub async fn set_layer_access(
        &self,
        _change: &Change<'_>,
        name: &str,
        at: usize,
        access: LayerAccess,
    ) -> Result<Duration, ReplaceError> {
        let node = self.disk(name)?;
        let old = node.disk.layers();
        let (layer, files) = node.layer_of_files(&old, at)?;
        let block = &layer.block;
        let writable = access == LayerAccess::Write;
        if block.capabilities().read_only != writable {
            return Ok(Duration::ZERO);
        }
        let failed = |error| ReplaceError::Open(Box::new(error));
        let raised = Raised(writable.then_some(files));
        match writable {
            true => files.lock_for(true).map_err(failed)?,
            // The image that is opened for reading finds everything in the file.
            false => block.flush().await.map_err(ReplaceError::Before)?,
        }
        let edge = Edge::of(at);
        let again = Box::pin(files.open_again(layer, writable, &self.rules)).await.map_err(failed)?;
        let found = Replacement::again(edge, again);
        let replaced =
            Box::pin(self.exchange(&node, &old, edge, found, Written::Flush, async || Ok(()))).await?;
        raised.keep();
        if !writable {
            let closed = replaced.removed.close().await;
            files.lock_for(false).map_err(failed)?;
            let layer = block.name().to_owned();
            closed.map_err(|source| ReplaceError::Close { layer, source })?;
        }
        Ok(replaced.pause)
    }
}

impl Graph {
    /// Lets bitmaps be made in memory of a disk that has no place for them, while it is in use. Costs what opening its uppermost image costs.
    ///
    /// # Errors
    /// [`ReplaceError::NoFile`] when a filter of a job is over it; when it does not open once more, and when the exchange fails. Then it is as it was.
    pub async fn take_bitmaps_in_memory(
        &self,
        _change: &Change<'_>,
        disk: &Arc<DiskNode>,
    ) -> Result<(), ReplaceError> {
        if disk.disk.bitmap_image().is_some() {
            return Ok(());
        }
        let old = disk.disk.layers();
        let (layer, files) = disk.layer_of_files(&old, 0)?;
        let again = Box::pin(files.open_again_with_bitmaps(layer, &self.rules)).await;
        let again = again.map_err(|error| ReplaceError::Open(Box::new(error)))?;
        let found = Replacement::again(Edge::Root, again);
        Box::pin(self.exchange(disk, &old, Edge::Root, found, Written::Flush, async || Ok(()))).await?;
        Ok(())
    }
}

impl DiskNode {
    /// Layer `at` of `layers`, which is made of files.
    pub(super) fn layer_of_files<'a>(
        &self,
        layers: &'a Layers,
        at: usize,
    ) -> Result<(&'a Arc<Layer>, &'a LayerFiles), ReplaceError> {
        let block =
            block::layers(Arc::clone(&layers.top)).nth(at).ok_or_else(|| self.no_layer(layers, at))?;
        let found = layers.of(&block).and_then(|layer| Some((layer, layer.files.as_ref()?)));
        found.ok_or_else(|| ReplaceError::NoFile { layer: block.name().to_owned(), driver: block.driver() })
    }
}

impl Raised<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        // A lock for less than before is always given.
        if let Some(Err(error)) = self.0.map(|files| files.lock_for(false)) {
            tracing::warn!("a file stays locked for writing: {error}");
        }
    }
}
