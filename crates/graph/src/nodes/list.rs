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

#[cfg(test)]
mod tests {
    use super::super::node::NodeKind;
    use super::*;

    fn names(list: &mut NodeList) -> [Option<String>; 3] {
        ["a", "b", "c"].map(|name| Some(list.find(name)?.name()))
    }

    #[test]
    fn a_remembered_place_is_asked_for_its_name() {
        let mut list = NodeList::default();
        list.extend(["a", "b"].map(|name| Arc::new(Node::new(name.to_owned(), NodeKind::TakenOut))));
        let found = |names: [Option<&str>; 3]| names.map(|name| name.map(str::to_owned));
        assert_eq!(names(&mut list), found([Some("a"), Some("b"), None]));
        // A name changes while no task has the list.
        let first = Arc::clone(&list[0]);
        first.name.set("c".to_owned());
        assert_eq!(names(&mut list), found([None, Some("b"), Some("c")]));
        list[1].name.set("a".to_owned());
        assert_eq!(names(&mut list), found([Some("a"), None, Some("c")]));
        // Nodes go, and those behind them are in other places.
        list.remove(0);
        assert_eq!(names(&mut list), found([Some("a"), None, None]));
        // Places of names that are gone are dropped.
        for at in 0..PLACES_SPARE * 4 {
            list[0].name.set(at.to_string());
            assert!(list.find(&at.to_string()).is_some());
        }
        assert!(list.places.len() <= list.len() + PLACES_SPARE + 1);
    }
}
