//! blockdev-snapshot, blockdev-snapshot-sync, change-backing-file: what lies over what.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use control::{QmpError, arguments, choice};
use cowhand::{Existing, NewImage};
use graph::drivers::format_called;
use graph::probe::Format;
use graph::{Change, DiskNode, Node, Overlay, bitmaps_of, file_name};
use job::{Snapshot, SnapshotHost};
use qcow2::Qcow2;
use serde_json::{Value, json};

use super::active;
use super::chain::{Chain, free_of_jobs};
use crate::inventory::Inventory;
use crate::made_file::MadeFile;

arguments! {
    /// A node that is put over another one.
    pub struct Put { node: String, overlay: String }

    /// An image that is made over a disk.
    pub struct Make {
        device: Option<String>, node_name: Option<String>, snapshot_file: String,
        snapshot_node_name: Option<String>, format: Option<String>, mode: Option<Mode>,
    }

    /// Another name of a backing file, in the header of an image.
    pub struct NameBacking { device: String, image_node_name: String, backing_file: String }
}

choice! {
    /// Whether the file is there already.
    pub enum Mode { Existing, AbsolutePaths }
}

/// A disk and the overlay that a snapshot puts over it.
pub struct Over<'a> {
    inventory: &'a Inventory,
    change: &'a Change<'a>,
    disk: Arc<DiskNode>,
    overlay: Source,
    made: RefCell<Option<MadeFile>>,
}

/// Where an overlay comes from.
enum Source {
    /// What the disk of this node is backed by.
    Node(Arc<Node>),
    /// The image of this node, to which a job copies another disk: it is put over the disk for when that one switches to it.
    Copy(Arc<Node>),
    /// A file that is opened for it.
    File {
        /// Its path.
        file: String,
        /// The node name of the overlay.
        own: Option<String>,
        /// It is made first.
        is_made: bool,
    },
}

/// Puts a node over another one.
pub async fn snapshot<'a>(
    inventory: &'a Inventory,
    change: &'a Change<'a>,
    Put { node, overlay }: &Put,
) -> Result<Snapshot<Over<'a>>, QmpError> {
    let disk = writable_disk(inventory, node)?;
    let over = inventory.graph.node(overlay).map_err(|error| inventory.refused(&error))?;
    let overlay = match inventory.graph.is_copied_to(overlay) {
        true => Source::Copy(over),
        false => {
            free_of_jobs(inventory, &*inventory.disk(overlay)?)?;
            Source::Node(over)
        }
    };
    Snapshot::take(Over { inventory, change, disk, overlay, made: RefCell::default() }).await
}

/// Makes an image over a disk.
pub async fn snapshot_sync<'a>(
    inventory: &'a Inventory,
    change: &'a Change<'a>,
    given: &Make,
) -> Result<Snapshot<Over<'a>>, QmpError> {
    let name = match (&given.node_name, &given.device) {
        (Some(name), None) | (None, Some(name)) => name,
        _ => return Err(QmpError::generic("give one of the arguments 'node-name' and 'device'")),
    };
    let disk = writable_disk(inventory, name)?;
    let file = given.snapshot_file.clone();
    if let Some(format) = given.format.as_ref().filter(|format| *format != "qcow2") {
        return Err(QmpError::generic(format!("argument 'format' is {format:?}; overlays are qcow2 images")));
    }
    let own = given.snapshot_node_name.clone();
    if let Some(own) = &own {
        inventory.graph.check_new_name(own).map_err(|error| inventory.refused(&error))?;
    }
    let is_made = given.mode != Some(Mode::Existing);
    let overlay = Source::File { file, own, is_made };
    Snapshot::take(Over { inventory, change, disk, overlay, made: RefCell::default() }).await
}

impl SnapshotHost for Over<'_> {
    type Overlay = Overlay;
    type Error = QmpError;

    async fn make(&self) -> Result<(), QmpError> {
        let Source::File { file, is_made: true, .. } = &self.overlay else { return Ok(()) };
        let below = self.disk.disk.top_image();
        let backing = Some((file_name(&*below), below.driver().to_owned()));
        let image = (Format::Qcow2, self.disk.disk.size());
        let made = make_image(file, image, backing, self.inventory.as_qemu).await?;
        self.made.replace(Some(made));
        Ok(())
    }

    async fn open(&self) -> Result<Overlay, QmpError> {
        let (file, own) = match &self.overlay {
            Source::Node(node) | Source::Copy(node) => return Ok(Overlay::Node(node.name())),
            Source::File { file, own, .. } => (file, own),
        };
        let cache = self.disk.options().map(|options| options.layer.cache()).unwrap_or_default();
        let options = json!({
            "driver": "qcow2",
            "file": { "driver": "file", "filename": file },
            "backing": null,
            "cache": { "direct": cache.direct, "no-flush": cache.no_flush },
        });
        let Value::Object(options) = options else {
            return Err(QmpError::generic("options are an object"));
        };
        let opened = self.inventory.graph.open_layers(self.change, &options).await;
        let opened = opened.map_err(|error| self.inventory.refused(&error))?;
        Ok(Overlay::Opened(opened, own.clone()))
    }

    /// Layers below an overlay stay in use: nothing is taken out.
    async fn put_over(&self, overlay: Overlay) -> Result<(), QmpError> {
        if let Source::Copy(copy) = &self.overlay {
            let put = self.inventory.graph.put_under_copy(self.change, &copy.name(), &self.disk.name()).await;
            return put.map_err(|error| self.inventory.refused(&error));
        }
        let put = self.inventory.graph.put_over(self.change, &self.disk.name(), overlay).await;
        let put = put.map_err(|error| QmpError::because("no snapshot is taken", &error))?;
        tracing::info!(node = self.disk.name(), pause = ?put.pause, "a snapshot is taken");
        Ok(())
    }

    async fn flush_below(&self) {
        // Nothing was written to it here.
        if matches!(self.overlay, Source::Copy(_)) {
            return;
        }
        if let Err(error) = self.disk.disk.flush_below().await {
            tracing::error!(%error, "what is below a snapshot is not durable; flushes of the disk try it again");
        }
    }

    /// With a bitmap that lies in memory alone it stays open for writing, because that would be lost; the other bitmaps are stored.
    async fn make_below_readable(&self) {
        if let Source::Copy(copy) = &self.overlay {
            // The disk that is copied switches to all of it.
            if let Err(error) = self.inventory.graph.absorb_backing(self.change, &copy.name()).await {
                tracing::error!(%error, "what is below a copy stays a node by itself");
            }
            return;
        }
        let Ok(chain) = Chain::of(self.inventory, &self.disk.name()) else { return };
        let Some(below) = chain.layers.get(1) else { return };
        if bitmaps_of(&*below.block)
            .is_none_or(|image| image.bitmaps().iter().all(|bitmap| bitmap.is_persistent()))
        {
            chain.give_back(self.inventory, self.change, &[1]).await;
        } else if let Some(image) = below.block.downcast_ref::<Qcow2>()
            && let Err(error) = image.store_bitmaps().await
        {
            tracing::error!(%error, "bitmaps below a snapshot are not stored, and stay in use");
        }
    }

    async fn take_off(&self) -> Result<(), QmpError> {
        let node = match &self.overlay {
            Source::Copy(copy) => {
                let taken = self.inventory.graph.take_from_under_copy(self.change, &copy.name()).await;
                return taken.map_err(|error| self.inventory.refused(&error));
            }
            Source::Node(node) => Some(Arc::clone(node)),
            Source::File { .. } => None,
        };
        let is_own = node.is_none();
        match self.inventory.graph.take_off(self.change, &self.disk, node).await {
            Ok(replaced) => {
                // An overlay that is a node by itself stays open.
                if is_own && let Err(error) = replaced.removed.close().await {
                    tracing::warn!(%error, "an overlay could not be closed in order");
                }
                Ok(())
            }
            Err(error) => {
                let stays = format!("the overlay of {:?} stays ({error})", self.disk.name());
                Err(QmpError::generic(stays))
            }
        }
    }

    fn remove(&self) {
        self.made.take().iter().for_each(MadeFile::remove);
    }
}

/// Makes an image of `size` bytes over `backing`, durable with its name.
///
/// # Errors
/// When something is there already (`as_qemu` writes over it), or it cannot be made.
pub async fn make_image(
    file: &str,
    (format, size): (Format, u64),
    backing: Option<(String, String)>,
    as_qemu: bool,
) -> Result<MadeFile, QmpError> {
    let failed =
        |error: &(dyn std::error::Error + 'static)| QmpError::because(format!("cannot create {file}"), error);
    let is_there = |name: &str| name.starts_with("json:") || Path::new(name).exists();
    if backing.as_ref().is_some_and(|(name, _)| !is_there(name)) {
        return Err(QmpError::generic(
            "the disk has no path that the new image could name as its backing file; make the image yourself, and give mode existing",
        ));
    }
    if let Some((_, format)) = backing.as_ref().filter(|(_, format)| format_called(format).is_none()) {
        return Err(QmpError::generic(format!(
            "the disk is backed by a filter of driver {format}, which no image names as its backing file: name the disk below the filter, or make the image yourself, and give mode existing",
        )));
    }
    let (backing_file, backing_format) = backing.unzip();
    let options = qcow2::CreateOptions { size, backing_file, backing_format, ..Default::default() };
    let existing = if as_qemu { Existing::Replace } else { Existing::Refuse };
    let new = NewImage { format, options, existing, encryption: None };
    MadeFile::make(file, new).await.map_err(|error| failed(&error))
}

fn writable_disk(inventory: &Inventory, name: &str) -> Result<Arc<DiskNode>, QmpError> {
    let disk = inventory.disk(name)?;
    free_of_jobs(inventory, &disk)?;
    active::check(&disk)?;
    Ok(disk)
}

/// Changes the backing file's name in the header of an image. Open files stay as they are.
pub async fn change_backing_file(
    inventory: &Rc<Inventory>,
    change: &Change<'_>,
    NameBacking { device, image_node_name: name, backing_file }: &NameBacking,
) -> Result<(), QmpError> {
    let chain = Chain::of(inventory, device)?;
    free_of_jobs(inventory, &chain.disk)?;
    let at = chain.find(("image-node-name", Some(name)), ("", None))?;
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
    let named = image.set_backing_name(Some(backing_file.clone()), Some(below.driver().to_owned())).await;
    chain.give_back(inventory, change, &[place]).await;
    named.map_err(|error| QmpError::because("cannot name the backing file", &error))
}
