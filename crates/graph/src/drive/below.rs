//! A drive as a layer below another one: what it has there, and what is said of layers further down.

use serde_json::{Map, Value};

use super::{Entry, OptionTree};
use crate::options::table::is_of_whole_disk;

impl OptionTree {
    /// Only options that a backing image has too: not those of the disk as a whole.
    pub(crate) fn keep_image(&mut self) {
        self.entries.retain(|name, _| !is_of_whole_disk(name));
    }

    /// As JSON; `None` if a value is not UTF-8.
    pub(crate) fn to_json(&self) -> Option<Map<String, Value>> {
        let members = self.entries.iter().map(|(name, entry)| {
            let value = match entry {
                Entry::Value(value) => Value::String(value.to_str()?.to_owned()),
                Entry::Null => Value::Null,
                Entry::Tree(tree) => Value::Object(tree.to_json()?),
            };
            Some((name.clone(), value))
        });
        members.collect()
    }

    /// The names of all nodes that it is made of, its own included.
    pub(crate) fn node_names(&self) -> Vec<String> {
        let below = self.entries.values().filter_map(|entry| match entry {
            Entry::Tree(tree) => Some(tree.node_names()),
            Entry::Value(_) | Entry::Null => None,
        });
        below.flatten().chain(self.value("node-name")).collect()
    }

    /// Replaces the file of the backing image called `name`, at any depth, by the file that `new` names. Does
    /// nothing if these options do not describe that image.
    pub(crate) fn move_below(&mut self, name: &str, new: &Self) {
        let Some(Entry::Tree(below)) = self.entries.get_mut("backing") else { return };
        match (below.value("node-name").as_deref() == Some(name), new.entries.get("file")) {
            (true, Some(file)) => drop(below.entries.insert("file".to_owned(), file.clone())),
            _ => below.move_below(name, new),
        }
    }
}
