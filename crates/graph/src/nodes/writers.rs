//! Layers below the uppermost image that jobs write to: open for writing as long as one of them does.

use std::sync::Arc;

use block::Block;

use super::access::LayerAccess;
use super::changing_backing::is_changing;
use super::disk_node::DiskNode;
use super::live::place;
use super::replace::ReplaceError;
use super::{Change, Graph};

impl Graph {
    /// Reopens the layer `block` for writing, in its place; returns the new block. A writable layer is
    /// returned as it is. A node that has the same file open for reading, and that only this disk uses, is
    /// closed: its name is the layer's. Each call needs one of [`Graph::make_readable`].
    ///
    /// # Errors
    /// When the file is in use elsewhere, or cannot be opened; then everything is as it was.
    pub async fn make_writable(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        block: &Arc<dyn Block>,
    ) -> Result<Arc<dyn Block>, ReplaceError> {
        let layers = disk.disk.layers();
        let at = place(&layers, block)?;
        if block.capabilities().read_only {
            if let Some(layer) = layers.of(block) {
                self.take_in(disk, layer).await?;
            }
            self.set_layer_access(change, &disk.name(), at, LayerAccess::Write).await?;
        }
        let opened = block::layers(disk.disk.root()).nth(at);
        let opened = opened.ok_or_else(|| disk.no_layer(&layers, at))?;
        let now = disk.disk.layers();
        if let Some(layer) = now.of(&opened).filter(|layer| now.first() != Some(layer)) {
            *layer.writers.lock() += 1;
        }
        Ok(opened)
    }

    /// Opens the layer that `block` is for reading again: the job has written for the last time. The uppermost image, which guests write to, and a
    /// layer that another job has open for writing stay so. One that the disk has no more is closed already.
    ///
    /// # Errors
    /// As [`Graph::set_layer_access`].
    pub async fn make_readable(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        block: &Arc<dyn Block>,
    ) -> Result<(), ReplaceError> {
        let layers = disk.disk.layers();
        let Ok(at) = place(&layers, block) else { return Ok(()) };
        let is_needed = layers.of(block).is_some_and(|layer| layer.loses_writer());
        // A disk by itself stays open as it is.
        if is_needed
            || is_changing(&**block)
            || layers.first().is_some_and(|first| Arc::ptr_eq(&first.block, block))
        {
            return Ok(());
        }
        self.set_layer_access(change, &disk.name(), at, LayerAccess::Read).await.map(drop)
    }
}
