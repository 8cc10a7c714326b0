//! `cargo xtask`: what the project does with itself, each with all that it needs.

#![forbid(unsafe_code)]

mod peers;
mod stage;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "What the project does with itself")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what the tests compare with (as root, on Debian), then run every test
    Test(test::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Test(args) => test::run(&args),
    }
}
