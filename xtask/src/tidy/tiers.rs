//! Every black-box suite has tests in the first tier, and these and what the suites are about are there.

use super::tree::Tree;
use crate::test::{SUITES, Suite};

const TABLE: &str = "xtask/src/test/suites.rs";

pub fn complaints(tree: &Tree) -> Vec<String> {
    SUITES.iter().flat_map(|suite| of_suite(tree, suite)).collect()
}

fn of_suite(tree: &Tree, suite: &Suite) -> Vec<String> {
    let name = suite.name;
    let mut complaints = Vec::new();
    if suite.first.is_empty() {
        complaints.push(format!("{TABLE}: {name} has no test in the first tier"));
    }
    let missing = suite.first.iter().filter(|test| !is_test(tree, name, test));
    complaints.extend(missing.map(|test| format!("{TABLE}: there is no test {name}::{test}")));
    let gone = suite.about.iter().filter(|path| !tree.has(path));
    complaints.extend(gone.map(|path| format!("{TABLE}: {name} is about {path}, which does not exist")));
    complaints
}

/// Whether the suite's module has that test, whose name may begin with a module inside it.
fn is_test(tree: &Tree, suite: &str, test: &str) -> bool {
    let mut parts: Vec<&str> = vec!["tests", suite];
    parts.extend(test.split("::"));
    let Some(function) = parts.pop() else { return false };
    let module = parts.join("/");
    let function = format!("#[test]\nfn {function}()");
    [format!("{module}.rs"), format!("{module}/mod.rs")]
        .iter()
        .any(|file| tree.text(file).contains(&function))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITE: Suite =
        Suite { name: "locks", takes: 1, about: &["crates/file"], first: &["one", "inside::two"] };

    #[test]
    fn tests_that_were_renamed_and_paths_that_moved_are_found() {
        let (one, two) = ("#[test]\nfn one() {}\n", "#[test]\nfn two() {}\n");
        let all = [("tests/locks.rs", one), ("tests/locks/inside.rs", two), ("crates/file/src/lib.rs", "")];
        assert_eq!(of_suite(&Tree::of(&all), &SUITE), [""; 0]);
        assert_eq!(of_suite(&Tree::of(&all[..1]), &SUITE).len(), 2);
        let moved = [("tests/locks/mod.rs", one), ("tests/locks/inside/mod.rs", two), all[2]];
        assert_eq!(of_suite(&Tree::of(&moved), &SUITE), [""; 0]);
        let helper = [("tests/locks.rs", "fn one() {}\n"), all[1], all[2]];
        assert_eq!(of_suite(&Tree::of(&helper), &SUITE).len(), 1);
    }

    #[test]
    fn a_suite_without_a_test_in_the_first_tier_is_found() {
        assert_eq!(of_suite(&Tree::of(&[("crates/file/a", "")]), &Suite { first: &[], ..SUITE }).len(), 1);
    }
}
