//! `cargo xtask schema-diff`: what QEMU's interfaces have and cowhand's do not, and the reverse, found by asking the programs.
//!
//! Three things are asked of cowhand under QEMU's names and of QEMU of two releases: the description of QMP (commands, arguments, events, drivers,
//! values), the keys of answers about the same graph, and the options of the tools. Each entry that differs needs a reason in
//! `schema_diff/reasons.toml`; docs/reference/compat.md has the table, and a stage of the full tier holds both up to date.

mod answers;
mod daemon;
mod page;
mod reasons;
mod schema;
mod tools;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use black_box::Scratch;

use self::daemon::Daemon;
use self::reasons::Reasons;
use crate::peers::qemu_releases::{self, Unpacked};
use crate::workspace::{binary, root};

/// Arguments of `cargo xtask schema-diff`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Put the table into docs/reference/compat.md
    #[arg(long)]
    write: bool,
    /// Print each entry that differs on a line of its own, with or without a reason
    #[arg(long)]
    list: bool,
    /// The program to compare [default: the one that the tests build]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// The names under which cowhand is compared.
const NAMES: [&str; 4] = ["qemu-img", "qemu-io", "qemu-nbd", "qemu-storage-daemon"];

/// Everything that one program has, as paths.
type Entries = BTreeSet<String>;

/// Entries that differ, each with the releases that have it; [`HERE`] stands for cowhand.
#[derive(Debug, Default, PartialEq, Eq)]
struct Difference(BTreeMap<String, Vec<&'static str>>);

/// What only cowhand has is listed with this in place of a release.
const HERE: &str = "cowhand";

/// Runs it.
pub fn run(args: &Args) -> ExitCode {
    match compare(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Holds the documentation against the programs, as a stage of the tests.
///
/// # Errors
/// With what differs.
pub fn stage() -> Result<(), String> {
    compare(&Args { write: false, list: false, program: None })
}

fn compare(args: &Args) -> Result<(), String> {
    let releases = qemu_releases::ensure()?;
    let difference = difference(&releases, args.program.clone().unwrap_or_else(binary))?;
    if args.list {
        for (entry, has_it) in &difference.0 {
            println!("{entry}\t{}", has_it.join(" "));
        }
    }
    let reasons = Reasons::read()?;
    let explained = reasons.of(&difference)?;
    let page = page::page(&releases, &explained);
    let path = root().join("docs/reference/compat.md");
    if args.write {
        return page::write(&path, &page);
    }
    page::check(&path, &page)
}

/// What the programs of `releases` and `program` do not have in common.
fn difference(releases: &[Unpacked], program: PathBuf) -> Result<Difference, String> {
    let scratch = Scratch::new();
    let links = scratch.file("cowhand");
    std::fs::create_dir(&links).map_err(|error| format!("{}: {error}", links.display()))?;
    for name in NAMES {
        symlink(&program, links.join(name)).map_err(|error| format!("{name}: {error}"))?;
    }
    let ours = entries(&links, &scratch.file("ours"))?;
    let mut theirs = Vec::new();
    for qemu in releases {
        let entries = entries(&qemu.programs, &scratch.file(qemu.release.name))?;
        theirs.push((qemu.release.name, entries));
    }
    let mut found = Difference::between(&ours, &theirs);
    // Help does not list all that is accepted: each option that it leaves out is tried.
    found.0.retain(|entry, has_it| has_it.contains(&HERE) || !tools::is_accepted(&links, entry));
    Ok(found)
}

/// Everything that the programs in `directory` have. Files are made in `work`.
fn entries(directory: &Path, work: &Path) -> Result<Entries, String> {
    std::fs::create_dir(work).map_err(|error| format!("{}: {error}", work.display()))?;
    let mut entries = tools::options(directory)?;
    let mut daemon = Daemon::start(directory, work)?;
    entries.extend(schema::entries(&daemon.ok("query-qmp-schema", serde_json::json!({}))?));
    entries.extend(answers::keys(&mut daemon)?);
    daemon.stop()?;
    Ok(entries)
}

impl Difference {
    fn between(ours: &Entries, theirs: &[(&'static str, Entries)]) -> Self {
        let mut found: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
        for (release, entries) in theirs {
            for entry in entries.difference(ours) {
                found.entry(entry.clone()).or_default().push(release);
            }
        }
        for entry in ours.iter().filter(|entry| !theirs.iter().any(|(_, entries)| entries.contains(*entry))) {
            found.insert(entry.clone(), vec![HERE]);
        }
        let names: Vec<String> = found.keys().cloned().collect();
        let is_part = |entry: &str| names.iter().any(|name| is_part_of(entry, name));
        found.retain(|entry, _| !is_part(entry));
        Self(found)
    }
}

/// Whether `entry` is a member, a value or a variant of what is called `whole`: it is missing because the whole is.
fn is_part_of(entry: &str, whole: &str) -> bool {
    entry.strip_prefix(whole).is_some_and(|rest| rest.starts_with(['.', '=', '(', '[']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(names: &[&str]) -> Entries {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn what_is_missing_as_a_whole_is_listed_once_and_each_entry_says_who_has_it() {
        let ours = entries(&["a", "a.b", "x"]);
        let older = entries(&["a", "a.c", "d", "d.e", "d.e=f"]);
        let newer = entries(&["a", "a.b", "a.c", "a.g[]"]);
        let found = Difference::between(&ours, &[("1", older), ("2", newer)]);
        let expected = [("a.c", vec!["1", "2"]), ("a.g[]", vec!["2"]), ("d", vec!["1"]), ("x", vec![HERE])];
        let expected = expected.into_iter().map(|(name, has_it)| (name.to_owned(), has_it)).collect();
        assert_eq!(found, Difference(expected));
    }
}
