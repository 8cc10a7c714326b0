//! What has a node name.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::disk_node::DiskNode;
use super::error::NodeError;
use super::hold::Holders;

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
    /// Who needs it, apart from nodes over it.
    pub(super) holders: Holders,
}

/// What a node is.
#[derive(Debug)]
pub enum NodeKind {
    /// An open disk.
    Disk(Arc<DiskNode>),
    /// A file that is opened by what uses it: its options.
    File(Map<String, Value>),
    /// A filter that puts its disk into a throttle group.
    Throttle {
        /// The group's name.
        group: Mutex<String>,
        /// The disk's node.
        child: String,
    },
}

impl Node {
    /// A node by itself: no parts, nothing under it.
    pub(super) fn new(name: String, kind: NodeKind) -> Self {
        Self { name, parts: Vec::new(), uses: Vec::new(), implicit: false, kind, holders: Holders::default() }
    }

    /// The open disk.
    ///
    /// # Errors
    /// When it is none.
    pub fn disk(&self) -> Result<&Arc<DiskNode>, NodeError> {
        let name = || self.name.clone();
        match &self.kind {
            NodeKind::Disk(disk) => Ok(disk),
            NodeKind::File(_) => Err(NodeError::BareFile { name: name() }),
            NodeKind::Throttle { .. } => Err(NodeError::Filter { name: name() }),
        }
    }

    /// Its name, and those of its parts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().chain([&self.name]).map(String::as_str)
    }

    /// Whether `name` is its, or that of a part of it.
    pub fn is_called(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// Whether it is a filter that puts its disk into the group called `name`.
    pub(super) fn is_filter_of(&self, name: &str) -> bool {
        matches!(&self.kind, NodeKind::Throttle { group, .. } if *group.lock() == name)
    }
}
