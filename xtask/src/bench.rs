//! `cargo xtask bench`: the server side by side with its rivals, on the same bytes, in one run.
//!
//! Every figure is the median of several rounds; in each round every server is measured once, in
//! turn, so that a machine that is slow for a minute is slow for all of them.

mod door;
mod fio;
mod server;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;

/// Options of `cargo xtask bench`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Few and short rounds: shapes, not figures
    #[arg(long)]
    quick: bool,

    /// Only cases whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Directory on a disk for the images (2 GiB each)
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    directory: PathBuf,

    /// Write the tables to this file as well
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Rounds of each case
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,

    /// Seconds of each measurement
    #[arg(long, value_name = "N")]
    seconds: Option<u32>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: u32,
    seconds: u32,
}

/// Runs `cargo xtask bench`.
pub fn run(args: &Args) -> ExitCode {
    let usual = if args.quick { Effort { rounds: 2, seconds: 1 } } else { Effort { rounds: 5, seconds: 3 } };
    let effort = Effort {
        rounds: args.rounds.unwrap_or(usual.rounds),
        seconds: args.seconds.unwrap_or(usual.seconds),
    };
    match door::run(args, effort) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask bench: {error}");
            ExitCode::FAILURE
        }
    }
}
