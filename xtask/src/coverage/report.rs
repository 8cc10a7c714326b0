//! What was reached, file by file, from the lines of an lcov file.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::Path;

/// Where the code is whose coverage is asked for.
const ROOMS: [&str; 3] = ["crates/qcow2-layout/src/", "crates/map-cache/src/", "crates/qcow2/src/"];

/// Tests at the end of a file are no part of what is tested.
const TESTS_BEGIN: &str = "#[cfg(test)]";

/// How often each line of each file ran.
#[derive(Debug, Default)]
pub(super) struct Report {
    files: BTreeMap<String, BTreeMap<u32, u64>>,
}

impl Report {
    /// Reads `lcov`; names are relative to `root`, files are read there to leave out their tests.
    pub(super) fn read(lcov: &str, root: &Path, part: Option<&str>) -> Self {
        let mut report = Self::default();
        let prefix = format!("{}/", root.display());
        let mut file: Option<(String, u32)> = None;
        for line in lcov.lines() {
            if let Some(path) = line.strip_prefix("SF:") {
                let name = path.strip_prefix(&prefix).unwrap_or(path);
                let wanted = ROOMS.iter().any(|room| name.starts_with(room))
                    && part.is_none_or(|part| name.contains(part));
                let text =
                    if wanted { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
                file = wanted.then(|| (name.to_owned(), tests_begin(&text)));
            } else if let (Some((name, end)), Some((number, count))) = (&file, counted(line))
                && number < *end
            {
                let lines = report.files.entry(name.clone()).or_default();
                *lines.entry(number).or_default() += count;
            }
        }
        report
    }

    /// A line for each file, and for each room.
    pub(super) fn table(&self, with_lines: bool) -> String {
        let mut text = String::from("| file | lines | not reached | reached |\n|---|---|---|---|\n");
        for room in ROOMS {
            let files = self.files.iter().filter(|(name, _)| name.starts_with(room));
            let (mut all, mut missed) = (0, 0);
            for (name, lines) in files {
                let not_reached = lines.values().filter(|&&count| count == 0).count();
                row(&mut text, name.trim_start_matches("crates/"), lines.len(), not_reached);
                (all, missed) = (all + lines.len(), missed + not_reached);
                for gap in with_lines.then(|| gaps(lines)).into_iter().flatten() {
                    let _ = writeln!(text, "    {name}:{}-{}", gap.start(), gap.end());
                }
            }
            if all > 0 {
                let name = room.trim_start_matches("crates/").trim_end_matches("/src/");
                row(&mut text, &format!("**{name}**"), all, missed);
            }
        }
        text
    }
}

fn row(text: &mut String, name: &str, lines: usize, missed: usize) {
    let reached = 100.0 * (lines - missed) as f64 / lines.max(1) as f64;
    let _ = writeln!(text, "| {name} | {lines} | {missed} | {reached:.1} % |");
}

/// The number of a line and how often it ran.
fn counted(line: &str) -> Option<(u32, u64)> {
    let (number, count) = line.strip_prefix("DA:")?.split_once(',')?;
    Some((number.parse().ok()?, count.split(',').next()?.parse().ok()?))
}

/// The line from which on a file is tests.
fn tests_begin(text: &str) -> u32 {
    let found = text.lines().position(|line| line == TESTS_BEGIN);
    found.map_or(u32::MAX, |index| u32::try_from(index).unwrap_or(u32::MAX) + 1)
}

/// Neighbouring lines that were not reached, together.
fn gaps(lines: &BTreeMap<u32, u64>) -> Vec<RangeInclusive<u32>> {
    let mut gaps: Vec<RangeInclusive<u32>> = Vec::new();
    let mut open = false;
    for (&line, &count) in lines {
        match gaps.last_mut() {
            Some(last) if open && count == 0 => *last = *last.start()..=line,
            _ if count == 0 => gaps.push(line..=line),
            _ => {}
        }
        open = count == 0;
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    const LCOV: &str = "SF:/w/crates/qcow2/src/a.rs\nDA:1,3\nDA:2,0\nDA:4,0\nDA:5,1\nDA:9,0\nend_of_record\n\
                        SF:/w/crates/sim/src/b.rs\nDA:1,0\nend_of_record\n\
                        SF:/w/crates/qcow2/src/a.rs\nDA:9,2\nend_of_record\n";

    #[test]
    fn a_line_is_reached_if_any_binary_reached_it_and_other_rooms_do_not_count() {
        let report = Report::read(LCOV, Path::new("/w"), None);
        let table = report.table(true);
        assert!(table.contains("| qcow2/src/a.rs | 5 | 2 | 60.0 % |"), "{table}");
        assert!(table.contains("crates/qcow2/src/a.rs:2-4") && !table.contains("sim"), "{table}");
    }

    #[test]
    fn tests_at_the_end_of_a_file_do_not_count() {
        assert_eq!(tests_begin("one\n#[cfg(test)]\nmod tests {"), 2);
        assert_eq!(tests_begin("    #[cfg(test)]\n"), u32::MAX);
    }
}
