//! `qemu-io`: `cowhand io`, whose commands, options and results are qemu-io's, under that name.

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, Args as _, Command, FromArgMatches};
use tool::failure::Failure;

use super::names::VERSION;
use super::objects;
use crate::io::{self, Args};
use crate::warnings;

/// The command line of `qemu-io`.
pub fn command() -> Command {
    let command = objects::add_to(Args::augment_args(Command::new("qemu-io")));
    command
        .version(VERSION)
        .about("Requests on a disk, one by one (cowhand under qemu-io's name)")
        .infer_long_args(true)
        .args_override_self(true)
}

/// Does what the command line says.
///
/// # Errors
/// As `cowhand io`.
pub fn run(matches: &ArgMatches, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    let args = Args::from_arg_matches(matches)
        .map_err(|error| Failure::because("the command line is not understood", &error))?;
    warnings::show_guesses();
    objects::make(matches)?;
    io::run(&args, out)
}
