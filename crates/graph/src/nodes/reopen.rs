//! Options that change while a disk is open, and those that cannot.

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use block::Block;
use serde_json::{Map, Value};

use super::access::LayerAccess;
use super::active::{ACTIVE, without_active};
use super::below::FILES;
use super::disk_node::{DiskNode, RootOptions};
use super::error::NodeError;
use super::filter::text;
use super::live::place;
use super::move_files::FileMove;
use super::node::{Node, NodeKind};
use super::reopen_backing::NewBacking;
use super::{Change, Graph};
use crate::drive::OptionTree;
use crate::drivers::{format_called, of_file};
use crate::layers::LayerFiles;
use crate::options::{
    DiskOptions, FileOptions, Opened, RawOptions, first_fixed, is_other_part, is_same_file, moves,
};
use crate::probe::Format;
use crate::runtime::RuntimeOptions;

impl Graph {
    /// Applies all options of `blockdev-reopen`; an option that is not given gets its default. A disk whose
    /// `file` is another one switches to that ([`Graph::replace_file`]).
    ///
    /// # Errors
    /// Names the first option that cannot change while the node is open; then nothing has changed.
    pub async fn reopen(&self, change: &Change<'_>, options: &Map<String, Value>) -> Result<(), NodeError> {
        let name = text(options, "node-name")?;
        let (rest, is_active) = without_active(options);
        let differs = |disk: Arc<DiskNode>| disk.disk.is_active() != is_active;
        if options.contains_key(ACTIVE) && self.disk(name).is_ok_and(differs) {
            return Err(NodeError::Fixed { name: name.to_owned(), option: ACTIVE.to_owned() });
        }
        let options = &rest;
        let node = match self.node(name) {
            Ok(node) => node,
            Err(unknown) => return self.reopen_part(change, name, options).await.unwrap_or(Err(unknown)),
        };
        if let Some(filter) = node.filter.as_ref().filter(|filter| !filter.driver.reopens()) {
            return Err(NodeError::NeverReopened { name: name.to_owned(), driver: filter.driver.name });
        }
        let options = &self.reopen_described(change, &node, options).await?;
        if let Some(filter) = &node.filter {
            return self.reopen_filter_node(&node, filter, options).await;
        }
        match &node.kind {
            NodeKind::Disk(disk) => {
                let backing = self.backing_to_come(&node, disk, options)?;
                let mut options = options.clone();
                if backing.is_some() {
                    options.remove("backing");
                }
                let kept = own_files(disk, &options);
                kept.iter().for_each(|member| drop(options.remove(*member)));
                let mut tree = self.describe(&options)?.tree;
                let asked = disk.asked.lock().tree.clone();
                tree.fill_for_reopen(&asked);
                kept.iter().for_each(|member| tree.keep(member, &asked));
                self.reopen_disk(change, &node, disk, (tree, &options)).await?;
                self.put_backing(change, &node, disk, backing.unwrap_or(NewBacking::Same)).await?;
                if self.is_copied_to(&node.name()) {
                    // The disk that is copied switches to all of it.
                    let absorbed = self.absorb_backing(change, &node.name()).await;
                    absorbed.map_err(|source| NodeError::NewBacking {
                        name: node.name(),
                        source: Box::new(source),
                    })?;
                }
                Ok(())
            }
            NodeKind::Throttle { group, child } => {
                self.reopen_filter(&node.name(), (group, &child.get()), options)
            }
            NodeKind::File(old) => self.check_bare_stays(&node.name(), old, options),
            NodeKind::JobFilter { .. } => Err(NodeError::Filter { name: node.name() }),
            NodeKind::TakenOut => Err(NodeError::TakenOut { name: node.name() }),
        }
    }
}

impl Graph {
    /// Puts the options of `tree`, which `given` says, in force for the disk of `node`.
    async fn reopen_disk(
        &self,
        change: &Change<'_>,
        node: &Arc<Node>,
        disk: &DiskNode,
        (tree, given): (OptionTree, &Map<String, Value>),
    ) -> Result<(), NodeError> {
        let name = node.name();
        let new = DiskOptions::of_tree(tree.clone())?;
        let old = disk.options().ok_or_else(|| NodeError::Unknown { name: name.clone() })?;
        check_file_name(&name, &old.layer.file, &new.layer.file, given)?;
        let is_other_part = is_other_part(&old, &new, &disk.opened(&name));
        if !is_other_part && !moves(&old, &new, &disk.opened(&name)) {
            return self.reopen_in_place(change, disk, (&old, &new), tree).await;
        }
        let mut moved = old.clone();
        moved.filename.clone_from(&new.filename);
        moved.layer.file.clone_from(&new.layer.file);
        let part = is_other_part
            .then_some(RawOptions { protect_start: old.layer.raw.protect_start, ..new.layer.raw });
        moved.layer.raw = part.unwrap_or(moved.layer.raw);
        let come = self.file_to_come(&old.layer.file, given)?;
        self.check_files_come(node, &come)?;
        disk.check_reopened(&moved, &new)?;
        let (was_below, gone) = (disk.file_child(), come.gone());
        self.find_file(&new.layer.file)?;
        let at = place(&disk.disk.layers(), &disk.disk.top_image())?;
        // The same image may be open once more, as a layer of other disks.
        let mut moves = self.moves_below(&name, &tree)?;
        let (was, is) = (old.layer.file.clone(), new.layer.file.clone());
        moves.push(FileMove { node: name.clone(), at, old: was, new: is, part });
        disk.set_runtime(&new).await?;
        if let Err(source) = self.move_files(change, &moves).await {
            // The old options were valid a moment ago, so this should not fail.
            if let Err(error) = disk.set_runtime(&old).await {
                tracing::warn!("node {name:?}: {error}");
            }
            return Err(NodeError::NotMoved { name, source: Box::new(source) });
        }
        self.note_moved(&name, &tree, &moves, come);
        disk.note_file(was_below);
        *disk.asked.lock() = RootOptions { path: new.filename, tree };
        self.close_made(gone.into_iter()).await
    }
}

impl Graph {
    /// Applies options that leave the disk on its file. If they say so, a disk that is open for reading is
    /// first opened for writing, or the other way round.
    async fn reopen_in_place(
        &self,
        change: &Change<'_>,
        disk: &DiskNode,
        (old, new): (&DiskOptions, &DiskOptions),
        tree: OptionTree,
    ) -> Result<(), NodeError> {
        disk.check_reopened(old, new)?;
        let name = disk.name();
        let at = place(&disk.disk.layers(), &disk.disk.top_image())?;
        let is_open_for_reading = disk.disk.top_image().capabilities().read_only;
        let becomes_writable = old.layer.read_only && !new.layer.read_only && is_open_for_reading;
        if becomes_writable {
            let opened = self.set_layer_access(change, &name, at, LayerAccess::Write).await;
            opened.map_err(|source| NodeError::Access { name: name.clone(), source: Box::new(source) })?;
        }
        let reopened = disk.reopen(tree).await;
        let is_for_reading = match &reopened {
            Ok(()) => new.layer.read_only && !old.layer.read_only,
            Err(_) => becomes_writable,
        };
        if is_for_reading
            && let Err(error) = self.set_layer_access(change, &name, at, LayerAccess::Read).await
        {
            tracing::warn!("node {name:?} stays open for writing: {error}");
        }
        reopened
    }
}

impl DiskNode {
    /// Puts single options in force, as they are written on a drive line; what is not named stays.
    ///
    /// # Errors
    /// As [`Graph::reopen`].
    pub async fn change_options(&self, _change: &Change<'_>, text: &str) -> Result<(), NodeError> {
        let mut tree = self.asked.lock().tree.clone();
        tree.replace_all(OsStr::new(text))?;
        self.reopen(tree).await
    }

    async fn reopen(&self, tree: OptionTree) -> Result<(), NodeError> {
        let new = DiskOptions::of_tree(tree.clone())?;
        let old = self.options().ok_or_else(|| NodeError::Unknown { name: self.name() })?;
        self.check_reopened(&old, &new)?;
        self.set_runtime(&new).await?;
        self.asked.lock().tree = tree;
        Ok(())
    }

    /// Refuses options that cannot change while the disk is open.
    fn check_reopened(&self, old: &DiskOptions, new: &DiskOptions) -> Result<(), NodeError> {
        let name = self.name();
        if !new.filters.is_empty() {
            return Err(NodeError::FilterReopened { name });
        }
        match first_fixed(old, new, &self.opened(&name))? {
            Some(option) => Err(NodeError::Fixed { name, option }),
            None => Ok(()),
        }
    }

    /// Puts those of `options` in force that can change while the disk is open.
    async fn set_runtime(&self, options: &DiskOptions) -> Result<(), NodeError> {
        let set = self.disk.set_runtime_options(RuntimeOptions::of(&options.layer)).await;
        set.map_err(|source| NodeError::Reopen { name: self.name(), source })
    }

    /// What is so of the open disk.
    fn opened<'a>(&self, node_name: &'a str) -> Opened<'a> {
        opened(node_name, (&*self.disk.top_image(), self.disk.layers().files()), &self.path())
    }
}

/// Refuses another node name for the file that is there, described again.
fn check_file_name(
    name: &str,
    old: &FileOptions,
    new: &FileOptions,
    given: &Map<String, Value>,
) -> Result<(), NodeError> {
    let is_described = given.get("file").is_some_and(Value::is_object);
    let (Some(was), Some(is)) = (&old.filename, &new.filename) else { return Ok(()) };
    let differs = old.node_name.is_some() && new.node_name.is_some() && old.node_name != new.node_name;
    match is_described && differs && is_same_file(was, is) {
        true => Err(NodeError::Fixed { name: name.to_owned(), option: "file.node-name".to_owned() }),
        false => Ok(()),
    }
}

/// The members of `options` that name a file of the disk's own image, described with it: that stays.
fn own_files(disk: &DiskNode, options: &Map<String, Value>) -> Vec<&'static str> {
    let layers = disk.disk.layers();
    let files = layers.first().and_then(|layer| layer.files.as_ref());
    let is_own = |member: &&str| {
        let named = options.get(*member).and_then(Value::as_str);
        let own = files.and_then(|files| match *member {
            "file" => files.options.file.node_name.as_deref(),
            "data-file" => files.options.data_file.node_name.as_deref(),
            _ => files.options.luks_header.node_name.as_deref(),
        });
        named.is_some() && named == own
    };
    FILES.into_iter().filter(is_own).collect()
}

/// Facts of an open image whose file was named `path`.
pub(super) fn opened<'a>(
    node_name: &'a str,
    (image, files): (&dyn Block, Option<&LayerFiles>),
    path: &Path,
) -> Opened<'a> {
    let is_device = path.metadata().is_ok_and(|found| found.file_type().is_block_device());
    Opened {
        node_name,
        format: format_called(image.driver()).unwrap_or(Format::Raw),
        file_driver: of_file(is_device),
        has_backing: image.below().is_some(),
        has_data_file: files.is_some_and(|files| files.data.is_some()),
    }
}
