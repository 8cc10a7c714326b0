//! The program's texts and documents name only options that exist. An error once advised the option
//! `--chain-max`, which does not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use cowhand_cli::cli::Cli;
use cowhand_cli::compat::PROGRAMS;

/// Options of fio, losetup, nbdcopy and qemu-img, in the lines to paste.
const OF_OTHERS: [&str; 20] = [
    "bs",
    "direct-io",
    "find",
    "header",
    "image-options",
    "image-opts",
    "iodepth",
    "ioengine",
    "name",
    "object",
    "pbkdf-memory",
    "progress",
    "resume-only",
    "runtime",
    "rw",
    "show",
    "time_based",
    "unix-socket",
    "uri",
    "vhost-user",
];

/// What is said to users; the rest of the documents is about `cargo xtask` and other programs.
const DOCUMENTS: [&str; 7] = [
    "README.md",
    "CHANGELOG.md",
    "docs/reference/compat.md",
    "docs/reference/qmp.md",
    "docs/reference/serving.md",
    "docs/internals/threat-model.md",
    "docs/internals/write-order.md",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The long options of all commands.
fn known() -> BTreeSet<String> {
    fn collect(command: &clap::Command, into: &mut BTreeSet<String>) {
        into.extend(command.get_arguments().filter_map(|argument| argument.get_long()).map(str::to_owned));
        command.get_subcommands().for_each(|command| collect(command, into));
    }
    let mut known = BTreeSet::new();
    for mut command in PROGRAMS.iter().map(|program| (program.command)()).chain([Cli::command()]) {
        command.build();
        collect(&command, &mut known);
    }
    known
}

/// The words of a text that look like long options.
fn options(text: &str) -> impl Iterator<Item = &str> {
    let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    text.match_indices("--").filter_map(move |(at, _)| {
        let before = text[..at].chars().next_back();
        let word = &text[at + 2..];
        let word = &word[..word.find(|c| !name(c)).unwrap_or(word.len())];
        let begins = word.starts_with(|c: char| c.is_ascii_lowercase());
        (begins && !before.is_some_and(|c| c.is_alphanumeric() || c == '-')).then_some(word)
    })
}

/// What a source file says: without comments and tests.
fn sources(directory: &Path, into: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let shipped = text.split("#[cfg(test)]").next().unwrap_or_default();
            let is_ours = |line: &&str| !line.trim_start().starts_with("//") && !line.contains("cargo ");
            let lines: Vec<_> = shipped.lines().filter(is_ours).collect();
            into.push((path, lines.join("\n")));
        }
    }
}

#[test]
fn every_option_that_is_named_exists() {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(workspace().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        // They are not in the program, and speak of `cargo xtask`.
        if !path.ends_with("sim") && !path.ends_with("sync") {
            sources(&path.join("src"), &mut texts);
        }
    }
    for name in DOCUMENTS {
        let text = std::fs::read_to_string(workspace().join(name)).unwrap();
        let ours: Vec<_> = text.lines().filter(|line| !line.contains("cargo ")).collect();
        texts.push((name.into(), ours.join("\n")));
    }
    let known = known();
    let mut seen = 0;
    let mut unknown = Vec::new();
    for (path, text) in &texts {
        for word in options(text) {
            seen += 1;
            if !known.contains(word) && !OF_OTHERS.contains(&word) {
                unknown.push(format!("{}: --{word}", path.display()));
            }
        }
    }
    assert!(seen > 100, "{seen} options were seen");
    assert!(unknown.is_empty(), "{unknown:#?}");
}
