//! Taking nodes away.

use std::rc::Rc;

use control::QmpError;

use super::Inventory;
use super::nodes::{Node, NodeKind};

impl Inventory {
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

    pub(super) fn users(&self, node: &Rc<Node>) -> Vec<Rc<Node>> {
        self.nodes().into_iter().filter(|user| user.uses.contains(&node.name)).collect()
    }

    pub(super) async fn close_node(&self, node: &Rc<Node>) -> Result<(), QmpError> {
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
