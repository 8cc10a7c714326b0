//! What stands below a node: nodes that are made for it where its options describe them, and disks that are the files of its images.
//!
//! A file that is storage is opened by the image over it. Any other node can be a file as well: a disk, which the image over it reads and writes
//! through [`crate::node_storage`].

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::description::Described;
use super::error::NodeError;
use super::node::{Node, NodeKind, NodeLinks};
use super::user::User;
use super::{Change, Graph};
use crate::bitmaps_file::raw_of;
use crate::child::{Child, Owner};
use crate::disk::Disk;
use crate::drivers::{Driver, StorageKind, driver};
use crate::node_storage::NodeDisk;
use crate::options::{DiskOptions, FileOptions};

/// Members of an image's options that are files.
pub(super) const FILES: [&str; 3] = ["file", "data-file", "header"];

fn driver_of(options: &Map<String, Value>) -> Option<Driver> {
    options.get("driver").and_then(Value::as_str).and_then(driver)
}

pub(super) fn is_read_only(options: &Map<String, Value>) -> bool {
    options.get("read-only") == Some(&Value::Bool(true))
}

/// The options of a disk: those of bare storage get a raw disk over it, others are returned unchanged.
pub(super) fn over_raw(options: &Map<String, Value>) -> Map<String, Value> {
    if !matches!(driver_of(options), Some(Driver::Storage(_))) {
        return options.clone();
    }
    let mut file = options.clone();
    let mut raw = Map::from_iter([("driver".to_owned(), json!("raw"))]);
    for option in
        ["node-name", "read-only", "cache", "discard", "detect-zeroes", "auto-read-only", "force-share"]
    {
        if let Some(value) = file.remove(option) {
            raw.insert(option.to_owned(), value);
        }
    }
    raw.insert("file".to_owned(), Value::Object(file));
    raw
}

/// What is described below a node: read-only below one that is, unless it says otherwise.
pub(super) fn described_below(described: &Map<String, Value>, is_read_only: bool) -> Map<String, Value> {
    let mut described = described.clone();
    if is_read_only && !matches!(driver_of(&described), Some(Driver::Throttle) | None) {
        described.entry("read-only").or_insert(Value::Bool(true));
    }
    described
}

impl Graph {
    /// The options of an image, with the nodes that they describe in the place of files made, and named there.
    pub(super) async fn make_below(
        &self,
        options: &Map<String, Value>,
        made: &mut Vec<Arc<Node>>,
    ) -> Result<Map<String, Value>, NodeError> {
        let mut named = options.clone();
        for member in FILES {
            if let Some(file) = options.get(member) {
                named.insert(member.to_owned(), self.make_file(file, is_read_only(options), made).await?);
            }
        }
        if let Some(backing) = options.get("backing") {
            named.insert("backing".to_owned(), Box::pin(self.make_backing(backing, made)).await?);
        }
        Ok(named)
    }

    /// A file of an image, or the name of the node that is made for it.
    pub(super) async fn make_file(
        &self,
        file: &Value,
        read_only: bool,
        made: &mut Vec<Arc<Node>>,
    ) -> Result<Value, NodeError> {
        let Value::Object(options) = file else { return Ok(file.clone()) };
        match driver_of(options) {
            Some(Driver::Storage(driver)) => {
                let StorageKind::Over(over) = &driver.kind else { return Ok(file.clone()) };
                let Some(below) = options.get(over.child) else { return Ok(file.clone()) };
                let below = Box::pin(self.make_file(below, read_only, made)).await?;
                let mut options = options.clone();
                options.insert(over.child.to_owned(), below);
                Ok(Value::Object(options))
            }
            Some(Driver::Format | Driver::Filter(_) | Driver::Throttle) => {
                self.make_node(&described_below(options, read_only), made).await
            }
            None => Ok(file.clone()),
        }
    }

    async fn make_backing(&self, backing: &Value, made: &mut Vec<Arc<Node>>) -> Result<Value, NodeError> {
        match backing {
            Value::Object(options) => match driver_of(options) {
                Some(Driver::Filter(_) | Driver::Throttle) => self.make_node(options, made).await,
                Some(Driver::Storage(_) | Driver::Format) | None => {
                    let mut options = over_raw(options);
                    options.entry("read-only").or_insert(Value::Bool(true));
                    let options = self.make_below(&options, made).await?;
                    // An image over a filter is a node by itself, and so is each image above it.
                    match self.changing_backing(&options) {
                        Some(_) => self.make_node(&options, made).await,
                        None => Ok(Value::Object(options)),
                    }
                }
            },
            Value::String(name) if !name.is_empty() => {
                let node = match self.node(name) {
                    Ok(node) => node,
                    Err(unknown) => self.layer_node(name).ok_or(unknown)?,
                };
                match node.kind {
                    NodeKind::File(_) => {
                        let raw = json!({ "driver": "raw", "read-only": true, "file": name });
                        self.make_node(raw.as_object().unwrap_or(&Map::new()), made).await
                    }
                    _ => Ok(backing.clone()),
                }
            }
            _ => Ok(backing.clone()),
        }
    }

    /// Makes a node, and gives its name.
    async fn make_node(
        &self,
        options: &Map<String, Value>,
        made: &mut Vec<Arc<Node>>,
    ) -> Result<Value, NodeError> {
        let node = self.add_child(options).await?;
        let name = node.name();
        made.push(node);
        Ok(Value::String(name))
    }

    /// Closes nodes that were made for a node whose making failed.
    pub(super) async fn unmake(&self, made: &[Arc<Node>]) {
        for node in made.iter().rev() {
            if let Err(error) = self.close(node).await {
                tracing::warn!("{error}");
            }
        }
    }

    /// Opens the node called `name` as a raw disk if it is a bare file without users: a command that names
    /// such a file means its bytes. An unknown name is no error here; the caller reports it.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub async fn open_if_bare(&self, _change: &Change<'_>, name: &str) -> Result<(), NodeError> {
        match self.node(name) {
            Ok(node) if self.users(&node).is_empty() => self.open_bare_file(node).await.map(drop),
            _ => Ok(()),
        }
    }

    /// The same node, which is a disk from now on if it was a bare file: its bytes.
    ///
    /// # Errors
    /// When it cannot be opened, or another node has the file open.
    pub(super) async fn open_bare_file(&self, node: Arc<Node>) -> Result<Arc<Node>, NodeError> {
        let NodeKind::File(options) = &node.kind else { return Ok(node) };
        let name = node.name();
        let user = self.users(&node).first().map(|user| User { kind: "node", name: user.name() });
        if let Some(by) = user.or_else(|| node.holders.first()) {
            return Err(NodeError::InUse { name, by });
        }
        let driver = options.get("driver").and_then(Value::as_str).and_then(crate::drivers::storage);
        let mut raw = over_raw(options);
        raw.remove("node-name");
        let Described { tree, links } = self.describe(&raw)?;
        let disk = self.open_disk(name.clone(), tree).await?;
        let disk = disk.shown_as(driver.map_or("file", |driver| driver.name));
        let opened = Arc::clone(&disk.disk);
        let (implicit, links) = (node.implicit, NodeLinks::new(links));
        let new = Arc::new(Node { links, implicit, ..Node::new(name, NodeKind::Disk(Arc::new(disk))) });
        self.nodes.lock().put_in_place(&node, &new);
        opened.start_upkeep();
        Ok(new)
    }

    /// Says to the files of `options` that are nodes which disks these are, and gives the disks as the images see them.
    pub(super) fn find_files(&self, options: &DiskOptions) -> Result<Vec<Arc<Child>>, NodeError> {
        let mut children = Vec::new();
        for file in options.layer.all_files() {
            children.extend(self.find_file(file)?);
        }
        Ok(children)
    }

    /// As [`Graph::find_files`], of one file.
    pub(super) fn find_file(&self, file: &FileOptions) -> Result<Option<Arc<Child>>, NodeError> {
        let Some(target) = file.node() else { return Ok(None) };
        let disk = self.disk(target)?;
        let mut grow = Vec::new();
        if !self.disks_to_grow(target, &mut grow) {
            grow.clear();
        }
        let child = Child::new(Arc::clone(&disk.disk), Owner::Graph);
        if let Some(disk) = file.disk() {
            disk.is_opened_by(Arc::new(NodeDisk { child: Arc::clone(&child), grow }));
        }
        Ok(Some(child))
    }

    /// The disks that get another size when the node called `name` does, the lowest first; false if one of them cannot.
    fn disks_to_grow(&self, name: &str, found: &mut Vec<Arc<Disk>>) -> bool {
        let Ok(node) = self.node(name) else { return false };
        match (&node.kind, &node.filter) {
            (NodeKind::Throttle { child, .. }, _) => self.disks_to_grow(&child.get(), found),
            (NodeKind::JobFilter { disk, .. }, _) => self.disks_to_grow(&disk.get(), found),
            (_, Some(filter)) => {
                // Others keep what they know of the disk by its size.
                filter.driver.grows && filter.below().iter().all(|(_, name)| self.disks_to_grow(name, found))
            }
            (NodeKind::Disk(disk), None) => {
                let top = disk.disk.top_image();
                found.push(Arc::clone(&disk.disk));
                raw_of(&*top).is_none_or(|raw| !raw.fixed && raw.storage.capabilities().resizable)
            }
            (NodeKind::File(_) | NodeKind::TakenOut, None) => false,
        }
    }

    /// Refuses the nodes called `names` if they have other users: their writes would break the image that is
    /// to be made. The nodes of `way`, through which they are reached, do not count.
    pub(super) fn check_alone(&self, names: &[String], way: &[String]) -> Result<(), NodeError> {
        for name in names {
            let node = self.below_job_filter(self.node(name)?)?;
            let users = self.users(&node);
            let other = users.iter().map(|user| user.name()).find(|user| !way.contains(user));
            let by = other.map(|name| User { kind: "node", name });
            if let Some(by) = by.or_else(|| node.holders.first()) {
                return Err(NodeError::InUse { name: name.to_owned(), by });
            }
        }
        Ok(())
    }

    /// Closes those of the nodes called `names` that were made for a node which is gone.
    pub(super) async fn close_made(&self, names: impl Iterator<Item = String>) -> Result<(), NodeError> {
        let mut closed = Ok(());
        for name in names {
            let Ok(below) = self.node(&name) else { continue };
            if below.implicit && self.users(&below).is_empty() {
                closed = closed.and(Box::pin(self.close(&below)).await);
            }
        }
        closed
    }
}
