//! Disks below a filter over a list of them (`quorum`): added, taken away, and replaced by a copy, while requests run.

use std::sync::Arc;

use block::Error;
use parking_lot::Mutex;

use super::disk_node::DiskNode;
use super::error::NodeError;
use super::filter_node::{FilterNode, NodeBelow};
use super::node::Node;
use super::replace::{Edge, Put, ReplaceError, Replaced};
use super::user::User;
use super::{Change, Graph};
use crate::child::{Child, Owner};
use crate::drivers::Children;
use crate::open::layers_over;

/// What becomes of the disks below a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildChange<'a> {
    /// The disk of this node comes to them.
    Add(&'a str),
    /// The one of this role goes (`children.1`). Its node stays, unless it was made for the filter.
    Remove(&'a str),
}

impl Graph {
    /// Changes which disks are below the filter called `name`, which is over a list of them. Requests that are inside end over the old ones. What a
    /// disk that comes has is its user's care: the filter compares it with the others.
    ///
    /// # Errors
    /// When the filter has no list, there is no such node or role, others use the node that comes, or the filter does not work over so many; then
    /// nothing has changed.
    pub async fn change_children(
        &self,
        _change: &Change<'_>,
        name: &str,
        child: ChildChange<'_>,
    ) -> Result<(), NodeError> {
        let node = self.node(name)?;
        let filter = node.filter.as_ref().filter(|filter| filter.is_over_list());
        let filter = filter.ok_or_else(|| NodeError::NoList { name: name.to_owned() })?;
        if let Some(by) = self.job_on(name)? {
            return Err(NodeError::InUse { name: name.to_owned(), by });
        }
        let mut list = filter.list();
        let gone = match child {
            ChildChange::Add(new) => {
                list.push(self.child_to_add(&node, filter, new).await?);
                None
            }
            ChildChange::Remove(role) => {
                let at = list.iter().position(|below| below.role.name == role);
                let at =
                    at.ok_or_else(|| NodeError::NoChild { name: name.to_owned(), child: role.to_owned() })?;
                Some(list.remove(at))
            }
        };
        let filtered = |source| NodeError::Filtered { name: name.to_owned(), source };
        let block = filter.over(&list, None).map_err(filtered)?;
        let disk = node.disk()?;
        let drained = disk.disk.drain().await;
        if let Some(gone) = gone.as_ref().filter(|gone| !gone.child.disk().read_only()) {
            gone.child.disk().flush().await.map_err(filtered)?;
        }
        *filter.below.lock() = list;
        disk.disk.set_root(Arc::new(layers_over(block, None, self.rules())), &drained);
        drop(drained);
        match gone {
            Some(gone) => self.close_left(&gone.name()).await,
            None => Ok(()),
        }
    }

    async fn child_to_add(
        &self,
        node: &Arc<Node>,
        filter: &FilterNode,
        name: &str,
    ) -> Result<Arc<NodeBelow>, NodeError> {
        let new = self.open_bare_file(self.node(name)?).await?;
        let new_disk = Arc::clone(new.disk()?);
        self.check_unused(&new)?;
        self.check_may_be_below(node, (name, &new))?;
        let list = filter.list();
        if list.iter().any(|below| !below.child.disk().read_only()) && new_disk.disk.read_only() {
            let why = "it is read-only".to_owned();
            return Err(NodeError::NotBelow { name: name.to_owned(), of: node.name(), why });
        }
        let Children::List { roles, .. } = filter.driver.children else {
            return Err(NodeError::NoList { name: node.name() });
        };
        // As QEMU counts: behind the last one, as long as there is room.
        let last = roles.iter().rposition(|role| list.iter().any(|below| below.role.name == role.name));
        let is_free = |at: &usize| {
            roles.get(*at).is_some_and(|role| list.iter().all(|below| below.role.name != role.name))
        };
        let behind = last.map_or(0, |last| last + 1);
        let role = (behind..roles.len()).chain(0..behind).find(is_free).and_then(|at| roles.get(at));
        let role = role.ok_or_else(|| NodeError::NotBelow {
            name: name.to_owned(),
            of: node.name(),
            why: format!("it has {} disks, which is the most", roles.len()),
        })?;
        let child = Child::new(Arc::clone(&new_disk.disk), Owner::Graph);
        Ok(Arc::new(NodeBelow { role: *role, child, name: Mutex::new(new.name.clone()) }))
    }

    /// Refuses to have a copy of the filter `disk` take the place of the disk `child` below it, unless only the filter uses that.
    ///
    /// # Errors
    /// Says why.
    pub fn check_replaced_child(&self, disk: &DiskNode, child: &str) -> Result<(), NodeError> {
        self.child_to_replace(disk, child).map(drop)
    }

    fn child_to_replace(
        &self,
        disk: &DiskNode,
        child: &str,
    ) -> Result<(Arc<Node>, Arc<NodeBelow>), NodeError> {
        let refused = || NodeError::NoChild { name: disk.name(), child: child.to_owned() };
        let node = self.nodes().into_iter().find(|node| node.is_of(disk)).ok_or_else(refused)?;
        let below = node.filter.as_ref().and_then(|filter| {
            let changes = |below: &NodeBelow| filter.is_over_list() || below.role.changes;
            filter.list().into_iter().find(|below| changes(below) && below.name() == child)
        });
        let below = below.ok_or_else(refused)?;
        let used = self.node(child)?;
        let other = self.users(&used).into_iter().find(|user| !Arc::ptr_eq(user, &node));
        let other = other.map(|user| User { kind: "node", name: user.name() });
        match other.or_else(|| used.holders.first()) {
            Some(by) => Err(NodeError::InUse { name: child.to_owned(), by }),
            None => Ok((node, below)),
        }
    }

    /// Puts the disk `new`, which is a copy of the filter `disk`, in the place of the disk `child` below it, and takes the filter of the job off. When
    /// `last_look` has ended, the copy has all, durably.
    ///
    /// # Errors
    /// As [`Graph::replace`], and as [`Graph::check_replaced_child`].
    pub(super) async fn replace_child(
        &self,
        change: &Change<'_>,
        disk: &Arc<DiskNode>,
        child: &str,
        new: &str,
        last_look: impl AsyncFnOnce() -> Result<(), Error>,
    ) -> Result<Replaced, ReplaceError> {
        let (node, below) = self.child_to_replace(disk, child)?;
        let (new, new_disk) = self.node_to_put(&node, &below, new)?;
        let (old, old_disk) = (below.name.lock().clone(), below.child.disk());
        let put = async || {
            last_look().await?;
            *below.name.lock() = new.name.clone();
            below.child.set(Arc::clone(&new_disk.disk));
            Ok(())
        };
        let replaced = self.replace(change, &disk.name(), Edge::Root, Put::WithoutFilter, put).await;
        if replaced.is_err() {
            *below.name.lock() = old;
            below.child.set(old_disk);
            return replaced;
        }
        drop(old_disk);
        if let Err(error) = self.close_left(&old.get()).await {
            tracing::warn!("{error}");
        }
        replaced
    }
}
