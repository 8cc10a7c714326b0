//! A running disk gets other layers and keeps its name: what checkpoints need. The path of its image is the
//! new layer's then, and the sealed layer has another one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Block, Error};

use super::disk_node::RootOptions;
use super::error::NodeError;
use super::live::place;
use super::replace::{Edge, Put, ReplaceError, Replaced, Replacement, Written};
use super::{Change, DiskNode, Graph};
use crate::fd_sets;
use crate::layers::{Layers, OpenedLayers};
use crate::links::{Links, Own};
use crate::names::Located;

/// What a disk is backed by, and what all of it is called: what undoes an exchange by name. Its layers stay open as long as this is there.
#[derive(Debug)]
pub struct BeforeExchange {
    layers: Arc<Layers>,
    /// The names of the layers, in their order.
    own: Vec<Option<Own>>,
    asked: RootOptions,
    links: Links,
}

impl Graph {
    /// What a disk is before an exchange by name.
    ///
    /// # Errors
    /// When it is no disk of the graph any more.
    pub fn before(&self, _change: &Change<'_>, disk: &DiskNode) -> Result<BeforeExchange, NodeError> {
        let layers = disk.disk.layers();
        let own = layers.list.iter().map(|layer| layer.own.lock().clone()).collect();
        let links = self.node(&disk.name())?.links.lock().clone();
        Ok(BeforeExchange { layers, own, asked: disk.asked.lock().clone(), links })
    }

    /// Switches a disk back to what it was before one exchange by name. Requests were kept out since; the layers that the exchange removed are not closed yet.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn switch_back(
        &self,
        _change: &Change<'_>,
        disk: &Arc<DiskNode>,
        before: BeforeExchange,
    ) -> Result<Replaced, ReplaceError> {
        let BeforeExchange { layers, own, asked, links } = before;
        let now = disk.disk.layers();
        let found = Replacement::before(&layers, asked);
        let back = Box::pin(self.exchange(disk, &now, Edge::Root, found, Written::Copied, async || Ok(())));
        let replaced = back.await?;
        *self.node(&disk.name())?.links.lock() = links;
        for (layer, own) in layers.list.iter().zip(own) {
            if let Some(own) = &own {
                self.forget(&own.name);
            }
            *layer.own.lock() = own;
        }
        Ok(replaced)
    }

    /// As [`Graph::put_over`], of an overlay that has the disk's name from then on: the node's name goes on leading to what is written, and the image that was
    /// uppermost has a name that is made.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn put_over_by_name(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        overlay: OpenedLayers,
    ) -> Result<Replaced, ReplaceError> {
        self.exchange_by_name(change, disk, Put::Over(overlay), async || Ok(())).await
    }

    /// Switches a disk to other layers, with no regard for what it holds: requests in flight finish on the old ones, later ones find the new. The disk keeps its
    /// name. `last_look` runs when no request does, just before the exchange.
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn switch_by_name(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        layers: OpenedLayers,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        self.exchange_by_name(change, disk, Put::Opened(layers), last_look).await
    }

    async fn exchange_by_name(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        put: Put,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        let before = disk.disk.layers();
        let by_user = !self.node(&disk.name())?.implicit;
        let own = Own { name: disk.name(), by_user, links: Links::default() };
        let replaced = self.replace(change, &disk.name(), Edge::Root, put, last_look).await?;
        self.rename(disk, &before, Some(own));
        Ok(replaced)
    }

    /// The path of the file of a disk's uppermost image, links resolved, if that is a file of this machine and the path still leads to it.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn path_of_image(&self, name: &str) -> Result<Option<PathBuf>, NodeError> {
        let layers = self.disk(name)?.disk.layers();
        let files = layers.first().and_then(|layer| layer.files.as_ref());
        let path = self.opened_path(name)?;
        let is_it = |path: &PathBuf| {
            let located = Located::by_user(path);
            located
                .is_ok_and(|located| files.is_some_and(|files| files.file.identity() == located.identity()))
        };
        Ok(path.filter(is_it))
    }

    /// The path by which the file of a disk's uppermost image was opened, if that is a file of this machine that was found by one. It may lead elsewhere by now.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn opened_path(&self, name: &str) -> Result<Option<PathBuf>, NodeError> {
        let layers = self.disk(name)?.disk.layers();
        let files = layers.first().and_then(|layer| layer.files.as_ref()).map(|files| &files.file);
        let path = files.filter(|file| file.is_local()).map(|file| PathBuf::from(file.full_name()));
        Ok(path.filter(|path| !path.starts_with(fd_sets::PREFIX)))
    }

    /// Opens the layer that `block` is for reading, by another path of its file: it will not be written any more, and its old path is another image's. Nothing
    /// else uses the file for writing afterwards, this process neither.
    ///
    /// # Errors
    /// As [`Graph::set_layer_access`]; when the path leads to another file.
    ///
    /// # Crash
    /// As [`Graph::set_layer_access`].
    pub async fn seal_layer(
        &self,
        _change: &Change<'_>,
        disk: &Arc<DiskNode>,
        block: &Arc<dyn Block>,
        path: &Path,
    ) -> Result<(), ReplaceError> {
        let old = disk.disk.layers();
        let at = place(&old, block)?;
        let (layer, files) = disk.layer_of_files(&old, at)?;
        let failed = |error| ReplaceError::Open(Box::new(error));
        block.flush().await.map_err(ReplaceError::Before)?;
        let edge = Edge::of(at);
        let again = Box::pin(files.open_again_at(layer, path, &self.rules)).await.map_err(failed)?;
        let found = Replacement::again(edge, again);
        let replaced = Box::pin(self.exchange(disk, &old, edge, found, Written::Flush, async || Ok(())));
        let closed = replaced.await?.removed.close().await;
        files.lock_for(false).map_err(failed)?;
        closed.map_err(|source| ReplaceError::Close { layer: block.name().to_owned(), source })
    }
}
