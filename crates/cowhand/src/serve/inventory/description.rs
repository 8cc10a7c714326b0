//! From the options of blockdev-add to those of the drive line: names of other nodes are followed.

use control::QmpError;
use image::drive::OptionTree;
use serde_json::{Map, Value};

use super::Inventory;
use super::nodes::NodeKind;

/// What options of blockdev-add come to when every name is followed.
pub(super) struct Described {
    /// Under the names of the drive line.
    pub(super) tree: OptionTree,
    /// Names of parts.
    pub(super) parts: Vec<String>,
    /// Nodes that are named in it.
    pub(super) uses: Vec<String>,
}

/// Members of a file's options that say nothing beyond what the node over it says.
const FILE_MEMBERS_IGNORED: [&str; 5] =
    ["auto-read-only", "read-only", "discard", "detect-zeroes", "force-share"];

impl Inventory {
    /// The options of the drive line that `options` of blockdev-add or blockdev-reopen stand for.
    pub fn tree_of(&self, options: &Map<String, Value>) -> Result<OptionTree, QmpError> {
        self.describe(options).map(|described| described.tree)
    }

    /// The same, with the names that are met on the way.
    pub(super) fn describe(&self, options: &Map<String, Value>) -> Result<Described, QmpError> {
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
