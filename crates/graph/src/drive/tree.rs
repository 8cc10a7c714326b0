//! A tree of options: what a DRIVE says, by name.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use thiserror::Error;

/// Nesting of a key (`backing.backing.file.filename` has four parts) or of a `json:` object: four
/// times the deepest sensible override, and far from any stack limit.
pub const KEY_PARTS_MAX: usize = 64;

/// Options by name, nested ones under the name of what they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionTree {
    pub(super) entries: BTreeMap<String, Entry>,
}

/// What stands under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A single value. JSON numbers and booleans stand here as `64` and `on`.
    Value(OsString),
    /// JSON `null`: none of it, please.
    Null,
    /// Options of a part.
    Tree(OptionTree),
}

/// A DRIVE that cannot be read.
#[derive(Debug, Error)]
pub enum DriveError {
    /// Nothing was written.
    #[error("DRIVE is empty; write the path of an image, or file=PATH with options")]
    Empty,
    /// A scheme that no driver here speaks.
    #[error(
        "{text:?} looks like a URL, and only local files can be opened (a file of that name: write ./{text})"
    )]
    Url {
        /// The whole DRIVE.
        text: String,
    },
    /// `disk.qcow2,cache=none`
    #[error(
        "{text:?} is no existing file and has options behind a comma: write file={text} (or ./{text} for the file)"
    )]
    FileForgotten {
        /// The whole DRIVE.
        text: String,
    },
    /// Bytes that are not UTF-8 in an option's name or in JSON.
    #[error("{what} in DRIVE is not UTF-8")]
    NotUtf8 {
        /// Which part.
        what: &'static str,
    },
    /// A part between commas without `=`.
    #[error("{part:?} in DRIVE has no value; write {part}=VALUE (a comma inside a value is written twice)")]
    NoValue {
        /// The part.
        part: String,
    },
    /// `..`, a leading or a trailing dot.
    #[error("option name {key:?} in DRIVE has an empty part")]
    EmptyKeyPart {
        /// The name as written.
        key: String,
    },
    /// Deeper than anything that means something.
    #[error("option {key:?} in DRIVE is nested {found} deep; at most {KEY_PARTS_MAX} are allowed")]
    TooDeep {
        /// The name as written.
        key: String,
        /// Parts found.
        found: usize,
    },
    /// The same option with two values, or one that is both a value and a group.
    #[error("option {key} is given twice in DRIVE; give it once")]
    Twice {
        /// Full dotted name.
        key: String,
    },
    /// Not JSON after `json:`.
    #[error("json: in DRIVE is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON, but not an object.
    #[error("json: in DRIVE must hold an object ({{...}}), not {found}")]
    NotAnObject {
        /// Kind of value found.
        found: &'static str,
    },
    /// No option takes a list.
    #[error("option {key} in DRIVE is a list; no option takes one")]
    List {
        /// Full dotted name.
        key: String,
    },
}

impl IntoIterator for OptionTree {
    type Item = (String, Entry);
    type IntoIter = std::collections::btree_map::IntoIter<String, Entry>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl OptionTree {
    /// A drive that is a path and nothing else.
    pub fn of_path(path: impl AsRef<OsStr>) -> Self {
        let file = Self::of([("filename", Entry::Value(path.as_ref().to_owned()))]);
        Self::of([("file", Entry::Tree(file))])
    }

    pub(super) fn of<const N: usize>(entries: [(&str, Entry); N]) -> Self {
        Self { entries: entries.into_iter().map(|(name, entry)| (name.to_owned(), entry)).collect() }
    }

    /// Nothing is set.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes what stands under `name` (one part, no dots).
    pub fn take(&mut self, name: &str) -> Option<Entry> {
        self.entries.remove(name)
    }

    /// The value under `name` (one part, no dots), if it is text.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        match self.entries.get(name)? {
            Entry::Value(value) => value.to_str().map(str::to_owned),
            Entry::Null | Entry::Tree(_) => None,
        }
    }

    /// The text under the dotted name `key`.
    pub fn at(&self, key: &str) -> Option<String> {
        match key.split_once('.') {
            None => self.value(key),
            Some((first, rest)) => match self.entries.get(first)? {
                Entry::Tree(tree) => tree.at(rest),
                Entry::Value(_) | Entry::Null => None,
            },
        }
    }

    /// The dotted names of all values.
    pub fn keys(&self) -> Vec<String> {
        let of_entry = |(name, entry): (&String, &Entry)| match entry {
            Entry::Tree(tree) => tree.keys().iter().map(|key| format!("{name}.{key}")).collect(),
            Entry::Value(_) | Entry::Null => vec![name.clone()],
        };
        self.entries.iter().flat_map(of_entry).collect()
    }

    /// What `driver` says, if it is text.
    pub fn driver(&self) -> Option<String> {
        self.value("driver")
    }

    /// The names that are still there.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The path under `file.filename`.
    pub fn filename(&self) -> Option<PathBuf> {
        let Some(Entry::Tree(file)) = self.entries.get("file") else { return None };
        match file.entries.get("filename") {
            Some(Entry::Value(path)) => Some(PathBuf::from(path)),
            _ => None,
        }
    }

    /// Sets an option whose name has no dots, and stands for nothing else.
    pub(crate) fn insert_plain(&mut self, name: &str, entry: Entry) -> Result<(), ()> {
        if self.entries.contains_key(name) {
            return Err(());
        }
        self.entries.insert(name.to_owned(), entry);
        Ok(())
    }
}
