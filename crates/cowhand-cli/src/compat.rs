//! The program under the names of QEMU's tools: it takes their command lines and prints their results.
//!
//! The name is the last part of `argv[0]`; `cowhand compat install DIR` makes links of these names. Each program is one folder
//! here, which turns words into what cowhand's own commands take. Forms of results are QEMU's, sentences are ours.

mod chardev_line;
mod daemon;
pub mod img;
mod io;
pub mod keyval;
pub mod last_wins;
pub mod links;
mod names;
mod nbd;
mod objects;
pub mod storage_daemon;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use tool::failure::{FAILED, Failure};

use crate::policy;
use crate::usage::usage;

/// A program of QEMU whose place cowhand takes.
#[derive(Debug)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// Its command line.
    pub command: fn() -> clap::Command,
    /// The exit code of wrong usage, by the words and what is wrong with them.
    usage_code: fn(&[OsString], &clap::Error) -> u8,
    run: fn(&clap::ArgMatches, &mut dyn Write) -> Result<ExitCode, Failure>,
}

/// All of them.
pub static PROGRAMS: [Program; 4] = [
    Program { name: names::IMG.name, command: img::command, usage_code: img::usage_code, run: img::run },
    Program { name: names::IO.name, command: io::command, usage_code: |_, _| FAILED, run: io::run },
    Program { name: names::NBD.name, command: nbd::command, usage_code: |_, _| FAILED, run: nbd::run },
    Program {
        name: names::STORAGE_DAEMON.name,
        command: storage_daemon::command,
        usage_code: |_, _| FAILED,
        run: storage_daemon::run,
    },
];

/// The program that is called as the first of `words`, if it is one of QEMU's.
pub fn program_of(words: &[OsString]) -> Option<&'static Program> {
    let called = Path::new(words.first()?).file_name()?;
    PROGRAMS.iter().find(|program| called == program.name)
}

impl Program {
    /// Does what `words` say, the program's name before them.
    ///
    /// # Errors
    /// As the command that they mean. Wrong usage is reported, and gives an exit code.
    pub fn run(&self, words: &[OsString], out: &mut dyn Write) -> Result<ExitCode, Failure> {
        policy::run_as_qemu();
        let parse = |words: &[OsString]| (self.command)().try_get_matches_from(words);
        // A value that is not allowed does not matter where the option stands again later.
        let parsed = parse(words).or_else(|error| match error.kind() {
            ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
                let words = last_wins::without_replaced(&(self.command)(), words);
                words.map_or(Err(error), |kept| parse(&kept.words))
            }
            _ => Err(error),
        });
        match parsed {
            Ok(matches) => (self.run)(&matches, out),
            Err(error) => Ok(usage(&error, (self.usage_code)(words, &error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_the_last_part_of_its_name() {
        let found = |name: &str| program_of(&[OsString::from(name)]).map(|program| program.name);
        assert_eq!(found("/usr/local/bin/qemu-img"), Some("qemu-img"));
        assert_eq!(found("qemu-img"), Some("qemu-img"));
        for name in ["cowhand", "/opt/qemu-img/cowhand", "qemu-imgs", ""] {
            assert_eq!(found(name), None, "{name}");
        }
        assert!(program_of(&[]).is_none());
    }

    /// oVirt reads the number there: the same word of QEMU's other programs is "version".
    #[test]
    fn the_second_word_of_qemu_nbds_version_is_a_number() {
        let version = |name: &str| {
            let program = PROGRAMS.iter().find(|program| program.name == name).unwrap();
            (program.command)().render_version()
        };
        let second = |name: &str| version(name).split_whitespace().nth(1).unwrap().to_owned();
        assert_eq!((second("qemu-nbd"), second("qemu-img")), ("11.1.0".to_owned(), "version".to_owned()));
    }

    #[test]
    fn the_command_lines_are_free_of_contradictions() {
        PROGRAMS.iter().for_each(|program| (program.command)().debug_assert());
    }
}
