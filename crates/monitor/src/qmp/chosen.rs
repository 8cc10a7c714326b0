//! What a query returns: everything, or what its argument `names` names.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use control::{QmpError, arguments};
use graph::{DiskNode, Node};
use serde_json::{Map, Value};

use crate::inventory::Inventory;

arguments! {
    /// Names of nodes, or ids of exports: the client decides how long one answer is.
    pub struct Names { names: Option<Vec<String>> }
}

/// All disks, in the order of their creation, or the named ones, in the order of the argument. Nothing keeps them open until their turn comes.
///
/// # Errors
/// When there is no node of a name, or it is no disk.
pub fn disks(inventory: &Inventory, chosen: &Names) -> Result<Vec<Weak<DiskNode>>, QmpError> {
    let Some(names) = &chosen.names else {
        return Ok(inventory.graph.disks().iter().map(Arc::downgrade).collect());
    };
    let disk = |name: &String| inventory.graph.node(name).and_then(|node| node.disk().map(Arc::downgrade));
    names.iter().map(|name| disk(name).map_err(|error| inventory.refused(&error))).collect()
}

/// Nodes that a query is about.
pub struct Nodes<'a> {
    /// In the order of their making; of a part the node that it is part of.
    pub all: Vec<Weak<Node>>,
    /// `None`: of each all there is.
    names: Option<HashSet<&'a str>>,
}

impl<'a> Nodes<'a> {
    /// All, or the named ones.
    ///
    /// # Errors
    /// When nothing has one of the names.
    pub fn of(inventory: &Inventory, chosen: &'a Names) -> Result<Self, QmpError> {
        let Some(names) = &chosen.names else {
            let all = inventory.graph.nodes().iter().map(Arc::downgrade).collect();
            return Ok(Self { all, names: None });
        };
        let names: HashSet<&str> = names.iter().map(String::as_str).collect();
        let owner = |name: &&str| inventory.graph.owner(name).map_err(|error| inventory.refused(&error));
        let owners = names.iter().map(owner).collect::<Result<Vec<_>, _>>()?;
        let owners: HashSet<_> = owners.iter().map(Arc::as_ptr).collect();
        let all = inventory.graph.nodes();
        let all = all.iter().filter(|node| owners.contains(&Arc::as_ptr(node)));
        Ok(Self { all: all.map(Arc::downgrade).collect(), names: Some(names) })
    }

    /// Whether the query is about what is called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.contains(name))
    }
}

/// An object with `members`, which are moved into it: `json!` copies what it is given.
pub fn object<const COUNT: usize>(members: [(&str, Value); COUNT]) -> Map<String, Value> {
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
