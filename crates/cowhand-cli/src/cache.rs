//! `cowhand cache`: the memory that an image's map takes.

pub mod advice;
pub mod advise;
pub mod curve;
pub mod recency;
pub mod replay;

use std::io::Write;
use std::process::ExitCode;

use clap::Subcommand;
use tool::failure::Failure;

/// What to do.
#[derive(Debug, Subcommand)]
// No doc comment: clap would take it for the whole help, and lose `long_about`.
pub enum Command {
    #[command(
        about = "Say what the map of an image takes in memory, here and in QEMU, and which options to give"
    )]
    Advise(advise::Args),
}

/// Does it.
pub fn run(command: &Command, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    match command {
        Command::Advise(args) => advise::run(args, out),
    }
}
