//! A disk is handed to another process and back without being closed: what `blockdev-set-active` does.
//!
//! An inactive disk is open for reading, refuses writes, and the locks of its files let other processes write them. When it becomes active the
//! locks are taken again, and then every image of its chain is opened once more: another process may have changed all of it, also the size.
//!
//! Who keeps what reads find true: another process that writes the files while the disk is inactive. What was read into memory before is dropped
//! with the images when the disk becomes active; until then a reader may find what was there before.

use std::sync::Arc;

use serde_json::{Map, Value};
use storage::Role as LockRole;

use super::disk_node::DiskNode;
use super::error::NodeError;
use super::live::place;
use super::node::{Node, NodeKind};
use super::replace::{Edge, ReplaceError, Replacement, Written};
use super::{Change, Graph};
use crate::drivers::{Driver, driver};
use crate::error::OpenError;
use crate::layers::{LayerFiles, Layers};
use crate::runtime::RuntimeOptions;

/// The member of blockdev-add that this module reads.
pub(super) const ACTIVE: &str = "active";

impl Graph {
    /// Makes the disk that `name` leads to, and the disks below it, inactive, or active again. Nothing happens to what is so already, and to a bare
    /// file, which is opened by the disk over it. The caller has made sure that no job works on the disk.
    ///
    /// What clients wrote is in the files when a disk has become inactive: written, flushed, as after an orderly end.
    ///
    /// # Errors
    /// When another process uses a file, or an image does not open: an inactive disk stays inactive then. When what was written cannot be
    /// written to the files or the image cannot be opened for reading: an active disk stays active.
    pub async fn set_active(&self, change: &Change<'_>, name: &str, active: bool) -> Result<(), NodeError> {
        let node = match self.node(name) {
            Ok(node) => node,
            // A file or a layer of a disk is what its disk is.
            Err(unknown) => return self.is_part(name).then_some(()).ok_or(unknown),
        };
        let mut below = self.disks_below(&node);
        // A disk is activated after those that it needs, and the other way round.
        if !active {
            self.set_node_active(&node, active).await?;
        }
        while let Some(name) = below.pop() {
            Box::pin(self.set_active(change, &name, active)).await?;
        }
        if active {
            self.set_node_active(&node, active).await?;
        }
        Ok(())
    }

    /// Whether a node has a part called `name`.
    fn is_part(&self, name: &str) -> bool {
        self.nodes.lock().owner(name).is_some() || self.layer_node(name).is_some()
    }

    /// The disks below a filter, and those that are files of an image.
    fn disks_below(&self, node: &Node) -> Vec<String> {
        match &node.kind {
            NodeKind::Throttle { child, .. } => vec![child.get()],
            NodeKind::JobFilter { disk, .. } => vec![disk.get()],
            NodeKind::Disk(_) => node.sends_to(),
            NodeKind::File(_) | NodeKind::TakenOut => Vec::new(),
        }
    }

    async fn set_node_active(&self, node: &Node, active: bool) -> Result<(), NodeError> {
        let NodeKind::Disk(disk) = &node.kind else { return Ok(()) };
        if disk.disk.is_active() == active {
            return Ok(());
        }
        // A filter passes on what the disks below it answer.
        let changed = match (&node.filter, active) {
            (Some(_), _) => Ok(()),
            (None, true) => Box::pin(self.activate(disk)).await,
            (None, false) => Box::pin(self.deactivate(disk)).await,
        };
        if changed.is_ok() {
            disk.disk.set_active(active);
        }
        let failed = |source| NodeError::Activity { name: node.name(), active, source: Box::new(source) };
        changed.map_err(failed)
    }

    async fn deactivate(&self, node: &DiskNode) -> Result<(), ReplaceError> {
        let layers = node.disk.layers();
        let at = place(&layers, &node.disk.top_image())?;
        let (top, files) = node.layer_of_files(&layers, at)?;
        // Writes that come from now on are refused; a disk that is open for reading takes the place of this one.
        node.disk.set_active(false);
        if !top.block.capabilities().read_only {
            let opened = async {
                top.block.flush().await.map_err(ReplaceError::Before)?;
                let again = Box::pin(files.open_again(top, false, &self.rules)).await;
                let edge = Edge::of(at);
                let found =
                    Replacement::again(edge, again.map_err(|error| ReplaceError::Open(Box::new(error)))?);
                Box::pin(self.exchange(node, &layers, edge, found, Written::Flush, async || Ok(()))).await
            };
            let replaced = opened.await.inspect_err(|_| node.disk.set_active(true))?;
            let layer = top.block.name().to_owned();
            replaced.removed.close().await.map_err(|source| ReplaceError::Close { layer, source })?;
        }
        share(&node.disk.layers())
    }

    async fn activate(&self, node: &DiskNode) -> Result<(), ReplaceError> {
        let activated = self.open_layers_again(node).await;
        if activated.is_err()
            && let Err(error) = share(&node.disk.layers())
        {
            tracing::warn!("a file of an inactive disk stays locked: {error}");
        }
        activated
    }

    /// Locks all files of the disk, then opens the images over them once more, the lowest first.
    async fn open_layers_again(&self, node: &DiskNode) -> Result<(), ReplaceError> {
        let failed = |error| ReplaceError::Open(Box::new(error));
        let layers = node.disk.layers();
        let top = place(&layers, &node.disk.top_image())?;
        let is_written = |at: usize| at == top && !node.disk.read_only();
        let is_shared = node.options().is_some_and(|options| options.layer.is_shared_by_force());
        let blocks = block::layers(Arc::clone(&layers.top)).enumerate();
        for (at, block) in blocks {
            let files = layers.of(&block).and_then(|layer| layer.files.as_ref());
            let role = match (is_written(at), is_shared) {
                (true, _) => LockRole::Writer,
                (false, true) => LockRole::ForceShare,
                (false, false) => LockRole::Reader,
            };
            files.map_or(Ok(()), |files| files.lock_as(role)).map_err(failed)?;
        }
        let count = block::layers(Arc::clone(&layers.top)).count();
        for at in (0..count).rev() {
            let layers = node.disk.layers();
            let Ok((layer, files)) = node.layer_of_files(&layers, at) else { continue };
            let again = Box::pin(files.open_again(layer, is_written(at), &self.rules)).await;
            let edge = Edge::of(at);
            let found = Replacement::again(edge, again.map_err(failed)?);
            let exchanged = self.exchange(node, &layers, edge, found, Written::Copied, async || Ok(()));
            let replaced = Box::pin(exchanged).await?;
            let name = layer.block.name().to_owned();
            replaced.removed.close().await.map_err(|source| ReplaceError::Close { layer: name, source })?;
        }
        Ok(())
    }

    /// Adds a disk that is inactive at first: its files are opened for reading, whatever other processes do with them.
    pub(super) async fn add_inactive(
        &self,
        name: String,
        options: &Map<String, Value>,
    ) -> Result<Arc<Node>, NodeError> {
        let is_of_images = |name: &str| matches!(driver(name), Some(Driver::Format));
        let opened_for_reading = options.get("driver").and_then(Value::as_str).is_some_and(is_of_images);
        let mut shared = options.clone();
        if opened_for_reading {
            shared.extend(["read-only", "force-share"].map(|name| (name.to_owned(), Value::Bool(true))));
        }
        let node = self.add_named(name, &shared, false).await?;
        if let (true, NodeKind::Disk(disk)) = (opened_for_reading, &node.kind) {
            disk.was_added_inactive(options);
        }
        Ok(node)
    }
}

impl DiskNode {
    /// The disk was opened for reading, and is to become what `options` say when it is activated.
    fn was_added_inactive(&self, options: &Map<String, Value>) {
        let is_on = |name: &str| options.get(name) == Some(&Value::Bool(true));
        let runtime = RuntimeOptions { read_only: is_on("read-only"), ..self.disk.runtime_options() };
        let mut asked = self.asked.lock();
        if !is_on("force-share") {
            asked.tree.take("force-share");
        }
        asked.tree.say(&runtime);
        self.disk.set_active(false);
        self.disk.note_options(runtime);
    }
}

impl LayerFiles {
    /// Changes the locks of all files to what `role` needs. That of a LUKS header is a reader's, except with
    /// `force-share`.
    ///
    /// # Errors
    /// As [`LayerFiles::lock_for`].
    fn lock_as(&self, role: LockRole) -> Result<(), OpenError> {
        let of_header = if role == LockRole::ForceShare { role } else { LockRole::Reader };
        let header = self.luks_header.as_ref().map(|origin| (origin, of_header));
        let files = [Some(&self.file), self.data.as_ref(), self.bitmaps.as_ref()].into_iter().flatten();
        files.map(|origin| (origin, role)).chain(header).try_for_each(|(origin, role)| origin.lock_as(role))
    }
}

/// Lets other processes do all they want with the files of `layers`.
fn share(layers: &Layers) -> Result<(), ReplaceError> {
    let mut files = layers.list.iter().filter_map(|layer| layer.files.as_ref());
    let shared = files.try_for_each(|files| files.lock_as(LockRole::ForceShare));
    shared.map_err(|error| ReplaceError::Open(Box::new(error)))
}

/// `options` without `active`, in the nodes below, too, and whether the node is to be active. What the nodes below are, the node over them decides.
pub(super) fn without_active(options: &Map<String, Value>) -> (Map<String, Value>, bool) {
    let is_active = options.get(ACTIVE) != Some(&Value::Bool(false));
    (without(options), is_active)
}

fn without(options: &Map<String, Value>) -> Map<String, Value> {
    let of_node = |value: &Value| match value {
        Value::Object(nested) => Value::Object(without(nested)),
        Value::Array(items) => items
            .iter()
            .map(|item| {
                item.as_object().map_or_else(|| item.clone(), |nested| Value::Object(without(nested)))
            })
            .collect(),
        other => other.clone(),
    };
    let kept = options.iter().filter(|(name, _)| *name != ACTIVE);
    kept.map(|(name, value)| (name.clone(), of_node(value))).collect()
}
