//! A node is kept for a user: what would make that wrong is refused.

use std::sync::Arc;

use super::Graph;
use super::error::NodeError;
use super::holders::Hold;
use super::node::{Node, NodeKind};
use super::user::User;
use crate::drivers::Alone;

impl Graph {
    /// Keeps the node called `name` from being removed, for `user`.
    ///
    /// # Errors
    /// When there is none, a filter would miss what the user writes there, or it is a layer and a job works on the disk, which may take it out.
    pub fn hold(&self, name: &str, user: User) -> Result<Hold, NodeError> {
        let node = self.node_to_hold(name)?;
        let needs_alone = |over: &Arc<Node>| match over.filter.as_ref().map(|filter| filter.needs_alone(name))
        {
            None | Some(Alone::No) => false,
            Some(Alone::Always) => true,
            Some(Alone::InUse) => self.is_used(over),
        };
        self.refuse_over(name, |over| over.is_made_of(name) || needs_alone(over))?;
        self.check_misses_nothing(&node)?;
        Ok(Hold::new(node, user, true))
    }

    /// As [`Graph::hold`], for a user that does not change the node's content: a filter over it misses nothing.
    ///
    /// # Errors
    /// As [`Graph::hold`], but for filters.
    pub fn hold_as_it_is(&self, name: &str, user: User) -> Result<Hold, NodeError> {
        let node = self.node_to_hold(name)?;
        self.refuse_over(name, |over| over.is_made_of(name))?;
        Ok(Hold::new(node, user, false))
    }

    fn node_to_hold(&self, name: &str) -> Result<Arc<Node>, NodeError> {
        match self.node(name) {
            Ok(node) => {
                // A throttle node over a layer.
                if let (NodeKind::Throttle { .. }, Some(layer)) = (&node.kind, node.changing_below()) {
                    self.layer_to_hold(&layer.name())?;
                }
                self.below_job_filter(node)
            }
            Err(unknown) => self.layer_to_hold(name)?.ok_or(unknown),
        }
    }

    /// Refuses the node called `name` because of a node over it.
    fn refuse_over(&self, name: &str, refuses: impl Fn(&Arc<Node>) -> bool) -> Result<(), NodeError> {
        // Few are over another one, and there may be thousands.
        let over: Vec<_> = self.nodes.lock().iter().filter(|node| node.is_over_others()).cloned().collect();
        match over.iter().find(|over| refuses(over)) {
            Some(over) => {
                let by = User { kind: "node", name: over.name() };
                Err(NodeError::InUse { name: name.to_owned(), by })
            }
            None => Ok(()),
        }
    }

    /// A job that knows the layers of the disk of `node`. One that copies another disk there does not.
    pub(super) fn job_on_layers(&self, node: &Arc<Node>) -> Option<User> {
        let jobs = node.holders.all().into_iter().filter(|user| user.kind == "job");
        jobs.into_iter().find(|job| !self.nodes().iter().any(|from| from.holders.copies(job, node)))
    }

    /// Whether a job copies another disk to the disk called `name`.
    pub fn is_copied_to(&self, name: &str) -> bool {
        let Ok(node) = self.node(name) else { return false };
        self.nodes().iter().any(|from| from.holders.targets().iter().any(|target| Arc::ptr_eq(target, &node)))
    }

    /// The node of the layer called `name`.
    fn layer_to_hold(&self, name: &str) -> Result<Option<Arc<Node>>, NodeError> {
        let Some(node) = self.layer_node(name) else { return Ok(None) };
        let owner = node.disk()?.owner().map(|owner| owner.name());
        match owner.map(|owner| self.job_on(&owner)).transpose()?.flatten() {
            Some(by) => Err(NodeError::InUse { name: name.to_owned(), by }),
            None => Ok(Some(node)),
        }
    }
}
