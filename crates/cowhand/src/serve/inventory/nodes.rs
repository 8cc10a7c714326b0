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
use super::node_name::check_node_name;
use crate::serve::sandbox::Sandbox;

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

    pub(super) async fn add_named(
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
}
