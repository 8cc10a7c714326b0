//! All nodes of a process, found by name without a look at each.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use super::name::Renames;
use super::node::Node;

/// Nodes in the order of their making.
#[derive(Debug, Default)]
pub(super) struct NodeList {
    nodes: Vec<Arc<Node>>,
    index: Index,
}

/// Nodes by their names, and by the names of their parts.
#[derive(Debug, Default)]
struct Index {
    own: HashMap<String, Weak<Node>>,
    parts: HashMap<String, Weak<Node>>,
    /// What it holds: the names until then. Afterwards all are gathered anew.
    as_of: Option<Renames>,
}

impl NodeList {
    /// The node called `name`. Costs a look at all nodes after names have changed.
    pub(super) fn find(&mut self, name: &str) -> Option<Arc<Node>> {
        self.gather();
        self.index.own.get(name)?.upgrade()
    }

    /// The node called `name`, or that has a part called so. Costs as much.
    pub(super) fn owner(&mut self, name: &str) -> Option<Arc<Node>> {
        self.find(name).or_else(|| self.index.parts.get(name)?.upgrade())
    }

    /// Adds a node behind the others.
    pub(super) fn push(&mut self, node: Arc<Node>) {
        self.index.add(&node);
        self.nodes.push(node);
    }

    /// Removes all nodes but those for which `stays` is true. Returns how many it removed.
    pub(super) fn retain(&mut self, stays: impl Fn(&Arc<Node>) -> bool) -> usize {
        let before = self.nodes.len();
        let index = &mut self.index;
        self.nodes.retain(|node| {
            let stays = stays(node);
            if !stays {
                index.remove(node);
            }
            stays
        });
        before - self.nodes.len()
    }

    /// Takes `node` out.
    pub(super) fn remove(&mut self, node: &Arc<Node>) {
        self.retain(|other| !Arc::ptr_eq(other, node));
    }

    /// Puts `new` in the place of `old`, if that is there.
    pub(super) fn put_in_place(&mut self, old: &Arc<Node>, new: &Arc<Node>) {
        if let Some(place) = self.nodes.iter_mut().find(|place| Arc::ptr_eq(place, old)) {
            self.index.remove(old);
            self.index.add(new);
            *place = Arc::clone(new);
        }
    }

    fn gather(&mut self) {
        // Taken first: a name that changes while the others are gathered counts as changed afterwards.
        let now = Renames::now();
        if self.index.as_of != Some(now) {
            // They keep their memory: there are mostly as many names as before.
            self.index.own.clear();
            self.index.parts.clear();
            self.index.as_of = Some(now);
            self.nodes.iter().for_each(|node| self.index.add(node));
        }
    }
}

impl Index {
    fn add(&mut self, node: &Arc<Node>) {
        let mut is_first = put(&mut self.own, node.name(), node);
        for part in node.parts() {
            is_first &= put(&mut self.parts, part, node);
        }
        if !is_first {
            // Which of the two goes first is not known.
            self.as_of = None;
        }
    }

    fn remove(&mut self, node: &Arc<Node>) {
        self.own.remove(&node.name());
        for part in node.parts() {
            self.parts.remove(&part);
        }
    }
}

/// The first node that has the name keeps it. True if that is this one.
fn put(names: &mut HashMap<String, Weak<Node>>, name: String, node: &Arc<Node>) -> bool {
    let found = names.entry(name).or_insert_with(|| Arc::downgrade(node));
    std::ptr::eq(found.as_ptr(), Arc::as_ptr(node))
}

impl Deref for NodeList {
    type Target = [Arc<Node>];

    fn deref(&self) -> &Self::Target {
        &self.nodes
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::NodeKind;
    use super::*;

    fn node(name: &str) -> Arc<Node> {
        Arc::new(Node::new(name.to_owned(), NodeKind::TakenOut))
    }

    fn list(names: &[&str]) -> NodeList {
        let mut list = NodeList::default();
        names.iter().for_each(|name| list.push(node(name)));
        list
    }

    /// Places in the list of what is called so.
    fn found<const COUNT: usize>(list: &mut NodeList, names: [&str; COUNT]) -> [Option<usize>; COUNT] {
        names.map(|name| {
            let found = list.find(name)?;
            list.iter().position(|node| Arc::ptr_eq(node, &found))
        })
    }

    #[test]
    fn a_node_is_found_by_the_name_that_it_has_now() {
        let mut list = list(&["a", "b"]);
        assert_eq!(found(&mut list, ["a", "b", "c"]), [Some(0), Some(1), None]);
        // A name changes while no task has the list.
        list[0].name.set("c".to_owned());
        assert_eq!(found(&mut list, ["a", "b", "c"]), [None, Some(1), Some(0)]);
        list[1].name.set("a".to_owned());
        assert_eq!(found(&mut list, ["a", "b", "c"]), [Some(1), None, Some(0)]);
        // Nodes go, and those behind them are in other places.
        let first = Arc::clone(&list[0]);
        list.remove(&first);
        assert_eq!(found(&mut list, ["a", "b", "c"]), [Some(0), None, None]);
        list.push(first);
        assert_eq!(found(&mut list, ["a", "b", "c"]), [Some(0), None, Some(1)]);
        let other = node("a");
        let old = Arc::clone(&list[0]);
        list.put_in_place(&old, &other);
        assert!(list.find("a").is_some_and(|found| Arc::ptr_eq(&found, &other)));
    }

    #[test]
    fn of_two_nodes_with_one_name_the_first_is_found_and_then_the_other() {
        let mut list = list(&["a", "b"]);
        list[1].name.set("a".to_owned());
        list.push(node("a"));
        assert_eq!(found(&mut list, ["a"]), [Some(0)]);
        for _ in 0..2 {
            let first = Arc::clone(&list[0]);
            list.remove(&first);
            assert_eq!(found(&mut list, ["a"]), [Some(0)]);
        }
        assert_eq!(list.retain(|_| false), 1);
        assert_eq!(found(&mut list, ["a"]), [None]);
    }

    #[test]
    fn a_part_leads_to_its_node_as_soon_as_it_has_it() {
        let mut list = list(&["a", "b"]);
        let owner = |list: &mut NodeList, name: &str| Some(list.owner(name)?.name());
        assert_eq!(owner(&mut list, "part"), None);
        list[1].links.lock().parts.push("part".to_owned());
        assert_eq!(owner(&mut list, "part").as_deref(), Some("b"));
        assert!(list.find("part").is_none());
        list[1].links.lock().parts.clear();
        assert_eq!(owner(&mut list, "part"), None);
    }
}
