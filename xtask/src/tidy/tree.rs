//! The project's files as rules see them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Directories that are not the project's text: what builds leave, the history, and bytes for fuzz targets.
const SKIPPED: [&str; 3] = ["target", ".git", "corpus"];

/// Every file of the project, by its path from the root; what is no text (a picture) has an empty one.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads all files below `root`.
    ///
    /// # Errors
    /// If a directory or a file cannot be read.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.add(root, "")?;
        Ok(tree)
    }

    fn add(&mut self, directory: &Path, prefix: &str) -> io::Result<()> {
        for entry in directory.read_dir()? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                self.add(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                let text = String::from_utf8(std::fs::read(entry.path())?).unwrap_or_default();
                self.files.insert(path, text);
            }
        }
        Ok(())
    }

    /// A tree of these files.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        Self { files: files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect() }
    }

    /// The text of one file; empty if there is none.
    pub fn text(&self, path: &str) -> &str {
        self.files.get(path).map_or("", String::as_str)
    }

    /// Paths and texts of all files whose path ends with `suffix`, in order of path.
    pub fn ending(&self, suffix: &str) -> impl Iterator<Item = (&str, &str)> {
        let all = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()));
        all.filter(move |(path, _)| path.ends_with(suffix))
    }

    /// Whether a file or directory has a path that ends with the whole components of `name`.
    pub fn has(&self, name: &str) -> bool {
        let name = name.trim_end_matches('/');
        let ends =
            |path: &str| path == name || path.strip_suffix(name).is_some_and(|rest| rest.ends_with('/'));
        let directories =
            |path: &str| path.match_indices('/').any(|(at, _)| path.get(..at).is_some_and(ends));
        self.files.keys().any(|path| ends(path) || directories(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_are_found_by_whole_components() {
        let tree = Tree::of(&[("crates/qcow2/src/commit.rs", "")]);
        for name in ["commit.rs", "qcow2/src/commit.rs", "crates/qcow2", "qcow2/src/"] {
            assert!(tree.has(name), "{name}");
        }
        for name in ["mmit.rs", "cow2/src", "commit", "src/free.rs"] {
            assert!(!tree.has(name), "{name}");
        }
    }
}
