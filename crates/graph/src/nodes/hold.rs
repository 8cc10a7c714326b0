//! Users of a node other than the nodes over it: exports, jobs.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Graph;
use super::error::NodeError;
use super::node::{Node, NodeKind};
use crate::drivers::Alone;

/// A user of something, as a message names it: `export "disk"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// What it is: `node`, `export`.
    pub kind: &'static str,
    /// What it is called.
    pub name: String,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.name)
    }
}

impl Hold {
    /// Of `node`, for `user`, who changes what it holds or not.
    pub(super) fn new(node: Arc<Node>, user: User, writes: bool) -> Self {
        let user = Arc::new(user);
        node.holders.0.lock().push(Holder { user: Arc::clone(&user), writes, copies_to: None });
        Self { node, user }
    }

    /// The node.
    pub(super) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// What the node is called now.
    pub fn node_name(&self) -> String {
        self.node.name()
    }

    /// Says that the user has writes to this node wait for writes to the node of `target`.
    pub fn copies_to(&self, target: &Self) {
        let mut holders = self.node.holders.0.lock();
        if let Some(holder) = holders.iter_mut().find(|holder| Arc::ptr_eq(&holder.user, &self.user)) {
            holder.copies_to = Some(Arc::clone(&target.node));
        }
    }
}

/// While it lasts its node is not removed.
#[derive(Debug)]
pub struct Hold {
    node: Arc<Node>,
    user: Arc<User>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.node.holders.0.lock().retain(|holder| !Arc::ptr_eq(&holder.user, &self.user));
    }
}

/// The users of one node, the first comer first.
#[derive(Debug, Default)]
pub(super) struct Holders(Mutex<Vec<Holder>>);

/// A user of a node.
#[derive(Debug)]
struct Holder {
    user: Arc<User>,
    /// It changes the node's content.
    writes: bool,
    /// The target of the user's copy job, to which it copies this node's writes.
    copies_to: Option<Arc<Node>>,
}

impl Holders {
    /// All of them.
    pub(super) fn all(&self) -> Vec<User> {
        self.0.lock().iter().map(|holder| User::clone(&holder.user)).collect()
    }

    /// The user that has held the node longest.
    pub(super) fn first(&self) -> Option<User> {
        self.0.lock().first().map(|holder| User::clone(&holder.user))
    }

    /// The first user that writes to the node.
    pub(super) fn first_writer(&self) -> Option<User> {
        let holders = self.0.lock();
        holders.iter().find(|holder| holder.writes).map(|holder| User::clone(&holder.user))
    }

    /// Whether what is written to this node is copied to `target` by `user`.
    fn copies(&self, user: &User, target: &Arc<Node>) -> bool {
        let is_it = |to: &Arc<Node>| Arc::ptr_eq(to, target);
        self.0
            .lock()
            .iter()
            .any(|holder| *holder.user == *user && holder.copies_to.as_ref().is_some_and(is_it))
    }

    /// Targets of copy jobs on this node.
    pub(super) fn targets(&self) -> Vec<Arc<Node>> {
        self.0.lock().iter().filter_map(|holder| holder.copies_to.clone()).collect()
    }
}

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
