//! What a document names by a path is there.

use super::tree::Tree;

/// Endings of names that are paths of the project, wherever they stand in code style.
const ENDINGS: [&str; 4] = [".rs", ".md", ".toml", ".sh"];

/// Directories of the project: what begins with one of them is a path too.
const TOPS: [&str; 6] = ["crates/", "docs/", "fuzz/", "tests/", "xtask/", ".ci/"];

/// Names that end like a path and are a user's file, not the project's.
const OF_USERS: [&str; 2] = ["disks.toml", "cowhand.toml"];

pub fn complaints(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (document, text) in tree.ending(".md") {
        let links = links(text).filter(|name| !tree.has(&resolve(document, name)));
        complaints.extend(links.map(|name| format!("{document}: the link to {name} leads nowhere")));
        let missing = paths(text).filter(|name| !tree.has(name));
        complaints.extend(missing.map(|name| format!("{document}: names {name}, which does not exist")));
    }
    complaints
}

/// Targets of links within the project.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    targets.filter(|target| !target.is_empty() && !target.contains("://"))
}

/// A link's target from the root, where it is meant from the document's directory.
pub fn resolve(document: &str, target: &str) -> String {
    let mut path: Vec<&str> = document.split('/').collect();
    path.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(path.pop()),
            "." => {}
            name => path.push(name),
        }
    }
    path.join("/")
}

/// Words in code style that are paths of the project; what stands behind a `:` or has a pattern in it is not looked at.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let spans = text
        .lines()
        .filter(|line| !line.starts_with("    "))
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let names = spans.flat_map(|span| span.split([' ', ',', ':', '(', ')']));
    names
        .filter(|name| is_path(name) && !name.contains(['{', '*', '$', '<', '…']) && !OF_USERS.contains(name))
}

fn is_path(name: &str) -> bool {
    let ends = ENDINGS.iter().any(|ending| name.strip_suffix(ending).is_some_and(|stem| !stem.is_empty()));
    (ends && !name.starts_with('/')) || TOPS.iter().any(|top| name.starts_with(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        complaints(&Tree::of(&[("docs/a.md", text), ("README.md", ""), ("crates/x/src/free.rs", "")]))
    }

    #[test]
    fn what_exists_may_be_named_by_any_of_its_ends() {
        let text =
            "`free.rs`, `x/src/free.rs` (`grow`), [front](../README.md#top), `crates/x`, `free.rs::a_law`\n";
        assert_eq!(of(text), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_is_found() {
        assert_eq!(of("see `snapshot.rs` and [this](b.md)\n").len(), 2);
        assert_eq!(of("`crates/y/tests`\n"), ["docs/a.md: names crates/y/tests, which does not exist"]);
    }

    #[test]
    fn patterns_addresses_and_commands_are_no_paths() {
        assert_eq!(
            of("`tests/*.rs`, [x](https://a.b/c.md), `/etc/a.toml`, `disks.toml`\n\n    cat gone.rs\n"),
            [""; 0]
        );
    }
}
