//! The options of the tools, as their help lists them, and the commands of qemu-io.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::Entries;

/// Commands of qemu-img.
const IMG: [&str; 15] = [
    "amend", "bench", "bitmap", "check", "commit", "compare", "convert", "create", "dd", "info", "map",
    "measure", "rebase", "resize", "snapshot",
];

/// Values with which an option that needs one is tried.
const VALUES: [&str; 8] = ["1", "raw", "on", "json", "none", "all", "off", "unmap"];

/// Everything that the help of the programs in `directory` lists.
///
/// # Errors
/// When a program does not run.
pub fn options(directory: &Path) -> Result<Entries, String> {
    let mut found = Entries::new();
    let whole = help(directory, "qemu-img", &["--help"])?;
    for command in IMG {
        found.insert(format!("qemu-img {command}"));
        let of_command = help(directory, "qemu-img", &[command, "--help"])?;
        let of_command = if is_help_of(&of_command, command) { of_command } else { section(&whole, command) };
        found.extend(named(&of_command).map(|option| format!("qemu-img {command} {option}")));
    }
    for program in ["qemu-nbd", "qemu-storage-daemon"] {
        let help = help(directory, program, &["--help"])?;
        found.extend(named(&help).map(|option| format!("{program} {option}")));
    }
    let io = help(directory, "qemu-io", &["-c", "help"])?;
    found.extend(commands(&io).map(|command| format!("qemu-io: {command}")));
    let io = help(directory, "qemu-io", &["--help"])?;
    found.extend(named(&io).map(|option| format!("qemu-io {option}")));
    Ok(found)
}

/// Whether the programs in `directory` take the option that `entry` is, though their help does not list it.
pub fn is_accepted(directory: &Path, entry: &str) -> bool {
    let mut words = entry.split(' ');
    let Some(program) =
        words.next().filter(|program| program.starts_with("qemu-") && !program.ends_with(':'))
    else {
        return false;
    };
    let words: Vec<&str> = words.collect();
    if !words.last().is_some_and(|last| last.starts_with('-')) {
        return false;
    }
    let end = if program == "qemu-io" { "--version" } else { "--help" };
    let alone = [&words[..], &[end]].concat();
    let with_value = VALUES.iter().map(|value| [&words[..], &[value, end]].concat());
    std::iter::once(alone)
        .chain(with_value)
        .any(|words| run(directory, program, &words).is_ok_and(|output| output.status.success()))
}

fn run(directory: &Path, program: &str, arguments: &[&str]) -> Result<Output, String> {
    let output = Command::new(directory.join(program)).args(arguments).stdin(Stdio::null()).output();
    output.map_err(|error| format!("{}: {error}", directory.join(program).display()))
}

/// What a program prints on both of its outputs.
fn help(directory: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = run(directory, program, arguments)?;
    Ok(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
}

/// Whether `help` is of one command of qemu-img: before version 10.1 there is one text for all.
fn is_help_of(help: &str, command: &str) -> bool {
    let first = help.lines().take(3).any(|line| line.contains(&format!("qemu-img {command}")));
    first && !help.contains("Command syntax:")
}

/// The lines of qemu-img's whole help that are of one command.
fn section(whole: &str, command: &str) -> String {
    let start = format!("  {command} ");
    let lines = whole.lines().skip_while(|line| !line.starts_with("Command syntax"));
    lines.filter(|line| line.starts_with(&start)).map(|line| format!("{line}\n")).collect()
}

/// The options in a help text: words that begin with a dash and are not part of another word.
fn named(help: &str) -> impl Iterator<Item = String> {
    let words = help.split(|c: char| c.is_whitespace() || "[](){}|,=:;'\"<>`".contains(c));
    words.filter(|word| is_option(word)).map(|word| word.trim_end_matches('.').to_owned())
}

fn is_option(word: &str) -> bool {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).unwrap_or_default();
    let is_short = !word.starts_with("--");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let name = name.trim_end_matches('.');
    begins && name.chars().all(is_name) && (!is_short || name.len() == 1)
}

/// The commands that `help` of qemu-io lists: `NAME ARGUMENTS -- WHAT`.
fn commands(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().filter(|line| line.contains(" -- ") && !line.starts_with(' '));
    lines.filter_map(|line| line.split([' ', ',']).next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_in_both_forms_of_help() {
        let older = "usage: qemu-img\n\nCommand syntax:\n  amend [--object objectdef] [-p] -o options filename\n  bench [-c count]\n";
        let amend = section(older, "amend");
        assert_eq!(named(&amend).collect::<Vec<_>>(), ["--object", "-p", "-o"]);
        let newer = "Usage: qemu-img amend [-f FMT] FILE\n  -f, --format FMT\n     set read-only, values off|on (default: 'off').\n";
        assert!(is_help_of(newer, "amend") && !is_help_of(older, "amend"));
        assert_eq!(named(newer).collect::<Vec<_>>(), ["-f", "-f", "--format"]);
    }

    #[test]
    fn commands_of_qemu_io_are_what_its_help_names() {
        let help = "abort  -- simulate\naio_read [-Cqv] off len -- asynchronously reads\nhelp [command] -- help\n\nUse 'help x'\n";
        assert_eq!(commands(help).collect::<Vec<_>>(), ["abort", "aio_read", "help"]);
    }
}
