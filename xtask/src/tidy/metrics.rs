//! docs/reference/metrics.md lists the figures that the server exports, and no others.

use super::tree::Tree;

const PAGE: &str = "docs/reference/metrics.md";

/// Where the names of figures stand: without the unit and without `_total`, which the encoder adds.
const SOURCES: [&str; 2] =
    ["crates/cowhand-cli/src/serve/metrics/text.rs", "crates/cowhand-cli/src/map_figures.rs"];

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
    missing.chain(unknown.map(|row| format!("{PAGE}: {row} is exported by nothing"))).collect()
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
    fn names_that_moved_away_are_noticed() {
        assert_eq!(of("", "").len(), 1);
    }
}
