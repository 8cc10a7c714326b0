//! The form of a tool's result: for people or for programs.

use clap::ValueEnum;

/// What `--output` takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text for people
    #[default]
    Human,
    /// JSON; --help names its keys
    Json,
}

/// What stands behind the options in the long help: `help`, and the keys of the JSON that `--output json` prints.
pub fn with_json(help: &str, keys: &[&str]) -> String {
    format!("{help}\n\n{JSON_HEADING}\n{}", keys.join("\n"))
}

/// A test reads the keys behind it: lines of two spaces, names with commas between, two spaces, what they are.
const JSON_HEADING: &str = "\
JSON (--output json): names ending in ? may be absent here; where no type is given the value is a \
whole number, and sizes, lengths and offsets are in bytes.";

/// A number with its noun: one disk, two disks.
pub fn counted(count: u64, noun: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{end}")
}
