//! Names that go with a node, or with a layer of a disk.

use std::collections::HashSet;

/// Names that a node has to do with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Links {
    /// Other names that stand for parts of it.
    pub(crate) parts: Vec<String>,
    /// Nodes under it, which must stay as long as it does.
    pub(crate) uses: Vec<String>,
    /// Those of them that are disks, and files of its images.
    pub(crate) files: Vec<String>,
}

/// The name of a layer below the uppermost one.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    pub(crate) name: String,
    /// It was a node by itself: its name stays when it is taken out, until `blockdev-del`.
    pub(crate) by_user: bool,
    /// Names that go with it.
    pub(crate) links: Links,
}

impl Links {
    /// There is none.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { parts, uses, files } = self;
        parts.is_empty() && uses.is_empty() && files.is_empty()
    }

    /// Those of `more`, too.
    pub(crate) fn add(&mut self, more: Self) {
        self.parts.extend(more.parts);
        self.uses.extend(more.uses);
        self.files.extend(more.files);
    }

    /// The disk `was`, if it is a file of an image, is called `is` now.
    pub(crate) fn follow(&mut self, was: &str, is: &str) {
        if self.files.iter().any(|name| name == was) {
            for name in self.files.iter_mut().chain(&mut self.uses).filter(|name| *name == was) {
                is.clone_into(name);
            }
        }
    }

    /// Not those of `less` any more.
    pub(crate) fn remove(&mut self, less: &Self) {
        self.parts.retain(|part| !less.parts.contains(part));
        self.uses.retain(|used| !less.uses.contains(used));
        self.files.retain(|used| !less.files.contains(used));
    }

    /// The names that belong neither to `new` nor to what `others` gives.
    pub(crate) fn without<'a>(
        &'a self,
        others: impl FnOnce(&mut dyn FnMut(&Own)),
        new: Option<&Own>,
    ) -> Self {
        // In sets: a chain may have a thousand names.
        let set = |names: &'a [String]| names.iter().map(String::as_str).collect::<HashSet<_>>();
        let (mut parts, mut uses, mut files) = (set(&self.parts), set(&self.uses), set(&self.files));
        let mut remove = |own: &Own| {
            let Own { name, links, .. } = own;
            let each = [(&mut parts, &links.parts), (&mut uses, &links.uses), (&mut files, &links.files)];
            for (set, names) in each {
                for name in names {
                    set.remove(name.as_str());
                }
            }
            parts.remove(name.as_str());
            uses.remove(name.as_str());
        };
        others(&mut remove);
        new.into_iter().for_each(&mut remove);
        let left = |names: &[String], set: &HashSet<&str>| {
            names.iter().filter(|name| set.contains(name.as_str())).cloned().collect()
        };
        Self {
            parts: left(&self.parts, &parts),
            uses: left(&self.uses, &uses),
            files: left(&self.files, &files),
        }
    }
}
