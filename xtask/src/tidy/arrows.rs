//! Dependencies point downwards: a room depends on rooms above it in the workspace's list only, and ARCHITECTURE.md
//! names exactly those.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::Tree;

const DRAWING: &str = "ARCHITECTURE.md";

/// In place of names: this room may use all that stand before it.
const ALL: &str = "all above";

pub fn complaints(tree: &Tree) -> Vec<String> {
    let rooms = members(tree.text("Cargo.toml"));
    let packages = packages(tree.text("Cargo.toml"));
    let drawn = drawing(tree.text(DRAWING));
    let mut complaints = Vec::new();
    for (index, room) in rooms.iter().enumerate() {
        let uses = dependencies(tree.text(&format!("{}/Cargo.toml", room.path)), &packages);
        for used in &uses {
            if !rooms.iter().take(index).any(|lower| lower.name == *used) {
                complaints.push(format!(
                    "{}/Cargo.toml: depends on {used}, which does not stand before it in the workspace's list",
                    room.path
                ));
            }
        }
        complaints.extend(compare(&room.name, &uses, drawn.get(&room.name)));
    }
    complaints
}

/// What the drawing says of a room, against what it uses.
fn compare(room: &str, uses: &BTreeSet<String>, drawn: Option<&BTreeSet<String>>) -> Option<String> {
    let Some(drawn) = drawn else {
        return Some(format!("{DRAWING}: the table of rooms has no row for {room}"));
    };
    if drawn.contains(ALL) || drawn == uses {
        return None;
    }
    let list = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    Some(format!("{DRAWING}: {room} depends on: {}; the table says: {}", list(uses), list(drawn)))
}

/// A member of the workspace.
struct Room {
    path: String,
    name: String,
}

/// The members in the order of the list, each called as its directory.
fn members(manifest: &str) -> Vec<Room> {
    let parsed: toml::Table = manifest.parse().unwrap_or_default();
    let members = parsed.get("workspace").and_then(|table| table.get("members")?.as_array());
    let paths = members.into_iter().flatten().filter_map(toml::Value::as_str);
    paths.map(|path| Room { path: path.to_owned(), name: last(path).to_owned() }).collect()
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Names of packages to names of rooms: a package may be called otherwise than its directory.
fn packages(manifest: &str) -> BTreeMap<String, String> {
    let parsed: toml::Table = manifest.parse().unwrap_or_default();
    let table = parsed.get("workspace").and_then(|table| table.get("dependencies")?.as_table());
    let path = |package: &toml::Value| package.get("path")?.as_str().map(|path| last(path).to_owned());
    table.into_iter().flatten().filter_map(|(name, package)| Some((name.clone(), path(package)?))).collect()
}

/// Members among the dependencies of a manifest; those of tests alone do not count.
fn dependencies(manifest: &str, packages: &BTreeMap<String, String>) -> BTreeSet<String> {
    let parsed: toml::Table = manifest.parse().unwrap_or_default();
    let table = parsed.get("dependencies").and_then(toml::Value::as_table);
    table.into_iter().flatten().filter_map(|(name, _)| packages.get(name).cloned()).collect()
}

/// The last column of the table whose first column names rooms.
fn drawing(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let three = cells.filter_map(|cells| <[&str; 3]>::try_from(cells).ok());
    let names = |list: &str| {
        list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    three.map(|[room, _, uses]| (room.trim_matches('`').to_owned(), names(uses))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKSPACE: &str = "[workspace]\nmembers = [\"crates/low\", \"crates/high\"]\n\
                             [workspace.dependencies]\nlow = { path = \"crates/low\" }\nhigh = { path = \"crates/high\" }\n";
    const USES_LOW: &str = "[dependencies]\nlow.workspace = true\nserde.workspace = true\n";
    const USES_HIGH: &str = "[dependencies]\nhigh.workspace = true\n";

    fn tree(low: &str, high: &str, drawing: &str) -> Tree {
        Tree::of(&[
            ("Cargo.toml", WORKSPACE),
            ("crates/low/Cargo.toml", low),
            ("crates/high/Cargo.toml", high),
            (DRAWING, drawing),
        ])
    }

    #[test]
    fn a_true_drawing_with_arrows_down_is_fine() {
        let drawing = "| `low` | bytes | |\n| `high` | disks | low |\n";
        assert_eq!(complaints(&tree("", USES_LOW, drawing)), [""; 0]);
        assert_eq!(complaints(&tree("", USES_LOW, "| `low` | | |\n| `high` | | all above |\n")), [""; 0]);
    }

    #[test]
    fn an_arrow_up_is_found_unless_it_is_of_tests_alone() {
        let drawing = "| `low` | | high |\n| `high` | | |\n";
        assert_eq!(complaints(&tree(USES_HIGH, "", drawing)).len(), 1);
        let of_tests = "[dev-dependencies]\nhigh.workspace = true\n";
        assert_eq!(complaints(&tree(of_tests, "", "| `low` | | |\n| `high` | | |\n")), [""; 0]);
    }

    #[test]
    fn a_row_that_is_wrong_or_missing_is_found() {
        let wrong = complaints(&tree("", USES_LOW, "| `low` | | |\n| `high` | | |\n"));
        assert_eq!(wrong, ["ARCHITECTURE.md: high depends on: low; the table says: "]);
        assert_eq!(complaints(&tree("", USES_LOW, "| `high` | | low |\n")).len(), 1);
    }
}
