//! docs/reference/metrics.md lists the figures that the server exports, and no others; the alert rules and the dashboard of packaging/ use figures of the page.

use super::tree::Tree;

const PAGE: &str = "docs/reference/metrics.md";

/// Where the names of figures stand: without the unit and without `_total`, which the encoder adds.
const SOURCES: [&str; 2] =
    ["crates/cowhand-cli/src/serve/metrics/text.rs", "crates/cowhand-cli/src/map_figures.rs"];

/// What uses figures by name.
const USERS: [&str; 2] =
    ["packaging/monitoring/cowhand.rules.yml", "packaging/monitoring/cowhand-dashboard.json"];

/// What the series of a histogram are called behind its name.
const SERIES: [&str; 3] = ["_bucket", "_count", "_sum"];

/// What the encoder may add to a name.
const ADDED: [&str; 6] = ["", "_bytes", "_seconds", "_total", "_bytes_total", "_seconds_total"];

pub fn complaints(tree: &Tree) -> Vec<String> {
    let exported: Vec<&str> = SOURCES.iter().flat_map(|source| names(tree.text(source))).collect();
    let listed: Vec<&str> = rows(tree.text(PAGE)).collect();
    if exported.is_empty() {
        return vec![format!("{}: no names of figures were found there", SOURCES.join(", "))];
    }
    let is = |row: &str, name: &str| row.strip_prefix(name).is_some_and(|rest| ADDED.contains(&rest));
    let missing = exported.iter().filter(|name| !listed.iter().any(|row| is(row, name)));
    let missing = missing.map(|name| format!("{PAGE}: has no row for {name}"));
    let unknown = listed.iter().filter(|row| !exported.iter().any(|name| is(row, name)));
    let unknown = unknown.map(|row| format!("{PAGE}: {row} is exported by nothing"));
    missing.chain(unknown).chain(lost(tree, &listed)).collect()
}

/// Names in what uses figures that have no row.
fn lost(tree: &Tree, listed: &[&str]) -> Vec<String> {
    let mut lost = Vec::new();
    for (file, text) in USERS.iter().map(|file| (file, tree.text(file))) {
        let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let used = words.filter(|word| word.starts_with("cowhand_"));
        let is_listed = |used: &str| {
            let series = SERIES.iter().filter_map(|series| used.strip_suffix(series));
            series.chain([used]).any(|name| listed.contains(&name))
        };
        lost.extend(
            used.filter(|used| !is_listed(used)).map(|used| format!("{file}: {PAGE} has no row for {used}")),
        );
    }
    lost
}

/// Names in quotes.
fn names(source: &str) -> impl Iterator<Item = &str> {
    source.split('"').skip(1).step_by(2).filter(|text| {
        text.starts_with("cowhand_") && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    })
}

/// Names in the first column of the tables.
fn rows(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(page: &str, source: &str) -> Vec<String> {
        complaints(&Tree::of(&[(PAGE, page), (SOURCES[0], source)]))
    }

    #[test]
    fn the_page_lists_what_is_exported() {
        let source = "gauge(\"cowhand_disk_size\", In::Bytes, \"Size\"), counter(\"cowhand_hits\")";
        assert_eq!(of("| `cowhand_disk_size_bytes` | |\n| `cowhand_hits_total` | |\n", source), [""; 0]);
        let found = of("| `cowhand_disk_size_bytes` | |\n| `cowhand_gone` | |\n", source);
        let expected = [
            format!("{PAGE}: has no row for cowhand_hits"),
            format!("{PAGE}: cowhand_gone is exported by nothing"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_rule_that_asks_for_what_is_not_exported_is_found() {
        let files = [
            (PAGE, "| `cowhand_time_seconds` | |\n"),
            (SOURCES[0], "histogram(\"cowhand_time\")"),
            (USERS[0], "expr: rate(cowhand_time_seconds_bucket[5m]) > cowhand_gone"),
        ];
        let found = complaints(&Tree::of(&files));
        assert_eq!(found, [format!("{}: {PAGE} has no row for cowhand_gone", USERS[0])]);
    }

    #[test]
    fn names_that_moved_away_are_noticed() {
        assert_eq!(of("", "").len(), 1);
    }
}
