//! `qemu-img`: cowhand's image tools with qemu-img's names, defaults and results.
//!
//! Each command is the one of `cowhand`, whose arguments are qemu-img's; what differs is changed here. How results look is in the
//! files beside this one.

pub mod check;
pub mod create;
mod long_names;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use graph::drivers::formats;
use graph::probe::Format;
use tool::failure::{FAILED, Failure};

use super::names::VERSION;
use super::objects;
use crate::cli::{self, Cli};
use crate::compare::code;
use crate::deferred::with_arguments;
use crate::dispatch;
use crate::{
    amend, bench, bitmap, commit, compare, convert, dd, info, map, measure, rebase, resize, snapshot,
    warnings,
};

/// Adds the arguments of a command.
type Arguments = fn(Command) -> Command;

/// The commands of qemu-img. Those that cowhand has are taken.
const COMMANDS: [(&str, Arguments); 15] = [
    ("amend", with_arguments::<amend::Args>),
    ("bench", with_arguments::<bench::Args>),
    ("bitmap", with_arguments::<bitmap::Args>),
    ("check", with_arguments::<crate::check::Args>),
    ("commit", with_arguments::<commit::Args>),
    ("compare", with_arguments::<compare::Args>),
    ("convert", with_arguments::<convert::Args>),
    ("create", with_arguments::<crate::create::Args>),
    ("dd", with_arguments::<dd::Args>),
    ("info", with_arguments::<info::Args>),
    ("map", with_arguments::<map::Args>),
    ("measure", with_arguments::<measure::Args>),
    ("rebase", with_arguments::<rebase::Args>),
    ("resize", with_arguments::<resize::Args>),
    ("snapshot", with_arguments::<snapshot::Args>),
];

/// `-T` before a command.
const TRACE: &str = "trace";

/// The command line of `qemu-img`.
pub fn command() -> Command {
    let own = Cli::command();
    let taken = own.get_subcommands().filter(|command| arguments_of(command).is_some());
    Command::new("qemu-img")
        .version(VERSION)
        // Older callers find the version here.
        .before_help(format!("qemu-img {VERSION}"))
        .about("Images of disks: created, copied, examined and repaired (cowhand under qemu-img's name)")
        .after_help(format!(
            "Supported formats: {}",
            formats().map(Format::name).collect::<Vec<_>>().join(" ")
        ))
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .arg(
            Arg::new(TRACE)
                .short('T')
                .long(TRACE)
                .value_name("EVENTS")
                .action(ArgAction::Append)
                .help("Trace events of QEMU (refused: there are none here)"),
        )
        .subcommands(taken.cloned().map(|command| command.defer(of_qemu)))
}

/// What adds the arguments of `command`, if qemu-img has it.
fn arguments_of(command: &Command) -> Option<Arguments> {
    COMMANDS.iter().find(|(name, _)| *name == command.get_name()).map(|(_, arguments)| *arguments)
}

/// A command of ours with its arguments and what is qemu-img's way: long options may be shortened, and the last of several
/// counts.
fn of_qemu(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let command = match arguments_of(&command) {
        Some(arguments) => arguments(command),
        None => command,
    };
    let command = long_names::add_to(objects::add_to(command));
    let command = command.infer_long_args(true).args_override_self(true);
    match name.as_str() {
        "create" => command.mut_arg("format", |argument| argument.default_value(Format::Raw.name())),
        // qemu-img's has no such letter: a script learns here what it would learn there.
        "check" => command.mut_arg("progress", |argument| argument.short(None)),
        _ => command,
    }
}

/// The exit code of wrong usage. `compare` says of a value that it cannot take what it says of an image that it cannot open.
pub fn usage_code(words: &[OsString], error: &clap::Error) -> u8 {
    let is_value = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
    if is_value && words.iter().any(|word| word == "compare") { code::CANNOT_OPEN } else { FAILED }
}

/// Does what the command line says.
///
/// # Errors
/// As the command.
pub fn run(matches: &ArgMatches, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    if let Some(events) = matches.get_one::<String>(TRACE) {
        return Err(Failure::new(format!(
            "-T {events}: there are no trace events of QEMU here; leave it out"
        )));
    }
    warnings::show_guesses();
    if let Some((_, of_command)) = matches.subcommand() {
        objects::make(of_command)?;
    }
    let command = cli::Command::from_arg_matches(matches)
        .map_err(|error| Failure::because("the command line is not understood", &error))?;
    dispatch::run(command, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::BackingFormat;

    fn parsed(words: &[&str]) -> Result<ArgMatches, String> {
        let words = [&["qemu-img"], words].concat();
        command().try_get_matches_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read_as_getopt_reads_them() {
        catalog::install();
        let matches =
            parsed(&["info", "--out", "human", "x", "-fraw", "--output=json", "-f", "qcow2"]).unwrap();
        let (name, info) = matches.subcommand().unwrap();
        let format = info.get_one::<BackingFormat>("format").map(BackingFormat::name);
        assert_eq!((name, format), ("info", Some("qcow2")));
        let shrunk = parsed(&["resize", "--format", "raw", "x", "-1k", "--shrink"]);
        assert!(shrunk.is_ok(), "{shrunk:?}");
    }

    #[test]
    fn an_image_is_raw_unless_said_otherwise() {
        catalog::install();
        let format = |words: &[&str]| {
            let matches = parsed(words).unwrap();
            matches.subcommand().and_then(|(_, create)| create.get_one::<Format>("format").copied())
        };
        assert_eq!(format(&["create", "x", "1M"]), Some(Format::Raw));
        assert_eq!(format(&["create", "-f", "qcow2", "x", "1M"]), Some(Format::Qcow2));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let refused = |words: &[&str]| {
            let mut out = Vec::new();
            parsed(words)
                .and_then(|matches| run(&matches, &mut out).map_err(|failure| failure.to_string()))
                .unwrap_err()
        };
        assert!(refused(&["-T", "bdrv_*", "info", "x"]).contains("-T bdrv_*"));
        assert!(refused(&["info", "--object", "iothread,id=a", "x"]).contains("iothread"));
        assert!(refused(&["info", "--nonsense", "x"]).contains("--nonsense"));
        assert!(refused(&["check", "-p", "x"]).contains("-p"));
        for foreign in ["serve", "top", "help"] {
            assert!(refused(&[foreign, "x"]).contains(foreign));
        }
    }
}
