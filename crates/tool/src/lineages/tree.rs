//! The checkpoints and disks of a lineage, as a tree: what is over what, and what each takes.

use std::collections::BTreeMap;
use std::time::Duration;

use lineage::{Backing, Disk, Entry, ImageFacts, Layer, LayerId, Place, Survey};
use serde_json::{Map, Value, json};

use super::natural_order;
use super::seen::Seen;
use crate::output::printable;

/// What [`Tree::json`] gives.
pub const JSON: &str = "  directory               text: directory of the lineage
  layers                  list of objects
  disks                   list of objects
  policy?                 object: what cowhand forget --save has kept with the lineage
Of the policy:
  keep?                   text
  max-depth?              number of layers
  max-waste?              percent
Of each layer and of each disk:
  file                    text: path of the image
  parent                  text: id of the layer that it is backed by; null if that is none
  base                    text: its backing file outside the lineage, or null
  disk-bytes              size of its disk
  own-bytes               what its file takes
  shared-bytes            what the layers that it is backed by take
  name?                   text: of a checkpoint, or null; of a disk, the name of its file
Of each layer:
  id                      text
  users                   list of text: layers and disks that are backed by it
  disk?                   text: file name of the disk that was sealed (not known without an entry
                          in the manifest, as are name and the next three)
  time-sec?               seconds since 1970
  labels?                 object: text for each label
  deleted?                bool: its checkpoint was deleted
  changed?                text: how it was changed after it was sealed
Of each disk:
  layers                  list of text: ids of the layers that it is backed by, the upper ones
                          first";

/// A page of what `--output json` shows, from what `next` of the one before says; some `bytes_max` bytes.
///
/// # Errors
/// When nothing is called `from` any more, or the layers go round in a circle.
pub fn page(seen: &Seen, from: Option<&str>, bytes_max: usize) -> Result<Value, lineage::Error> {
    Tree::of(seen).json(from, bytes_max)
}

/// A layer or a disk.
#[derive(Clone, Copy)]
pub enum Node<'a> {
    /// Sealed, with its id.
    Layer(LayerId, &'a Layer),
    /// What a machine writes to.
    Disk(&'a Disk),
}

/// A node, and where it is in the tree.
pub struct Row<'a> {
    /// What precedes it in its line: three characters for each node below it that has several over it.
    pub branch: String,
    /// It.
    pub node: Node<'a>,
}

/// What is over what.
pub struct Tree<'a> {
    seen: &'a Seen,
    over: BTreeMap<LayerId, Vec<Node<'a>>>,
    roots: Vec<Node<'a>>,
    /// Bytes that the layers below each layer take.
    shared: BTreeMap<LayerId, u64>,
}

impl<'a> Node<'a> {
    /// Its image.
    pub fn image(self) -> &'a ImageFacts {
        match self {
            Self::Layer(_, layer) => &layer.image,
            Self::Disk(disk) => &disk.image,
        }
    }
}

impl<'a> Tree<'a> {
    /// Of a lineage.
    pub fn of(seen: &'a Seen) -> Self {
        let survey: &Survey = &seen.survey;
        let mut over: BTreeMap<LayerId, Vec<Node<'a>>> = BTreeMap::new();
        let mut roots = Vec::new();
        let mut disks: Vec<&Disk> = survey.disks.iter().collect();
        disks.sort_by(|one, other| natural_order::key(&one.name).cmp(&natural_order::key(&other.name)));
        let disks = disks.into_iter().map(Node::Disk);
        let mut layers: Vec<_> = survey.layers.iter().map(|(id, layer)| Node::Layer(*id, layer)).collect();
        // Children in the order in which they were made.
        layers.sort_by_key(|node| match node {
            Node::Layer(_, layer) => layer.entry.as_ref().map_or(Duration::ZERO, Entry::time),
            Node::Disk(_) => Duration::MAX,
        });
        for node in layers.into_iter().chain(disks) {
            match &node.image().backing {
                Backing::Layer(id) => over.entry(*id).or_default().push(node),
                _ => roots.push(node),
            }
        }
        let is_wanted = |node: &Node<'_>| match node {
            Node::Layer(..) => true,
            // Another image of the directory is not in the lineage.
            Node::Disk(disk) => seen.disk.as_ref().is_some_and(|named| named.name == disk.name),
        };
        roots.retain(is_wanted);
        let mut tree = Self { seen, over, roots, shared: BTreeMap::new() };
        tree.shared = tree.shared_bytes();
        tree
    }

    /// From the roots up: the layers of a circle are not reached.
    fn shared_bytes(&self) -> BTreeMap<LayerId, u64> {
        let mut shared = BTreeMap::new();
        let mut next: Vec<(Node<'_>, u64)> = self.roots.iter().map(|node| (*node, 0)).collect();
        while let Some((node, below)) = next.pop() {
            let Node::Layer(id, layer) = node else { continue };
            shared.insert(id, below);
            let below = below + layer.image.allocated_bytes;
            next.extend(self.over.get(&id).into_iter().flatten().map(|node| (*node, below)));
        }
        shared
    }

    /// Bytes that the layers below an image take.
    pub fn shared_by(&self, image: &ImageFacts) -> u64 {
        let below = image
            .backing
            .layer()
            .and_then(|id| Some((self.seen.survey.layers.get(&id)?, self.shared.get(&id)?)));
        below.map_or(0, |(layer, shared)| shared + layer.image.allocated_bytes)
    }

    /// Layers and disks, each with what a page begins with: a layer's file, or a disk's. Layers come first.
    fn items(&self) -> impl Iterator<Item = (String, Node<'a>)> {
        let layers = self.seen.survey.layers.iter();
        let layers = layers.map(|(id, layer)| (Place::name_in_images(*id), Node::Layer(*id, layer)));
        let disks = self.over.values().flatten().chain(&self.roots).filter_map(|node| match node {
            Node::Disk(disk) => Some((disk.name.clone(), *node)),
            Node::Layer(..) => None,
        });
        let disks: BTreeMap<String, Node<'a>> = disks.collect();
        layers.chain(disks)
    }

    /// All of it from `from` on, or, with a bound, as much as has so many bytes, and at least one; `next` is where the rest begins.
    ///
    /// # Errors
    /// When nothing is called `from` any more, or the layers go round in a circle.
    pub fn json(&self, from: Option<&str>, bytes_max: usize) -> Result<Value, lineage::Error> {
        let users = self.seen.survey.all_users();
        let (mut layers, mut disks, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut next = None;
        for (name, node) in self.items().skip_while(|(name, _)| from.is_some_and(|from| name != from)) {
            let value = self.item_json(node, &users)?;
            bytes += value.to_string().len();
            if bytes > bytes_max && !(layers.is_empty() && disks.is_empty()) {
                next = Some(name);
                break;
            }
            match node {
                Node::Layer(..) => layers.push(value),
                Node::Disk(_) => disks.push(value),
            }
        }
        if let Some(from) = from.filter(|_| layers.is_empty() && disks.is_empty()) {
            let reason = format!("there is no layer and no disk {from:?} any more: begin anew");
            return Err(lineage::Error::Invalid(reason));
        }
        let directory = self.seen.survey.place.directory().to_string_lossy();
        let mut value = json!({ "directory": directory, "layers": layers, "disks": disks });
        if let Some(next) = next {
            value["next"] = json!(next);
        }
        if let Some(policy) = &self.seen.survey.policy {
            value["policy"] = json!(policy);
        }
        Ok(value)
    }

    fn item_json(
        &self,
        node: Node<'_>,
        users: &BTreeMap<LayerId, Vec<String>>,
    ) -> Result<Value, lineage::Error> {
        let mut value = common(node.image(), self.shared_by(node.image()));
        match node {
            Node::Layer(id, layer) => {
                value.insert("id".into(), json!(id.to_string()));
                value.insert("users".into(), json!(users.get(&id).cloned().unwrap_or_default()));
                if let Some(entry) = &layer.entry {
                    value.insert("name".into(), json!(entry.name.as_ref().map(ToString::to_string)));
                    value.insert("disk".into(), json!(entry.disk));
                    value.insert("time-sec".into(), json!(entry.time_sec));
                    value.insert("labels".into(), json!(entry.labels.iter().collect::<BTreeMap<_, _>>()));
                    value.insert("deleted".into(), json!(entry.deleted));
                }
                if let Some(changed) = &layer.changed {
                    value.insert("changed".into(), json!(changed));
                }
            }
            Node::Disk(disk) => {
                value.insert("name".into(), json!(disk.name));
                let chain = self.seen.survey.chain(&disk.image.path, &disk.image.backing)?.0;
                let chain: Vec<String> = chain.iter().map(ToString::to_string).collect();
                value.insert("layers".into(), json!(chain));
            }
        }
        Ok(Value::Object(value))
    }

    /// All of it, each node behind what it is backed by.
    pub fn rows(&self) -> Vec<Row<'a>> {
        // From the last to the first, so that the first comes off the stack first. A chain of a thousand layers is no depth: one child stays in the column of its parent.
        let mut next: Vec<(Node<'_>, String, String)> = Vec::new();
        let push = |next: &mut Vec<_>, nodes: &[Node<'a>], rest: &str| {
            let several = nodes.len() > 1;
            for (at, node) in nodes.iter().enumerate().rev() {
                let (own, below) = match (several, at + 1 == nodes.len()) {
                    (false, _) => (rest.to_owned(), rest.to_owned()),
                    (true, false) => (format!("{rest}├─ "), format!("{rest}│  ")),
                    (true, true) => (format!("{rest}└─ "), format!("{rest}   ")),
                };
                next.push((*node, own, below));
            }
        };
        push(&mut next, &self.roots, "");
        let mut rows = Vec::new();
        while let Some((node, branch, below)) = next.pop() {
            rows.push(Row { branch, node });
            if let Node::Layer(id, _) = node {
                push(&mut next, self.over.get(&id).map_or(&[], Vec::as_slice), &below);
            }
        }
        rows
    }

    /// What is said of layers that are not there, for each image that is backed by one.
    pub fn missing(&self) -> Vec<String> {
        let gone = self.over.iter().filter(|(id, _)| !self.seen.survey.layers.contains_key(id));
        let images = gone.flat_map(|(id, over)| over.iter().map(move |node| (id, node)));
        let said = images.map(|(id, node)| {
            let path = node.image().path.to_string_lossy();
            format!("layer {id} is missing: {} is backed by it", printable(&path))
        });
        said.collect()
    }

    /// Whether it is the disk that was named.
    pub fn is_named(&self, disk: &Disk) -> bool {
        self.seen.disk.as_ref().is_some_and(|named| named.name == disk.name)
    }
}

/// What layers and disks have.
fn common(image: &ImageFacts, shared: u64) -> Map<String, Value> {
    let (parent, base) = match &image.backing {
        Backing::Layer(id) => (Some(id.to_string()), None),
        Backing::Outside(name) => (None, Some(name)),
        Backing::None => (None, None),
    };
    let value = json!({
        "file": image.path.to_string_lossy(),
        "parent": parent,
        "base": base,
        "disk-bytes": image.shape.disk_bytes,
        "own-bytes": image.allocated_bytes,
        "shared-bytes": shared,
    });
    match value {
        Value::Object(value) => value,
        _ => Map::new(),
    }
}
