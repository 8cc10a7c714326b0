//! Options that change while a disk is open, and those that cannot.

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;

use serde_json::{Map, Value};

use super::disk_node::DiskNode;
use super::error::NodeError;
use super::filter::text;
use super::node::NodeKind;
use super::{Change, Graph};
use crate::drive::OptionTree;
use crate::drivers::of_file;
use crate::options::{DiskOptions, Opened, first_fixed};
use crate::probe::Format;
use crate::runtime::RuntimeOptions;

impl Graph {
    /// Puts the options of blockdev-reopen in force: all of them, what is not given has its default.
    ///
    /// # Errors
    /// Names the first option that cannot change while the node is open; then nothing has changed.
    pub async fn reopen(&self, _change: &Change<'_>, options: &Map<String, Value>) -> Result<(), NodeError> {
        let node = self.node(text(options, "node-name")?)?;
        if let Some(filter) = &node.filter {
            return self.reopen_filter_node(&node, filter, options).await;
        }
        match &node.kind {
            NodeKind::Disk(disk) => {
                let mut tree = self.describe(options)?.tree;
                tree.fill_for_reopen(&disk.asked.lock().tree);
                disk.reopen(tree).await
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
        let name = || self.name();
        if !new.filters.is_empty() {
            return Err(NodeError::FilterReopened { name: name() });
        }
        let old = self.options().ok_or_else(|| NodeError::Unknown { name: name() })?;
        let node_name = self.name();
        if let Some(option) = first_fixed(&old, &new, &self.opened(&node_name))? {
            return Err(NodeError::Fixed { name: name(), option });
        }
        let set = self.disk.set_runtime_options(RuntimeOptions::of(&new.layer)).await;
        set.map_err(|source| NodeError::Reopen { name: name(), source })?;
        self.asked.lock().tree = tree;
        Ok(())
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
