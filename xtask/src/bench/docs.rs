//! Tables in docs/internals/performance.md: each between markers of its own, what stands around them is kept.

use std::fmt::Write;
use std::path::Path;

use super::table::{Table, Verdict};
use super::tables::TABLES;

const BEGIN: &str = "<!-- tables: written by `cargo xtask bench` -->";
const END: &str = "<!-- end of tables -->";

/// Replaces `tables` in a file, and leaves the tables that were not measured as they are.
pub fn update(path: &Path, tables: &[Table]) -> Result<(), String> {
    let unusable = |error: std::io::Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(unusable)?;
    let sections: Vec<(&str, String)> = tables.iter().map(|table| (table.id, markdown(table))).collect();
    let order: Vec<&str> = TABLES.iter().map(|entry| entry.id).collect();
    let replaced = replaced(&text, &sections, &order)
        .ok_or_else(|| format!("{}: the lines {BEGIN} and {END} are missing", path.display()))?;
    std::fs::write(path, replaced).map_err(unusable)
}

/// The text with each section in its place; `None` without the two markers.
fn replaced(text: &str, sections: &[(&str, String)], order: &[&str]) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (generated, after) = rest.split_once(END)?;
    let mut all = String::new();
    for id in order {
        let measured = sections.iter().find(|(section, _)| section == id).map(|(_, text)| text.trim());
        if let Some(section) = measured.or_else(|| section(generated, id)) {
            all += &format!("<!-- table {id} -->\n\n{section}\n\n");
        }
    }
    Some(format!("{before}{BEGIN}\n\n{all}{END}{after}"))
}

/// What stands under one table's marker.
fn section<'a>(generated: &'a str, id: &str) -> Option<&'a str> {
    let (_, rest) = generated.split_once(&format!("<!-- table {id} -->"))?;
    Some(rest.split("<!-- table ").next().unwrap_or(rest).trim())
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

    fn page(generated: &str) -> String {
        format!("# Head\n\n{BEGIN}{generated}{END}\n\nfindings\n")
    }

    #[test]
    fn measured_tables_are_replaced_and_everything_else_is_kept() {
        let old = page("\n\n<!-- table A -->\n\nold a\n\n<!-- table B -->\n\nold b\n\n");
        let new =
            replaced(&old, &[("B", "new b\n".into()), ("door", "new door".into())], &["door", "A", "B"]);
        let expected = page(
            "\n\n<!-- table door -->\n\nnew door\n\n<!-- table A -->\n\nold a\n\n<!-- table B -->\n\nnew b\n\n",
        );
        assert_eq!(new, Some(expected));
    }

    #[test]
    fn writing_the_same_tables_again_changes_nothing() {
        let sections = [("A", "a".to_owned())];
        let once = replaced(&page("\n"), &sections, &["A"]).unwrap();
        assert_eq!(replaced(&once, &sections, &["A"]), Some(once.clone()));
        assert_eq!(replaced("no markers", &sections, &["A"]), None);
    }

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
