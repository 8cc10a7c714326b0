//! Nodes: what can be exported, or stand under something that can.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use control::QmpError;
use image::OpenError;
use image::drive::OptionTree;
use image::options::DiskOptions;
use serde_json::{Map, Value};

use super::Inventory;
use super::disk_node::DiskNode;
use crate::serve::sandbox::Sandbox;

/// Bytes of a node's name at most, as in QEMU.
const NAME_BYTES_MAX: usize = 31;

/// Something with a node name.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Other names that stand for parts of it.
    pub parts: Vec<String>,
    /// Nodes under it, which must stay as long as it does.
    pub uses: Vec<String>,
    /// It belongs to the node over it and goes with it.
    pub implicit: bool,
    /// What it is.
    pub kind: NodeKind,
}

/// What a node is.
#[derive(Debug)]
pub enum NodeKind {
    /// An open disk.
    Disk(DiskNode),
    /// A file that is opened by what uses it: its options.
    File(Map<String, Value>),
    /// A filter that puts its disk into a throttle group.
    Throttle {
        /// The group's name.
        group: RefCell<String>,
        /// The disk's node.
        child: String,
    },
}

impl Node {
    /// The open disk.
    ///
    /// # Errors
    /// When it is none.
    pub fn disk(&self) -> Result<&DiskNode, QmpError> {
        match &self.kind {
            NodeKind::Disk(disk) => Ok(disk),
            NodeKind::File(_) => Err(QmpError::generic(format!(
                "node {:?} is a bare file; add a raw or qcow2 node over it and name that",
                self.name
            ))),
            NodeKind::Throttle { .. } => {
                Err(QmpError::generic(format!("node {:?} is a filter, not a disk", self.name)))
            }
        }
    }

    /// Whether `name` is its, or that of a part of it.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.parts.iter().any(|part| part == name)
    }
}

impl Inventory {
    /// All nodes, in the order of their making.
    pub fn nodes(&self) -> Vec<Rc<Node>> {
        self.nodes.borrow().clone()
    }

    /// The node called `name`.
    ///
    /// # Errors
    /// When there is none.
    pub fn node(&self, name: &str) -> Result<Rc<Node>, QmpError> {
        let nodes = self.nodes.borrow();
        nodes.iter().find(|node| node.name == name).cloned().ok_or_else(|| QmpError::no_device(name))
    }

    /// The node of the disk that `name` leads to: itself, the disk under a filter, or that of an export of this id.
    pub fn disk_node(&self, name: &str) -> Result<Rc<Node>, QmpError> {
        let node = match self.node(name) {
            Ok(node) => node,
            Err(error) => self.export(name).map(|export| Rc::clone(&export.disk_node)).ok_or(error)?,
        };
        match &node.kind {
            NodeKind::Throttle { child, .. } => self.disk_node(child),
            NodeKind::Disk(_) => Ok(node),
            NodeKind::File(_) => Err(node.disk().err().unwrap_or_else(|| QmpError::no_device(name))),
        }
    }

    /// The disks, in order.
    pub fn disks(&self) -> Vec<Rc<Node>> {
        self.nodes().into_iter().filter(|node| node.disk().is_ok()).collect()
    }

    /// Puts a disk that is open into the inventory, and starts to keep house for it. Runs on a loop.
    pub fn add_disk(&self, name: String, disk: DiskNode) -> Result<Rc<Node>, QmpError> {
        self.insert(Node {
            name,
            parts: Vec::new(),
            uses: Vec::new(),
            implicit: false,
            kind: NodeKind::Disk(disk),
        })
    }

    /// Puts a node into the inventory.
    pub(super) fn insert(&self, node: Node) -> Result<Rc<Node>, QmpError> {
        let mut names = BTreeSet::new();
        for name in node.parts.iter().chain([&node.name]) {
            if !names.insert(name) || self.nodes.borrow().iter().any(|other| other.is_called(name)) {
                return Err(QmpError::generic(format!("there is a node named {name:?} already")));
            }
        }
        let node = Rc::new(node);
        self.nodes.borrow_mut().push(Rc::clone(&node));
        Ok(node)
    }

    /// Adds what `options` describe; they fit the schema of blockdev-add.
    ///
    /// # Errors
    /// When a name is in use or leads nowhere, or the disk cannot be opened.
    pub async fn add_node(&self, options: &Map<String, Value>) -> Result<Rc<Node>, QmpError> {
        let name = options.get("node-name").and_then(Value::as_str);
        let name = name.ok_or_else(|| QmpError::generic("argument 'node-name' is missing"))?;
        check_node_name(name)?;
        self.add_named(name.to_owned(), options, false).await
    }

    async fn add_named(
        &self,
        name: String,
        options: &Map<String, Value>,
        implicit: bool,
    ) -> Result<Rc<Node>, QmpError> {
        // Looked at before anything is opened, and again when it is put in.
        if self.nodes.borrow().iter().any(|other| other.is_called(&name)) {
            return Err(QmpError::generic(format!("there is a node named {name:?} already")));
        }
        match options.get("driver").and_then(Value::as_str) {
            Some("file" | "host_device") => self.add_file(name, options),
            Some("throttle") => Box::pin(self.add_filter(name, options)).await,
            _ => self.open_disk(name, options, implicit).await,
        }
    }

    fn add_file(&self, name: String, options: &Map<String, Value>) -> Result<Rc<Node>, QmpError> {
        let path = options.get("filename").and_then(Value::as_str).unwrap_or_default();
        // Nothing is opened yet, but a name that leads nowhere is told at once.
        std::fs::metadata(path).map_err(|error| QmpError::because(format!("cannot find {path}"), &error))?;
        let kind = NodeKind::File(options.clone());
        self.insert(Node { name, parts: Vec::new(), uses: Vec::new(), implicit: false, kind })
    }

    async fn open_disk(
        &self,
        name: String,
        options: &Map<String, Value>,
        implicit: bool,
    ) -> Result<Rc<Node>, QmpError> {
        let described = self.describe(options)?;
        for part in &described.parts {
            check_node_name(part)?;
        }
        let tree = described.tree;
        let disk = self.open(&tree).await?;
        let node =
            Node { name, parts: described.parts, uses: described.uses, implicit, kind: NodeKind::Disk(disk) };
        let node = self.insert(node)?;
        node.disk()?.disk.keep_house();
        Ok(node)
    }

    async fn open(&self, tree: &OptionTree) -> Result<DiskNode, QmpError> {
        let options =
            DiskOptions::of_tree(tree.clone()).map_err(|error| QmpError::generic(error.to_string()))?;
        let path = options.filename.clone();
        let opened = image::open(&options, &self.rules).await;
        let disk = Arc::new(opened.map_err(|error| self.cannot_open(&path, &error))?);
        Ok(DiskNode { path, tree: tree.clone().into(), created: false, disk })
    }

    fn cannot_open(&self, path: &Path, error: &OpenError) -> QmpError {
        let mut told = QmpError::because(format!("cannot open {}", path.display()), error);
        let forbidden = told.desc.contains("Permission denied") || told.desc.contains("not permitted");
        if forbidden && self.sandbox == Sandbox::On {
            told.desc.push_str(
                " (the sandbox lets files be opened only in directories given with --allow-path; give it, or --sandbox off)",
            );
        }
        told
    }

    async fn add_filter(&self, name: String, options: &Map<String, Value>) -> Result<Rc<Node>, QmpError> {
        let group = options.get("throttle-group").and_then(Value::as_str).unwrap_or_default();
        self.throttle_group(group)?;
        let child = match options.get("file") {
            Some(Value::String(child)) => self.node(child)?,
            Some(Value::Object(nested)) => {
                let child = match nested.get("node-name").and_then(Value::as_str) {
                    Some(child) => {
                        check_node_name(child)?;
                        child.to_owned()
                    }
                    None => self.make_name(),
                };
                Box::pin(self.add_named(child, nested, true)).await?
            }
            _ => return Err(QmpError::generic("argument 'file' is missing")),
        };
        let added = self.put_filter(name, group, &child);
        if added.is_err() && child.implicit {
            self.close_node(&child).await?;
        }
        added
    }

    fn put_filter(&self, name: String, group: &str, child: &Rc<Node>) -> Result<Rc<Node>, QmpError> {
        let disk = child.disk()?;
        if self.users(child).iter().any(|user| matches!(user.kind, NodeKind::Throttle { .. })) {
            return Err(QmpError::generic(format!(
                "node {:?} has a throttle filter over it already",
                child.name
            )));
        }
        let kind = NodeKind::Throttle { group: group.to_owned().into(), child: child.name.clone() };
        let uses = vec![child.name.clone()];
        let node = self.insert(Node { name, parts: Vec::new(), uses, implicit: false, kind })?;
        disk.disk.set_throttle_group(Some(group));
        Ok(node)
    }

    /// Takes a node away and closes what it opened: metadata is written, locks are given back. It is gone also if
    /// closing fails.
    ///
    /// # Errors
    /// When it is in use; when closing fails.
    pub async fn remove_node(&self, name: &str) -> Result<(), QmpError> {
        let node = self.node(name)?;
        self.check_unused(&node)?;
        self.close_node(&node).await
    }

    fn check_unused(&self, node: &Rc<Node>) -> Result<(), QmpError> {
        let in_use = |by: String| Err(QmpError::generic(format!("node {:?} is in use by {by}", node.name)));
        if let Some(user) = self.users(node).first() {
            return in_use(format!("node {:?}", user.name));
        }
        match self
            .exports()
            .iter()
            .find(|export| export.node == node.name || Rc::ptr_eq(&export.disk_node, node))
        {
            Some(export) => in_use(format!("export {:?}", export.id)),
            None => Ok(()),
        }
    }

    fn users(&self, node: &Rc<Node>) -> Vec<Rc<Node>> {
        self.nodes().into_iter().filter(|user| user.uses.contains(&node.name)).collect()
    }

    async fn close_node(&self, node: &Rc<Node>) -> Result<(), QmpError> {
        self.nodes.borrow_mut().retain(|other| !Rc::ptr_eq(other, node));
        match &node.kind {
            NodeKind::File(_) => Ok(()),
            NodeKind::Disk(disk) => {
                disk.disk.idle().await;
                let closed = disk.disk.close().await;
                closed.map_err(|error| {
                    QmpError::because(format!("cannot close {}", disk.path.display()), &error)
                })
            }
            NodeKind::Throttle { child, .. } => {
                let child = self.node(child)?;
                child.disk()?.disk.set_throttle_group(None);
                if child.implicit { Box::pin(self.close_node(&child)).await } else { Ok(()) }
            }
        }
    }

    /// Closes every disk, also after one has failed; tells of all failures, gives the first.
    pub async fn close_all(&self) -> Result<(), QmpError> {
        let mut result = Ok(());
        for node in self.disks() {
            let Err(error) = self.close_node(&node).await else { continue };
            tracing::error!("{error}");
            result = result.and(Err(error));
        }
        result
    }
}

/// What options of blockdev-add come to when every name is followed.
struct Described {
    tree: OptionTree,
    parts: Vec<String>,
    uses: Vec<String>,
}

/// Members of a file's options that say nothing beyond what the node over it says.
const FILE_MEMBERS_IGNORED: [&str; 5] =
    ["auto-read-only", "read-only", "discard", "detect-zeroes", "force-share"];

impl Inventory {
    /// The options of the drive line that `options` of blockdev-add or blockdev-reopen stand for.
    pub fn tree_of(&self, options: &Map<String, Value>) -> Result<OptionTree, QmpError> {
        self.describe(options).map(|described| described.tree)
    }

    fn describe(&self, options: &Map<String, Value>) -> Result<Described, QmpError> {
        let (mut parts, mut uses) = (Vec::new(), Vec::new());
        let resolved = self.resolve(options, &mut parts, &mut uses)?;
        let tree = OptionTree::of_json(resolved).map_err(|error| QmpError::generic(error.to_string()))?;
        Ok(Described { tree, parts, uses })
    }

    /// The options with those of other nodes in the place of their names.
    fn resolve(
        &self,
        options: &Map<String, Value>,
        parts: &mut Vec<String>,
        uses: &mut Vec<String>,
    ) -> Result<Map<String, Value>, QmpError> {
        let mut resolved = Map::new();
        for (name, value) in options {
            let value = match name.as_str() {
                "auto-read-only" => continue,
                "file" | "data-file" => Value::Object(self.resolve_file(name, value, parts, uses)?),
                "backing" => self.resolve_backing(value, parts, uses)?,
                _ => value.clone(),
            };
            resolved.insert(name.clone(), value);
        }
        Ok(resolved)
    }

    fn resolve_file(
        &self,
        member: &str,
        value: &Value,
        parts: &mut Vec<String>,
        uses: &mut Vec<String>,
    ) -> Result<Map<String, Value>, QmpError> {
        let wrong = || QmpError::generic(format!("argument '{member}' must be a node of driver file"));
        let mut file = match value {
            Value::String(name) => match &self.node(name)?.kind {
                NodeKind::File(options) => {
                    uses.push(name.clone());
                    options.clone()
                }
                _ => return Err(wrong()),
            },
            Value::Object(options) => {
                parts.extend(options.get("node-name").and_then(Value::as_str).map(str::to_owned));
                options.clone()
            }
            _ => return Err(wrong()),
        };
        if !matches!(file.get("driver").and_then(Value::as_str), Some("file" | "host_device")) {
            return Err(wrong());
        }
        file.retain(|name, _| !FILE_MEMBERS_IGNORED.contains(&name.as_str()));
        Ok(file)
    }

    fn resolve_backing(
        &self,
        value: &Value,
        parts: &mut Vec<String>,
        uses: &mut Vec<String>,
    ) -> Result<Value, QmpError> {
        match value {
            Value::Object(options) => {
                parts.extend(options.get("node-name").and_then(Value::as_str).map(str::to_owned));
                self.resolve(options, parts, uses).map(Value::Object)
            }
            Value::String(name) if !name.is_empty() => self.backing_node(name, uses),
            _ => Ok(Value::Null),
        }
    }

    /// A node as a layer below: its file is opened once more, for reading.
    fn backing_node(&self, name: &str, uses: &mut Vec<String>) -> Result<Value, QmpError> {
        let node = self.node(name)?;
        let disk = node.disk()?;
        if !disk.disk.read_only() {
            return Err(QmpError::generic(format!(
                "node {name:?} is open for writing; add it with read-only to use it as backing"
            )));
        }
        uses.push(name.to_owned());
        let path = disk.path.to_str().ok_or_else(|| {
            QmpError::generic(format!("the path of node {name:?} is not UTF-8; give its options instead"))
        })?;
        let file = serde_json::json!({ "driver": "file", "filename": path });
        Ok(serde_json::json!({ "driver": disk.driver(), "file": file }))
    }
}

/// A name that a user may give to a node: QEMU's rule.
pub fn check_node_name(name: &str) -> Result<(), QmpError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    Err(QmpError::generic(format!(
        "{name:?} is no node name: a letter, then letters, digits, '-', '.', '_', at most {NAME_BYTES_MAX} in all"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_begins_with_a_letter_and_is_short() {
        for name in ["a", "disk-0.x_y", &"a".repeat(31)] {
            assert!(check_node_name(name).is_ok(), "{name}");
        }
        for name in ["", "0a", "#block000", "a b", "ä", &"a".repeat(32)] {
            assert!(check_node_name(name).is_err(), "{name}");
        }
    }
}
