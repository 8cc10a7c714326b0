//! The packages of the workspace and which of them each depends on.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use serde_json::Value;

use crate::workspace::{cargo, root};

/// The packages, by their directories from the root.
#[derive(Debug, Default)]
pub struct Packages {
    found: BTreeMap<String, Package>,
}

#[derive(Debug)]
struct Package {
    name: String,
    /// Directories of what its library or program needs.
    needs: Vec<String>,
    /// Directories of what only its tests need.
    tests_need: Vec<String>,
}

/// What is built of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Built {
    /// A package's library or program.
    Itself,
    /// Its tests.
    Tests,
}

impl Packages {
    /// Asks cargo.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn read() -> Result<Self, String> {
        let asked = cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output();
        let answer = asked.map_err(|error| format!("cargo does not run: {error}"))?;
        if !answer.status.success() {
            return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&answer.stderr).trim()));
        }
        let said = serde_json::from_slice(&answer.stdout);
        let said = said.map_err(|error| format!("cargo metadata: {error}"))?;
        Ok(Self::of(&said, &root()))
    }

    /// The packages that cargo's answer `said` lists, below `root`.
    fn of(said: &Value, root: &Path) -> Self {
        let within = |path: &Path| path.strip_prefix(root).ok().and_then(Path::to_str).map(str::to_owned);
        let listed = said.get("packages").and_then(Value::as_array).into_iter().flatten();
        let package = |listed: &Value| {
            let directory = within(Path::new(text(listed, "manifest_path")?).parent()?)?;
            let uses = listed.get("dependencies").and_then(Value::as_array).into_iter().flatten();
            let mut package =
                Package { name: text(listed, "name")?.to_owned(), needs: vec![], tests_need: vec![] };
            for used in uses {
                if let Some(path) = text(used, "path").and_then(|path| within(Path::new(path))) {
                    let for_tests = text(used, "kind") == Some("dev");
                    if for_tests { &mut package.tests_need } else { &mut package.needs }.push(path);
                }
            }
            Some((directory, package))
        };
        Self { found: listed.filter_map(package).collect() }
    }

    /// Packages by directory, with what each needs; the name of one is what follows the last `/`.
    #[cfg(test)]
    pub fn drawn(packages: &[(&str, &[&str], &[&str])]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let package = |&(directory, needs, tests_need): &(&str, &[&str], &[&str])| {
            let name = directory.rsplit('/').next().unwrap_or(directory).to_owned();
            (directory.to_owned(), Package { name, needs: owned(needs), tests_need: owned(tests_need) })
        };
        Self { found: packages.iter().map(package).collect() }
    }

    /// The directory of the package that `path`, a file or a directory from the root, is in.
    pub fn directory_of(&self, path: &str) -> Option<&str> {
        let holds = |directory: &&String| is_within(path, directory);
        self.found.keys().filter(holds).max_by_key(|directory| directory.len()).map(String::as_str)
    }

    /// The directory and the name of the package that a person calls `called`: by its name, with or without `cowhand-`, or by its directory.
    pub fn called(&self, called: &str) -> Option<(&str, &str)> {
        let called = called.trim_end_matches('/');
        let is_it = |directory: &str, name: &str| {
            name == called
                || name.strip_prefix("cowhand-") == Some(called)
                || directory == called
                || directory.strip_prefix("crates/") == Some(called)
        };
        let mut packages = self.found.iter().map(|(directory, package)| (&directory[..], &package.name[..]));
        packages.find(|(directory, name)| is_it(directory, name))
    }

    /// Their names, in order of their directories.
    pub fn names(&self) -> Vec<&str> {
        self.found.values().map(|package| &package.name[..]).collect()
    }

    /// How many arrows lie between the package in `directory` and each package that `built` is built of: itself 0, what it names 1.
    pub fn distances(&self, directory: &str, built: Built) -> BTreeMap<&str, usize> {
        let mut distances = BTreeMap::new();
        let mut next = VecDeque::new();
        if let Some((start, package)) = self.found.get_key_value(directory) {
            distances.insert(&start[..], 0);
            let of_tests = package.tests_need.iter().filter(|_| built == Built::Tests);
            next.extend(package.needs.iter().chain(of_tests).map(|used| (used, 1)));
        }
        while let Some((used, distance)) = next.pop_front() {
            let Some((used, package)) = self.found.get_key_value(used) else { continue };
            if !distances.contains_key(&used[..]) {
                distances.insert(&used[..], distance);
                next.extend(package.needs.iter().map(|used| (used, distance + 1)));
            }
        }
        distances
    }
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// Whether `path` is `directory` or below it.
pub fn is_within(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn drawn() -> Packages {
        Packages::drawn(&[
            ("crates/low", &[], &[]),
            ("crates/middle", &["crates/low"], &["crates/mock"]),
            ("crates/mock", &["crates/paint"], &[]),
            ("crates/paint", &[], &[]),
            ("crates/top", &["crates/middle"], &[]),
        ])
    }

    #[test]
    fn tests_of_a_package_need_what_it_needs_and_not_what_the_tests_of_others_need() {
        let packages = drawn();
        let middle = packages.distances("crates/middle", Built::Tests);
        let expected = [("crates/low", 1), ("crates/middle", 0), ("crates/mock", 1), ("crates/paint", 2)];
        assert_eq!(middle.into_iter().collect::<Vec<_>>(), expected);
        let top = packages.distances("crates/top", Built::Tests);
        let expected = [("crates/low", 2), ("crates/middle", 1), ("crates/top", 0)];
        assert_eq!(top.into_iter().collect::<Vec<_>>(), expected);
        let shipped = packages.distances("crates/middle", Built::Itself);
        assert_eq!(shipped.into_iter().collect::<Vec<_>>(), [("crates/low", 1), ("crates/middle", 0)]);
        assert!(packages.distances("crates/none", Built::Tests).is_empty());
    }

    #[test]
    fn cargos_answer_is_read() {
        let said = json!({"packages": [{
            "name": "cowhand-a", "manifest_path": "/p/crates/a/Cargo.toml",
            "dependencies": [
                {"name": "cowhand-b", "kind": null, "path": "/p/crates/b"},
                {"name": "cowhand-c", "kind": "dev", "path": "/p/c"},
                {"name": "serde", "kind": null},
            ],
        }]});
        let packages = Packages::of(&said, Path::new("/p"));
        let package = &packages.found["crates/a"];
        assert_eq!(
            (&package.needs[..], &package.tests_need[..]),
            (&["crates/b".into()][..], &["c".into()][..])
        );
        for called in ["a", "cowhand-a", "crates/a", "crates/a/"] {
            assert_eq!(packages.called(called), Some(("crates/a", "cowhand-a")), "{called}");
        }
        assert_eq!(packages.called("b"), None);
    }

    #[test]
    fn a_file_is_in_the_innermost_package_around_it() {
        let packages = Packages::drawn(&[("tests", &[], &[]), ("crates/top", &[], &[])]);
        assert_eq!(packages.directory_of("crates/top/src/lib.rs"), Some("crates/top"));
        assert_eq!(packages.directory_of("crates/topmost/src/lib.rs"), None);
        assert_eq!(packages.directory_of("tests/qmp"), Some("tests"));
    }
}
