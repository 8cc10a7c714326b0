//! Tables on record: `docs/bench/TABLE.tsv` has what was measured, `targets.tsv` what was to be reached.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::bench::table::{Table, Verdict};
use crate::bench::tables::TABLES;
use crate::bench::write;

/// The file of all targets.
const TARGETS: &str = "targets.tsv";
const HEADS: &str = "table\tfigure\ttarget\tfound\toutcome";

/// A target on record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Id of its table.
    pub table: String,
    /// The figure.
    pub figure: String,
    /// What it must be.
    pub target: String,
    /// What it is.
    pub found: String,
    /// Whether it is reached, in words.
    pub outcome: String,
}

/// Puts `tables` on record in `directory`, and leaves the tables that were not measured as they are.
pub fn update(directory: &Path, tables: &[Table]) -> Result<(), String> {
    for table in tables {
        write(&file(directory, table.id), &rows(table))?;
    }
    write(&directory.join(TARGETS), &lines(&merged(targets(directory)?, tables)))
}

/// The targets on record.
pub fn targets(directory: &Path) -> Result<Vec<Target>, String> {
    let path = directory.join(TARGETS);
    let (head, rows) = read(&path)?;
    match head.join("\t") == HEADS {
        true => Ok(rows.into_iter().filter_map(target).collect()),
        false => Err(format!("{}: does not begin with the line `{HEADS}`", path.display())),
    }
}

/// Heads and rows of a file of this directory, without what is said above them.
pub fn read(path: &Path) -> Result<(Vec<String>, Vec<Vec<String>>), String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let cells = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<String>>();
    let mut rows = text.lines().filter(|line| !line.starts_with('#')).map(cells);
    Ok((rows.next().unwrap_or_default(), rows.collect()))
}

/// Where a table is.
pub fn file(directory: &Path, table: &str) -> PathBuf {
    directory.join(format!("{table}.tsv"))
}

/// All targets in the order of their tables: those of `tables` as they were found now.
fn merged(known: Vec<Target>, tables: &[Table]) -> Vec<Target> {
    let order = |target: &Target| TABLES.iter().position(|entry| entry.id == target.table);
    let is_new = |target: &Target| tables.iter().any(|table| table.id == target.table);
    let new = tables.iter().flat_map(|table| table.verdicts.iter().map(|verdict| of(table.id, verdict)));
    let mut all: Vec<Target> = known.into_iter().filter(|target| !is_new(target)).chain(new).collect();
    all.sort_by_key(order);
    all
}

fn of(table: &str, verdict: &Verdict) -> Target {
    let Verdict { what, target, found, .. } = verdict;
    let [table, figure, target, found] = [table, what, target, found].map(|text: &str| text.to_owned());
    Target { table, figure, target, found, outcome: verdict.outcome() }
}

fn target(cells: Vec<String>) -> Option<Target> {
    let [table, figure, target, found, outcome] = <[String; 5]>::try_from(cells).ok()?;
    Some(Target { table, figure, target, found, outcome })
}

fn lines(targets: &[Target]) -> String {
    let mut text = format!("{HEADS}\n");
    for Target { table, figure, target, found, outcome } in targets {
        let _ = writeln!(text, "{table}\t{figure}\t{target}\t{found}\t{outcome}");
    }
    text
}

/// A table for programs: what it is above it, numbers without what only helps to read.
fn rows(table: &Table) -> String {
    let mut text = format!("# {}: {}\n# {}\n", table.id, table.title, table.about.replace('\n', " "));
    let heads = table.columns.join("\t");
    let _ = writeln!(text, "{heads}");
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(|cell| plain(cell)).collect();
        let _ = writeln!(text, "{}", cells.join("\t"));
    }
    text
}

/// A cell without stress, and a number without commas.
fn plain(cell: &str) -> String {
    let cell = cell.strip_prefix("**").and_then(|cell| cell.strip_suffix("**")).unwrap_or(cell);
    let digits = cell.replace(',', "");
    if digits.parse::<f64>().is_ok() { digits } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(id: &'static str, found: f64) -> Table {
        Table {
            id,
            title: "t".into(),
            about: "how".into(),
            columns: vec!["rate".into(), "of".into()],
            rows: vec![vec!["**1,234**".into(), "1,234 (0.4)".into()]],
            verdicts: vec![Verdict::at_least(format!("speed of {id}"), found, 8.0, " x")],
            ..Table::default()
        }
    }

    #[test]
    fn a_table_is_replaced_and_the_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        std::fs::write(at.join(TARGETS), format!("{HEADS}\n")).unwrap();
        update(at, &[table("A", 4.0), table("door", 9.0)]).unwrap();
        update(at, &[table("A", 8.0)]).unwrap();
        let found: Vec<(String, String)> =
            targets(at).unwrap().into_iter().map(|target| (target.figure, target.outcome)).collect();
        let expected = [("speed of door", "met"), ("speed of A", "met")];
        assert_eq!(found, expected.map(|(figure, outcome)| (figure.to_owned(), outcome.to_owned())));
        let (heads, rows) = read(&file(at, "A")).unwrap();
        assert_eq!(
            (heads, rows),
            (vec!["rate".into(), "of".into()], vec![vec!["1234".into(), "1,234 (0.4)".into()]])
        );
    }
}
