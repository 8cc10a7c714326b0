//! What a simulated file system holds: what processes see, and what of it survives a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use sim::Rng;

/// Bytes of a sector, which is written whole or not at all.
const SECTOR: usize = 512;

/// The number of the root directory.
pub const ROOT: u64 = 1;

/// Something with a number.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    /// When it was last written, in ticks.
    pub written: i64,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Directory(BTreeMap<String, u64>),
    Link(PathBuf),
    File(Vec<u8>),
}

/// A change that is not durable yet.
#[derive(Clone, Debug)]
pub enum Change {
    /// Names of directories lead elsewhere, all at one moment.
    Names(Vec<(u64, String, Option<u64>)>),
    Write {
        node: u64,
        at: usize,
        bytes: Vec<u8>,
        written: i64,
    },
    Length {
        node: u64,
        length: usize,
        written: i64,
    },
    Mode {
        node: u64,
        mode: u32,
    },
}

#[derive(Debug)]
pub struct Tree {
    /// What processes see.
    pub now: BTreeMap<u64, Node>,
    durable: BTreeMap<u64, Node>,
    pending: Vec<Change>,
    directories: Vec<u64>,
}

impl Change {
    fn of_file(&self) -> Option<u64> {
        match self {
            Self::Names(_) => None,
            Self::Write { node, .. } | Self::Length { node, .. } | Self::Mode { node, .. } => Some(*node),
        }
    }

    fn names(&self) -> impl Iterator<Item = (u64, &str)> {
        let names = if let Self::Names(names) = self { &names[..] } else { &[] };
        names.iter().map(|(directory, name, _)| (*directory, name.as_str()))
    }

    fn apply(&self, nodes: &mut BTreeMap<u64, Node>) {
        match self {
            Self::Names(names) => {
                for (directory, name, leads_to) in names {
                    let Some(Node { kind: Kind::Directory(entries), .. }) = nodes.get_mut(directory) else {
                        continue;
                    };
                    match leads_to {
                        Some(node) => drop(entries.insert(name.clone(), *node)),
                        None => drop(entries.remove(name)),
                    }
                }
            }
            Self::Write { node, at, bytes, written } => {
                if let Some(Node { kind: Kind::File(content), written: last, .. }) = nodes.get_mut(node) {
                    let end = at + bytes.len();
                    if content.len() < end {
                        content.resize(end, 0);
                    }
                    content[*at..end].copy_from_slice(bytes);
                    *last = *written;
                }
            }
            Self::Length { node, length, written } => {
                if let Some(Node { kind: Kind::File(content), written: last, .. }) = nodes.get_mut(node) {
                    content.resize(*length, 0);
                    *last = *written;
                }
            }
            Self::Mode { node, mode } => {
                if let Some(found) = nodes.get_mut(node) {
                    found.mode = *mode;
                }
            }
        }
    }
}

impl Tree {
    pub fn new() -> Self {
        let root = Node { kind: Kind::Directory(BTreeMap::new()), mode: 0o755, written: 0 };
        let nodes = BTreeMap::from([(ROOT, root)]);
        Self { now: nodes.clone(), durable: nodes, pending: Vec::new(), directories: vec![ROOT] }
    }

    /// A node that no name leads to yet.
    pub fn add(&mut self, node: Node) -> u64 {
        let number = self.now.keys().next_back().map_or(ROOT, |last| last + 1);
        if matches!(node.kind, Kind::Directory(_)) {
            self.directories.push(number);
        }
        self.durable.insert(number, node.clone());
        self.now.insert(number, node);
        number
    }

    pub fn change(&mut self, change: Change) {
        change.apply(&mut self.now);
        self.pending.push(change);
    }

    /// Makes durable what is pending of a file, or the names of a directory with all that they depend on.
    pub fn sync(&mut self, node: u64) {
        let mut names: BTreeSet<(u64, String)> = BTreeSet::new();
        let mut rest = Vec::new();
        let mut taken = Vec::new();
        for change in std::mem::take(&mut self.pending).into_iter().rev() {
            let depends = change
                .names()
                .any(|(directory, name)| directory == node || names.contains(&(directory, name.to_owned())));
            if depends || change.of_file() == Some(node) {
                names.extend(change.names().map(|(directory, name)| (directory, name.to_owned())));
                taken.push(change);
            } else {
                rest.push(change);
            }
        }
        taken.iter().rev().for_each(|change| change.apply(&mut self.durable));
        rest.reverse();
        self.pending = rest;
    }

    /// What a power cut leaves: what is durable, and of the rest what happened to be written. A later name of a place has the earlier ones below it.
    pub fn cut_power(&mut self, rng: &mut Rng) {
        let (kept, of) = [(0, 1), (1, 4), (1, 2), (3, 4), (1, 1)][rng.index(5)];
        let mut names: BTreeSet<(u64, String)> = BTreeSet::new();
        let mut left = Vec::new();
        for mut change in std::mem::take(&mut self.pending).into_iter().rev() {
            let depends =
                change.names().any(|(directory, name)| names.contains(&(directory, name.to_owned())));
            if !depends && !rng.chance(kept, of) {
                continue;
            }
            names.extend(change.names().map(|(directory, name)| (directory, name.to_owned())));
            if let Change::Write { at, bytes, .. } = &mut change
                && rng.chance(1, 4)
            {
                // Torn between two sectors.
                let first = (SECTOR - *at % SECTOR).min(bytes.len());
                let sectors = (bytes.len() - first) / SECTOR;
                let sectors = rng.index(sectors + 1);
                bytes.truncate(first + sectors * SECTOR);
            }
            left.push(change);
        }
        left.iter().rev().for_each(|change| change.apply(&mut self.durable));
        self.now = self.durable.clone();
    }

    /// Forgets files that no name leads to and no process has open.
    pub fn drop_unnamed(&mut self, open: impl Fn(u64) -> bool) {
        let pending: BTreeSet<u64> = self.pending.iter().filter_map(Change::of_file).collect();
        let named_in_pending: BTreeSet<u64> = self
            .pending
            .iter()
            .filter_map(|change| if let Change::Names(names) = change { Some(names) } else { None })
            .flat_map(|names| names.iter().filter_map(|(_, _, node)| *node))
            .collect();
        let mut named = named_in_pending;
        for node in self.now.values().chain(self.durable.values()) {
            if let Kind::Directory(entries) = &node.kind {
                named.extend(entries.values());
            }
        }
        let stays = |number: &u64| {
            *number == ROOT || named.contains(number) || pending.contains(number) || open(*number)
        };
        self.now.retain(|number, _| stays(number));
        self.durable.retain(|number, _| stays(number));
    }

    /// How many names lead to a node.
    pub fn links(&self, wanted: u64) -> u64 {
        let named = |directory: &u64| match self.now.get(directory).map(|node| &node.kind) {
            Some(Kind::Directory(entries)) => entries.values().filter(|node| **node == wanted).count(),
            _ => 0,
        };
        self.directories.iter().map(named).sum::<usize>() as u64
    }
}
