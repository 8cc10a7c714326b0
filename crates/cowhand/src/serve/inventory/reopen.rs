//! Options that change while a disk is served, and those that cannot.

use std::ffi::OsStr;
use std::path::Path;

use control::QmpError;
use image::RuntimeOptions;
use image::drive::OptionTree;
use image::options::{Backing, DiskOptions};
use image::probe::Format;
use serde_json::{Map, Value};

use super::Inventory;
use super::disk_node::DiskNode;
use super::nodes::{Node, NodeKind};

impl Inventory {
    /// Puts the options of blockdev-reopen in force: all of them, what is not given has its default.
    ///
    /// # Errors
    /// Names the first option that cannot change while the node is open; then nothing has changed.
    pub async fn reopen_node(&self, options: &Map<String, Value>) -> Result<(), QmpError> {
        let name = options.get("node-name").and_then(Value::as_str);
        let name = name.ok_or_else(|| QmpError::generic("argument 'node-name' is missing"))?;
        let node = self.node(name)?;
        match &node.kind {
            NodeKind::Disk(disk) => self.reopen_disk(&node.name, disk, self.tree_of(options)?).await,
            NodeKind::Throttle { .. } => self.reopen_filter(&node, options),
            NodeKind::File(_) => Err(QmpError::generic(format!(
                "node {name:?} is a bare file: its options are those of the node over it"
            ))),
        }
    }

    /// Puts single options in force, as they are written on a drive line.
    ///
    /// # Errors
    /// As [`Inventory::reopen_node`].
    pub async fn change_options(&self, name: &str, text: &str) -> Result<(), QmpError> {
        let node = self.disk_node(name)?;
        let disk = node.disk()?;
        let mut tree = disk.tree.borrow().clone();
        tree.replace_all(OsStr::new(text)).map_err(|error| QmpError::generic(error.to_string()))?;
        self.reopen_disk(&node.name, disk, tree).await
    }

    async fn reopen_disk(&self, name: &str, node: &DiskNode, tree: OptionTree) -> Result<(), QmpError> {
        let new = DiskOptions::of_tree(tree.clone()).map_err(|error| QmpError::generic(error.to_string()))?;
        let old = node.options().ok_or_else(|| QmpError::no_device(name))?;
        if let Some(option) = fixed(&old, &new, node) {
            return Err(QmpError::generic(format!(
                "option {option} of node {name:?} cannot change while the disk is open; remove the node and add it anew"
            )));
        }
        let set = node.disk.set_runtime_options(RuntimeOptions::of(&new.layer)).await;
        set.map_err(|error| QmpError::because(format!("cannot reopen {name}"), &error))?;
        *node.tree.borrow_mut() = tree;
        Ok(())
    }

    fn reopen_filter(&self, node: &Node, options: &Map<String, Value>) -> Result<(), QmpError> {
        let NodeKind::Throttle { group, child } = &node.kind else { return Ok(()) };
        let text = |name: &str| options.get(name).and_then(Value::as_str);
        if text("driver") != Some("throttle") || text("file") != Some(child) {
            return Err(QmpError::generic(format!(
                "options driver and file of node {:?} cannot change: they are throttle and {child:?}",
                node.name
            )));
        }
        let new = text("throttle-group").unwrap_or_default();
        self.throttle_group(new)?;
        self.disk_node(child)?.disk()?.disk.set_throttle_group(Some(new));
        *group.borrow_mut() = new.to_owned();
        Ok(())
    }
}

/// The first option that is another one and cannot change.
fn fixed(old: &DiskOptions, new: &DiskOptions, node: &DiskNode) -> Option<&'static str> {
    let (a, b) = (&old.layer, &new.layer);
    let format = |format: Option<Format>| format.map_or(node.driver(), Format::name);
    let checks = [
        ("file", same_file(&old.filename, &new.filename)),
        ("driver", format(a.format) == format(b.format)),
        ("file.aio", a.file.aio == b.file.aio),
        ("file.locking", a.file.locking == b.file.locking),
        ("cache.direct", a.file.direct == b.file.direct),
        ("cache.no-flush", a.file.no_flush == b.file.no_flush),
        ("force-share", a.force_share == b.force_share),
        ("data-file", a.data_file == b.data_file),
        ("backing", same_backing(&a.backing, &b.backing)),
        ("prefetch", a.qcow2.prefetch == b.qcow2.prefetch),
        ("allocation-reserve", a.qcow2.allocation_reserve == b.qcow2.allocation_reserve),
        ("throttling (use block_set_io_throttle)", old.throttling == new.throttling),
    ];
    checks.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
}

/// A path given otherwise may still be the same file.
fn same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| path.canonicalize().ok();
    a == b || (identity(a).is_some() && identity(a) == identity(b))
}

/// QEMU's clients leave `backing` out where it stays.
fn same_backing(old: &Backing, new: &Backing) -> bool {
    *new == Backing::AsInImage || old == new
}
