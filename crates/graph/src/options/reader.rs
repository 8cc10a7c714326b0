//! Takes options out of a tree one by one, checked; what is left at the end is unknown.

use std::ffi::OsString;
use std::path::PathBuf;

use nearest::nearest;

use super::error::OptionError;
use crate::drive::{DriveError, Entry, OptionTree};
use crate::size::parse_size;

/// What a switch may be called.
const SWITCH: [(&str, bool); 8] = [
    ("on", true),
    ("off", false),
    ("yes", true),
    ("no", false),
    ("true", true),
    ("false", false),
    ("y", true),
    ("n", false),
];

/// One group of options, and where it stands (`backing.` or nothing).
#[derive(Debug)]
pub struct Reader {
    tree: OptionTree,
    prefix: String,
}

impl Reader {
    /// The options of `tree`, whose names begin with `prefix` (dotted, and a dot at its end).
    pub fn new(tree: OptionTree, prefix: String) -> Self {
        Self { tree, prefix }
    }

    /// The full name of an option of this group.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The options of a part; empty if none was given. `None` for an explicit null.
    pub fn group(&mut self, name: &str) -> Result<Option<Reader>, OptionError> {
        let prefix = format!("{}{name}.", self.prefix);
        match self.tree.take(name) {
            None => Ok(Some(Self::new(OptionTree::default(), prefix))),
            Some(Entry::Tree(tree)) => Ok(Some(Self::new(tree, prefix))),
            Some(Entry::Null) => Ok(None),
            Some(Entry::Value(value)) if value.is_empty() => Ok(None),
            Some(Entry::Value(_)) => Err(OptionError::Shape {
                option: self.full(name),
                problem: "names a node, and there are none here; give its file instead (NAME.file=PATH)",
            }),
        }
    }

    /// The text under `name`, which stays.
    pub(super) fn has_text(&self, name: &str) -> Option<String> {
        self.tree.value(name)
    }

    /// The same, as a raw disk on it where the driver is one of storage.
    pub(super) fn with_format(self) -> Result<Self, OptionError> {
        let twice = |error: DriveError| {
            let problem = "is given for the storage and for the disk on it; give it once";
            OptionError::Shape { option: error.to_string(), problem }
        };
        Ok(Self { tree: self.tree.with_format().map_err(twice)?, prefix: self.prefix })
    }

    /// The value of `name`, whatever the table says.
    pub(super) fn take_text(&mut self, name: &str) -> Option<String> {
        let value = self.tree.value(name)?;
        self.tree.take(name);
        Some(value)
    }

    /// Numbered groups (`rule.0.event`), in their order: all numbers from 0 on, `most` groups at most.
    pub fn list(&mut self, name: &str, most: usize) -> Result<Vec<Reader>, OptionError> {
        let tree = match self.tree.take(name) {
            None => return Ok(Vec::new()),
            Some(Entry::Tree(tree)) => tree,
            Some(Entry::Null | Entry::Value(_)) => {
                return Err(self.shape(name, "is a list; give its parts, as NAME.0.OPTION=VALUE"));
            }
        };
        let mut list = Self::new(tree, format!("{}{name}.", self.prefix));
        let mut groups = Vec::new();
        while !list.is_empty() && groups.len() < most {
            let number = groups.len().to_string();
            match list.group(&number)? {
                Some(group) if !group.is_empty() => groups.push(group),
                _ => break,
            }
        }
        list.finish(std::iter::empty(), &[]).map(|()| groups)
    }

    /// Turns `name` back into a text: the drive's syntax reads `image=NAME` as `image.filename=NAME`, as for
    /// a path.
    pub fn is_no_path(&mut self, name: &str) {
        let Some(entry) = self.tree.take(name) else { return };
        let entry = match entry {
            Entry::Tree(mut tree) if tree.names().eq(["filename"]) => tree.take("filename"),
            other => Some(other),
        };
        if let Some(entry) = entry {
            let is_new = self.tree.insert_plain(name, entry);
            debug_assert!(is_new.is_ok(), "{name} was taken out just now");
        }
    }

    /// Turns options called `name.MEMBER` into a group `name`: the drive's syntax took them for names with
    /// dots, as those of an NBD server are.
    pub fn gather(&mut self, name: &str) {
        let prefix = format!("{name}.");
        let names: Vec<_> =
            self.tree.names().filter(|given| given.starts_with(&prefix)).map(str::to_owned).collect();
        let mut group = OptionTree::default();
        for given in &names {
            let rest = given.strip_prefix(&prefix).unwrap_or(given);
            if let Some(entry) = self.tree.take(given)
                && group.insert(rest, entry.clone()).is_err()
            {
                // Stays in the tree, and is reported as unknown.
                let _ = self.tree.insert_plain(given, entry);
            }
        }
        if !group.is_empty() {
            // Fails if such a group exists: what is left in the tree is reported.
            let _ = self.tree.insert_plain(name, Entry::Tree(group));
        }
    }

    /// Whether it is a group of the list `name`.
    pub fn is_of(&self, name: &str) -> bool {
        self.prefix.split('.').rev().nth(2) == Some(name)
    }

    /// The first option that was given with such a name, by its full name.
    pub(super) fn first_such(&self, is_such: impl Fn(&str) -> bool) -> Option<String> {
        self.tree.names().find(|given| is_such(given)).map(|given| self.full(given))
    }

    /// Options that another one stands for.
    ///
    /// # Errors
    /// When one of them was given, too.
    pub(super) fn add(&mut self, more: OptionTree) -> Result<(), OptionError> {
        for (name, entry) in more {
            let given = self.full(&name);
            if self.tree.insert(&name, entry).is_err() {
                let other = self.full("filename");
                let rule = "the file's name says it already; give one of them";
                return Err(OptionError::Conflict { option: given, other, rule });
            }
        }
        Ok(())
    }

    /// What has not been taken.
    pub fn into_tree(self) -> OptionTree {
        self.tree
    }

    /// No option is left.
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    pub(super) fn raw(&mut self, name: &str) -> Result<Option<OsString>, OptionError> {
        match self.tree.take(name) {
            None => Ok(None),
            Some(Entry::Value(value)) => Ok(Some(value)),
            Some(Entry::Null) => Err(self.shape(name, "is null; give a value or leave it out")),
            Some(Entry::Tree(_)) => Err(self.shape(name, "is a single value and has no options of its own")),
        }
    }

    fn shape(&self, name: &str, problem: &'static str) -> OptionError {
        OptionError::Shape { option: self.full(name), problem }
    }

    pub(super) fn path(&mut self, name: &str) -> Result<Option<PathBuf>, OptionError> {
        match self.raw(name)? {
            Some(path) if path.is_empty() => Err(self.value(name, "", "the path of a file")),
            path => Ok(path.map(PathBuf::from)),
        }
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, OptionError> {
        let Some(value) = self.raw(name)? else { return Ok(None) };
        let found = value.into_string();
        found.map(Some).map_err(|value| self.value(name, &value.to_string_lossy(), "UTF-8 text"))
    }

    /// What is wrong with an option: it was given as `found`.
    pub fn value(&self, name: &str, found: &str, allowed: impl Into<String>) -> OptionError {
        OptionError::Value { option: self.full(name), found: found.into(), allowed: allowed.into() }
    }

    /// The place of a name in a list.
    pub fn choice(&mut self, name: &str, known: &[&str]) -> Result<Option<usize>, OptionError> {
        let Some(found) = self.text(name)? else { return Ok(None) };
        match known.iter().position(|known| *known == found) {
            Some(place) => Ok(Some(place)),
            None => Err(self.value(name, &found, known.join(", "))),
        }
    }

    pub(super) fn switch(&mut self, name: &str) -> Result<Option<bool>, OptionError> {
        let Some(found) = self.text(name)? else { return Ok(None) };
        match SWITCH.iter().find(|(known, _)| *known == found) {
            Some((_, on)) => Ok(Some(*on)),
            None => Err(self.value(name, &found, "on, off")),
        }
    }

    pub(super) fn size(&mut self, name: &str) -> Result<Option<u64>, OptionError> {
        let Some(found) = self.text(name)? else { return Ok(None) };
        match parse_size(&found) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => Err(self.value(name, &found, format!("a size such as 4M ({error})"))),
        }
    }

    pub(super) fn whole_number(&mut self, name: &str) -> Result<Option<u32>, OptionError> {
        let Some(found) = self.text(name)? else { return Ok(None) };
        match found.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(self.value(name, &found, format!("a whole number from 0 to {}", u32::MAX))),
        }
    }

    /// A number of things, without a unit.
    pub(super) fn count(&mut self, name: &str) -> Result<Option<u64>, OptionError> {
        let Some(found) = self.text(name)? else { return Ok(None) };
        match found.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(self.value(name, &found, format!("a whole number from 0 to {}", u64::MAX))),
        }
    }

    /// Two spellings of one option: at most one value.
    pub(super) fn either<T: PartialEq>(
        &mut self,
        names: [&str; 2],
        read: impl Fn(&mut Self, &str) -> Result<Option<T>, OptionError>,
    ) -> Result<Option<T>, OptionError> {
        match (read(self, names[0])?, read(self, names[1])?) {
            (Some(a), Some(b)) if a != b => Err(OptionError::Conflict {
                option: self.full(names[0]),
                other: self.full(names[1]),
                rule: "they are two names of one option; give one of them",
            }),
            (a, b) => Ok(a.or(b)),
        }
    }

    /// All has been taken; `known` are the names that could have been.
    pub fn finish<'a>(
        self,
        known: impl Iterator<Item = &'a str>,
        elsewhere: &[(&str, &'static str)],
    ) -> Result<(), OptionError> {
        let Some(found) = self.tree.names().next() else { return Ok(()) };
        if let Some((_, of)) = elsewhere.iter().find(|(name, _)| *name == found) {
            return Err(OptionError::Elsewhere { option: self.full(found), of });
        }
        let nearest = nearest(found, known).into_iter().map(|name| self.full(name)).collect();
        Err(OptionError::Unknown { option: self.full(found), nearest })
    }
}
