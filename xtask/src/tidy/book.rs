//! The pages of docs/ are a book: SUMMARY.md lists each of them once, each says which question it answers, and links lead to headings
//! that exist. Comments of the code name pages that exist.

use super::names::resolve;
use super::tree::Tree;

const SUMMARY: &str = "docs/SUMMARY.md";

/// What one of the first lines of a page begins with.
const QUESTION: &str = "**Question it answers:**";

/// Lines within which a page says which question it answers.
const FIRST_LINES: usize = 3;

pub fn complaints(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let listed: Vec<_> = links(tree.text(SUMMARY)).map(|(target, _)| format!("docs/{target}")).collect();
    for (page, text) in tree.ending(".md").filter(|(page, _)| page.starts_with("docs/") && *page != SUMMARY) {
        let count = listed.iter().filter(|name| *name == page).count();
        if count != 1 {
            complaints.push(format!("{SUMMARY}: lists {page} {count} times; must be once"));
        }
        if !text.lines().take(FIRST_LINES).any(|line| line.starts_with(QUESTION)) {
            complaints.push(format!("{page}: none of the first {FIRST_LINES} lines begins with {QUESTION}"));
        }
    }
    complaints.extend(lost_headings(tree));
    complaints.extend(lost_pages(tree));
    complaints
}

/// Links to a heading that its page does not have.
fn lost_headings(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (document, text) in tree.ending(".md") {
        for (target, heading) in links(text).filter(|(_, heading)| !heading.is_empty()) {
            let page = if target.is_empty() { document.to_owned() } else { resolve(document, target) };
            if tree.has(&page) && !headings(tree.text(&page)).any(|slug| slug == heading) {
                complaints.push(format!("{document}: {page} has no heading #{heading}"));
            }
        }
    }
    complaints
}

/// Pages that sources name and that do not exist.
fn lost_pages(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    // The rules' own tests name pages that were made up.
    for (source, text) in tree.ending(".rs").filter(|(source, _)| !source.starts_with("xtask/src/tidy/")) {
        for (at, _) in text.match_indices("docs/") {
            let name = text.get(at..).unwrap_or_default();
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && !"/-_.".contains(c));
            let name = name.get(..end.unwrap_or(name.len())).unwrap_or_default();
            let Some(stem) = name.find(".md").and_then(|end| name.get(..end)) else { continue };
            let ours = !text.get(..at).is_some_and(|before| before.ends_with(|c: char| c.is_alphanumeric()));
            if ours && tree.text(&format!("{stem}.md")).is_empty() {
                complaints.push(format!("{source}: names {stem}.md, which does not exist"));
            }
        }
    }
    complaints
}

/// Targets of links within the project: path and heading.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let ours = targets.filter(|target| !target.contains("://"));
    ours.map(|target| target.split_once('#').unwrap_or((target, "")))
}

/// What links call the headings of a page.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| slug(line.trim_start_matches('#').trim()))
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|&c| c.is_alphanumeric() || c == ' ' || c == '-' || c == '_');
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Backups\n\n**Question it answers:** how?\n\n## When a point counts: always\n";

    fn of(summary: &str, more: &[(&str, &str)]) -> Vec<String> {
        let files = [(SUMMARY, summary), ("docs/guide/backup.md", PAGE)];
        complaints(&Tree::of(&[&files[..], more].concat()))
    }

    #[test]
    fn a_page_is_listed_once_and_says_what_it_answers() {
        assert_eq!(of("- [Backups](guide/backup.md)\n", &[]), [""; 0]);
        assert_eq!(of("", &[]), ["docs/SUMMARY.md: lists docs/guide/backup.md 0 times; must be once"]);
        let other = [("docs/b.md", "# B\n\ntext\n\n**Question it answers:** late?\n")];
        assert_eq!(of("[a](guide/backup.md) [b](b.md)", &other).len(), 1);
    }

    #[test]
    fn headings_and_pages_that_are_named_exist() {
        let links = "[a](docs/guide/backup.md#when-a-point-counts-always) [b](docs/guide/backup.md#gone)\n";
        let found = of("[a](guide/backup.md)", &[("README.md", links)]);
        assert_eq!(found, ["README.md: docs/guide/backup.md has no heading #gone"]);
        let source = "// docs/guide/backup.md, docs/backup.md.\n";
        let found = of("[a](guide/backup.md)", &[("crates/a/src/lib.rs", source)]);
        assert_eq!(found, ["crates/a/src/lib.rs: names docs/backup.md, which does not exist"]);
    }
}
