//! All nodes of a process, found by name without a look at each.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::node::Node;

/// Places that are remembered beyond those of the nodes that there are.
const PLACES_SPARE: usize = 64;

/// Nodes in the order of their making.
#[derive(Debug, Default)]
pub(super) struct NodeList {
    nodes: Vec<Arc<Node>>,
    /// Where a name was found last. Names change and nodes go: the node there is asked.
    places: HashMap<String, usize>,
}

impl NodeList {
    /// The node called `name`. Costs a look at all nodes the first time, and after nodes before it have gone.
    pub(super) fn find(&mut self, name: &str) -> Option<Arc<Node>> {
        let is_it = |node: &&Arc<Node>| node.name.is(name);
        let remembered = self.places.get(name).and_then(|at| self.nodes.get(*at)).filter(is_it);
        if let Some(node) = remembered {
            return Some(Arc::clone(node));
        }
        let at = self.nodes.iter().position(|node| node.name.is(name))?;
        if self.places.len() > self.nodes.len() + PLACES_SPARE {
            self.places.clear();
        }
        self.places.insert(name.to_owned(), at);
        self.nodes.get(at).cloned()
    }
}

impl Deref for NodeList {
    type Target = Vec<Arc<Node>>;

    fn deref(&self) -> &Self::Target {
        &self.nodes
    }
}

impl DerefMut for NodeList {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.nodes
    }
}
