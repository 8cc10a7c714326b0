//! Each row of docs/write-order.md is a test of the same name.

use super::tree::Tree;

const DOCUMENT: &str = "docs/write-order.md";
const TESTS: &str = "crates/qcow2/tests/all/write_order.rs";

/// Where the table begins.
const HEADING: &str = "| operation |";

pub fn complaints(tree: &Tree) -> Vec<String> {
    let rows = rows(tree.text(DOCUMENT));
    if rows.is_empty() {
        return vec![format!("{DOCUMENT}: there is no table that begins with `{HEADING}`")];
    }
    let tests = tree.text(TESTS);
    let missing = rows.into_iter().filter(|name| !tests.contains(&format!("fn {name}()")));
    missing.map(|name| format!("{DOCUMENT}: the row {name} has no test in {TESTS}")).collect()
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
        assert_eq!(complaints(&Tree::of(&[(DOCUMENT, TABLE), (TESTS, all)])), [""; 0]);
        let found = complaints(&Tree::of(&[(DOCUMENT, TABLE), (TESTS, "fn grow() {}\nfn shrinking() {}\n")]));
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_document_without_the_table_is_not_fine() {
        assert_eq!(complaints(&Tree::of(&[(DOCUMENT, "words"), (TESTS, "")])).len(), 1);
    }
}
