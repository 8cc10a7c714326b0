//! Throttle nodes: filters over a disk that put it into a group.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::Graph;
use super::below::over_raw;
use super::description_error::DescriptionError;
use super::error::NodeError;
use super::holders::Hold;
use super::name::check_node_name;
use super::node::{Node, NodeKind};
use super::user::User;
use crate::drive::OptionTree;
use crate::drivers::{THROTTLE_GROUP, throttle};
use crate::options::DiskOptions;

impl Graph {
    /// Adds a filter over a node, or over one that is made for it.
    ///
    /// # Errors
    /// When there is no such group or node, or the disk cannot be opened or has a filter already.
    pub(crate) async fn add_throttle(
        &self,
        name: String,
        options: &Map<String, Value>,
        (implicit, made): (bool, &mut Vec<Arc<Node>>),
    ) -> Result<Arc<Node>, NodeError> {
        let group = options.get(THROTTLE_GROUP).and_then(Value::as_str).unwrap_or_default();
        self.throttle_group(group)?;
        match options.get("file") {
            Some(Value::String(child)) => {
                let child = match self.node(child) {
                    Ok(child) => self.open_bare_file(child).await?,
                    Err(unknown) => {
                        let layer = self.layer_node(child).ok_or(unknown)?;
                        check_is_as_below(&name, options, &layer)?;
                        return self.put_filter_over_layer(name, group, &layer, implicit);
                    }
                };
                if !self.is_plain(&child) || !is_as_below(options, &child)? {
                    let below = (implicit, made);
                    return Box::pin(self.add_filter(name, &throttle::THROTTLE, options, below)).await;
                }
                self.put_filter(name, group, &child, implicit)
            }
            Some(Value::Object(nested)) => {
                let mut nested = over_raw(nested);
                if let Some(cache) = options.get("cache") {
                    nested.entry("cache").or_insert_with(|| cache.clone());
                }
                let child = self.add_child(&nested).await?;
                let mut named = options.clone();
                named.insert("file".to_owned(), Value::String(child.name()));
                made.push(child);
                Box::pin(self.add_throttle(name, &named, (implicit, made))).await
            }
            _ => Err(DescriptionError::Missing { argument: "file" }.into()),
        }
    }

    /// Whether a node is a disk that no throttle filter is over yet, so that its own front can charge.
    fn is_plain(&self, node: &Node) -> bool {
        let is_throttled = |user: &Arc<Node>| matches!(user.kind, NodeKind::Throttle { .. });
        node.disk().is_ok() && !self.users(node).iter().any(is_throttled)
    }

    /// Adds the node that a filter describes as its own.
    pub(super) async fn add_child(&self, options: &Map<String, Value>) -> Result<Arc<Node>, NodeError> {
        let name = match options.get("node-name").and_then(Value::as_str) {
            Some(name) => {
                check_node_name(name)?;
                name.to_owned()
            }
            None => self.make_name(),
        };
        Box::pin(self.add_named(name, options, true)).await
    }

    fn put_filter(
        &self,
        name: String,
        group: &str,
        child: &Node,
        implicit: bool,
    ) -> Result<Arc<Node>, NodeError> {
        let disk = child.disk()?;
        let kind = NodeKind::Throttle { group: Mutex::new(group.to_owned()), child: child.name.clone() };
        let node = self.insert(Node { implicit, ..Node::new(name, kind) })?;
        disk.disk.set_throttle_group(Some(group));
        Ok(node)
    }

    /// As [`Graph::put_filter`], over a layer below a disk, which is held as long as the filter is there. A job may work on the disk, and
    /// remove the layer: nothing reads through the filter meanwhile.
    fn put_filter_over_layer(
        &self,
        name: String,
        group: &str,
        layer: &Arc<Node>,
        implicit: bool,
    ) -> Result<Arc<Node>, NodeError> {
        if let Some(by) = layer.holders.first() {
            return Err(NodeError::InUse { name: layer.name(), by });
        }
        let hold = Hold::new(Arc::clone(layer), User { kind: "node", name: name.clone() }, false);
        let node = self.put_filter(name, group, layer, implicit)?;
        *node.stands_on.lock() = Some(hold);
        Ok(node)
    }

    /// Whether `user` is a throttle node over a layer through which nothing reads.
    pub(super) fn is_idle_filter(&self, user: &User) -> bool {
        user.kind == "node"
            && self
                .node(&user.name)
                .is_ok_and(|node| matches!(node.kind, NodeKind::Throttle { .. }) && !self.is_used(&node))
    }

    /// Moves the disk under the filter `name` to the group that `options` name.
    pub(super) fn reopen_filter(
        &self,
        name: &str,
        (group, child): (&Mutex<String>, &str),
        options: &Map<String, Value>,
    ) -> Result<(), NodeError> {
        check_is_as_below(name, options, &*self.node(child)?)?;
        let text = |name: &str| options.get(name).and_then(Value::as_str);
        if text("driver") != Some("throttle") || text("file") != Some(child) {
            return Err(NodeError::FixedFilter { name: name.to_owned(), child: child.to_owned() });
        }
        let new = text("throttle-group").unwrap_or_default();
        self.throttle_group(new)?;
        self.disk(child)?.disk.set_throttle_group(Some(new));
        new.clone_into(&mut group.lock());
        Ok(())
    }
}

/// What `options` say under `name`, which they must have.
pub(super) fn text<'a>(
    options: &'a Map<String, Value>,
    name: &'static str,
) -> Result<&'a str, DescriptionError> {
    let value = options.get(name).and_then(Value::as_str);
    value.ok_or(DescriptionError::Missing { argument: name })
}

/// Whether what `options` say of the requests is so of the disk `below`, so that its own front can charge for both.
fn is_as_below(options: &Map<String, Value>, below: &Node) -> Result<bool, NodeError> {
    // How a file is opened is said where it is opened.
    const ELSEWHERE: [&str; 9] = [
        "driver",
        "node-name",
        "throttle-group",
        "file",
        "auto-read-only",
        "cache",
        "cache.direct",
        "cache.no-flush",
        "cache.writeback",
    ];
    let said = options.iter().filter(|(name, _)| !ELSEWHERE.contains(&name.as_str()));
    let said = OptionTree::of_json(said.map(|(name, value)| (name.clone(), value.clone())).collect())?;
    let mut is = OptionTree::of_path("filter");
    is.say(&below.disk()?.disk.runtime_options());
    let mut asked = is.clone();
    asked.replace_entries(said);
    Ok(DiskOptions::of_tree(is)?.layer == DiskOptions::of_tree(asked)?.layer)
}

/// Refuses what [`is_as_below`] denies of a filter that cannot be a disk of its own.
fn check_is_as_below(name: &str, options: &Map<String, Value>, below: &Node) -> Result<(), NodeError> {
    match is_as_below(options, below)? {
        true => Ok(()),
        false => Err(NodeError::Fixed {
            name: name.to_owned(),
            option: "read-only, discard or detect-zeroes".to_owned(),
        }),
    }
}
