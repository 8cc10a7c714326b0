//! Filters over nodes: added over nodes by name or over ones that are made for them, exchanged below while requests run.

use std::ops::Range;
use std::sync::Arc;

use block::Blame;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::below::over_raw;
use super::description_error::DescriptionError;
use super::disk_node::DiskNode;
use super::error::NodeError;
use super::filter_node::{FilterNode, NodeBelow};
use super::node::{Node, NodeKind};
use super::user::User;
use super::{Change, Graph};
use crate::child::{Child, Owner};
use crate::drive::OptionTree;
use crate::drivers::{Alone, BitmapName, Children, FilterDriver, MakeFilter, Role};
use crate::open::disk_over;
use crate::options::{DiskOptions, LAYER_OF_FILTERS, Reader};

/// Options of a filter that are not its driver's.
struct Described {
    makes: Arc<dyn MakeFilter>,
    disk: DiskOptions,
    tree: OptionTree,
}

impl Graph {
    /// Adds a filter over nodes, or over ones that are made for it.
    ///
    /// # Errors
    /// When there are no such nodes, they cannot be opened, do not go together, or are used in a way that would make the filter wrong.
    pub(super) async fn add_filter(
        &self,
        name: String,
        driver: &'static FilterDriver,
        options: &Map<String, Value>,
        (implicit, made): (bool, &mut Vec<Arc<Node>>),
    ) -> Result<Arc<Node>, NodeError> {
        let described = describe(driver, options)?;
        let (mut below, mut children) = (Vec::new(), Vec::new());
        for (role, given) in children_of(&driver.children, options)? {
            let node = match given {
                Value::String(name) => self.node(name)?,
                Value::Object(nested) => {
                    let node = self.add_child(&over_raw(nested)).await?;
                    made.push(Arc::clone(&node));
                    node
                }
                _ => return Err(DescriptionError::Missing { argument: role.name }.into()),
            };
            let node = self.below_job_filter(self.open_bare_file(node).await?)?;
            let disk = self.disk(&node.name())?;
            let child = Child::new(Arc::clone(&disk.disk), Owner::Graph);
            below.push(Arc::new(NodeBelow { role, child, name: Mutex::new(node.name.clone()) }));
            children.push(node);
        }
        self.check_children_apart(&name, &children)?;
        self.check_reach(&below)?;
        let filter = FilterNode { driver, makes: described.makes, below: Mutex::new(below) };
        let disk = self.make_filter(&name, &filter, &described.disk).await?;
        if let Some(group) = filter.makes.group() {
            disk.set_throttle_group(Some(group));
        }
        let path = filter.path(self);
        let node = DiskNode::new(name.clone(), path.into(), described.tree, disk).shown_as(driver.name);
        let kind = NodeKind::Disk(Arc::new(node));
        let node = self.insert(Node { filter: Some(filter), implicit, ..Node::new(name, kind) })?;
        node.disk()?.disk.start_upkeep();
        Ok(node)
    }

    async fn make_filter(
        &self,
        name: &str,
        filter: &FilterNode,
        options: &DiskOptions,
    ) -> Result<crate::Disk, NodeError> {
        let marked = match filter.makes.bitmap() {
            Some(bitmap) => Some(self.dirty_ranges(bitmap, filter).await?),
            None => None,
        };
        let made = filter.over(&filter.list(), marked);
        let block = made.map_err(|source| NodeError::Filtered { name: name.to_owned(), source })?;
        Ok(disk_over(block, None, options, &self.rules))
    }

    /// The dirty ranges of a bitmap, whose disk must be as large as the main disk of `filter`.
    async fn dirty_ranges(
        &self,
        bitmap: BitmapName<'_>,
        filter: &FilterNode,
    ) -> Result<Vec<Range<u64>>, NodeError> {
        let disk = self.disk(bitmap.node)?;
        let refused = |why: String| {
            let source = Blame::new(bitmap.node).invalid(format!("bitmap {:?} {why}", bitmap.name));
            NodeError::Filtered { name: filter.driver.name.to_owned(), source }
        };
        let found = disk.disk.bitmaps().into_iter().find(|found| found.name() == bitmap.name);
        let found = found.ok_or_else(|| refused("is not there, or is inconsistent".to_owned()))?;
        let needed = filter.list().first().map_or(0, |below| below.child.disk().size());
        if found.size() != needed {
            return Err(refused(format!("is of {} bytes; the disk has {needed}", found.size())));
        }
        let ranges = found.dirty_ranges().await;
        ranges.map_err(|source| NodeError::Filtered { name: filter.driver.name.to_owned(), source })
    }

    /// Refuses a filter over another one whose own disk below has other users: it would miss their writes.
    fn check_reach(&self, below: &[Arc<NodeBelow>]) -> Result<(), NodeError> {
        let mut below = below.iter().filter_map(|over| self.node(&over.name()).ok());
        below.try_for_each(|node| self.check_alone_below(&node, None))
    }

    /// Refuses the filter `node` if a disk below it that it needs alone has other users than itself and `leaving`.
    fn check_alone_below(&self, node: &Arc<Node>, leaving: Option<&Arc<Node>>) -> Result<(), NodeError> {
        let names = node.filter.as_ref().map(|filter| filter.names(|alone| alone != Alone::No));
        for name in names.unwrap_or_default() {
            let Ok(used) = self.node(&name) else { continue };
            let users = self.users(&used);
            let is_other =
                |user: &&Arc<Node>| [Some(node), leaving].iter().flatten().all(|own| !Arc::ptr_eq(own, user));
            let by = users.iter().find(is_other).map(|user| User { kind: "node", name: user.name() });
            if let Some(by) = by.or_else(|| used.holders.first_writer()) {
                return Err(NodeError::InUse { name, by });
            }
        }
        Ok(())
    }

    /// Refuses to begin to use the node while others write past its filter.
    pub(super) fn check_misses_nothing(&self, node: &Node) -> Result<(), NodeError> {
        let names = node.filter.as_ref().map(|filter| filter.names(|alone| alone == Alone::InUse));
        for name in names.unwrap_or_default() {
            if let Some(by) = self.node(&name).ok().and_then(|used| used.holders.first_writer()) {
                return Err(NodeError::InUse { name, by });
            }
        }
        Ok(())
    }

    /// Puts the options of blockdev-reopen in force for a filter: another disk below it, while requests run.
    ///
    /// # Errors
    /// Names what cannot change; then nothing has changed.
    pub(super) async fn reopen_filter_node(
        &self,
        node: &Arc<Node>,
        filter: &FilterNode,
        options: &Map<String, Value>,
    ) -> Result<(), NodeError> {
        let name = node.name();
        let fixed = |option: &str| NodeError::Fixed { name: name.clone(), option: option.to_owned() };
        if options.get("driver").and_then(Value::as_str) != Some(filter.driver.name) {
            return Err(fixed("driver"));
        }
        let described = describe(filter.driver, options)?;
        if let Some(option) = filter.makes.first_difference(&*described.makes) {
            return Err(fixed(&option));
        }
        let disk = node.disk()?;
        if !is_opened_as(disk, &described.disk) {
            return Err(fixed("read-only, discard, detect-zeroes or cache"));
        }
        let mut changes = Vec::new();
        let given = children_of(&filter.driver.children, options)?;
        let list = filter.list();
        if given.len() != list.len() {
            return Err(fixed("children"));
        }
        for (below, (role, new)) in list.iter().zip(given) {
            let Value::String(new) = new else {
                return Err(NodeError::Description(DescriptionError::NotANode { member: role.name }));
            };
            if !below.name.lock().is(new) {
                if !below.role.changes {
                    return Err(fixed(below.role.name));
                }
                changes.push((below, self.node_to_put(node, below, new)?));
            }
        }
        for (below, new) in changes {
            self.put_below_filter(disk, below, new).await?;
        }
        Ok(())
    }

    /// The node called `name`, if it may be put where `below` is.
    pub(super) fn node_to_put(
        &self,
        node: &Arc<Node>,
        below: &NodeBelow,
        name: &str,
    ) -> Result<(Arc<Node>, Arc<DiskNode>), NodeError> {
        let refused = |why: String| NodeError::NotBelow { name: name.to_owned(), of: node.name(), why };
        let new = self.below_job_filter(self.node(name)?)?;
        let disk = self.disk(name)?;
        self.check_may_be_below(node, (name, &new))?;
        let (found, needed) = (disk.disk.size(), below.child.disk().size());
        if found != needed {
            return Err(refused(format!("it has {found} bytes; needed: {needed}")));
        }
        if disk.disk.read_only() && !below.child.disk().read_only() {
            return Err(refused("it is read-only".to_owned()));
        }
        // The filter itself is about to leave what it is over now.
        self.check_alone_below(&new, Some(node))?;
        Ok((new, disk))
    }

    /// Replaces a disk below the filter. Running requests finish on the old disk; new ones wait and use the
    /// new disk.
    async fn put_below_filter(
        &self,
        disk: &DiskNode,
        below: &NodeBelow,
        (new, new_disk): (Arc<Node>, Arc<DiskNode>),
    ) -> Result<(), NodeError> {
        let begun = disk.disk.front.now();
        let drained = disk.disk.drain().await;
        if !below.child.disk().read_only() {
            let flushed = below.child.disk().flush().await;
            flushed.map_err(|source| NodeError::Filtered { name: disk.name(), source })?;
        }
        let old = std::mem::replace(&mut *below.name.lock(), new.name.clone());
        below.child.set(Arc::clone(&new_disk.disk));
        drop(drained);
        let pause = disk.disk.front.now().since(begun);
        tracing::debug!(node = disk.name(), below = new.name(), ?pause, "the filter is over another disk");
        self.close_left(&old.get()).await
    }

    /// Closes a node that a filter has left, if it was made for that.
    pub(super) async fn close_left(&self, name: &str) -> Result<(), NodeError> {
        let left = self.node(name)?;
        match left.implicit && !self.is_used(&left) {
            true => self.close(&left).await,
            false => Ok(()),
        }
    }

    /// Refuses to change the size of a disk that filters are over: they know it.
    ///
    /// # Errors
    /// Names the filter.
    pub fn check_no_filter_over(&self, _change: &Change<'_>, disk: &DiskNode) -> Result<(), NodeError> {
        let nodes = self.nodes();
        let name = disk.name();
        let over = nodes.iter().find(|node| node.sends_to().contains(&name));
        match over {
            Some(over) => Err(NodeError::InUse { name, by: User { kind: "node", name: over.name() } }),
            None => Ok(()),
        }
    }
}

impl FilterNode {
    /// What the first disk below it is called by messages.
    fn path(&self, graph: &Graph) -> String {
        let first = self.list().first().and_then(|below| graph.disk(&below.name()).ok());
        first.map_or_else(String::new, |disk| disk.path().to_string_lossy().into_owned())
    }
}

/// Whether a filter's disk is open as `asked`. Over read-only disks it is read-only, whatever the options
/// say.
fn is_opened_as(disk: &DiskNode, asked: &DiskOptions) -> bool {
    let Some(is) = disk.options() else { return false };
    let [mut is, mut asked] = [is.layer, asked.layer.clone()];
    if disk.disk.root().capabilities().read_only {
        (is.read_only, asked.read_only) = (true, true);
    }
    is == asked
}

/// What `options` say of a filter, apart from the nodes below it.
fn describe(driver: &'static FilterDriver, options: &Map<String, Value>) -> Result<Described, NodeError> {
    let is_own = |name: &str| {
        !["driver", "node-name", "auto-read-only"].contains(&name) && !driver.children.is_option(name)
    };
    let own = options.iter().filter(|(name, _)| is_own(name));
    let tree = OptionTree::of_json(own.map(|(name, value)| (name.clone(), value.clone())).collect())?;
    let mut reader = Reader::new(tree, String::new());
    let makes = (driver.read)(&mut reader)?;
    let rest = reader.into_tree();
    if let Some(other) = rest.names().find(|name| !LAYER_OF_FILTERS.contains(name)) {
        let argument = other.to_owned();
        return Err(DescriptionError::NotOfThisFilter { argument, driver: driver.name }.into());
    }
    let mut tree = OptionTree::of_path("filter");
    tree.replace_entries(rest);
    // What the disks below make of a discard is theirs to say.
    if tree.value("discard").is_none() {
        tree.replace("discard", "unmap")?;
    }
    let disk = DiskOptions::of_tree(tree.clone())?;
    Ok(Described { makes, disk, tree })
}

/// The disks that `options`, as those of blockdev-add, say, each with its role.
///
/// # Errors
/// When one is missing, or there are too many.
fn children_of<'a>(
    children: &Children,
    options: &'a Map<String, Value>,
) -> Result<Vec<(Role, &'a Value)>, DescriptionError> {
    let missing = |argument| DescriptionError::Missing { argument };
    match children {
        Children::Named(roles) => {
            let given = |role: &Role| Some((*role, options.get(role.name)?));
            roles.iter().map(|role| given(role).ok_or_else(|| missing(role.name))).collect()
        }
        Children::List { option, roles } => {
            let list = options.get(*option).and_then(Value::as_array).ok_or_else(|| missing(option))?;
            match list.len() {
                0 => Err(missing(option)),
                found if found > roles.len() => {
                    Err(DescriptionError::TooMany { argument: option, found, max: roles.len() })
                }
                _ => Ok(roles.iter().copied().zip(list).collect()),
            }
        }
    }
}
