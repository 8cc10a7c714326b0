//! Layers below disks switch to another file, by their own names.
//!
//! An image below a disk has a name if the disk's options describe it, or if it was a node when the disk was
//! put over it. In the second case the disk has opened it once more. Every open copy of the image switches to
//! the other file.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::description_error::DescriptionError;
use super::error::NodeError;
use super::name::check_node_name;
use super::node::Node;
use super::reopen::opened;
use super::replace::ReplaceError;
use super::{Change, Graph};
use crate::drive::OptionTree;
use crate::layers::{Layer, LayerFiles};
use crate::links::Links;
use crate::options::{DiskOptions, FileOptions, LayerOptions, RawOptions, first_fixed};
use crate::runtime::RuntimeOptions;

/// Another file for a layer of a disk.
pub(super) struct FileMove {
    /// The disk's node.
    pub(super) node: String,
    /// The layer, counted from the uppermost one, which is 0.
    pub(super) at: usize,
    /// What it is made of.
    pub(super) old: FileOptions,
    /// The file that it switches to.
    pub(super) new: FileOptions,
    /// Of a raw disk that becomes another part of its file: which.
    pub(super) part: Option<RawOptions>,
}

/// An image below a disk.
struct Below {
    node: Arc<Node>,
    at: usize,
    layer: Arc<Layer>,
}

/// A new file's names, and those of the old file.
pub(super) struct Come {
    gone: Vec<String>,
    links: Links,
}

impl Graph {
    /// Applies `blockdev-reopen` to `name` when it is no node by itself: an image below a disk may switch to
    /// another file. `None` if there is nothing of that name.
    pub(super) async fn reopen_part(
        &self,
        change: &Change<'_>,
        name: &str,
        options: &Map<String, Value>,
    ) -> Option<Result<(), NodeError>> {
        let owner = self.owner(name).ok()?;
        let places = self.below_disks(name);
        Some(match places.first() {
            Some(place) => self.reopen_below(change, name, place, options).await,
            None => self.check_part_stays(name, &owner, options),
        })
    }

    async fn reopen_below(
        &self,
        change: &Change<'_>,
        name: &str,
        place: &Below,
        given: &Map<String, Value>,
    ) -> Result<(), NodeError> {
        let read_only = given.get("read-only").and_then(Value::as_bool);
        let mut given = given.clone();
        given.remove("read-only");
        let given = &given;
        let tree = self.describe(given)?.tree;
        let old = &place.files()?.options;
        let new = old.reopened_below(tree.clone())?;
        let whole = |layer: &LayerOptions| {
            let path = layer.file.shown().unwrap_or_default();
            DiskOptions { layer: layer.clone(), ..DiskOptions::of_path(path) }
        };
        let path = old.file.shown().unwrap_or_default();
        let opened = opened(name, (&*place.layer.block, Some(place.files()?)), &path);
        let mut moved = whole(old);
        moved.filename = new.file.shown().unwrap_or_default();
        moved.layer.file.clone_from(&new.file);
        if let Some(option) = first_fixed(&moved, &whole(&new), &opened)? {
            return Err(NodeError::Fixed { name: name.to_owned(), option });
        }
        if RuntimeOptions::of(old) != RuntimeOptions::of(&new) {
            return Err(NodeError::FixedBelow { name: name.to_owned(), of: place.node.name() });
        }
        let come = self.file_to_come(&old.file, given)?;
        if come.nodes().next().is_some() {
            // What takes the place of a file below a disk is a copy of it: a file.
            return Err(DescriptionError::NotAFile { member: "file".to_owned() }.into());
        }
        let moves = self.moves_below(name, &tree)?;
        let moved = self.move_files(change, &moves).await;
        moved.map_err(|source| NodeError::NotMoved { name: name.to_owned(), source: Box::new(source) })?;
        self.note_moved(name, &tree, &moves, come);
        match read_only {
            Some(read_only) => self.set_access_below(change, name, place, read_only).await,
            None => Ok(()),
        }
    }

    /// Opens the image called `name` below a disk for reading or for writing: commands change its bitmaps then, and nothing else.
    async fn set_access_below(
        &self,
        change: &Change<'_>,
        name: &str,
        place: &Below,
        read_only: bool,
    ) -> Result<(), NodeError> {
        let disk = place.node.disk()?;
        // It may have moved.
        let at = self.below_disks(name).into_iter().next().map_or(place.at, |place| place.at);
        let Some(block) = block::layers(disk.disk.root()).nth(at) else { return Ok(()) };
        if block.capabilities().read_only == read_only {
            return Ok(());
        }
        if let Some(by) = self.job_on(&place.node.name())? {
            return Err(NodeError::InUse { name: name.to_owned(), by });
        }
        let set = match read_only {
            true => self.make_readable(change, disk, &block).await,
            false => self.make_writable(change, disk, &block).await.map(drop),
        };
        set.map_err(|source| NodeError::Access { name: name.to_owned(), source: Box::new(source) })
    }

    /// The files to exchange in images called `name` below disks, to apply the options in `tree`.
    pub(super) fn moves_below(&self, name: &str, tree: &OptionTree) -> Result<Vec<FileMove>, NodeError> {
        let mut tree = tree.clone();
        tree.keep_image();
        let moves = self.below_disks(name).into_iter().map(|place| {
            // It may write there, or put other layers over it.
            if let Some(by) = self.job_on(&place.node.name())? {
                return Err(NodeError::InUse { name: name.to_owned(), by });
            }
            let old = &place.files()?.options;
            let new = old.reopened_below(tree.clone())?;
            Ok(FileMove {
                node: place.node.name(),
                at: place.at,
                old: old.file.clone(),
                new: new.file,
                part: None,
            })
        });
        moves.filter(|moved| !moved.as_ref().is_ok_and(|moved| moved.old == moved.new)).collect()
    }

    /// The places of images called `name` below disks.
    fn below_disks(&self, name: &str) -> Vec<Below> {
        let mut found = Vec::new();
        for node in self.nodes() {
            let Ok(disk) = node.disk() else { continue };
            let layers = disk.disk.layers();
            for (at, block) in block::layers(Arc::clone(&layers.top)).enumerate() {
                // The uppermost image has the disk's name.
                let layer = layers.of(&block).filter(|layer| Some(*layer) != layers.first());
                if let Some(layer) = layer.filter(|layer| layer.own_name().as_deref() == Some(name)) {
                    found.push(Below { node: Arc::clone(&node), at, layer: Arc::clone(layer) });
                }
            }
        }
        found
    }

    /// The names of the file that `given` describes, which comes for `old`.
    pub(super) fn file_to_come(
        &self,
        old: &FileOptions,
        given: &Map<String, Value>,
    ) -> Result<Come, NodeError> {
        let mut come = Come { gone: Vec::new(), links: Links::default() };
        names_of(old, &mut come.gone);
        if let Some(file) = given.get("file") {
            self.resolve_file("file", file, &mut come.links)?;
        }
        for part in come.links.parts.iter().filter(|part| !come.gone.contains(part)) {
            check_node_name(part)?;
            self.check_free(part)?;
        }
        Ok(come)
    }

    /// Exchanges all the files. After an error the disks are on their old ones.
    pub(super) async fn move_files(
        &self,
        change: &Change<'_>,
        moves: &[FileMove],
    ) -> Result<(), ReplaceError> {
        for (done, next) in moves.iter().enumerate() {
            let moved = Box::pin(self.move_file(next)).await;
            let Err(error) = moved else { continue };
            for back in moves.iter().take(done).rev() {
                let undone = Box::pin(self.replace_file(change, &back.node, back.at, &back.old)).await;
                if let Err(error) = undone {
                    tracing::warn!("node {:?} stays on its other file: {error}", back.node);
                }
            }
            return Err(error);
        }
        Ok(())
    }

    /// The image called `name` is made of what `tree` says now, where `moves` say: disks over it were asked for with that, and have its names.
    pub(super) fn note_moved(&self, name: &str, tree: &OptionTree, moves: &[FileMove], come: Come) {
        let Come { gone, links: come } = come;
        for node in
            self.nodes().into_iter().filter(|node| moves.iter().any(|moved| node.name.is(&moved.node)))
        {
            if let Ok(disk) = node.disk() {
                disk.asked.lock().tree.move_below(name, tree);
            }
            let is_owner = node.is_called(name);
            let mut links = node.links.lock();
            links.remove(&Links { parts: gone.clone(), uses: gone.clone(), files: gone.clone() });
            links.add(match is_owner {
                true => come.clone(),
                // They are another node's, which stays as long as this one does.
                false => Links { uses: [&*come.parts, &*come.uses].concat(), ..Links::default() },
            });
        }
    }
}

impl Come {
    /// The nodes that are files of the image then, and not only now.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &String> {
        self.links.files.iter().filter(|name| !self.gone.contains(name))
    }

    /// The nodes that are not below the image any more.
    pub(super) fn gone(&self) -> Vec<String> {
        self.gone.iter().filter(|name| !self.links.uses.contains(name)).cloned().collect()
    }
}

impl Below {
    fn files(&self) -> Result<&LayerFiles, NodeError> {
        let unknown = || NodeError::Unknown { name: self.node.name() };
        self.layer.files.as_ref().ok_or_else(unknown)
    }
}

/// The names of a file and of those below it.
pub(super) fn names_of(file: &FileOptions, names: &mut Vec<String>) {
    names.extend(file.node_name.clone());
    names.extend(file.node().map(str::to_owned));
    if let Some(over) = &file.over {
        names_of(&over.below, names);
    }
}
