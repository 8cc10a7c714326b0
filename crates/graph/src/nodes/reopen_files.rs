//! blockdev-reopen and what lies below a node: nodes that are described in their own place, bare files, and a node that becomes the file of an image.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::below::{described_below, is_read_only, over_raw};
use super::disk_node::DiskNode;
use super::error::NodeError;
use super::move_files::Come;
use super::node::{Node, NodeKind};
use super::{Change, Graph};
use crate::child::Child;
use crate::drivers::{StorageKind, storage};
use crate::node_storage::child_of;
use crate::options::{DiskOptions, FileOptions, first_fixed_of_file};

/// The node that storage over a file is over.
fn below_file(options: &Map<String, Value>) -> Option<(&'static str, String)> {
    let driver = options.get("driver").and_then(Value::as_str).and_then(storage)?;
    let StorageKind::Over(over) = &driver.kind else { return None };
    let name = options.get(over.child).and_then(Value::as_str)?;
    Some((over.child, name.to_owned()))
}

fn is_filter(node: &Node) -> bool {
    node.filter.is_some() || matches!(node.kind, NodeKind::Throttle { .. })
}

impl Node {
    /// The options that name nodes below, with what these are called.
    fn members(&self) -> Vec<(&'static str, String)> {
        match &self.kind {
            NodeKind::Throttle { child, .. } => return vec![("file", child.get())],
            NodeKind::File(options) => return below_file(options).into_iter().collect(),
            _ => {}
        }
        if let Some(filter) = &self.filter {
            return filter.below();
        }
        let Ok(disk) = self.disk() else { return Vec::new() };
        let layers = disk.disk.layers();
        let Some(files) = layers.first().and_then(|layer| layer.files.as_ref()) else { return Vec::new() };
        let options = &files.options;
        let members =
            [("file", &options.file), ("data-file", &options.data_file), ("header", &options.luks_header)];
        members.into_iter().filter_map(|(member, file)| Some((member, file.node()?.to_owned()))).collect()
    }
}

impl Graph {
    /// `options` of `node`, with names in the place of the nodes that they describe where these are already: what is said of those is put in force.
    ///
    /// # Errors
    /// As [`Graph::reopen`] of the node that is described.
    pub(super) async fn reopen_described(
        &self,
        change: &Change<'_>,
        node: &Node,
        options: &Map<String, Value>,
    ) -> Result<Map<String, Value>, NodeError> {
        let mut named = options.clone();
        for (member, below) in node.members() {
            let Some(Value::Object(described)) = options.get(member) else { continue };
            let mut described = described_below(described, is_read_only(options));
            let name = described.entry("node-name").or_insert_with(|| below.as_str().into());
            if *name != below.as_str() {
                let option = format!("{member}.node-name");
                return Err(NodeError::Fixed { name: node.name(), option });
            }
            if self.node(&below)?.disk().is_ok() {
                described = over_raw(&described);
            }
            Box::pin(self.reopen(change, &described)).await?;
            named.insert(member.to_owned(), below.into());
        }
        Ok(named)
    }

    /// Options of a bare file that is a node: they stay what they are.
    ///
    /// # Errors
    /// Names the first that differs.
    pub(super) fn check_bare_stays(
        &self,
        name: &str,
        old: &Map<String, Value>,
        new: &Map<String, Value>,
    ) -> Result<(), NodeError> {
        let old = self.file_of(old)?;
        self.check_file_stays(name, (old.layer.read_only, &old.layer.file), new)
    }

    /// Options of a file that was described with the image of `owner`: they stay what they are.
    ///
    /// # Errors
    /// Names the first that differs.
    pub(super) fn check_part_stays(
        &self,
        name: &str,
        owner: &Node,
        new: &Map<String, Value>,
    ) -> Result<(), NodeError> {
        let is_named = |file: &&FileOptions| file.node_name.as_deref() == Some(name);
        for layer in &owner.disk()?.disk.layers().list {
            let Some(files) = &layer.files else { continue };
            if let Some(file) = files.options.all_files().into_iter().find(is_named) {
                let read_only = layer.block.capabilities().read_only;
                return self.check_file_stays(name, (read_only, file), new);
            }
        }
        Err(NodeError::PartReopened { name: name.to_owned(), of: owner.name() })
    }

    fn check_file_stays(
        &self,
        name: &str,
        (read_only, old): (bool, &FileOptions),
        new: &Map<String, Value>,
    ) -> Result<(), NodeError> {
        let is_said = new.get("read-only").and_then(Value::as_bool).is_some_and(|said| said != read_only);
        let new = self.file_of(new)?;
        let differs = || first_fixed_of_file(old, &new.layer.file);
        match is_said.then(|| "read-only".to_owned()).or_else(differs) {
            Some(option) => Err(NodeError::Fixed { name: name.to_owned(), option }),
            None => Ok(()),
        }
    }

    /// What the options of a bare file say.
    fn file_of(&self, options: &Map<String, Value>) -> Result<DiskOptions, NodeError> {
        let mut raw = over_raw(options);
        if let (Some(name), Some(Value::Object(file))) = (raw.remove("node-name"), raw.get_mut("file")) {
            file.insert("node-name".to_owned(), name);
        }
        Ok(DiskOptions::of_tree(self.describe(&raw)?.tree)?)
    }

    /// Refuses nodes that come as files of the image of `node` if it is below them, or if others change them.
    pub(super) fn check_files_come(&self, node: &Arc<Node>, come: &Come) -> Result<(), NodeError> {
        for name in come.nodes() {
            let new = self.below_job_filter(self.node(name)?)?;
            self.check_may_be_below(node, (name, &new))?;
            // A filter that nothing else uses sends no request.
            let is_idle = |user: &Arc<Node>| {
                let mut over = self.users(user).into_iter();
                let is_used = over.any(|over| !Arc::ptr_eq(&over, node));
                is_filter(user) && !is_used && user.holders.first().is_none()
            };
            let idle = self.users(&new).into_iter().filter(is_idle).map(|user| user.name());
            let way: Vec<String> = idle.chain([node.name()]).collect();
            self.check_alone(std::slice::from_ref(name), &way)?;
        }
        Ok(())
    }
}

impl DiskNode {
    /// The disk that is the file of its uppermost image, as that sees it.
    pub(super) fn file_child(&self) -> Option<Arc<Child>> {
        let layers = self.disk.layers();
        let files = layers.first()?.files.as_ref()?;
        child_of(&files.options.file)
    }

    /// Its uppermost image may be on another file by now; `old` is the disk that was its file.
    pub(super) fn note_file(&self, old: Option<Arc<Child>>) {
        let mut files = self.files.lock();
        files.retain(|file| old.as_ref().is_none_or(|old| !Arc::ptr_eq(file, old)));
        let new = self.file_child().filter(|new| files.iter().all(|file| !Arc::ptr_eq(file, new)));
        files.extend(new);
    }
}
