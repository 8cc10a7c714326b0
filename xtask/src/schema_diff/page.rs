//! The part of docs/reference/compat.md that is made of the difference.

use std::fs;
use std::path::Path;

use super::reasons::Explained;
use crate::peers::qemu_releases::Unpacked;

/// The table stands between these.
const BEGIN: &str = "<!-- schema-diff: cargo xtask schema-diff --write -->\n";
const END: &str = "<!-- end of schema-diff -->\n";

/// The line with the versions begins so. A newer package of the same release changes nothing else.
const VERSIONS: &str = "Compared with ";

/// Entries of one reason that are named; of more, how many there are.
const NAMED_MAX: usize = 5;

/// The text between the markers.
pub fn page(releases: &[Unpacked], explained: &[Explained]) -> String {
    let version = |qemu: &Unpacked| format!("QEMU {} (Debian's {})", qemu.upstream(), qemu.version);
    let versions = releases.iter().map(version).collect::<Vec<_>>().join(" and ");
    let mut page = format!("{VERSIONS}{versions}.\n");
    let mut groups: Vec<&str> = Vec::new();
    for reason in explained.iter().filter(|reason| !reason.entries.is_empty()) {
        if !groups.contains(&&reason.who[..]) {
            groups.push(&reason.who);
        }
    }
    for group in groups {
        page.push_str(&format!("\n### {group}\n\n| difference | in | reason |\n|---|---|---|\n"));
        let of_group = explained.iter().filter(|reason| reason.who == group && !reason.entries.is_empty());
        for reason in of_group {
            page.push_str(&row(reason));
        }
    }
    page
}

fn row(reason: &Explained) -> String {
    // Brackets before a parenthesis would be a link.
    let shown = |entry: &String| format!("`{}`", entry.replace("](", "] ("));
    let named = reason.entries.iter().take(NAMED_MAX).map(shown);
    let mut named = named.collect::<Vec<_>>().join(", ");
    if let Some(more) = reason.entries.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        named.push_str(&format!(" and {more} more"));
    }
    format!("| {} | {} | {} |\n", named.replace('|', "\\|"), reason.has_them.join(", "), reason.why)
}

/// Puts `page` into the document at `path`.
///
/// # Errors
/// When the document cannot be read or written, or has no place for it.
pub fn write(path: &Path, page: &str) -> Result<(), String> {
    let text = read(path)?;
    let (before, _, after) = parts(path, &text)?;
    let text = format!("{before}{BEGIN}{page}{END}{after}");
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Holds the document at `path` against `page`.
///
/// # Errors
/// When it has something else.
pub fn check(path: &Path, page: &str) -> Result<(), String> {
    let text = read(path)?;
    let (_, found, _) = parts(path, &text)?;
    let without_versions = |page: &str| {
        page.lines().filter(|line| !line.starts_with(VERSIONS)).map(str::to_owned).collect::<Vec<_>>()
    };
    match without_versions(found) == without_versions(page) {
        true => Ok(()),
        false => Err(format!("{} is not up to date: run `cargo xtask schema-diff --write`", path.display())),
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The document before, between and behind the markers.
fn parts<'a>(path: &Path, text: &'a str) -> Result<(&'a str, &'a str, &'a str), String> {
    let found = text.split_once(BEGIN).and_then(|(before, rest)| {
        let (between, after) = rest.split_once(END)?;
        Some((before, between, after))
    });
    found.ok_or_else(|| format!("{}: no lines {:?} and {:?}", path.display(), BEGIN.trim(), END.trim()))
}
