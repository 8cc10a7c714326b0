//! Disks at work, switched to new images at their paths, and back.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Blame, Block};
use graph::{BeforeExchange, Change, DiskNode, Graph, LockAhead, OpenedLayers, RemovedLayers};
use lineage::{Action, Host, NewOverlay, Step, Switched};
use serde_json::{Map, Value, json};

use crate::batch::{LastLook, Request};
use crate::error::Error;
use crate::new_image;

/// How a disk comes to use the image that its path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Put over what it has: requests in flight finish below it.
    Over,
    /// In place of what it has.
    Instead,
}

/// A disk whose active layer is sealed.
pub(crate) struct SealedDisk<'a> {
    disk: Arc<DiskNode>,
    path: PathBuf,
    /// Its new image, before the path leads to that.
    new: PathBuf,
    way: Way,
    last_look: Option<LastLook<'a>>,
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
pub(crate) struct Live<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) change: &'a Change<'a>,
    pub(crate) disks: Vec<SealedDisk<'a>>,
    /// Keep other processes out of the new images, until what they are for has happened or is undone.
    locks: RefCell<Vec<LockAhead>>,
}

impl<'a> SealedDisk<'a> {
    /// The disk that `request` switches, if it switches one.
    pub(crate) fn of(request: Request<'a>) -> Option<Self> {
        let Request { disk, action, last_look } = request;
        let (way, new) = match &action {
            Action::Checkpoint { new, .. } => (Way::Over, new.id),
            Action::Rollback { new, .. } => (Way::Instead, new.id),
            Action::Fork { .. } => return None,
        };
        let (path, new) = (action.disk().path(), action.disk().place.new_overlay(new));
        Some(Self { disk, path, new, way, last_look, state: RefCell::new(State::Waiting) })
    }
}

impl Host for Live<'_> {
    type Error = Error;

    async fn make_overlay(&self, at: &Path, new: &NewOverlay) -> Result<(), Error> {
        new_image::make(at, new).await?;
        if self.disks.iter().any(|disk| disk.new == at) {
            self.locks.borrow_mut().push(self.graph.lock_ahead(at)?);
        }
        Ok(())
    }

    async fn switch(&self, disks: &[Switched]) -> Result<(), Error> {
        for (at, switched) in disks.iter().enumerate() {
            let Some(disk) = self.find(switched) else { continue };
            if let Err(error) = self.put(disk).await {
                return Err(self.switch_back(&disks[..at], error).await);
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
    async fn file_step(&self, step: &Step) -> Result<(), lineage::Error> {
        let step = step.clone();
        reactor::blocking(move || step.run()).await
    }
}

impl<'a> Live<'a> {
    pub(crate) fn of(graph: &'a Graph, change: &'a Change<'a>) -> Self {
        Self { graph, change, disks: Vec::new(), locks: RefCell::default() }
    }
}

impl Live<'_> {
    fn find(&self, switched: &Switched) -> Option<&SealedDisk<'_>> {
        self.disks.iter().find(|disk| disk.path == switched.disk)
    }

    /// Opens the new images of all disks.
    pub(crate) async fn open(&self) -> Result<(), Error> {
        for disk in &self.disks {
            let opened = self.open_image(disk).await?;
            disk.state.replace(State::Opened(opened));
        }
        Ok(())
    }

    /// Opens the image that the disk's path leads to: an overlay alone, or with the layers that its header names.
    async fn open_image(&self, disk: &SealedDisk<'_>) -> Result<OpenedLayers, Error> {
        let with_backing = disk.way == Way::Instead;
        let options = options_of(&disk.disk, &disk.path, with_backing);
        Ok(self.graph.open_layers(self.change, &options).await?)
    }

    /// Switches one disk.
    async fn put(&self, sealed: &SealedDisk<'_>) -> Result<(), Error> {
        let State::Opened(opened) = sealed.state.replace(State::Waiting) else {
            return Err(Error::Moved);
        };
        let (graph, change, disk) = (self.graph, self.change, &sealed.disk);
        let before = graph.before(change, disk)?;
        let active = disk.disk.top_image();
        let refused = Cell::new(None);
        let put = match sealed.way {
            Way::Over => graph.put_over_by_name(change, disk, opened).await,
            Way::Instead => {
                let look = async || match sealed.last_look.as_ref().map_or(Ok(()), |look| look()) {
                    Ok(()) => Ok(()),
                    Err(why) => {
                        refused.set(Some(why));
                        Err(Blame::new(&disk.name()).invalid("it is in use"))
                    }
                };
                graph.switch_by_name(change, disk, opened, look).await
            }
        };
        let put = put.map_err(|source| match refused.take() {
            Some(why) => Error::Refused { why },
            None => Error::Switch { disk: disk.name(), source },
        })?;
        tracing::info!(node = disk.name(), way = ?sealed.way, pause = ?put.pause, "the active layer of a disk is sealed");
        sealed.state.replace(State::Switched { before, active, removed: put.removed });
        Ok(())
    }

    /// Switches disks back to what they were, the last one first, while requests are kept out or a client has not heard of the switch. `error` is
    /// why; what stays is added to it.
    pub(crate) async fn switch_back(&self, disks: &[Switched], mut error: Error) -> Error {
        for sealed in disks.iter().rev().filter_map(|switched| self.find(switched)) {
            let State::Switched { before, removed, .. } = sealed.state.replace(State::Waiting) else {
                continue;
            };
            match self.graph.switch_back(self.change, &sealed.disk, before).await {
                Ok(back) => {
                    if let Err(error) = back.removed.close().await {
                        tracing::warn!(%error, "an overlay could not be closed in order");
                    }
                }
                Err(stays) => {
                    let stays = format!("{} stays switched ({stays})", sealed.path.display());
                    tracing::error!("a checkpoint that failed is not undone: {stays}");
                    error = Error::NotUndone { source: Box::new(error), stays };
                }
            }
            drop(removed);
        }
        error
    }

    /// Closes what was the active layer of a disk. What was written to it is durable afterwards. The disk uses its new image: what fails undoes nothing.
    async fn close(&self, sealed: &SealedDisk<'_>, layer: &Path) {
        let State::Switched { before, active, removed } = sealed.state.replace(State::Waiting) else {
            return;
        };
        drop(before);
        match sealed.way {
            Way::Over => {
                if let Err(error) = sealed.disk.disk.flush_below().await {
                    tracing::error!(%error, "what is below a checkpoint is not durable; flushes of the disk try it again");
                }
                if let Err(error) = self.graph.seal_layer(self.change, &sealed.disk, &active, layer).await {
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
pub(crate) async fn open_layer(
    graph: &Graph,
    change: &Change<'_>,
    disk: &DiskNode,
    path: &Path,
) -> Result<OpenedLayers, Error> {
    let mut options = options_of(disk, path, true);
    options.insert("read-only".to_owned(), json!(true));
    Ok(graph.open_layers(change, &options).await?)
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
