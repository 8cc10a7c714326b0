//! Disks at work, switched to new images at their paths, and back.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::Block;
use control::QmpError;
use graph::{BeforeExchange, Change, DiskNode, OpenedLayers, RemovedLayers};
use lineage::{Error, Host, NewOverlay, Step, Switched};
use serde_json::{Map, Value, json};

use crate::lineages::overlay;
use crate::serve::inventory::Inventory;

/// A command that is refused.
pub(super) struct Refusal(pub(super) QmpError);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(QmpError::because(error.to_string(), &error))
    }
}

/// How a disk comes to use the image that its path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Put over what it has: requests in flight finish below it.
    Over,
    /// In place of what it has.
    Instead,
}

/// A disk whose active layer is sealed.
pub(super) struct SealedDisk {
    disk: Arc<DiskNode>,
    path: PathBuf,
    way: Way,
    state: RefCell<State>,
}

/// How far its switch is.
enum State {
    /// Its new image is not open.
    Waiting,
    Opened(OpenedLayers),
    Switched {
        before: BeforeExchange,
        /// What was uppermost.
        active: Arc<dyn Block>,
        removed: RemovedLayers,
    },
}

/// Disks at work, while nothing else changes their layers.
pub(super) struct Served<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) change: &'a Change<'a>,
    pub(super) disks: Vec<SealedDisk>,
}

impl SealedDisk {
    pub(super) fn new(disk: Arc<DiskNode>, path: PathBuf, way: Way) -> Self {
        Self { disk, path, way, state: RefCell::new(State::Waiting) }
    }
}

impl Host for Served<'_> {
    type Error = Refusal;

    async fn make_overlay(&self, at: &Path, new: &NewOverlay) -> Result<(), Refusal> {
        let made = overlay::make(at, new).await;
        made.map_err(|failure| Refusal(self.refused(failure.to_string(), failure.is_forbidden())))
    }

    async fn switch(&self, disks: &[Switched]) -> Result<(), Refusal> {
        for (at, switched) in disks.iter().enumerate() {
            let Some(disk) = self.find(switched) else { continue };
            if let Err(mut error) = self.put(disk).await {
                self.switch_back(&disks[..at], &mut error).await;
                return Err(Refusal(error));
            }
        }
        Ok(())
    }

    async fn close_sealed(&self, disks: &[Switched]) {
        for switched in disks {
            if let Some(disk) = self.find(switched) {
                self.close(disk, &switched.sealed).await;
            }
        }
    }

    /// On a thread that may wait: guests do not.
    async fn file_step(&self, step: &Step) -> Result<(), Error> {
        let step = step.clone();
        reactor::blocking(move || step.run()).await
    }
}

impl Served<'_> {
    fn find(&self, switched: &Switched) -> Option<&SealedDisk> {
        self.disks.iter().find(|disk| disk.path == switched.disk)
    }

    /// An error of the file system: the sandbox may be the reason.
    fn refused(&self, what: String, is_forbidden: bool) -> QmpError {
        match is_forbidden {
            true => {
                let cause = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
                self.inventory.cannot_open(what, &cause)
            }
            false => QmpError::generic(what),
        }
    }

    /// Opens the new images of all disks.
    pub(super) async fn open(&self) -> Result<(), QmpError> {
        for disk in &self.disks {
            let opened = self.open_image(disk).await?;
            disk.state.replace(State::Opened(opened));
        }
        Ok(())
    }

    /// Opens the image that the disk's path leads to: an overlay alone, or with the layers that its header names.
    async fn open_image(&self, disk: &SealedDisk) -> Result<OpenedLayers, QmpError> {
        let with_backing = disk.way == Way::Instead;
        let options = options_of(&disk.disk, &disk.path, with_backing);
        let opened = self.inventory.graph.open_layers(self.change, &options).await;
        opened.map_err(|error| self.inventory.refused(&error))
    }

    /// Switches one disk.
    async fn put(&self, sealed: &SealedDisk) -> Result<(), QmpError> {
        let State::Opened(opened) = sealed.state.replace(State::Waiting) else {
            return Err(QmpError::generic(format!("{} is not open", sealed.path.display())));
        };
        let (graph, change, disk) = (&self.inventory.graph, self.change, &sealed.disk);
        let before = graph.before(change, disk).map_err(|error| self.inventory.refused(&error))?;
        let active = disk.disk.top_image();
        let put = match sealed.way {
            Way::Over => graph.put_over_by_name(change, disk, opened).await,
            Way::Instead => graph.switch_by_name(change, disk, opened).await,
        };
        let put =
            put.map_err(|error| QmpError::because(format!("disk {:?} stays as it is", disk.name()), &error))?;
        tracing::info!(node = disk.name(), way = ?sealed.way, pause = ?put.pause, "the active layer of a disk is sealed");
        sealed.state.replace(State::Switched { before, active, removed: put.removed });
        Ok(())
    }

    /// Switches disks back to what they were, the last one first, while requests are kept out or a client has not heard of the switch. What stays is
    /// added to `error`.
    pub(super) async fn switch_back(&self, disks: &[Switched], error: &mut QmpError) {
        for sealed in disks.iter().rev().filter_map(|switched| self.find(switched)) {
            let State::Switched { before, removed, .. } = sealed.state.replace(State::Waiting) else {
                continue;
            };
            match self.inventory.graph.switch_back(self.change, &sealed.disk, before).await {
                Ok(back) => {
                    if let Err(error) = back.removed.close().await {
                        tracing::warn!(%error, "an overlay could not be closed in order");
                    }
                }
                Err(stays) => {
                    let stays = format!("; not undone: {} stays switched ({stays})", sealed.path.display());
                    tracing::error!("a checkpoint that failed is not undone{stays}");
                    error.desc.push_str(&stays);
                }
            }
            drop(removed);
        }
    }

    /// Closes what was the active layer of a disk. What was written to it is durable afterwards. The disk uses its new image: what fails undoes nothing.
    async fn close(&self, sealed: &SealedDisk, layer: &Path) {
        let State::Switched { before, active, removed } = sealed.state.replace(State::Waiting) else {
            return;
        };
        drop(before);
        match sealed.way {
            Way::Over => {
                if let Err(error) = sealed.disk.disk.flush_below().await {
                    tracing::error!(%error, "what is below a checkpoint is not durable; flushes of the disk try it again");
                }
                let graph = &self.inventory.graph;
                if let Err(error) = graph.seal_layer(self.change, &sealed.disk, &active, layer).await {
                    tracing::error!(%error, "a sealed layer stays open for writing");
                }
            }
            Way::Instead => {
                drop(active);
                if let Err(error) = removed.close().await {
                    tracing::error!(%error, "what a disk was before a rollback is as after a crash");
                }
            }
        }
    }
}

/// Opens a sealed layer and those below it for a disk that is to be backed by it.
///
/// # Errors
/// As blockdev-add.
pub async fn open_layer(
    inventory: &Inventory,
    change: &Change<'_>,
    disk: &DiskNode,
    path: &Path,
) -> Result<OpenedLayers, QmpError> {
    let mut options = options_of(disk, path, true);
    options.insert("read-only".to_owned(), json!(true));
    let opened = inventory.graph.open_layers(change, &options).await;
    opened.map_err(|error| inventory.refused(&error))
}

/// How an image is opened that a disk comes to use.
fn options_of(disk: &DiskNode, path: &Path, with_backing: bool) -> Map<String, Value> {
    let cache = disk.options().map(|options| options.layer.cache()).unwrap_or_default();
    let file = json!({ "driver": "file", "filename": path });
    let cache = json!({ "direct": cache.direct, "no-flush": cache.no_flush });
    let mut options = Map::from_iter(
        [("driver", json!("qcow2")), ("file", file), ("cache", cache)]
            .map(|(name, value)| (name.to_owned(), value)),
    );
    if !with_backing {
        options.insert("backing".to_owned(), Value::Null);
    }
    options
}
