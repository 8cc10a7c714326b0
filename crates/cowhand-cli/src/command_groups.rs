//! The groups in which `cowhand --help` lists its commands.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Command, FromArgMatches};
use tool::failure::warn;

use crate::cli::{self, Cli};
use crate::compat::last_wins::without_replaced;

/// Headings, and the commands under each.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Serve disks", &["serve", "mount"]),
    ("Make and copy", &["create", "convert", "dd", "measure", "backup", "push", "pull", "pack", "prune"]),
    ("Look and check", &["info", "map", "show", "check", "compare", "verify", "cache"]),
    ("Change an image", &["resize", "snapshot", "amend", "bitmap", "commit", "rebase", "flatten", "compact"]),
    ("Checkpoints", &["checkpoint", "fork", "rollback", "log", "diff", "gc", "forget", "publish", "restore"]),
    ("A running server", &["status", "top", "throttle", "reopen", "mirror", "stream"]),
    ("Try and measure", &["io", "bench"]),
    ("This program", &["compat", "completion", "manual"]),
];

/// Columns that the longest name takes.
const NAME_COLUMNS: usize = 10;

/// Reads the command line `words`, the program's name before it. Of several equal options the last counts, with a warning.
///
/// # Errors
/// Wrong usage, and help that was requested.
pub fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = grouped(cli::command());
    let matches = command.try_get_matches_from_mut(words).or_else(|error| {
        // clap's word for an option that stands there twice; of others that exclude each other, too.
        let kept = match error.kind() {
            ErrorKind::ArgumentConflict => without_replaced(&cli::command(), words),
            _ => None,
        };
        let Some(kept) = kept else { return Err(error) };
        let matches = command.try_get_matches_from_mut(&kept.words)?;
        for option in kept.repeated {
            warn(&format!("{option} is given twice; the last one counts"));
        }
        Ok(matches)
    })?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// `command` with help that lists its commands by group.
fn grouped(command: Command) -> Command {
    let mut list = String::new();
    for (heading, names) in GROUPS {
        list += &format!("{heading}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map_or_else(String::new, ToString::to_string);
            list += &format!("  {name:<NAME_COLUMNS$}  {about}\n");
        }
        list.push('\n');
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        listed.sort_unstable();
        let cli = cli::command();
        let shown = cli.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
        let mut shown: Vec<&str> = shown.collect();
        shown.sort_unstable();
        assert_eq!(listed, shown);
    }

    #[test]
    fn help_lists_the_groups_within_100_columns() {
        let help = grouped(cli::command()).render_long_help().to_string();
        assert!(GROUPS.iter().all(|(heading, _)| help.contains(&format!("\n{heading}:\n"))), "{help}");
        assert!(help.contains("  check       Check an image's metadata, and repair it\n"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        assert!(!help.contains("--object"), "{help}");
    }
}
