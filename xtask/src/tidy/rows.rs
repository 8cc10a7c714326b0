//! Each row of docs/internals/write-order.md is a test of the same name.

use super::tree::Tree;

const DOCUMENT: &str = "docs/internals/write-order.md";
const TESTS: [&str; 2] = ["crates/qcow2/tests/all/write_order.rs", "crates/qcow2/tests/all/sim_jobs.rs"];

/// Where the table begins.
const HEADING: &str = "| operation |";

pub fn complaints(tree: &Tree) -> Vec<String> {
    let rows = rows(tree.text(DOCUMENT));
    if rows.is_empty() {
        return vec![format!("{DOCUMENT}: there is no table that begins with `{HEADING}`")];
    }
    let has_test = |name: &&str| TESTS.iter().any(|file| tree.text(file).contains(&format!("fn {name}()")));
    let missing = rows.into_iter().filter(|name| !has_test(name));
    missing.map(|name| format!("{DOCUMENT}: the row {name} has no test in {}", TESTS.join(" or "))).collect()
}

/// The names in the first column, of which a row may have several.
fn rows(document: &str) -> Vec<&str> {
    let table = document.lines().skip_while(|line| !line.starts_with(HEADING)).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let names = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split(','));
    names.map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "| case |\n|---|\n| x |\n\n| operation | writes |\n|---|---|\n| grow | a |\n| shrink, trim | b |\n\n| y |";

    #[test]
    fn every_name_of_the_table_needs_a_test() {
        let all = "fn grow() {}\nfn shrink() {}\nfn trim() {}\n";
        let with = |one, other| Tree::of(&[(DOCUMENT, TABLE), (TESTS[0], one), (TESTS[1], other)]);
        assert_eq!(complaints(&with(all, "")), [""; 0]);
        assert_eq!(complaints(&with("fn grow() {}\n", "fn shrink() {}\nfn trim() {}\n")), [""; 0]);
        let found = complaints(&with("fn grow() {}\nfn shrinking() {}\n", ""));
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_document_without_the_table_is_not_fine() {
        assert_eq!(complaints(&Tree::of(&[(DOCUMENT, "words"), (TESTS[0], ""), (TESTS[1], "")])).len(), 1);
    }
}
