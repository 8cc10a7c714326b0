//! Examples with what they print. A test runs all of them, in their order.

/// For each command a line `## NAME`, then lines of a terminal: what is typed behind `$ `, what is printed without. A line `...` stands
/// for lines that are left out.
const EXAMPLES: &str = include_str!("examples.txt");

/// Names of commands, without the program's, and their examples.
pub fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = EXAMPLES.split("## ").skip(1).filter_map(|section| section.split_once('\n'));
    sections.map(|(name, text)| (name, text.trim_end()))
}

/// The examples of the command with these words (`cowhand cache advise`).
pub fn of(words: &str) -> Option<&'static str> {
    let name = words.split_once(' ')?.1;
    sections().find(|(section, _)| *section == name).map(|(_, text)| text)
}
