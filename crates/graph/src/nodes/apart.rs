//! Disks that must not depend on each other: source and target of a job, the children of one filter.
//!
//! A copy whose target sits over its source writes to the source, and the source's writes wait for the copy:
//! a deadlock that also keeps the program from ending. A snapshot whose old data goes to a disk over the disk
//! itself preserves nothing.

use std::sync::Arc;

use super::Graph;
use super::error::NodeError;
use super::node::Node;

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
