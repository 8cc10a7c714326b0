//! blockdev-snapshot, blockdev-snapshot-sync, change-backing-file: what lies over what.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use control::{Arguments, QmpError};
use graph::probe::Format;
use graph::{Change, DiskNode, Node, Overlay, Replaced, bitmaps_of};
use qcow2::Qcow2;
use serde_json::{Value, json};
use storage::{FileOptions, FileStorage};

use super::chain::{Chain, free_of_jobs};
use crate::serve::inventory::Inventory;
use crate::serve::jobs::file_name;

/// A snapshot that was taken, and can be undone while the disk is drained.
pub struct Taken {
    disk: Arc<DiskNode>,
    /// The node whose disk the overlay was.
    node: Option<Arc<Node>>,
    /// A file that was made.
    made: Option<String>,
}

/// Puts a node over another one.
pub async fn snapshot(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Taken, QmpError> {
    let (node, overlay) = (arguments.text("node")?, arguments.text("overlay")?);
    let disk = writable_disk(inventory, node)?;
    let over = inventory.graph.node(overlay).map_err(|error| inventory.refused(&error))?;
    free_of_jobs(inventory, &*inventory.disk(overlay)?)?;
    let put = inventory.graph.put_over(change, &disk.name(), Overlay::Node(overlay.to_owned())).await;
    told(&disk, put.map_err(|error| QmpError::because("no snapshot is taken", &error))?);
    Ok(Taken { disk, node: Some(over), made: None })
}

/// Makes an image over a disk.
pub async fn snapshot_sync(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Taken, QmpError> {
    let name = match (arguments.maybe_text("node-name"), arguments.maybe_text("device")) {
        (Some(name), None) | (None, Some(name)) => name,
        _ => return Err(QmpError::generic("give one of the arguments 'node-name' and 'device'")),
    };
    let disk = writable_disk(inventory, name)?;
    let file = arguments.text("snapshot-file")?;
    if let Some(format) = arguments.maybe_text("format").filter(|format| *format != "qcow2") {
        return Err(QmpError::generic(format!("argument 'format' is {format:?}; overlays are qcow2 images")));
    }
    let own = arguments.maybe_text("snapshot-node-name");
    if let Some(own) = own {
        inventory.graph.check_new_name(own).map_err(|error| inventory.refused(&error))?;
    }
    let is_made = arguments.maybe_text("mode") != Some("existing");
    if is_made {
        let below = disk.disk.top_image();
        make_overlay(file, disk.disk.size(), Some((file_name(&*below), below.driver().to_owned()))).await?;
    }
    let made = is_made.then(|| file.to_owned());
    match put_file_over(inventory, change, &disk, file, own).await {
        Ok(replaced) => {
            told(&disk, replaced);
            Ok(Taken { disk, node: None, made })
        }
        Err(error) => {
            remove(made.as_deref());
            Err(error)
        }
    }
}

async fn put_file_over(
    inventory: &Inventory,
    change: &Change<'_>,
    disk: &DiskNode,
    file: &str,
    own: Option<&str>,
) -> Result<Replaced, QmpError> {
    let cache = disk.options().map(|options| options.layer.cache()).unwrap_or_default();
    let options = json!({
        "driver": "qcow2",
        "file": { "driver": "file", "filename": file },
        "backing": null,
        "cache": { "direct": cache.direct, "no-flush": cache.no_flush },
    });
    let Value::Object(options) = options else { return Err(QmpError::generic("options are an object")) };
    let opened = inventory.graph.open_layers(change, &options).await;
    let opened = opened.map_err(|error| inventory.refused(&error))?;
    let overlay = Overlay::Opened(opened, own.map(str::to_owned));
    let put = inventory.graph.put_over(change, &disk.name(), overlay).await;
    put.map_err(|error| QmpError::because("no snapshot is taken", &error))
}

/// Makes an image of `size` bytes over `backing`, durable with its name.
///
/// # Errors
/// When something is there already, or it cannot be made.
pub async fn make_overlay(file: &str, size: u64, backing: Option<(String, String)>) -> Result<(), QmpError> {
    let failed = |error: &dyn std::error::Error| QmpError::because(format!("cannot create {file}"), error);
    if backing.as_ref().is_some_and(|(name, _)| !Path::new(name).exists()) {
        return Err(QmpError::generic(
            "what the disk stands on has no path that the new image could name; make it yourself, and give mode existing",
        ));
    }
    if let Some((_, format)) = backing.as_ref().filter(|(_, format)| Format::of_name(format).is_none()) {
        return Err(QmpError::generic(format!(
            "the disk stands on a filter of driver {format}, which no image names as its backing file: name the disk below the filter, or make the image yourself, and give mode existing",
        )));
    }
    let options = FileOptions::default();
    let storage = FileStorage::create_new(file, &options).map_err(|error| failed(&error))?;
    let (backing_file, backing_format) = backing.unzip();
    let image = qcow2::CreateOptions { size, backing_file, backing_format, ..Default::default() };
    let created = qcow2::create(&storage, None, &image).await;
    drop(storage);
    created.map_err(|error| failed(&error)).inspect_err(|_| remove(Some(file)))
}

fn remove(made: Option<&str>) {
    if let Some(file) = made
        && let Err(error) = std::fs::remove_file(file)
    {
        tracing::warn!(file, %error, "an image that was made for nothing stays");
    }
}

fn writable_disk(inventory: &Inventory, name: &str) -> Result<Arc<DiskNode>, QmpError> {
    let disk = inventory.disk(name)?;
    free_of_jobs(inventory, &disk)?;
    Ok(disk)
}

/// Layers below an overlay stay in use: nothing was taken out.
fn told(disk: &DiskNode, replaced: Replaced) {
    tracing::info!(node = disk.name(), pause = ?replaced.pause, "a snapshot is taken");
}

impl Taken {
    /// It stays. What is below is for reading from now on, so that others may read its file too; with a bitmap that lies in memory
    /// alone it stays as it is, because that would be lost.
    pub async fn keep(self, inventory: &Inventory, change: &Change<'_>) {
        if let Err(error) = self.disk.disk.flush_below().await {
            tracing::error!(%error, "what is below a snapshot is not durable; flushes of the disk try it again");
        }
        let Ok(chain) = Chain::of(inventory, &self.disk.name()) else { return };
        let below = chain.layers.get(1).and_then(|layer| bitmaps_of(&*layer.block));
        if below.is_none_or(|image| image.bitmaps().iter().all(|bitmap| bitmap.is_persistent())) {
            chain.give_back(inventory, change, &[1]).await;
        }
    }

    /// Takes it back; requests have been kept out since.
    ///
    /// # Errors
    /// Says that the disk stays on the overlay, and why.
    pub async fn undo(self, inventory: &Inventory, change: &Change<'_>) -> Result<(), String> {
        let is_own = self.node.is_none();
        match inventory.graph.take_off(change, &self.disk, self.node).await {
            Ok(replaced) => {
                // That of a node goes on being the node's.
                if is_own && let Err(error) = replaced.removed.close().await {
                    tracing::warn!(%error, "an overlay could not be closed in order");
                }
                remove(self.made.as_deref());
            }
            Err(error) => return Err(format!("the overlay of {:?} stays ({error})", self.disk.name())),
        }
        Ok(())
    }
}

/// Has the header of an image name another backing file. What is open stays.
pub async fn change_backing_file(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    arguments: Arguments<'_>,
) -> Result<Value, QmpError> {
    let chain = Chain::of(inventory, arguments.text("device")?)?;
    free_of_jobs(inventory, &chain.disk)?;
    let name = arguments.text("image-node-name")?;
    let at = chain.find(arguments, "image-node-name", "image-file")?;
    let Some(layer) = at.and_then(|at| chain.layers.get(at)) else {
        return Err(QmpError::generic(format!("there is no layer {name:?}")));
    };
    let place = at.unwrap_or(0);
    let Some(below) = layer.block.below() else {
        return Err(QmpError::generic(format!("node {name:?} has nothing below it whose name could change")));
    };
    let block = inventory.graph.make_writable(change, &chain.disk, &layer.block).await;
    let block = block.map_err(|error| QmpError::because("the header cannot be written", &error))?;
    let image = block.downcast_ref::<Qcow2>().ok_or_else(|| {
        QmpError::generic(format!("node {name:?} is no qcow2 image: it names no backing file"))
    })?;
    let file = arguments.text("backing-file")?.to_owned();
    let named = image.set_backing_name(Some(file), Some(below.driver().to_owned())).await;
    chain.give_back(inventory, change, &[place]).await;
    named.map_err(|error| QmpError::because("cannot name the backing file", &error))?;
    Ok(json!({}))
}
