//! `cargo xtask tidy`: what the tree says of itself is true, and its rooms keep to the drawing.
//!
//! Each rule is a function from the tree to complaints, with tests on trees made up for it. A complaint names the file and
//! says what to do.

mod arrows;
mod book;
mod changelog;
mod circles;
mod columns;
mod names;
mod offsets;
mod rows;
mod sizes;
mod tiers;
mod tree;
mod unsafety;
mod words;

use std::process::ExitCode;

pub use self::names::resolve;
use self::tree::Tree;
use crate::workspace::root;

/// Arguments of `cargo xtask tidy`: none.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// A rule: its name, and what it finds wrong.
type Rule = (&'static str, fn(&Tree) -> Vec<String>);

const RULES: [Rule; 12] = [
    ("arrows between rooms", arrows::complaints),
    ("circles of files", circles::complaints),
    ("rows of write-order.md", rows::complaints),
    ("paths named in documents", names::complaints),
    ("pages of the book", book::complaints),
    ("entries of the changelog", changelog::complaints),
    ("widths of documents", columns::complaints),
    ("first tier of the tests", tiers::complaints),
    ("sizes of files and functions", sizes::complaints),
    ("rooms with unsafe code", unsafety::complaints),
    ("words", words::complaints),
    ("offsets that could be taken for each other", offsets::complaints),
];

/// Runs it.
pub fn run(_: &Args) -> ExitCode {
    match stage() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Holds every rule against the project; prints each complaint.
///
/// # Errors
/// With the number of complaints, or if the tree cannot be read.
pub fn stage() -> Result<(), String> {
    let tree = Tree::read(&root()).map_err(|error| format!("the tree cannot be read: {error}"))?;
    let mut count = 0;
    for (name, rule) in RULES {
        let complaints = rule(&tree);
        println!("{name}: {}", if complaints.is_empty() { "ok" } else { "not ok" });
        complaints.iter().for_each(|complaint| println!("  {complaint}"));
        count += complaints.len();
    }
    if count == 0 { Ok(()) } else { Err(format!("{count} complaints")) }
}
