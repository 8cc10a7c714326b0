//! Users of a node other than the nodes over it: exports, jobs.

use std::sync::Arc;

use parking_lot::Mutex;

use super::node::Node;
use super::user::User;

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
    pub(super) fn copies(&self, user: &User, target: &Arc<Node>) -> bool {
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
