//! blockdev-reopen with another `backing`: what an image is over is exchanged while clients use the disk.

use std::sync::Arc;

use block::Block;
use serde_json::{Map, Value};

use super::disk_node::DiskNode;
use super::error::NodeError;
use super::holders::Hold;
use super::live::place;
use super::node::{Node, NodeKind};
use super::replace::{Edge, Put, ReplaceError, Replaced, Replacement, Written};
use super::user::User;
use super::{Change, Graph};

/// What an image is to be over.
pub(super) enum NewBacking {
    /// What it is over now.
    Same,
    /// Nothing.
    Nothing,
    /// A layer further down in the same disk.
    Layer(Arc<dyn Block>),
    /// The disk of a node.
    Node(Arc<Node>),
    /// What it is over now, with these options.
    Described(String, Map<String, Value>),
}

impl Graph {
    /// What `options`, those of blockdev-reopen, name as the backing of the image of `node`. `None` if they describe it, or say nothing.
    ///
    /// # Errors
    /// When there is no such node, it is over that image itself, or a job knows what is below the disk.
    pub(super) fn backing_to_come(
        &self,
        node: &Arc<Node>,
        disk: &DiskNode,
        options: &Map<String, Value>,
    ) -> Result<Option<NewBacking>, NodeError> {
        let top = disk.disk.top_image();
        let new = match options.get("backing") {
            Some(Value::Null) if top.below().is_some() => NewBacking::Nothing,
            Some(Value::Null) => return Ok(Some(NewBacking::Same)),
            Some(Value::String(name)) => match self.named_backing(node, name)? {
                NewBacking::Same => return Ok(Some(NewBacking::Same)),
                new => new,
            },
            // What was asked for at the beginning is not so any more.
            Some(Value::Object(described))
                if !disk.asked.lock().tree.names().any(|name| name == "backing") =>
            {
                let name = described.get("node-name").and_then(Value::as_str).unwrap_or_default();
                match self.named_backing(node, name) {
                    Ok(NewBacking::Same) => NewBacking::Described(name.to_owned(), described.clone()),
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        match self.job_on_layers(node) {
            Some(by) => Err(NodeError::InUse { name: node.name(), by }),
            None => Ok(Some(new)),
        }
    }

    /// Puts the disk of the node `below`, which has no user, below the image `target`, to which a job copies another disk: what the image is over when
    /// the disk switches to it. libvirt does so at the end of a shallow copy, whose backing image others have copied meanwhile.
    ///
    /// # Errors
    /// When the image is over something already, or the node has a user; as [`Graph::replace`].
    pub async fn put_under_copy(
        &self,
        change: &Change<'_>,
        target: &str,
        below: &str,
    ) -> Result<(), NodeError> {
        let node = self.node(target)?;
        let disk = node.disk()?;
        let new = self.named_backing(&node, below)?;
        if disk.disk.top_image().below().is_some() {
            let why = "that has a backing image already".to_owned();
            return Err(NodeError::NotBelow { name: below.to_owned(), of: node.name(), why });
        }
        if let NewBacking::Node(below) = &new {
            self.check_unused(below)?;
        }
        self.put_backing(change, &node, disk, new).await
    }

    /// Undoes [`Graph::put_under_copy`].
    ///
    /// # Errors
    /// As [`Graph::replace`].
    pub async fn take_from_under_copy(&self, change: &Change<'_>, target: &str) -> Result<(), NodeError> {
        let node = self.node(target)?;
        self.put_backing(change, &node, node.disk()?, NewBacking::Nothing).await
    }

    fn named_backing(&self, node: &Arc<Node>, name: &str) -> Result<NewBacking, NodeError> {
        let images = self.layers(&node.name())?.into_iter().filter(|layer| !layer.is_filter);
        let at_work = node.changing_below().filter(|below| below.name.is(name));
        let own = images.enumerate().skip(1).find(|(_, layer)| layer.name.as_deref() == Some(name));
        match own {
            _ if at_work.is_some() => return Ok(NewBacking::Same),
            Some((1, _)) => return Ok(NewBacking::Same),
            Some((_, layer)) => return Ok(NewBacking::Layer(layer.block)),
            None => {}
        }
        let new = match self.node(name) {
            Ok(new) => self.below_job_filter(new)?,
            Err(unknown) => self.layer_node(name).ok_or(unknown)?,
        };
        if matches!(new.kind, NodeKind::TakenOut) {
            return Err(NodeError::TakenOut { name: name.to_owned() });
        }
        if self.is_over(&new, node) {
            let why = "it is over that itself".to_owned();
            return Err(NodeError::NotBelow { name: name.to_owned(), of: node.name(), why });
        }
        Ok(NewBacking::Node(new))
    }

    /// Whether `upper` is `lower`, or needs it in some way.
    fn is_over(&self, upper: &Arc<Node>, lower: &Arc<Node>) -> bool {
        leads(upper, lower, |node| {
            let owner = node.disk().ok().and_then(|disk| disk.owner().map(|owner| owner.name()));
            let owner = owner.and_then(|name| self.node(&name).ok());
            let used = self.nodes().into_iter().filter(|other| node.uses(&other.name()));
            used.chain(node.changing_below()).chain(owner).collect()
        })
    }

    /// Puts what an image is to be over below it.
    ///
    /// # Errors
    /// As [`Graph::replace`]; then it is over what it was over.
    pub(super) async fn put_backing(
        &self,
        change: &Change<'_>,
        node: &Node,
        disk: &Arc<DiskNode>,
        new: NewBacking,
    ) -> Result<(), NodeError> {
        let exchanged = match new {
            NewBacking::Described(name, mut options) => {
                options.remove("backing");
                return self.reopen_part(change, &name, &options).await.unwrap_or(Ok(()));
            }
            new => self.exchange_backing(change, node, disk, new).await,
        };
        exchanged.map_err(|source| NodeError::NewBacking { name: node.name(), source: Box::new(source) })
    }

    async fn exchange_backing(
        &self,
        change: &Change<'_>,
        node: &Node,
        disk: &Arc<DiskNode>,
        new: NewBacking,
    ) -> Result<(), ReplaceError> {
        let before = disk.disk.layers();
        let top = disk.disk.top_image();
        let edge = Edge::Backing { of: place(&before, &top)? };
        if let Some(image) = disk.disk.image() {
            // What reads as zeroes below now may not later.
            image.await_backing();
        }
        let (replaced, hold): (Replaced, Option<Hold>) = match new {
            NewBacking::Same | NewBacking::Described(..) => return Ok(()),
            NewBacking::Nothing => {
                (self.replace(change, &disk.name(), edge, Put::Nothing, async || Ok(())).await?, None)
            }
            NewBacking::Layer(block) => {
                let put = Put::Layer(place(&before, &block)?);
                (self.replace(change, &disk.name(), edge, put, async || Ok(())).await?, None)
            }
            NewBacking::Node(below) => {
                let below = self.open_bare_file(below).await?;
                let hold = self.hold_as_it_is(&below.name(), User { kind: "node", name: node.name() })?;
                let found = Replacement::of_block(self.changing(&below)?);
                let put = self.exchange(disk, &before, edge, found, Written::Flush, async || Ok(())).await?;
                (put, Some(hold))
            }
        };
        self.rename(disk, &before, None);
        let left = node.changing_below();
        let goes = left.as_ref().is_some_and(|left| left.implicit);
        let old_hold = std::mem::replace(&mut *node.stands_on.lock(), hold);
        drop(old_hold);
        let closed = replaced.removed.close().await;
        if let Some(left) = left.filter(|left| goes && self.check_unused(left).is_ok()) {
            self.close(&left).await?;
        }
        closed.map_err(ReplaceError::Before)
    }
}

// Which disks depend on each other. A copy whose target sits over its source writes to the source, and the source's writes wait for the copy:
// a deadlock that also keeps the program from ending. A snapshot whose old data goes to a disk over the disk
// itself preserves nothing.
impl Graph {
    /// Whether the disk `upper` is `lower`, or is over it through filters.
    pub fn stands_on(&self, upper: &str, lower: &str) -> bool {
        match (self.node(upper), self.node(lower)) {
            (Ok(upper), Ok(lower)) => self.reaches(&upper, &lower),
            _ => false,
        }
    }

    /// Whether requests to the disk `from` send requests to the disk `to`, through filters and jobs, or it is that disk.
    pub fn sends_to(&self, from: &str, to: &str) -> bool {
        match (self.node(from), self.node(to)) {
            (Ok(from), Ok(to)) => self.feeds(&from, &to),
            _ => false,
        }
    }

    /// Whether `node` is `other`, or sends requests to it, through filters and jobs.
    pub(super) fn feeds(&self, node: &Arc<Node>, other: &Arc<Node>) -> bool {
        leads(node, other, |node| {
            let mut next = self.below(node);
            next.extend(node.holders.targets());
            next
        })
    }

    /// Whether `node` is `other`, or over it.
    pub(super) fn reaches(&self, node: &Arc<Node>, other: &Arc<Node>) -> bool {
        leads(node, other, |node| self.below(node))
    }

    /// The nodes below one.
    fn below(&self, node: &Node) -> Vec<Arc<Node>> {
        node.sends_to().iter().filter_map(|name| self.node(name).ok()).collect()
    }

    /// Refuses a filter `name` if one of its children is over another.
    pub(super) fn check_children_apart(&self, name: &str, children: &[Arc<Node>]) -> Result<(), NodeError> {
        for (at, one) in children.iter().enumerate() {
            let mut others = children.iter().enumerate().filter(|(other, _)| *other != at);
            if let Some((_, other)) = others.find(|(_, other)| self.reaches(one, other)) {
                return Err(one_over_another(one, name, other));
            }
        }
        Ok(())
    }

    /// Refuses `new`, which a command calls `name`, below `node`, if it is over that, or the two must stay apart.
    pub(super) fn check_may_be_below(
        &self,
        node: &Arc<Node>,
        (name, new): (&str, &Arc<Node>),
    ) -> Result<(), NodeError> {
        if self.reaches(new, node) {
            let why = "it is over that itself".to_owned();
            return Err(NodeError::NotBelow { name: name.to_owned(), of: node.name(), why });
        }
        self.check_stay_apart(node, new)
    }

    /// Refuses `new` below the filter `node`, if a job or a filter that has both, or what is over and below them, needs them apart.
    fn check_stay_apart(&self, node: &Arc<Node>, new: &Arc<Node>) -> Result<(), NodeError> {
        let all = self.nodes();
        let upper: Vec<_> = all.iter().filter(|other| self.reaches(other, node)).collect();
        let lower: Vec<_> = all.iter().filter(|other| self.reaches(new, other)).collect();
        let jobs_of = |nodes: &[&Arc<Node>]| {
            let users: Vec<_> = nodes.iter().flat_map(|node| node.holders.all()).collect();
            users.into_iter().filter(|user| user.kind == "job").collect::<Vec<_>>()
        };
        let below = jobs_of(&lower);
        if let Some(job) = jobs_of(&upper).into_iter().find(|job| below.contains(job)) {
            return Err(NodeError::InUse { name: node.name(), by: job });
        }
        for over in &upper {
            let children = self.below(over);
            if !children.iter().any(|child| self.reaches(child, node)) {
                continue;
            }
            let mut others = children.iter().filter(|child| !self.reaches(child, node));
            if let Some(other) = others.find(|other| self.reaches(new, other) || self.reaches(other, new)) {
                return Err(one_over_another(new, &over.name(), other));
            }
        }
        Ok(())
    }
}

/// Whether `to` is `from`, or comes after it. Each node is looked at once, however many ways lead to it.
pub(super) fn leads(from: &Arc<Node>, to: &Arc<Node>, next: impl Fn(&Node) -> Vec<Arc<Node>>) -> bool {
    let (mut seen, mut left) = (vec![Arc::as_ptr(from)], vec![Arc::clone(from)]);
    while let Some(node) = left.pop() {
        if Arc::ptr_eq(&node, to) {
            return true;
        }
        for node in next(&node) {
            if !seen.contains(&Arc::as_ptr(&node)) {
                seen.push(Arc::as_ptr(&node));
                left.push(node);
            }
        }
    }
    false
}

fn one_over_another(one: &Node, of: &str, other: &Node) -> NodeError {
    let why = format!("{:?} is below {of:?} too, and one of them is backed by the other", other.name());
    NodeError::NotBelow { name: one.name(), of: of.to_owned(), why }
}
