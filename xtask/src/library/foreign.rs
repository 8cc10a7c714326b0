//! How many crates of others the library links.

use std::collections::BTreeSet;

use super::{FEATURES, output};
use crate::workspace::cargo;

/// What the library may link of others with its default features: local qcow2 and raw disks. Each is a crate that a monitor's author has to read,
/// build and answer for.
const FOREIGN_MAX: usize = 40;

/// Counts them, and fails above the limit; prints what each feature adds.
pub fn check() -> Result<(), String> {
    let default = foreign("")?;
    println!("default features: {} foreign crates, {FOREIGN_MAX} at most", default.len());
    for feature in FEATURES {
        let added: Vec<String> = foreign(feature)?.difference(&default).cloned().collect();
        println!("{feature}: {} more: {}", added.len(), added.join(", "));
    }
    match default.len() > FOREIGN_MAX {
        false => Ok(()),
        true => Err(format!(
            "the library links {} foreign crates with its default features; allowed: {FOREIGN_MAX}: {}",
            default.len(),
            default.into_iter().collect::<Vec<_>>().join(", ")
        )),
    }
}

/// What the library links with its default features and these.
fn foreign(features: &str) -> Result<BTreeSet<String>, String> {
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--package", "cowhand", "--edges", "normal", "--prefix", "none"]);
    let listed = output(tree.args(["--format", "{p}", "--features", features]))?;
    Ok(listed.lines().filter_map(of_others).collect())
}

/// The crate that a line of `cargo tree` names, with its version, unless it lies in this tree.
fn of_others(line: &str) -> Option<String> {
    let (name, rest) = line.split_once(' ')?;
    let version = rest.split_whitespace().next()?;
    let is_here = rest.contains("(/") || rest.contains("(file:");
    (!is_here).then(|| format!("{name} {version}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_this_tree_do_not_count_and_others_do_once() {
        let lines = [
            "cowhand v0.1.0 (/home/user/cowhand/crates/cowhand)",
            "libc v0.2.191",
            "libc v0.2.191 (*)",
            "futures-macro v0.3.34 (proc-macro)",
        ];
        let found: BTreeSet<String> = lines.into_iter().filter_map(of_others).collect();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["futures-macro v0.3.34", "libc v0.2.191"]);
    }

    #[test]
    fn the_library_links_no_more_foreign_crates_than_it_may() {
        check().unwrap();
    }
}
