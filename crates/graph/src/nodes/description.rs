//! From the options of blockdev-add to those of the drive line: names of other nodes are followed.

use serde_json::{Map, Value};

use super::Graph;
use super::description_error::DescriptionError;
use super::error::NodeError;
use super::node::NodeKind;
use crate::drive::OptionTree;
use crate::drivers::{StorageDriver, StorageKind, driver, storage};
use crate::links::Links;
use crate::options::{NODE_OPTION, has_filters};

/// What options come to when every name is followed.
pub(super) struct Described {
    /// Under the names of the drive line.
    pub(super) tree: OptionTree,
    /// Names of parts, and nodes that are named in it.
    pub(super) links: Links,
}

/// Members of a file's options that say nothing beyond what the node over it says (docs/reference/qmp.md).
const FILE_MEMBERS_IGNORED: [&str; 5] =
    ["auto-read-only", "read-only", "discard", "detect-zeroes", "force-share"];

fn without_ignored(mut file: Map<String, Value>) -> Map<String, Value> {
    file.retain(|name, _| !FILE_MEMBERS_IGNORED.contains(&name.as_str()));
    file
}

/// Refuses what a file would have to do by itself: the node over it is the one that opens it.
fn check_file(
    member: &str,
    file: &Map<String, Value>,
    above: &Map<String, Value>,
) -> Result<(), DescriptionError> {
    let says = |options: &Map<String, Value>, name: &str| options.get(name) == Some(&Value::Bool(true));
    for option in ["read-only", "force-share"] {
        // What is not said is as the file is.
        let is_said = option == "force-share" || above.contains_key(option);
        if says(file, option) && is_said && !says(above, option) {
            return Err(DescriptionError::OfNodeOver { member: member.to_owned(), option });
        }
    }
    let of_file = file.get("detect-zeroes").and_then(Value::as_str);
    match of_file {
        None | Some("off") => Ok(()),
        // The node over it turns zeroes into a request before the file sees them.
        Some(_) if above.get("detect-zeroes").and_then(Value::as_str) == of_file => Ok(()),
        Some(_) => Err(DescriptionError::DetectZeroes { member: member.to_owned() }),
    }
}

impl Graph {
    /// What `options` stand for on a drive line, with the names that are met on the way.
    pub(super) fn describe(&self, options: &Map<String, Value>) -> Result<Described, NodeError> {
        let mut links = Links::default();
        let resolved = self.resolve(options, &mut links)?;
        Ok(Described { tree: OptionTree::of_json(resolved)?, links })
    }

    /// The options with those of other nodes in the place of their names.
    fn resolve(
        &self,
        options: &Map<String, Value>,
        links: &mut Links,
    ) -> Result<Map<String, Value>, NodeError> {
        let mut resolved = Map::new();
        for (name, value) in options {
            let value = match name.as_str() {
                "auto-read-only" => continue,
                "file" | "data-file" | "header" => {
                    let file = self.resolve_file(name, value, links)?;
                    check_file(name, &file, options)?;
                    if file.get("read-only") == Some(&Value::Bool(true)) {
                        resolved.entry("read-only").or_insert(Value::Bool(true));
                    }
                    Value::Object(without_ignored(file))
                }
                "backing" => self.resolve_backing(value, links)?,
                _ => value.clone(),
            };
            resolved.insert(name.clone(), value);
        }
        Ok(resolved)
    }

    pub(super) fn resolve_file(
        &self,
        member: &str,
        value: &Value,
        links: &mut Links,
    ) -> Result<Map<String, Value>, NodeError> {
        let wrong = || NodeError::from(DescriptionError::NotAFile { member: member.to_owned() });
        let file = match value {
            Value::String(name) => match &self.node(name)?.kind {
                NodeKind::File(options) => {
                    links.uses.push(name.clone());
                    options.clone()
                }
                NodeKind::TakenOut => return Err(NodeError::TakenOut { name: name.clone() }),
                NodeKind::Disk(_) | NodeKind::Throttle { .. } | NodeKind::JobFilter { .. } => {
                    links.uses.push(name.clone());
                    links.files.push(name.clone());
                    return Ok(Map::from_iter([(NODE_OPTION.to_owned(), Value::from(name.as_str()))]));
                }
            },
            Value::Object(options) => {
                links.parts.extend(options.get("node-name").and_then(Value::as_str).map(str::to_owned));
                options.clone()
            }
            _ => return Err(wrong()),
        };
        let named = file.get("driver").and_then(Value::as_str).map(|name| (name, storage(name)));
        match named {
            Some((_, Some(driver))) => match driver.kind {
                StorageKind::Over(ref over) => self.resolve_below(file, over.child, links),
                StorageKind::Path | StorageKind::Elsewhere(_) => Ok(file),
            },
            Some((name, None)) if driver(name).is_none() => {
                Err(DescriptionError::UnknownDriver { found: name.to_owned() }.into())
            }
            Some(_) | None => Err(wrong()),
        }
    }

    /// The nodes that storage over a file is put over.
    pub(super) fn below_file(
        &self,
        driver: &StorageDriver,
        options: &Map<String, Value>,
    ) -> Result<Links, NodeError> {
        let mut links = Links::default();
        if let StorageKind::Over(over) = &driver.kind {
            self.resolve_below(options.clone(), over.child, &mut links)?;
        }
        links.parts.clear();
        Ok(links)
    }

    /// The same with the options of the file that storage over a file is put over.
    fn resolve_below(
        &self,
        mut file: Map<String, Value>,
        child: &'static str,
        links: &mut Links,
    ) -> Result<Map<String, Value>, NodeError> {
        if let Some(below) = file.get(child) {
            let below = self.resolve_file(child, below, links)?;
            check_file(child, &below, &file)?;
            file.insert(child.to_owned(), Value::Object(without_ignored(below)));
        }
        Ok(file)
    }

    fn resolve_backing(&self, value: &Value, links: &mut Links) -> Result<Value, NodeError> {
        match value {
            Value::Object(options) => {
                links.parts.extend(options.get("node-name").and_then(Value::as_str).map(str::to_owned));
                let mut options = options.clone();
                options.entry("read-only").or_insert(Value::Bool(true));
                self.resolve(&options, links).map(Value::Object)
            }
            Value::String(name) if !name.is_empty() => self.backing_node(name, links),
            _ => Ok(Value::Null),
        }
    }

    /// A node as a layer below: what it is made of is opened once more, in the same way, for reading.
    fn backing_node(&self, name: &str, links: &mut Links) -> Result<Value, NodeError> {
        let node = self.node(name)?;
        let disk = node.disk()?;
        if !disk.disk.read_only() {
            return Err(DescriptionError::BackingIsWritable { name: name.to_owned() }.into());
        }
        if node.changing_below().is_some() {
            return Err(DescriptionError::BackingIsOverWritable { name: name.to_owned() }.into());
        }
        let mut tree = disk.asked.lock().tree.clone();
        if node.filter.is_some() || has_filters(&tree) {
            return Err(NodeError::Filter { name: name.to_owned() });
        }
        tree.keep_image();
        tree.replace("driver", disk.driver())?;
        tree.replace("node-name", name)?;
        links.uses.extend(tree.node_names());
        let options = tree.to_json();
        options.map(Value::Object).ok_or_else(|| DescriptionError::NotUtf8 { name: name.to_owned() }.into())
    }
}
