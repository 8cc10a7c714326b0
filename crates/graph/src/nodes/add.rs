//! Adding nodes.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::Graph;
use super::disk_node::DiskNode;
use super::error::NodeError;
use super::filter::text;
use super::name::check_node_name;
use super::node::{Node, NodeKind};
use crate::drive::OptionTree;
use crate::fd_sets::{FdSetError, FdSets};
use crate::open::open;
use crate::options::DiskOptions;

impl Graph {
    /// Puts in a disk that is open.
    ///
    /// # Errors
    /// When its name is in use.
    pub fn add_disk(&self, disk: DiskNode) -> Result<Arc<Node>, NodeError> {
        self.insert(Node::new(disk.name.clone(), NodeKind::Disk(Arc::new(disk))))
    }

    /// Adds what `options` describe; they have the names and types of QMP's blockdev-add. Runs on a loop, on which what
    /// runs beside the requests of a disk begins.
    ///
    /// # Errors
    /// When a name is in use or leads nowhere, or the disk cannot be opened.
    pub async fn add(&self, options: &Map<String, Value>) -> Result<Arc<Node>, NodeError> {
        let name = text(options, "node-name")?;
        check_node_name(name)?;
        self.add_named(name.to_owned(), options, false).await
    }

    pub(super) async fn add_named(
        &self,
        name: String,
        options: &Map<String, Value>,
        implicit: bool,
    ) -> Result<Arc<Node>, NodeError> {
        // Looked at before anything is opened, and again when it is put in.
        self.check_free(&name)?;
        match options.get("driver").and_then(Value::as_str) {
            Some("file" | "host_device") => self.add_file(name, options),
            Some("throttle") => Box::pin(self.add_filter(name, options)).await,
            _ => self.add_opened(name, options, implicit).await,
        }
    }

    fn add_file(&self, name: String, options: &Map<String, Value>) -> Result<Arc<Node>, NodeError> {
        let path = options.get("filename").and_then(Value::as_str).unwrap_or_default();
        // Nothing is opened yet, but a name that leads nowhere is told at once.
        match FdSets::number(path.as_ref()).transpose()? {
            Some(set) if self.rules.fd_sets.contains(set) => {}
            Some(set) => return Err(FdSetError::NoSet { set }.into()),
            None => {
                let found = std::fs::metadata(path);
                found.map_err(|source| NodeError::Find { path: path.to_owned(), source })?;
            }
        }
        self.insert(Node::new(name, NodeKind::File(options.clone())))
    }

    async fn add_opened(
        &self,
        name: String,
        options: &Map<String, Value>,
        implicit: bool,
    ) -> Result<Arc<Node>, NodeError> {
        let described = self.describe(options)?;
        for part in &described.parts {
            check_node_name(part)?;
        }
        let node = Arc::new(self.open_disk(name.clone(), described.tree).await?);
        let disk = Arc::clone(&node.disk);
        let kind = NodeKind::Disk(node);
        let (parts, uses) = (described.parts, described.uses);
        let node = self.insert(Node { parts, uses, implicit, ..Node::new(name, kind) })?;
        disk.keep_house();
        Ok(node)
    }

    async fn open_disk(&self, name: String, tree: OptionTree) -> Result<DiskNode, NodeError> {
        let options = DiskOptions::of_tree(tree.clone())?;
        let path = options.filename.clone();
        match open(&options, &self.rules).await {
            Ok(disk) => Ok(DiskNode::new(name, path, tree, disk)),
            Err(error) => Err(NodeError::Open { path, source: Box::new(error) }),
        }
    }
}
