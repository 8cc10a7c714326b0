//! Options that change while a disk is open, and those that cannot.

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;

use serde_json::{Map, Value};

use super::disk_node::{Asked, DiskNode};
use super::error::NodeError;
use super::filter::text;
use super::live::place;
use super::name::check_node_name;
use super::node::{Links, Node, NodeKind};
use super::{Change, Graph};
use crate::drive::OptionTree;
use crate::drivers::of_file;
use crate::options::{DiskOptions, FileOptions, Opened, first_fixed, moves};
use crate::probe::Format;
use crate::runtime::RuntimeOptions;

impl Graph {
    /// Puts the options of blockdev-reopen in force: all of them, what is not given has its default. A disk whose `file` is another
    /// one goes on with that ([`Graph::replace_file`]).
    ///
    /// # Errors
    /// Names the first option that cannot change while the node is open; then nothing has changed.
    pub async fn reopen(&self, change: &Change<'_>, options: &Map<String, Value>) -> Result<(), NodeError> {
        let name = text(options, "node-name")?;
        let node = self.node(name).map_err(|unknown| match self.owner(name) {
            Some(owner) => NodeError::PartReopened { name: name.to_owned(), of: owner.name() },
            None => unknown,
        })?;
        if let Some(filter) = &node.filter {
            return self.reopen_filter_node(&node, filter, options).await;
        }
        match &node.kind {
            NodeKind::Disk(disk) => {
                let mut tree = self.describe(options)?.tree;
                tree.fill_for_reopen(&disk.asked.lock().tree);
                self.reopen_disk(change, &node, disk, (tree, options)).await
            }
            NodeKind::Throttle { group, child } => {
                self.reopen_filter(&node.name(), (group, &child.get()), options)
            }
            NodeKind::File(_) => Err(NodeError::FileReopened { name: node.name() }),
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
        node: &Node,
        disk: &DiskNode,
        (tree, given): (OptionTree, &Map<String, Value>),
    ) -> Result<(), NodeError> {
        let name = node.name();
        let new = DiskOptions::of_tree(tree.clone())?;
        let old = disk.options().ok_or_else(|| NodeError::Unknown { name: name.clone() })?;
        if !moves(&old, &new, &disk.opened(&name)) {
            return disk.reopen(tree).await;
        }
        let mut moved = old.clone();
        moved.filename.clone_from(&new.filename);
        moved.layer.file.clone_from(&new.layer.file);
        let (mut gone, mut come) = (Vec::new(), Links::default());
        names_of(&old.layer.file, &mut gone);
        if let Some(file) = given.get("file") {
            self.resolve_file("file", file, &mut come.parts, &mut come.uses)?;
        }
        for part in come.parts.iter().filter(|part| !gone.contains(part)) {
            check_node_name(part)?;
            self.check_free(part)?;
        }
        disk.check_reopened(&moved, &new)?;
        let at = place(&disk.disk.layers(), &disk.disk.top_image())?;
        disk.set_runtime(&new).await?;
        if let Err(error) = Box::pin(self.replace_file(change, &name, at, &moved.layer.file)).await {
            // They were in force a moment ago.
            if let Err(error) = disk.set_runtime(&old).await {
                tracing::warn!("node {name:?}: {error}");
            }
            return Err(NodeError::NotMoved { name, source: Box::new(error) });
        }
        *disk.asked.lock() = Asked { path: new.filename, tree };
        let mut links = node.links.lock();
        links.remove(&Links { parts: gone.clone(), uses: gone });
        links.add(come);
        Ok(())
    }
}

/// The names of a file and of those below it.
fn names_of(file: &FileOptions, names: &mut Vec<String>) {
    names.extend(file.node_name.clone());
    if let Some(over) = &file.over {
        names_of(&over.below, names);
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
        let is_device = self.path().metadata().is_ok_and(|found| found.file_type().is_block_device());
        let (format, has_data_file) = match self.disk.image() {
            Some(image) => (Format::Qcow2, image.geometry().external_data),
            None => (Format::of_name(self.disk.top_image().driver()).unwrap_or(Format::Raw), false),
        };
        Opened {
            node_name,
            format,
            file_driver: of_file(is_device),
            has_backing: self.disk.top_image().below().is_some(),
            has_data_file,
        }
    }
}
