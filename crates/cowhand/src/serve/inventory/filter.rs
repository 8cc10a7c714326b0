//! Throttle nodes: filters over a disk that put it into a group.

use std::rc::Rc;

use control::QmpError;
use serde_json::{Map, Value};

use super::Inventory;
use super::node_name::check_node_name;
use super::nodes::{Node, NodeKind};

impl Inventory {
    /// Adds a filter over a node, or over one that is made for it.
    ///
    /// # Errors
    /// When there is no such group or node, or the disk cannot be opened or has a filter already.
    pub(super) async fn add_filter(
        &self,
        name: String,
        options: &Map<String, Value>,
    ) -> Result<Rc<Node>, QmpError> {
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
}
