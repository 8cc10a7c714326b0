//! What has a node name.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Map, Value};

use super::disk_node::DiskNode;
use super::error::NodeError;
use super::filter_node::FilterNode;
use super::holders::{Hold, Holders};
use super::name::{NodeName, Renames};
use super::user::User;
use crate::child::Child;
use crate::links::Links;

/// Something with a node name.
#[derive(Debug)]
pub struct Node {
    /// Its name. That of a disk is shared with it.
    pub(super) name: NodeName,
    /// It belongs to the node over it and goes with it.
    pub implicit: bool,
    /// What it is.
    pub kind: NodeKind,
    /// What it is over, if it is a filter with a disk of its own.
    pub filter: Option<FilterNode>,
    /// Its backing disk, if clients still write that ([`super::changing_backing`]).
    pub(super) stands_on: Mutex<Option<Hold>>,
    /// Grows when something else is put into its disk ([`super::Graph::replace`]).
    pub(super) links: NodeLinks,
    /// Its users other than nodes over it.
    pub(super) holders: Holders,
}

/// The names that a node has to do with now.
#[derive(Debug, Default)]
pub(super) struct NodeLinks(Mutex<Links>);

/// Them, as long as no other task changes them.
pub(super) struct LockedLinks<'a>(MutexGuard<'a, Links>);

impl NodeLinks {
    pub(super) fn new(links: Links) -> Self {
        Self(Mutex::new(links))
    }

    pub(super) fn lock(&self) -> LockedLinks<'_> {
        LockedLinks(self.0.lock())
    }
}

impl Deref for LockedLinks<'_> {
    type Target = Links;

    fn deref(&self) -> &Links {
        &self.0
    }
}

impl DerefMut for LockedLinks<'_> {
    fn deref_mut(&mut self) -> &mut Links {
        Renames::one_more();
        &mut self.0
    }
}

/// What a node is.
#[derive(Debug)]
pub enum NodeKind {
    /// An open disk.
    Disk(Arc<DiskNode>),
    /// A file that is opened by what uses it: its options.
    File(Map<String, Value>),
    /// A filter that puts its disk into a throttle group.
    Throttle {
        /// The group's name.
        group: Mutex<String>,
        /// The disk's node.
        child: NodeName,
    },
    /// The filter of a running job, to which a user gave a name ([`super::Graph::name_job_filter`]).
    JobFilter {
        /// What queries call it.
        driver: &'static str,
        /// The disk's node.
        disk: NodeName,
        /// The image of the disk that it is over, where that has a name and is not the uppermost one.
        image: Option<String>,
        /// The job.
        job: User,
    },
    /// An image that was a node by itself and became a layer of a disk: a job took it out, or it went with the disk. It is closed, and keeps its name
    /// until it is removed, as managers of disks expect.
    TakenOut,
}

impl Node {
    /// A node by itself: no parts, nothing under it.
    pub(super) fn new(name: String, kind: NodeKind) -> Self {
        let name = match &kind {
            NodeKind::Disk(disk) => disk.name.clone(),
            NodeKind::File(_)
            | NodeKind::Throttle { .. }
            | NodeKind::JobFilter { .. }
            | NodeKind::TakenOut => NodeName::new(name),
        };
        Self {
            name,
            implicit: false,
            kind,
            filter: None,
            stands_on: Mutex::default(),
            links: NodeLinks::default(),
            holders: Holders::default(),
        }
    }

    /// Its backing disk, if clients still write that.
    pub(super) fn changing_below(&self) -> Option<Arc<Self>> {
        self.stands_on.lock().as_ref().map(|hold| Arc::clone(hold.node()))
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.name.get()
    }

    /// The open disk.
    ///
    /// # Errors
    /// When it is none.
    pub fn disk(&self) -> Result<&Arc<DiskNode>, NodeError> {
        let name = || self.name();
        match &self.kind {
            NodeKind::Disk(disk) => Ok(disk),
            NodeKind::File(_) => Err(NodeError::BareFile { name: name() }),
            NodeKind::Throttle { .. } | NodeKind::JobFilter { .. } => Err(NodeError::Filter { name: name() }),
            NodeKind::TakenOut => Err(NodeError::TakenOut { name: name() }),
        }
    }

    /// Other names that stand for parts of it.
    pub fn parts(&self) -> Vec<String> {
        self.links.lock().parts.clone()
    }

    /// Whether the node called `name` is under it, and must stay as long as it does.
    pub(super) fn uses(&self, name: &str) -> bool {
        let over = matches!(&self.kind, NodeKind::Throttle { child, .. } if child.is(name));
        let below = self.filter.as_ref().is_some_and(|filter| filter.uses(name));
        over || below || self.links.lock().uses.iter().any(|used| used == name)
    }

    /// The disks to which it sends requests, as it sees them.
    pub(super) fn children(&self) -> Vec<Arc<Child>> {
        let files = self.disk().into_iter().flat_map(|disk| disk.files.lock().clone());
        self.filter.iter().flat_map(FilterNode::children).chain(files).collect()
    }

    /// Nodes to which it sends requests: below a filter, or files of images.
    pub(super) fn sends_to(&self) -> Vec<String> {
        let below = self.filter.as_ref().map(FilterNode::below).unwrap_or_default();
        let files = self.links.lock().files.clone();
        below.into_iter().map(|(_, name)| name).chain(files).collect()
    }

    /// Nodes under it, which go with it if they were made for it.
    pub(super) fn goes_with(&self) -> Vec<String> {
        let child = match &self.kind {
            NodeKind::Throttle { child, .. } => Some(child.get()),
            NodeKind::JobFilter { disk, .. } => Some(disk.get()),
            NodeKind::Disk(_) | NodeKind::File(_) | NodeKind::TakenOut => None,
        };
        let below = self.filter.as_ref().map(FilterNode::below).unwrap_or_default();
        let uses = self.links.lock().uses.clone();
        below.into_iter().map(|(_, name)| name).chain(uses).chain(child).collect()
    }

    /// Whether it is a filter, or has files that are nodes.
    pub(super) fn is_over_others(&self) -> bool {
        self.filter.is_some() || !self.links.lock().files.is_empty()
    }

    /// Whether the node called `name` is a file of its images.
    pub(super) fn is_made_of(&self, name: &str) -> bool {
        self.links.lock().files.iter().any(|file| file == name)
    }

    /// Whether `name` is its, or that of a part of it.
    pub fn is_called(&self, name: &str) -> bool {
        self.name.is(name) || self.links.lock().parts.iter().any(|part| part == name)
    }

    /// Whether it is the node of `disk`.
    pub(super) fn is_of(&self, disk: &DiskNode) -> bool {
        matches!(&self.kind, NodeKind::Disk(own) if std::ptr::eq(&**own, disk))
    }

    /// Whether it is a filter that puts its disk into the group called `name`.
    pub(super) fn is_filter_of(&self, name: &str) -> bool {
        matches!(&self.kind, NodeKind::Throttle { group, .. } if *group.lock() == name)
            || self.filter.as_ref().is_some_and(|filter| filter.group() == Some(name))
    }
}
