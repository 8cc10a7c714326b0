//! What is kept of the tables: their rows in docs/bench, ten figures and two pictures on a page for people.

mod page;
mod record;

use std::fmt::Write;
use std::path::Path;

use super::table::{Table, Verdict};

/// Where tables are on record.
const RECORD: &str = "docs/bench";
/// The page for people.
const PAGE: &str = "docs/internals/performance.md";

/// Puts `tables` on record, and makes the page of all that are.
pub fn update(tables: &[Table]) -> Result<(), String> {
    record::update(Path::new(RECORD), tables)?;
    page::update(Path::new(PAGE), Path::new(RECORD))
}

/// One table in Markdown.
pub fn markdown(table: &Table) -> String {
    let mut text = format!("### {}: {}\n\n{}\n\n", table.id, table.title, table.about);
    let _ = writeln!(text, "| {} |", table.columns.join(" | "));
    let _ = writeln!(text, "|{}", "---|".repeat(table.columns.len()));
    for row in &table.rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    if !table.verdicts.is_empty() {
        text += "\n| figure | target | found | |\n|---|---|---|---|\n";
        table.verdicts.iter().for_each(|verdict| text += &line(verdict));
    }
    text
}

fn line(verdict: &Verdict) -> String {
    let Verdict { what, target, found, .. } = verdict;
    format!("| {what} | {target} | {found} | {} |\n", verdict.outcome())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_targets_below() {
        let table = Table {
            id: "A",
            title: "t".into(),
            about: "how".into(),
            columns: vec!["x".into()],
            rows: vec![vec!["1".into()]],
            verdicts: vec![Verdict::at_least("speed", 4.0, 8.0, " x")],
            ..Table::default()
        };
        let expected = "### A: t\n\nhow\n\n| x |\n|---|\n| 1 |\n\n| figure | target | found | |\n|---|---|---|---|\n\
            | speed | at least 8.00 x | 4.00 x | missed by 50 % |\n";
        assert_eq!(markdown(&table), expected);
    }
}
